"""Sampling sweeps: which draws are asked for, what they are worth, and that nothing is asked for twice."""

from __future__ import annotations

import io
import json
from functools import cached_property
from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from promptrl.cli import app, run
from promptrl.config import Config, parse_config
from promptrl.errors import ConfigError, RunError
from promptrl.evaluation.check import check_samples, check_settings
from promptrl.evaluation.records import read_records
from promptrl.evaluation.sampling import (
    SamplingPlan,
    SuiteScore,
    draw_samples,
    sampling_plan,
    score_samples,
    write_samples,
)
from promptrl.evaluation.sampling_tables import markdown_sampling_table, print_sampling_table
from promptrl.execution import Judge
from promptrl.models import CachedModel, GenerationCache
from promptrl.models.base import CodeModel, GenerationRequest
from promptrl.refinement.engine import RefinementEngine
from promptrl.sampling_run import run_sampling
from promptrl.tasks import load_benchmark
from promptrl.workbench import Workbench
from tests.scripted import HashingEncoder, ScriptedModel, make_engine, make_task, number_of, right, wrong

TASKS = [make_task(number, plus=True) for number in (1, 2, 3)]
PLAN = sampling_plan(4, [0.2, 0.8], [1, 2, 4])


def answers(request: GenerationRequest) -> str:
    """Task 1 always, task 2 in every other draw and only for the base tests, task 3 never."""
    number = number_of(request)
    if number == 2 and request.draw % 2:
        return "def add_2(x):\n    return x + 2 if x < 50 else 0"
    return right(1) if number == 1 else wrong(number)


def sampled(judge: Judge, path: Path, temperature: float = 0.8, **more: Any) -> RefinementEngine:
    engine = make_engine(answers, judge)
    draw_samples(engine, TASKS, PLAN, temperature, path, **more)
    return engine


def asked(engine: RefinementEngine) -> list[GenerationRequest]:
    assert isinstance(engine.coder, ScriptedModel)
    return engine.coder.requests


def test_the_draws_follow_the_greedy_one_at_the_temperature_given(judge: Judge, tmp_path: Path) -> None:
    requests = asked(sampled(judge, tmp_path / "s.jsonl", 0.2, batch_size=5))
    assert [(number_of(r), r.draw) for r in requests] == [(t, d) for t in (1, 2, 3) for d in (1, 2, 3, 4)]
    assert {r.temperature for r in requests} == {0.2}
    records = list(read_records(tmp_path / "s.jsonl"))
    assert [(r["task_id"], r["draw"]) for r in records] == [(t.task_id, d) for t in TASKS for d in (1, 2, 3, 4)]
    assert {r["temperature"] for r in records} == {0.2}


def test_temperature_0_takes_the_one_greedy_answer(judge: Judge, tmp_path: Path) -> None:
    plan = sampling_plan(4, [0, 0.8])
    engine = make_engine(answers, judge)
    draw_samples(engine, TASKS, plan, 0.0, tmp_path / "s.jsonl")
    assert [(r.draw, r.temperature) for r in asked(engine)] == [(0, 0.0)] * 3
    scores = score_samples(read_records(tmp_path / "s.jsonl"), plan, 0.0, TASKS)
    assert [(s.suite, s.samples_per_task, [at.k for at in s.scores]) for s in scores] == [
        ("base", 1, [1]),
        ("base + plus", 1, [1]),
    ]


def test_scores_are_the_unbiased_estimates_on_both_suites(judge: Judge, tmp_path: Path) -> None:
    sampled(judge, tmp_path / "s.jsonl")
    base, both = score_samples(read_records(tmp_path / "s.jsonl"), PLAN, 0.8, TASKS, seed=1)
    assert (base.suite, base.tasks, base.samples_per_task, base.passed) == ("base", 3, 4, 6)
    assert (both.suite, both.passed) == ("base + plus", 4)
    # Task 1 has 4 of 4 right, task 2 has 2 of 4 on base and none on both, task 3 none.
    assert [at.value for at in base.scores] == [pytest.approx((1 + 1 - comb(2, k) / comb(4, k)) / 3) for k in (1, 2, 4)]
    assert [at.value for at in both.scores] == [pytest.approx(1 / 3)] * 3
    for at in (*base.scores, *both.scores):
        assert 0 <= at.interval.low <= at.value <= at.interval.high <= 1
    again = score_samples(read_records(tmp_path / "s.jsonl"), PLAN, 0.8, TASKS, seed=1)
    assert again == [base, both]
    without_plus = [make_task(1)]
    assert [s.suite for s in score_samples(read_records(tmp_path / "s.jsonl"), PLAN, 0.8, without_plus)] == ["base"]


def test_what_a_record_says(judge: Judge, tmp_path: Path) -> None:
    sampled(judge, tmp_path / "s.jsonl")
    records = {(r["task_id"], r["draw"]): r for r in read_records(tmp_path / "s.jsonl")}
    only_base = records["Scripted/2", 1]
    assert (only_base["base_passed"], only_base["passed"]) == (True, False)
    assert (only_base["base_tests"], only_base["plus_tests"]) == ({"passed": 4}, {"wrong": 1})
    failed = records["Scripted/2", 2]
    # Plus tests are not run where the base tests fail.
    assert (failed["base_tests"], failed["plus_tests"]) == ({"wrong": 4}, None)
    documented = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text("utf-8")
    assert [key for key in failed if f"`{key}`" not in documented] == []


def test_only_what_is_missing_is_asked_for(judge: Judge, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    sampled(judge, whole)
    lines = whole.read_text().splitlines(keepends=True)
    # Killed while the sixth line was being written.
    (tmp_path / "cut.jsonl").write_text("".join(lines[:5]) + lines[5][:30])
    told: list[tuple[int, int]] = []
    engine = sampled(judge, tmp_path / "cut.jsonl", batch_size=4, on_progress=lambda *done: told.append(done))
    assert [(number_of(r), r.draw) for r in asked(engine)] == [(2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (3, 3), (3, 4)]
    assert told == [(5, 12), (9, 12), (12, 12)]
    assert list(read_records(tmp_path / "cut.jsonl")) == list(read_records(whole))
    assert asked(sampled(judge, whole)) == []
    # A last line that was cut exactly at its end lacks but the line feed.
    (tmp_path / "end.jsonl").write_text("".join(lines[:5]).rstrip("\n"))
    sampled(judge, tmp_path / "end.jsonl")
    assert list(read_records(tmp_path / "end.jsonl")) == list(read_records(whole))


def test_the_cache_serves_a_second_sweep(judge: Judge, tmp_path: Path) -> None:
    model = ScriptedModel(answers)
    for name in ("first", "second"):
        engine = make_engine(answers, judge)
        engine.coder = CachedModel(model, GenerationCache(tmp_path / "cache"))
        draw_samples(engine, TASKS, PLAN, 0.8, tmp_path / f"{name}.jsonl")
    assert len(model.requests) == 12
    assert all(record["cached"] for record in read_records(tmp_path / "second.jsonl"))


def test_too_few_samples_are_no_score(judge: Judge, tmp_path: Path) -> None:
    sampled(judge, tmp_path / "s.jsonl")
    records = list(read_records(tmp_path / "s.jsonl"))[:-1]
    with pytest.raises(RunError, match=r"Scripted/3 has 3 of 4 samples at temperature 0\.8; go on with --resume"):
        score_samples(records, PLAN, 0.8, TASKS)


@pytest.mark.parametrize(
    ("n", "temperatures", "ks", "said"),
    [
        (0, [0.8], None, "--samples-per-task is 0; it has to be at least 1"),
        (5, [0.8], [1, 10], "--k has 10, but --samples-per-task is 5: pass@k needs at least k samples"),
        (5, [0.0], [2], "--k has 2, but temperature 0 has one answer"),
        (5, [0.8], [0], "--k has 0; k has to be at least 1"),
        (5, [-0.1], None, "--temperatures has -0.1; a temperature is a number of at least 0"),
        (5, [float("nan")], None, "--temperatures has nan"),
        (5, [0.8, 0.8], None, "--temperatures names one twice"),
        (5, [0.0, -0.0], None, "--temperatures names one twice"),
        (5, [], None, "--temperatures names none"),
    ],
)
def test_plans_that_cannot_be_carried_out(n: int, temperatures: list[float], ks: list[int] | None, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sampling_plan(n, temperatures, ks)
    assert said in str(caught.value)


@given(st.integers(1, 200), st.lists(st.floats(0, 2), min_size=1, max_size=4, unique_by=lambda t: f"{t:g}"))
def test_every_k_has_its_samples(n: int, temperatures: list[float]) -> None:
    plan = sampling_plan(n, temperatures)
    most = max(len(plan.draws(temperature)) for temperature in temperatures)
    assert plan.ks == tuple(sorted({k for k in (1, 5, 10, most) if k <= most}))
    for temperature in temperatures:
        assert all(k <= len(plan.draws(temperature)) for k in plan.ks_at(temperature))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--samples-per-task", "5", "--k", "6"], "--k has 6, but --samples-per-task is 5"),
        (["--samples-per-task", "5", "--temperatures", ""], "--temperatures '': '' is not a number"),
        (["--samples-per-task", "5", "--k", ""], "--k '': '' is not a whole number"),
        (["--samples-per-task", "5", "--temperatures", "hot"], "--temperatures 'hot': 'hot' is not a number"),
        (["--samples-per-task", "5", "--method", "ppo"], "takes no --method ppo"),
        (["--samples-per-task", "5", "--policy", "agent.zip"], "takes no --policy"),
        (["--temperatures", "0.2"], "--temperatures and --k go with --samples-per-task, which is missing"),
        ([], "--method is missing"),
    ],
)
def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run(lambda: app(["evaluate", *arguments], standalone_mode=False))
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


class ScriptedBench(Workbench):
    """A workbench whose models are scripted."""

    @cached_property
    def coder(self) -> CodeModel:
        return ScriptedModel(
            lambda request: "def f(x):\n    return x" if request.draw % 3 else "def f(x):\n    return 0"
        )

    @cached_property
    def encoder(self) -> Any:
        return HashingEncoder()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    rows = [
        {
            "id": f"same {n}",
            "prompt": f"Return x, please ({n}).",
            "entry_point": "f",
            "tests": [f"assert f({n}) == {n}"],
            "report_tests": ["assert f(0) == 0", "assert f(-1) == -1"],
        }
        for n in range(4)
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"benchmark": "custom", "data_path": str(path), "sandbox": {"workers": 2}, "split": {"n_test": 3}}
    return parse_config(values)


def sweep(config: Config, plan: SamplingPlan, output: Path, *, resume: bool = False) -> str:
    text = io.StringIO()
    bench = ScriptedBench(config)
    try:
        run_sampling(config, plan, output, resume=resume, console=Console(file=text, width=80), workbench=bench)
    finally:
        bench.close()
    return text.getvalue()


def test_a_sweep_leaves_records_samples_and_a_table(config: Config, tmp_path: Path) -> None:
    plan = sampling_plan(6, [0, 0.5])
    said = sweep(config, plan, tmp_path / "run")
    folder = tmp_path / "run"
    table = (folder / "table.md").read_text("utf-8")
    assert "| temperature | tests | n | samples | passed | pass@1 % | pass@5 % | pass@6 % |" in table
    assert "| 0 | base | 3 | 1 |" in table
    # Draws 1, 2, 4 and 5 of 6 are right; where the number is 0 every answer passes the base test.
    assert (
        "| 0.5 | base + plus | 3 | 6 | 12 | 66.67 [66.7, 66.7] | 100.00 [100.0, 100.0] | 100.00 [100.0, 100.0] |"
        in table
    )
    assert "pass@6 %" in said
    summary = json.loads((folder / "summary.json").read_text())
    assert [(row["temperature"], row["model_calls"], row["tokens_out"]) for row in summary["spent"]] == [
        (0, 3, 15),
        (0.5, 18, 90),
    ]
    assert summary["sampling"][3]["scores"][0]["value"] == pytest.approx(2 / 3)
    samples = [json.loads(line) for line in (folder / "samples_t0.5.jsonl").read_text().splitlines()]
    assert len(samples) == 18
    assert set(samples[0]) == {"task_id", "solution"}
    # What `promptrl check` says of the samples file is what the sweep says.
    benchmark = load_benchmark("custom", path=config.data_path)
    checked = check_samples(benchmark, folder / "samples_t0.5.jsonl", settings=check_settings(workers=2))
    assert checked.plus is not None
    assert checked.plus["pass@1"] * 4 / 3 == pytest.approx(2 / 3)
    with pytest.raises(RunError, match="already holds a run"):
        sweep(config, plan, folder)
    with pytest.raises(RunError, match=r"samples_per_task: '6' there, '7' now"):
        sweep(config, sampling_plan(7, [0, 0.5]), folder, resume=True)
    # Another k needs no other samples.
    again = sweep(config, sampling_plan(6, [0, 0.5], [2]), folder, resume=True)
    assert "pass@2 %" in again
    assert "pass@1 %" not in again


def test_samples_are_in_the_order_of_tasks_and_draws(tmp_path: Path) -> None:
    records = [
        {"task_id": t, "draw": d, "code": c} for t, d, c in (("b", 2, None), ("a", 1, "x = '\ud800é'"), ("b", 1, "y"))
    ]
    tasks = [make_task(1)]
    named = {"a": 1, "b": 2}
    assert write_samples(records, tmp_path / "none.jsonl", tasks) == 0
    tasks = [type(tasks[0])(name, "made", "", "", tasks[0].base) for name in sorted(named, reverse=True)]
    assert write_samples(records, tmp_path / "s.jsonl", tasks) == 3
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text("ascii").splitlines()]
    assert [(line["task_id"], line["solution"]) for line in lines] == [("b", "y"), ("b", ""), ("a", "x = '\ud800é'")]


def test_no_number_of_the_table_is_cut_on_a_narrow_terminal(judge: Judge, tmp_path: Path) -> None:
    sampled(judge, tmp_path / "s.jsonl")
    scores: list[SuiteScore] = score_samples(read_records(tmp_path / "s.jsonl"), PLAN, 0.8, TASKS)
    text = io.StringIO()
    print_sampling_table(scores, "caption", Console(file=text, width=20))
    for cell in markdown_sampling_table(scores, "caption").split("\n")[2].strip("| ").split(" | "):
        assert cell in text.getvalue()
