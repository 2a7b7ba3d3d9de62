"""Run folders that something happened to: each is told in one sentence, and none ends in a traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from promptrl.errors import RunError
from promptrl.evaluation.comparison import build_comparison
from promptrl.evaluation.curves import finished_episodes
from promptrl.evaluation.export import export_samples
from promptrl.evaluation.outcomes import answers, step_frame
from promptrl.evaluation.records import read_records
from promptrl.evaluation.report import report_runs
from tests.evaluation.studies import Attempt, record, tasks_solved, write_run

RECORDS = "evaluation/direct.jsonl"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("whole") / "run", {"direct": tasks_solved(2, 3)})


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def instead(name: str, old: str, new: str) -> Change:
    """Other text in a file, wherever it stands."""

    def change(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return change


def refusals(run: Path) -> dict[str, str]:
    """What each command says, by its name; nothing where it goes through."""
    commands: dict[str, Callable[[], object]] = {
        "compare": lambda: build_comparison([run]),
        "export": lambda: export_samples(run, "direct", run.parent / "samples.jsonl"),
        "report": lambda: report_runs([run], run.parent / "report.html"),
    }
    said = {}
    for name, command in commands.items():
        try:
            command()
        except RunError as error:
            said[name] = str(error)
            assert "\n" not in said[name]
    return said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: (run / "evaluation" / "x.jsonl").mkdir(), "x.jsonl cannot be read (Is a directory)"),
        (lambda run: (run / "evaluation" / "x.jsonl").symlink_to("x.jsonl"), "x.jsonl cannot be read (Too many"),
        (lambda run: (run / RECORDS).write_text("[" * 200_000 + "\n{}\n"), "line 1 is not a JSON object"),
        (instead(RECORDS, '"reward": -1.0', f'"reward": {"9" * 5000}'), "is not a JSON object"),
        (instead(RECORDS, '"reward": -1.0', f'"reward": {"9" * 400}'), "reward is 9999999999"),
        (instead(RECORDS, '"pass_rate": 0.0', '"pass_rate": "x"'), "docs/records.md has it: pass_rate is 'x'"),
        (instead(RECORDS, '"step": 0', '"step": [0]'), "docs/records.md has it: step is [0]"),
        (instead(RECORDS, '"step": 0', '"step": null'), "docs/records.md has it: step is None"),
        (instead(RECORDS, '"task_id": "T/0"', '"task_id": ["T/0"]'), "task_id is ['T/0']"),
        (instead(RECORDS, '"prompt": "Add."', '"prompt": ["Add."]'), "prompt is ['Add.']"),
        (instead(RECORDS, '"code": "def f(): pass"', '"code": 5'), "code is 5"),
        (instead(RECORDS, '"tokens_in": 100', '"tokens_in": "100"'), "tokens_in is '100'"),
        (instead(RECORDS, '"tests": ["passed"]', '"tests": 5'), "tests is 5"),
    ],
)
def test_no_command_takes_records_that_cannot_be(run: Path, change: Change, message: str) -> None:
    change(run)
    said = refusals(run)
    # Export reads the one method's file alone.
    assert said.keys() >= ({"compare", "report"} if "x.jsonl" in message else {"compare", "export", "report"})
    assert all(message in sentence for sentence in said.values()), said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (instead("config.yaml", "seed: 0", "seed: abc"), "says seed is 'abc', which is not a whole number of at"),
        (instead("config.yaml", "horizon: 5", "horizon: many"), "says environment.horizon is 'many', which is not"),
        (lambda run: (run / "config.yaml").write_text("[" * 2_000), "config.yaml cannot be read ("),
        (lambda run: (run / "versions.json").write_text("[" * 200_000), "versions.json cannot be read (RecursionErr"),
        (lambda run: (run / "versions.json").unlink(), "versions.json cannot be read (FileNotFoundError)"),
        (instead(RECORDS, '"pass_rate": 0.0', '"pass_rate": NaN'), "is nan)"),
        (instead(RECORDS, '"report_pass_rate": 1.0', '"report_pass_rate": 7.0'), "is 7)"),
        (instead(RECORDS, '"step": 1', '"step": 0'), "has two lines of one step"),
        (lambda run: (run / "evaluation" / "x.jsonl").symlink_to("nowhere"), "x.jsonl cannot be read (No such file"),
    ],
)
def test_a_comparison_says_what_of_a_folder_cannot_be(run: Path, change: Change, message: str) -> None:
    change(run)
    assert message in refusals(run)["compare"]


@pytest.mark.parametrize(
    "change",
    [
        instead("config.yaml", "evaluation:\n", "evaluation: null\nother:\n"),
        instead("config.yaml", "  methods:\n", "  methods: [[1], {a: 2}]\n  other:\n"),
        instead("config.yaml", "model:\n", "model: none\nother:\n"),
        instead("versions.json", '"data_sha256": {', '"data_sha256": "d", "other": {'),
        lambda run: (run / "splits.json").write_text('{"test": 5}'),
        lambda run: (run / "evaluation" / ".ppo.12.partial.jsonl").write_text("half"),
    ],
)
def test_what_is_odd_elsewhere_is_a_sentence_or_no_matter(run: Path, change: Change) -> None:
    change(run)
    assert set(refusals(run)) <= {"compare"}


@pytest.mark.parametrize("lacking", ["code", "episode"])
def test_a_sample_needs_its_code_and_its_place(run: Path, lacking: str) -> None:
    instead(RECORDS, f'"{lacking}": ', '"other": ')(run)
    assert f"a record of 'direct' in {run} has no {lacking} (T/" in refusals(run)["export"]


def test_pictures_need_whole_steps() -> None:
    attempt: Attempt = ("direct", 0.0, 0.0)
    step = record("ppo", "T/0", 0, 0, attempt)
    for make, key in ((step_frame, "episode"), (finished_episodes, "terminated")):
        with pytest.raises(RunError, match=f"a record of task 'T/0' has no {key}; it is no step"):
            make([{name: value for name, value in step.items() if name != key}])


def test_an_answer_is_found_whatever_the_order_of_the_lines(run: Path) -> None:
    path = run / RECORDS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    turned = answers(read_records(path))
    path.write_text("".join(lines))
    assert turned == answers(read_records(path))
