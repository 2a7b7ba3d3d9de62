"""Comparisons of run folders: which go together, what the tables say, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from promptrl.cli import app
from promptrl.errors import RunError
from promptrl.evaluation.action_tables import action_effects, actions_table
from promptrl.evaluation.comparison import Comparison, build_comparison, compare
from promptrl.evaluation.comparison_tables import pairs_table, table
from promptrl.evaluation.curves import Curve, plot_learning_curves
from promptrl.evaluation.figures import STYLE, solved_at_step_figure
from promptrl.evaluation.grids import escape_latex
from promptrl.evaluation.metrics import soft_success
from promptrl.evaluation.records import read_records
from promptrl.evaluation.runner import summarize
from promptrl.evaluation.statistics import mcnemar_test, wilson_interval
from tests.evaluation.studies import Attempt, tasks_solved, write_run

PICTURES = (
    *("solved_at_step", "cost_and_score", "actions_by_step", "gain_per_action", "actions_over_training"),
    "learning_curves",
)
TRAINING: list[list[Attempt]] = [
    [("direct", 0.0, 0.0), ("semantic", 0.5, 0.5), ("lexical", 1.0, 1.0)] if k % 2 else [("lexical", 1.0, 1.0)]
    for k in range(80)
]


def baselines(salt: str = "") -> dict[str, dict[str, list[Attempt]]]:
    direct = {task: steps[:1] for task, steps in tasks_solved(30, salt=salt).items()}
    return {"direct": direct, "repeat-direct": tasks_solved(12, salt=salt), "random-hybrid": tasks_solved(15, salt="r")}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The baselines once, and PPO with two rewards and three seeds, as a study of the reward leaves them."""
    root = tmp_path_factory.mktemp("study")
    folders = [write_run(root / "baselines-seed0", baselines(), evaluation__methods=["direct", "repeat-direct"])]
    for reward, solved in (("shaped", 34), ("binary", 14)):
        for seed in range(3):
            method = {"ppo": tasks_solved(solved + seed, salt=f"p{seed}")}
            folders.append(
                write_run(
                    root / f"{reward}-seed{seed}",
                    method,
                    training=TRAINING[seed:],
                    seed=seed,
                    environment__reward=reward,
                )
            )
    return folders


@pytest.fixture(scope="module")
def written(study: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    output = tmp_path_factory.mktemp("tables")
    comparison = build_comparison(study)
    for fmt in ("md", "csv", "tex"):
        (output / f"table.{fmt}").write_text(table(comparison, fmt))
        (output / f"pairs.{fmt}").write_text(pairs_table(comparison, fmt))
        (output / f"actions.{fmt}").write_text(actions_table(comparison, fmt))
    return comparison, output


def test_seeds_become_one_row_and_rewards_two(written: tuple[Comparison, Path]) -> None:
    (block,) = written[0].blocks
    rows = {entry.label: entry for entry in block.entries}
    assert list(rows) == ["direct", "repeat-direct", "random-hybrid", "ppo (shaped)", "ppo (binary)"]
    assert rows["ppo (shaped)"].seeds == (0, 1, 2)
    assert rows["ppo (shaped)"].solved == (34, 35, 36)
    assert rows["ppo (shaped)"].strict == pytest.approx(35 / 40)
    assert rows["ppo (binary)"].reward == "binary"
    assert rows["direct"].seeds == (0,)
    assert rows["direct"].strict_iqm is None
    # Of three runs nothing is cut, so that the interquartile mean is the mean.
    assert rows["ppo (shaped)"].strict_iqm == pytest.approx(35 / 40)


def test_costs_are_sums_over_tasks_and_means_over_seeds(study: list[Path], written: tuple[Comparison, Path]) -> None:
    (block,) = written[0].blocks
    frames = [pd.read_json(folder / "evaluation" / "ppo.jsonl", lines=True) for folder in study[1:4]]
    entry = next(entry for entry in block.entries if entry.label == "ppo (shaped)")
    assert entry.attempts == pytest.approx(sum(len(frame) for frame in frames) / 3)
    tokens = sum(int((f["tokens_in"] + f["rewrite_tokens_in"]).sum()) for f in frames) / 3
    out = sum(int((f["tokens_out"] + f["rewrite_tokens_out"]).sum()) for f in frames) / 3
    assert (entry.tokens_in, entry.tokens_out) == (pytest.approx(tokens), pytest.approx(out))
    assert entry.tokens_per_solved == pytest.approx((tokens + out) / 35)
    assert entry.model_calls == pytest.approx(sum(int((1 + f["rewrite_calls"]).sum()) for f in frames) / 3)


def test_a_row_says_what_the_run_itself_said(study: list[Path], written: tuple[Comparison, Path]) -> None:
    records = [json.loads(line) for line in (study[0] / "evaluation" / "repeat-direct.jsonl").read_text().splitlines()]
    result = summarize("repeat-direct", records)
    entry = written[0].blocks[0].entries[1]
    for name in ("n", "strict", "soft", "attempts", "model_calls", "tokens_in", "tokens_out", "seconds"):
        assert getattr(entry, name) == pytest.approx(getattr(result, name)), name
    assert entry.solved == (result.solved,)
    assert entry.strict_interval == wilson_interval(12, 40)
    soft = pd.DataFrame(records).groupby("task_id")["report_pass_rate"].apply(lambda rates: soft_success(list(rates)))
    assert entry.soft == pytest.approx(float(soft.mean()))


def test_every_pair_is_tested_on_the_same_tasks(study: list[Path], written: tuple[Comparison, Path]) -> None:
    (block,) = written[0].blocks
    assert len(block.pairs) == 5 * 4 / 2
    outcomes = {row.label: list(row.outcomes.values()) for row in block.series}
    pair = next(p for p in block.pairs if (p.first, p.second) == ("repeat-direct", "ppo (shaped)"))
    votes = [sum(seed[task].solved for seed in outcomes["ppo (shaped)"]) >= 2 for task in block.task_ids]
    single = [outcomes["repeat-direct"][0][task].solved for task in block.task_ids]
    assert pair.test == mcnemar_test(single, votes)
    assert pair.test.p_value <= pair.p_holm <= 1
    assert pair.strict_difference == pytest.approx(12 / 40 - 35 / 40)
    assert pair.strict_interval.high < 0
    assert [test.seed for test in pair.per_seed] == [0]
    rewards = next(p for p in block.pairs if (p.first, p.second) == ("ppo (shaped)", "ppo (binary)"))
    assert [test.seed for test in rewards.per_seed] == [0, 1, 2]


def test_markdown_marks_the_best_and_the_significant(written: tuple[Comparison, Path]) -> None:
    text = (written[1] / "table.md").read_text()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "**87.50**\\*\\*\\*" in rows["ppo (shaped)"]
    assert "**" not in rows["repeat-direct"]
    assert "| 40 | 34, 35, 36 |" in rows["ppo (shaped)"]
    assert "n = 40 held-out tasks, protocol paper, at most 5 attempts per task, model qwen2.5-coder-0.5b (auto)" in text
    assert "seeds 0, 1, 2, trained with the shaped and the binary reward" in text
    assert "McNemar against repeat-direct, Holm-adjusted" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_csv_has_raw_numbers(written: tuple[Comparison, Path]) -> None:
    comparison, output = written
    rows = list(csv.DictReader(io.StringIO((output / "table.csv").read_text())))
    assert [row["method"] for row in rows] == [entry.label for entry in comparison.blocks[0].entries]
    assert float(rows[3]["strict"]) == pytest.approx(0.875)
    assert rows[0]["strict_iqm"] == ""
    pairs = pd.read_csv(output / "pairs.csv")
    assert set(pairs["seed"]) == {"all", "0", "1", "2"}
    assert (pairs["both"] + pairs["only_first"] + pairs["only_second"] + pairs["neither"] == pairs["n"]).all()


def test_latex_is_whole_and_escaped(written: tuple[Comparison, Path]) -> None:
    for name, tables in (("table.tex", 2), ("pairs.tex", 2), ("actions.tex", 1)):
        text = (written[1] / name).read_text()
        # A page's width holds neither all scores and costs, nor all tests and differences.
        assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == text.count("\\caption{") == tables
        assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
        for part in text.split("\\toprule")[1:]:
            head, body = part.split("\\bottomrule")[0].split("\\midrule")
            assert {line.count(" & ") for line in body.strip().splitlines()} == {head.count(" & ")}
        assert all(re.search(r"(?<!\\)%", line) is None for line in text.splitlines())
        assert text.isascii()
    assert escape_latex("50 % of a_b & {c} ~ ^ \\ <1") == (
        "50 \\% of a\\_b \\& \\{c\\} \\textasciitilde{} \\textasciicircum{} \\textbackslash{} $<$1"
    )


def test_the_files_of_a_comparison(tmp_path: Path) -> None:
    methods = {"repeat-direct": tasks_solved(3, 6), "ppo": tasks_solved(4, 6)}
    run = write_run(tmp_path / "run", methods, training=TRAINING)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    comparison = compare([run], tmp_path / "one")
    assert (tmp_path / "one" / "table.md").read_text() == table(comparison, "md")
    stored = json.loads((tmp_path / "one" / "comparison.json").read_text(), parse_constant=refuse)
    assert stored == json.loads(json.dumps(comparison.to_json()))
    (block,) = stored["blocks"]
    assert block["reference"] == "repeat-direct"
    assert block["entries"][0]["solved_at_step"][-1] == block["entries"][0]["strict"]
    assert len(block["task_ids"]) == 6
    for name in PICTURES:
        assert (tmp_path / "one" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.parse(tmp_path / "one" / f"{name}.svg")


def test_what_one_attempt_of_each_action_brought(tmp_path: Path) -> None:
    tasks = {
        "T/1": [("direct", 0.0, 0.0), ("lexical", 0.5, 0.0), ("lexical", 1.0, 0.5)],
        "T/2": [("direct", 1.0, 1.0)],
        "T/3": [("semantic", 0.5, 0.5), ("direct", 0.25, 0.0)],
    }
    run = write_run(tmp_path / "run", {"ppo": tasks}, training=[[("direct", 0.5, 0.5)]])
    records = list(read_records(run / "evaluation" / "ppo.jsonl"))
    records[1]["code"] = "def f(): return 1"  # the last attempt's code was the first one's
    effects = action_effects([records])
    assert [(e.action, e.later, e.n, e.solved, e.gain, e.repeated, e.tokens) for e in effects] == [
        ("direct", False, 2, 1, None, None, 120.0),
        ("semantic", False, 1, 0, None, None, 180.0),
        ("direct", True, 1, 0, -0.25, 1.0, 120.0),
        ("lexical", True, 2, 1, 0.5, 0.5, 120.0),
    ]
    assert effects[3].interval == wilson_interval(1, 2)
    assert sum(e.n for e in action_effects([records, records])) == 2 * 6

    text = actions_table(build_comparison([run]), "md")
    assert "| ppo | evaluation | lexical | later | 2 | 1 | 50.00 | [9.5, 90.5] | +0.500 | 100.00 | 120 |" in text
    assert "| ppo | training | direct | first | 1 | 0 | 0.00 | [0.0, 79.3] | – | – | 120 |" in text
    rows = pd.read_csv(io.StringIO(actions_table(build_comparison([run]), "csv")))
    assert list(rows["part"]) == ["evaluation"] * 4 + ["training"]
    assert rows.loc[3, ["gain", "repeated"]].tolist() == [0.5, 1.0]
    with pytest.raises(RunError, match="'html' is unknown"):
        actions_table(build_comparison([run]), "html")


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"direct": tasks_solved(3, 6, horizon=2)}, seed=5)
    compare([run], tmp_path / "one", formats=("md", "tex"))
    assert (tmp_path / "one" / "table.md").exists()
    arguments = ["compare", str(run), "--format", "tex", "--output", str(tmp_path / "two")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    files = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert {path.suffix for path in (tmp_path / "two").iterdir()} == {".tex", ".png", ".svg", ".json"}
    assert {"solved_at_step.svg", "actions_by_step.png"} <= set(files)
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_blocks_are_apart_and_summed_up(tmp_path: Path) -> None:
    plus = {"benchmark": "mbpp_plus", "environment__protocol": "held_out"}
    folders = [
        write_run(tmp_path / "a", {"direct": tasks_solved(5), "repeat-direct": tasks_solved(9)}),
        write_run(tmp_path / "b", {"direct": tasks_solved(4, 20), "ppo": tasks_solved(8, 20)}, **plus),
        write_run(tmp_path / "c", {"direct": tasks_solved(6)}, model__name="qwen2.5-coder-1.5b", fingerprint="e" * 64),
    ]
    comparison = build_comparison(folders)
    assert [str(block.key) for block in comparison.blocks] == [
        "humaneval, qwen2.5-coder-0.5b (auto), protocol paper",
        "mbpp_plus, qwen2.5-coder-0.5b (auto), protocol held_out",
        "humaneval, qwen2.5-coder-1.5b (auto), protocol paper",
    ]
    summary, *rest = table(comparison, "md").split("\n## ")
    assert len(rest) == 3
    assert re.search(r"\| direct \| 12\.50 / [\d.]+ \| 20\.00 / [\d.]+ \| \*\*15\.00 / [\d.]+\*\* \|", summary)
    assert re.search(r"\| ppo \| – \| \*\*40\.00 / [\d.]+\*\* \| – \|", summary)
    assert pairs_table(comparison, "md").count("direct vs") == 2


def test_several_benchmarks_with_several_seeds_are_aggregated(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{name}{seed}", {"direct": tasks_solved(solved + seed, 20)}, benchmark=name, seed=seed)
        for name, solved in (("humaneval", 4), ("mbpp", 14))
        for seed in range(2)
    ]
    (row,) = build_comparison(folders).overall
    # Runs 4, 5 and 14, 15 of 20; the middle two of the four are 5 and 14.
    assert (row.label, row.blocks, row.seeds) == ("direct", 2, 2)
    assert row.strict_iqm == pytest.approx((5 + 14) / 40)
    assert row.strict_interval.low < row.strict_iqm < row.strict_interval.high


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_sha256": "e" * 64}, "benchmark data is dddddddddddd there and eeeeeeeeeeee here"),
        ({"fingerprint": "a" * 64}, "model fingerprint is ffffffffffff there and aaaaaaaaaaaa here"),
        ({"environment__horizon": 9}, "environment.horizon is 5 there and 9 here"),
        ({"generation__temperature": 0.2}, "generation.temperature is 0.8 there and 0.2 here"),
        (
            {"evaluation__budget": {"tokens": 900}, "evaluation__methods": ["direct"]},
            "evaluation.budget.tokens is None there and 900 here",
        ),
    ],
)
def test_runs_that_differ_in_what_makes_results_comparable_are_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    first = write_run(tmp_path / "one", {"direct": tasks_solved(5)})
    second = write_run(tmp_path / "two", {"repeat-direct": tasks_solved(5)}, **change)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=re.escape(f"{first} and {second} cannot be compared: {message}")):
        build_comparison([first, second])


def test_methods_on_other_tasks_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"direct": tasks_solved(5), "repeat-direct": tasks_solved(5, 39)})
    with pytest.raises(RunError, match=r"'repeat-direct' was evaluated on other tasks, 39 there and 40 in the latter"):
        build_comparison([run])


def test_an_unfinished_evaluation_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"direct": tasks_solved(5)})
    (run / "splits.json").write_text(json.dumps({"test": [f"T/{k}" for k in range(41)]}))
    with pytest.raises(RunError, match=r"holds 40 of 41 finished test tasks for 'direct'; finish the run with --resum"):
        build_comparison([run])


def test_records_of_another_form_are_told_and_no_traceback(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"direct": tasks_solved(5)})
    path = run / "evaluation" / "direct.jsonl"
    whole = path.read_text()
    for old, new, message in (
        (', "rewrite_cached": 0', "", r"is not as docs/records.md has it \(KeyError: 'rewrite_cached'\)"),
        ('"report_pass_rate": 0.0', '"report_pass_rate": null', "is not as docs/records.md has it"),
        ('"schema": 1', '"schema": 7', "line 1 is not a record of schema version 1"),
    ):
        path.write_text(whole.replace(old, new))
        with pytest.raises(RunError, match=message):
            build_comparison([run])


def test_the_same_run_twice_counts_once_and_another_is_refused(tmp_path: Path) -> None:
    first = write_run(tmp_path / "one", {"direct": tasks_solved(5)})
    copy = write_run(tmp_path / "two", {"direct": tasks_solved(5)}, environment__reward="binary", ppo__gamma=0.5)
    assert build_comparison([first, copy]).blocks[0].entries[0].seeds == (0,)
    other = write_run(tmp_path / "three", {"direct": tasks_solved(6)})
    with pytest.raises(RunError, match=r"both hold 'direct' with seed 0, and other outcomes on \d+ tasks \(T/\d+ firs"):
        build_comparison([first, other])
    with pytest.raises(RunError, match="given twice"):
        build_comparison([first, first])


def test_other_keys_name_the_rows_they_tell_apart(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / str(k), {"ppo": tasks_solved(k)}, ppo__ent_coef=k / 100, environment__state=state)
        for k, state in ((5, "prompt"), (6, "prompt+progress"))
    ]
    labels = [entry.label for entry in build_comparison(folders).blocks[0].entries]
    assert labels == ["ppo (state=prompt, ent_coef=0.05)", "ppo (state=prompt+progress, ent_coef=0.06)"]


def test_misled_and_capped_tasks_are_told(tmp_path: Path) -> None:
    fooled: dict[str, list[Attempt]] = {
        "T/0": [("direct", 1.0, 0.8)],
        "T/1": [("direct", 0.0, 0.5), ("lexical", 1.0, 1.0)],
    }
    run = write_run(
        tmp_path / "run", {"random-hybrid": fooled}, benchmark="mbpp_plus", environment__protocol="held_out"
    )
    path = run / "evaluation" / "random-hybrid.jsonl"
    path.write_text(path.read_text().replace('"capped": null', '"capped": "tokens"', 1))
    comparison = build_comparison([run])
    (entry,) = comparison.blocks[0].entries
    assert (entry.solved, entry.misled, entry.capped, entry.some_step_solved) == ((1,), 0.5, 1.0, 0.5)
    assert entry.solved_at_step == (0.0, 0.5, 0.5, 0.5, 0.5)
    text = table(comparison, "md")
    assert "| misled % | capped |" in text
    assert "| 50.00 | 1 |" in text
    # One method has no pairs, and its file the head of one that has some.
    two = write_run(tmp_path / "two", {"direct": fooled, "random-hybrid": fooled})
    head, *rows = pairs_table(comparison, "csv").splitlines()
    assert head == pairs_table(build_comparison([two]), "csv").splitlines()[0]
    assert not rows


def test_a_key_of_a_later_release_makes_no_row_of_its_own_but_another_rewriter_does(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", {"random-hybrid": tasks_solved(5)})
    text = (old / "config.yaml").read_text()
    (old / "config.yaml").write_text(re.sub(r"\n +selection: \w+", "", text))
    new = write_run(tmp_path / "new", {"random-hybrid": tasks_solved(6)}, seed=1)
    (block,) = build_comparison([old, new]).blocks
    assert [(entry.label, entry.seeds) for entry in block.entries] == [("random-hybrid", (0, 1))]
    other = write_run(tmp_path / "other", {"random-hybrid": tasks_solved(7)}, rewriter={"name": "qwen2.5-coder-1.5b"})
    labels = [entry.label for entry in build_comparison([old, other]).blocks[0].entries]
    assert labels == ["random-hybrid (rewriter=None)", "random-hybrid (rewriter=qwen2.5-coder-1.5b)"]


def test_what_a_release_did_not_have_yet_does_not_hide_a_difference(tmp_path: Path) -> None:
    def without(key: str, run: Path) -> Path:
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(re.sub(rf"\n +{key}: [\w.]+", "", text))
        return run

    old = without("top_p", write_run(tmp_path / "old", {"direct": tasks_solved(5)}))
    one = write_run(tmp_path / "one", {"direct": tasks_solved(5)}, seed=1)
    other = write_run(tmp_path / "other", {"direct": tasks_solved(5)}, seed=2, generation__top_p=0.5)
    build_comparison([old, one])
    with pytest.raises(RunError, match=re.escape(f"{one} and {other} cannot be compared: generation.top_p is ")):
        build_comparison([old, one, other])
    runs = [
        write_run(tmp_path / f"{k}", {"ppo": tasks_solved(5)}, seed=seed, ppo__ent_coef=k / 100)
        for seed, k in enumerate((3, 5, 6))
    ]
    without("ent_coef", runs[0])
    rows = [(entry.label, entry.seeds) for entry in build_comparison(runs).blocks[0].entries]
    assert rows == [("ppo (ent_coef=0.05)", (0, 1)), ("ppo (ent_coef=0.06)", (2,))]


def test_equal_scores_are_equal_whatever_the_number_of_seeds(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "one", {"direct": tasks_solved(14), "ppo": tasks_solved(14, salt="0")})]
    folders += [
        write_run(tmp_path / f"{seed}", {"ppo": tasks_solved(14, salt=str(seed))}, seed=seed) for seed in range(1, 7)
    ]
    comparison = build_comparison(folders)
    direct, ppo = comparison.blocks[0].entries
    assert ppo.seeds == tuple(range(7))
    assert direct.strict == ppo.strict == 14 / 40
    assert comparison.blocks[0].pairs[0].strict_difference == 0.0
    assert table(comparison, "md").count("**35.00**") == 2
    assert "−0.00" not in pairs_table(comparison, "md").replace("[−0.00", "")


ODD_NAMES = (
    "a|b",
    "_a_",
    "100%",
    "x&y",
    "<script>",
    "$x$",
    "$\\frac$",
    "[5pt]",
    "*",
    "`a`",
    "{a",
    "~^\\",
    "é",
    "a\n\nb",
)


def test_tables_and_pictures_hold_odd_names(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {name: tasks_solved(1, 2) for name in ODD_NAMES})
    comparison = build_comparison([run])
    for make in (table, pairs_table):
        rows = [line for line in make(comparison, "md").splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1
        assert all(
            f"| {shown}" in "\n".join(rows) for shown in ("a\\|b", "\\_a\\_", "\\<script>", "\\*", "\\`a\\`", "a b")
        )
        body = make(comparison, "tex").split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()[:-1]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in body}) == 1
        assert all(row.endswith("\\\\") and row.strip()[0] not in "*[" for row in body)
    assert [row["method"] for row in csv.DictReader(io.StringIO(table(comparison, "csv")))] == sorted(ODD_NAMES)
    with plt.rc_context(STYLE):
        figure = solved_at_step_figure(comparison)
        figure.savefig(tmp_path / "one.svg")
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text().strip() for text in legend.get_texts()] == sorted(ODD_NAMES)
    drawn = figure.axes[0].get_lines()
    looks = {(line.get_linestyle(), str(line.get_marker()), str(line.get_markerfacecolor())) for line in drawn}
    assert len(looks) == len(ODD_NAMES)
    plt.close(figure)
    plot_learning_curves(
        {"$x": {f"$\\frac$_{k}": [Curve(np.arange(2.0), np.ones(2))] for k in range(2)}}, tmp_path / "c.png", title="$"
    )


def test_a_task_that_nobody_solves_has_no_cost_per_solved_task(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"direct": tasks_solved(0), "repeat-direct": tasks_solved(0)})
    comparison = build_comparison([run])
    assert comparison.blocks[0].entries[0].tokens_per_solved is None
    assert "| 0.00 |" in table(comparison, "md").replace("**", "")
    assert comparison.blocks[0].pairs[0].p_holm == 1.0
    assert "| – | – |" in pairs_table(comparison, "md")


def test_the_command(study: list[Path], tmp_path: Path) -> None:
    def call(*arguments: object) -> tuple[int, str, object]:
        result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
        return result.exit_code, result.output, result.exception

    code, text, _ = call(study[0])
    assert code == 0
    assert "| repeat-direct |" in text
    assert "direct vs repeat-direct" in text
    code, text, _ = call(study[0], "--format", "csv")
    assert text.startswith("benchmark,backbone,protocol")
    assert code == 0
    for arguments, message in (
        ([study[0], "--format", "html"], "--format 'html' is unknown; allowed are md, csv, tex and all"),
        ([study[0], "--format", "all"], "--format all needs --output"),
        ([tmp_path / "nowhere"], "nowhere is no run folder (there is no config.yaml in it)"),
        ([study[0], "--output", study[0]], "is a run folder, which a comparison must not change"),
    ):
        code, _, error = call(*arguments)
        assert code != 0
        assert message in str(error)
