"""The HTML report: nothing in it is markup but its own template, and what it shows is what the records say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from promptrl.cli import app
from promptrl.errors import RunError
from promptrl.evaluation.records import Record, RecordFile, read_records
from promptrl.evaluation.report import RunFacts, island, render_page, report_data, report_runs, run_labels, write_report
from promptrl.evaluation.runner import evaluate
from promptrl.execution import Judge
from promptrl.methods import MethodContext, make_method
from tests.evaluation.reporting import FAILED, ODD, SOLVED, some_episodes, step
from tests.scripted import half_right, make_engine, make_task, number_of, right

TEXTS = st.text(st.characters(codec=None))


def odd_records() -> list[Record]:
    """Records with odd text wherever a text may be."""
    texts = ("method", "task_id", "action", "prompt", "answer", "code", "error", "note", "status", "run", "benchmark")
    return [step("", 0, tests=["passed", ODD], **dict.fromkeys(texts, ODD), **{"truncated": True, "last": True})]


class Elements(HTMLParser):
    """The start tags of a page, with their attributes, and the text in its title."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: dict[str, str] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        tag = self.tags[-1] if self.tags else ""
        self.text[tag] = self.text.get(tag, "") + data


def page_of(records: list[Record], title: str = "runs", runs: tuple[RunFacts, ...] = ()) -> str:
    return render_page(report_data(records, title=title, runs=runs), title)


def island_of(page: str) -> str:
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return match[1]


@given(st.recursive(TEXTS | st.none() | st.integers() | st.booleans(), lambda inner: st.lists(inner), max_leaves=5))
def test_an_island_is_ascii_without_markup_and_says_the_same(value: Any) -> None:
    text = island(value)
    assert text.isascii()
    assert not set("<>&\0") & set(text)
    assert json.loads(text) == value


def test_odd_text_adds_no_element_and_comes_back_from_the_island() -> None:
    facts = (RunFacts(ODD, ((ODD, ODD),)),)
    plain, odd = page_of(some_episodes()), page_of(odd_records(), ODD, facts)
    assert Elements(odd).tags == Elements(plain).tags
    assert [name for name, _ in Elements(odd).attributes] == [name for name, _ in Elements(plain).attributes]
    data = json.loads(island_of(odd))
    assert data == report_data(odd_records(), title=ODD, runs=facts)
    assert data["texts"] == [ODD]
    episode = data["episodes"][0]
    assert episode["task"] == episode["run"] == episode["benchmark"] == episode["steps"][0]["error"] == ODD
    assert episode["steps"][0]["tests"] == [["passed", 1], [ODD, 1]]
    assert data["runs"] == [{"label": ODD, "facts": [[ODD, ODD]]}]
    # A file of UTF-8 holds no lone surrogate, and a title no NUL.
    assert odd.encode("utf-8").count(b"\0") == 0
    assert Elements(odd).text["title"].rstrip("\n") == ODD.replace("\0", "\ufffd").replace("\ud800", "\ufffd")


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = page_of(odd_records(), ODD)
    own = page.replace(island_of(page), "")
    assert len(own.encode()) < 100_000
    assert not re.search(r"https?:|@import|url\(|<link|<iframe|<img", own)
    attributes = Elements(page).attributes
    assert [value for name, value in attributes if name == "href"] == ["#main"]
    assert not [name for name, _ in attributes if name in ("src", "action", "style") or name.startswith("on")]


def test_no_script_but_the_page_s_own_may_run() -> None:
    page = page_of(some_episodes())
    policy = next(
        value for name, value in Elements(page).attributes if name == "content" and "default-src" in str(value)
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    script = (files("promptrl.evaluation") / "report_page" / "page.js").read_text("utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", script
    )


def test_what_became_of_an_episode() -> None:
    records = [
        step("solved", 0),
        step("solved", 1, **SOLVED),
        step("misled", 0, **SOLVED | {"report_pass_rate": 0.75}),
        step("failed", 0, pass_rate=0.5, report_pass_rate=0.25),
        step("failed", 1, **FAILED),
        step("unfinished", 0),
    ]
    data = report_data(records)
    assert [(e["task"], e["solved"]) for e in data["episodes"]] == [
        ("solved", "yes"),
        ("misled", "misled"),
        ("failed", "no"),
        ("unfinished", "unfinished"),
    ]
    solved, misled, failed, _ = data["episodes"]
    assert (solved["answer"], solved["rate"], solved["reward"], solved["tokens"]) == (1, 1.0, 1.5, 240)
    assert misled["rate"] == 0.75
    # The answer is what the reward tests picked: the first step, whose report pass rate then counts.
    assert (failed["answer"], failed["rate"], failed["reward"]) == (0, 0.25, -0.5)


def test_steps_keep_their_order_and_equal_texts_are_kept_once() -> None:
    records = some_episodes(2)
    data = report_data(list(reversed(records)))
    assert [[s["step"] for s in e["steps"]] for e in data["episodes"]] == [[0, 1], [0, 1]]
    assert len(data["texts"]) == len(set(data["texts"])) < 2 * len(records)
    prompts = [[data["texts"][s["prompt"]] for s in e["steps"]] for e in report_data(records)["episodes"]]
    assert prompts == [[r["prompt"] for r in records[:2]], [r["prompt"] for r in records[2:]]]


def test_the_first_prompt_is_shown_against_the_task_s_own_where_an_episode_has_it() -> None:
    own = step("a", 0, prompt="own")
    changed = step("a", 0, method="epic", action="lexical", prompt="other")
    lonely = step("b", 0, method="epic", action="lexical", prompt="other")
    data = report_data([own, changed, lonely])
    texts = [None if e["original"] is None else data["texts"][e["original"]] for e in data["episodes"]]
    assert texts == ["own", "own", None]
    elsewhere = [step("a", 0, run="two", prompt="own there"), *({**record, "run": "one"} for record in (own, changed))]
    data = report_data([*elsewhere, step("a", 0, run="three", action="lexical", prompt="other")])
    assert [data["texts"][e["original"]] for e in data["episodes"]] == ["own there", "own", "own", "own there"]


def test_runs_seeds_and_training_make_episodes_of_their_own() -> None:
    records = [
        step("a", 0, run="one"),
        step("a", 0, run="two"),
        step("a", 0, run="two", seed=1),
        step("a", 0, run="two", training=True),
        step("a", 0, run="two", training=True, env=1),
    ]
    data = report_data(records)
    assert len(data["episodes"]) == 5
    assert [e["method"] for e in data["episodes"]][-1] == "repeat-direct, training"


def test_numbers_that_json_lacks_are_left_out() -> None:
    data = report_data([step("a", 0, reward=float("nan"), report_pass_rate=float("inf"))])
    assert json.loads(island(data))["episodes"][0]["steps"][0]["reward"] is None


def test_records_that_are_no_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no episodes to report on"):
        write_report([], tmp_path / "r.html", title="none")
    sample = {"schema": 1, "task_id": "HumanEval/1", "draw": 1}
    with pytest.raises(RunError, match="a record of task 'HumanEval/1' has no action, episode, method, pass_rate, pro"):
        write_report([sample], tmp_path / "r.html", title="none")
    assert not (tmp_path / "r.html").exists()


def test_only_a_report_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert write_report(some_episodes(2), path, title="first") == 2
    assert write_report(some_episodes(3), path, title="second") == 3
    assert "<title>second</title>" in path.read_text("utf-8")
    (tmp_path / "train.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match=r"train\.jsonl exists and is no report; give another --output"):
        write_report(some_episodes(), tmp_path / "train.jsonl", title="slip")
    assert (tmp_path / "train.jsonl").read_text() == "{}\n"
    with pytest.raises(RunError, match=r"none/page\.html cannot be written \(No such file or directory\)"):
        write_report(some_episodes(), tmp_path / "none" / "page.html", title="slip")


def make_run(folder: Path, methods: dict[str, list[Record]], training: list[Record] | None = None) -> Path:
    (folder / "evaluation").mkdir(parents=True)
    config = {"benchmark": "made", "seed": 3, "evaluation": {"methods": list(methods)}, "model": {"name": "m"}}
    (folder / "config.yaml").write_text(json.dumps(config))
    for name, records in methods.items():
        file = RecordFile(folder / "evaluation" / f"{name}.jsonl")
        file.append(*records)
        file.close()
    if training is not None:
        file = RecordFile(folder / "train.jsonl")
        file.append(*training)
        file.close()
    return folder


def test_run_folders_become_one_page(tmp_path: Path) -> None:
    trained = [step("Train/1", 0, method="ppo", env=0, report_pass_rate=None)]
    first = make_run(
        tmp_path / "a" / "run", {"z": some_episodes(2, method="z"), "b": some_episodes(2, method="b")}, trained
    )
    second = make_run(tmp_path / "b" / "run", {"b": some_episodes(2, method="b")})
    path, number = report_runs([first])
    assert (path, number) == (first / "report.html", 4)
    data = json.loads(island_of(path.read_text("utf-8")))
    assert [e["method"] for e in data["episodes"]] == ["z", "z", "b", "b"]
    assert {e["benchmark"] for e in data["episodes"]} == {"made"}
    assert data["runs"] == [{"label": "run", "facts": [["benchmark", "made"], ["model", "m"], ["seed", "3"]]}]
    path, number = report_runs([first, second], tmp_path / "both.html", training=True)
    data = json.loads(island_of(path.read_text("utf-8")))
    assert number == 7
    assert [e["run"] for e in data["episodes"]] == ["a/run"] * 5 + ["b/run"] * 2
    assert [e["training"] for e in data["episodes"]] == [False] * 4 + [True] + [False] * 2
    path, number = report_runs([first / "train.jsonl"], tmp_path / "file.html")
    assert number == 1


def test_a_run_that_was_stopped_shows_its_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {}, [step("Train/1", 0, method="ppo", report_pass_rate=None, env=0)])
    data = json.loads(island_of(report_runs([run])[0].read_text("utf-8")))
    assert [(e["method"], e["solved"]) for e in data["episodes"]] == [("ppo, training", "unfinished")]


def test_folders_without_episodes_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no episodes: there is neither evaluation/\*\.jsonl nor train\.jsonl"):
        report_runs([tmp_path])
    (tmp_path / "sweep" / "sampling").mkdir(parents=True)
    with pytest.raises(RunError, match="holds a sampling sweep, which has no episodes; its table is"):
        report_runs([tmp_path / "sweep"])
    with pytest.raises(RunError, match="a run folder is given twice"):
        report_runs([tmp_path, tmp_path / ".." / tmp_path.name])
    assert run_labels([Path("/x/a/c"), Path("/y/a/c"), Path("/x/d")]) == ["x/a/c", "y/a/c", "d"]


def test_the_command_reports_what_a_method_did(judge: Judge, tmp_path: Path) -> None:
    engine = make_engine(
        lambda r: right(number_of(r)) if r.draw == 1 else half_right(number_of(r)),
        judge,
        horizon=2,
        protocol="held_out",
    )
    method = make_method("repeat-direct", MethodContext(("direct", "lexical", "semantic"), 0))
    tasks = [make_task(number, plus=True) for number in (1, 2)]
    records = tmp_path / "run" / "evaluation" / "repeat-direct.jsonl"
    evaluate(method, engine, tasks, records, seed=0)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "report.html (2 episodes, 0.0 MiB)" in result.stdout.replace("\n", "")
    data = json.loads(island_of((tmp_path / "run" / "report.html").read_text("utf-8")))
    for episode, record in zip(data["episodes"], (r for r in read_records(records) if r["step"] == 1), strict=True):
        assert episode["task"] == record["task_id"]
        assert (episode["solved"], episode["rate"], len(episode["steps"])) == ("yes", 1.0, 2)
        assert data["texts"][episode["steps"][1]["code"]] == record["code"]
        assert [s["tests"] for s in episode["steps"]] == [[["passed", 2], ["wrong", 2]], [["passed", 4]]]
