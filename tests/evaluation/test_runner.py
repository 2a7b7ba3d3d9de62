"""The runner: budget, answers, resumption, and what it writes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from promptrl.errors import ConfigError, RunError
from promptrl.evaluation.records import RecordFile, read_records
from promptrl.evaluation.runner import MethodResult, evaluate
from promptrl.execution import Judge
from promptrl.methods import MethodContext, make_method
from promptrl.models.base import GenerationRequest
from tests.scripted import half_right, make_engine, make_task, number_of, right, wrong

TASKS = [make_task(number, plus=True) for number in range(1, 5)]
ACTIONS = ("direct", "lexical", "semantic")


def answers(request: GenerationRequest) -> str:
    """Task 1 at once, task 2 at the third draw of the unchanged prompt, task 3 half, task 4 never."""
    number = number_of(request)
    if number == 1 or (number == 2 and request.draw == 2):
        return right(number)
    return half_right(number) if number == 3 else wrong(number)


def only_the_base_tests(request: GenerationRequest) -> str:
    number = number_of(request)
    return f"def add_{number}(x):\n    return x + {number} if x < 50 else 0"


def run(method: str, judge: Judge, path: Path, answer: object = answers, **settings: object) -> MethodResult:
    engine = make_engine(answer, judge, **settings)  # type: ignore[arg-type]
    chosen = make_method(method, MethodContext(ACTIONS, seed=0))
    return evaluate(chosen, engine, TASKS, path, seed=0, batch_size=2, resume=False)


def test_direct_makes_one_attempt_per_task(judge: Judge, tmp_path: Path) -> None:
    result = run("direct", judge, tmp_path / "direct.jsonl")
    assert (result.n, result.solved, result.attempts, result.model_calls) == (4, 1, 4, 4)
    # Task 3 passes 2 of 5 tests in its only step.
    assert (result.strict, result.soft) == (0.25, pytest.approx((1 + 2 / 5) / 4))


@pytest.mark.parametrize("method", ["direct", "repeat-direct"])
def test_no_state_is_encoded_for_a_method_that_reads_none(method: str, judge: Judge, tmp_path: Path) -> None:
    engine = make_engine(answers, judge)
    evaluate(make_method(method, MethodContext(ACTIONS, 0)), engine, TASKS, tmp_path / "r.jsonl", seed=0)
    assert engine.encoder.calls == []  # type: ignore[attr-defined]


def test_repeat_direct_draws_until_solved_or_the_budget_is_spent(judge: Judge, tmp_path: Path) -> None:
    result = run("repeat-direct", judge, tmp_path / "repeat.jsonl", horizon=4)
    assert (result.solved, result.attempts) == (2, 1 + 3 + 4 + 4)
    records = list(read_records(tmp_path / "repeat.jsonl"))
    assert [r["draw"] for r in records if r["task_id"] == "Scripted/4"] == [0, 1, 2, 3]
    assert sum(r.get("last", False) for r in records) == 4


def test_the_first_draw_is_greedy_and_the_others_are_sampled(judge: Judge, tmp_path: Path) -> None:
    engine = make_engine(answers, judge, horizon=3)
    evaluate(make_method("repeat-direct", MethodContext(ACTIONS, 0)), engine, TASKS, tmp_path / "r.jsonl", seed=0)
    requests = engine.coder.requests  # type: ignore[attr-defined]
    assert {r.temperature for r in requests if r.draw == 0} == {0.0}
    assert {r.temperature for r in requests if r.draw > 0} == {0.8}


def test_a_method_cannot_overrun_its_budget(judge: Judge, tmp_path: Path) -> None:
    class Greedy:
        name = "greedy"
        attempts: int | None = 1000

        def choose(self, episodes: list[object], observations: object) -> list[int]:
            return [0] * len(episodes)

    engine = make_engine(answers, judge, horizon=2)
    result = evaluate(Greedy(), engine, TASKS, tmp_path / "greedy.jsonl", seed=0)  # type: ignore[arg-type]
    assert result.attempts == 1 + 2 + 2 + 2


def test_random_hybrid_does_not_depend_on_the_batch(judge: Judge, tmp_path: Path) -> None:
    choices = []
    for batch_size in (1, 4):
        path = tmp_path / f"{batch_size}.jsonl"
        engine = make_engine(answers, judge)
        method = make_method("random-hybrid", MethodContext(ACTIONS, seed=7))
        evaluate(method, engine, TASKS, path, seed=7, batch_size=batch_size)
        records = sorted(read_records(path), key=lambda r: (r["task_id"], r["step"]))
        choices.append([(r["task_id"], r["action"], r["prompt"]) for r in records])
    assert choices[0] == choices[1]
    assert {action for _, action, _ in choices[0]} == set(ACTIONS)


def test_held_out_rewards_on_base_and_reports_on_base_and_plus(judge: Judge, tmp_path: Path) -> None:
    held_out = run("repeat-direct", judge, tmp_path / "h.jsonl", only_the_base_tests, protocol="held_out")
    assert (held_out.solved, held_out.misled, held_out.attempts) == (0, 4, 4)
    assert held_out.soft == pytest.approx(4 / 5)
    record = next(read_records(tmp_path / "h.jsonl"))
    assert (record["pass_rate"], record["report_pass_rate"], len(record["tests"])) == (1.0, 0.8, 4)
    paper = run("repeat-direct", judge, tmp_path / "p.jsonl", only_the_base_tests, protocol="paper", horizon=3)
    assert (paper.solved, paper.misled, paper.attempts) == (0, 0, 12)


def test_finished_tasks_are_not_run_again_and_half_written_lines_are_dropped(judge: Judge, tmp_path: Path) -> None:
    whole = run("repeat-direct", judge, tmp_path / "whole.jsonl", horizon=3)
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    # Killed while the third task's lines were being written.
    (tmp_path / "cut.jsonl").write_text("".join(lines[:5]) + lines[5][:40])
    with pytest.raises(RunError, match="holds records already; use --resume"):
        run("repeat-direct", judge, tmp_path / "cut.jsonl", horizon=3)
    engine = make_engine(answers, judge, horizon=3)
    method = make_method("repeat-direct", MethodContext(ACTIONS, 0))
    result = evaluate(method, engine, TASKS, tmp_path / "cut.jsonl", seed=0, batch_size=2, resume=True)
    assert result == whole
    assert 0 < len(engine.coder.requests) < whole.attempts  # type: ignore[attr-defined]


def test_records_are_read_by_pandas_and_keep_odd_text(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl")
    file.append({"schema": 1, "code": "NUL \0, lone \ud800, é, \u2028"}, {"schema": 1, "code": None})
    file.close()
    frame = pd.read_json(tmp_path / "r.jsonl", lines=True)
    assert len(frame) == 2
    assert frame["code"][0].startswith("NUL \0, lone ")
    (tmp_path / "bad.jsonl").write_text('{"schema": 1}\nnot json\n{"schema": 1}\n')
    with pytest.raises(RunError, match="line 2 is not a JSON object"):
        list(read_records(tmp_path / "bad.jsonl"))
    (tmp_path / "cut.jsonl").write_bytes('{"schema": 1}\n{"schema": 1, "answer": "é'.encode()[:-1])
    assert list(read_records(tmp_path / "cut.jsonl")) == [{"schema": 1}]
    (tmp_path / "old.jsonl").write_text('{"schema": 99}\n')
    with pytest.raises(RunError, match="line 1 is not a record of schema version 1"):
        list(read_records(tmp_path / "old.jsonl"))


def test_unknown_method_and_missing_policy() -> None:
    with pytest.raises(ConfigError, match="method 'genetic' is unknown; allowed are direct, repeat-direct"):
        make_method("genetic", MethodContext(ACTIONS, 0))
    with pytest.raises(ConfigError, match="needs a trained agent"):
        make_method("ppo", MethodContext(ACTIONS, 0))
    with pytest.raises(ConfigError, match=r"there is no trained agent at nowhere\.zip"):
        make_method("ppo", MethodContext(ACTIONS, 0, policy=Path("nowhere.zip")))
