"""The Reflexion-style loop: what the next attempt is shown, its batching, its memory, and where feedback comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from promptrl.evaluation.records import Record, read_records
from promptrl.evaluation.runner import evaluate, summarize
from promptrl.execution import Judge
from promptrl.execution.judge import Candidate
from promptrl.methods import MethodContext
from promptrl.methods.reflexion import Reflexion
from promptrl.methods.search_settings import MethodSettings, ReflexionSettings
from promptrl.models.base import Generation, GenerationRequest
from promptrl.refinement.budget import Budget, MeteredModel
from promptrl.refinement.episode import Step, feedback
from promptrl.refinement.prompt import Prompt
from promptrl.tasks.task import AssertTest, CallTest, Comparison, StdinTest, Task, TestSuite
from tests.scripted import ScriptedModel, half_right, make_engine, make_task, number_of, right, wrong

TASKS = [make_task(number) for number in (1, 2, 3)]


def reflect(request: GenerationRequest) -> str:
    return f" it forgets something, thought {request.draw}."


def run(
    judge: Judge,
    path: Path,
    answer: object,
    *,
    rewrite: object = reflect,
    tasks: Sequence[Task] = TASKS,
    attempts: int = 4,
    protocol: str = "paper",
    batch_size: int = 8,
    **settings: object,
) -> tuple[dict[str, list[Record]], ScriptedModel]:
    model = ScriptedModel(rewrite)  # type: ignore[arg-type]
    meter = MeteredModel(model)
    engine = make_engine(answer, judge, rewriter=meter, horizon=attempts, protocol=protocol)  # type: ignore[arg-type]
    own = MethodSettings(reflexion=ReflexionSettings.model_validate(settings))
    method = Reflexion(MethodContext(engine.actions, 0, rewriter=meter, settings=own, attempts=attempts))
    evaluate(method, engine, tasks, path, seed=0, budget=Budget(), meter=meter, batch_size=batch_size)
    records: dict[str, list[Record]] = {}
    for record in read_records(path):
        records.setdefault(record["task_id"], []).append(record)
    return records, model


def half(request: GenerationRequest) -> str:
    return half_right(number_of(request))


def test_a_first_answer_that_passes_ends_the_loop(judge: Judge, tmp_path: Path) -> None:
    records, model = run(judge, tmp_path / "r.jsonl", lambda request: right(number_of(request)))
    assert [len(lines) for lines in records.values()] == [1, 1, 1]
    assert model.batches == []


def test_the_next_attempt_sees_code_results_and_reflection_below_an_unchanged_task(
    judge: Judge, tmp_path: Path
) -> None:
    records, model = run(judge, tmp_path / "r.jsonl", half)
    lines = records["Scripted/2"]
    task = "Write a function that slowly adds 2 to the given value `x`. Return the result.\n\ndef add_2(x: int) -> int:"
    assert [line["prompt"].startswith(task) for line in lines] == [True] * 4
    assert lines[0]["prompt"] == task
    shown = lines[1]["prompt"].removeprefix(task)
    assert "```python\ndef add_2(x):\n    return x + 2 if x < 2 else -99\n```" in shown
    assert "Passed:\nassert add_2(0) == 2\nassert add_2(1) == 3\n" in shown
    assert "Failed:\nassert add_2(2) == 4  # returned -99\nassert add_2(3) == 5  # returned -99\n" in shown
    assert shown.endswith("What went wrong:\nThe code is wrong because it forgets something, thought 1.")
    # All tasks' reflections are one call, and a loop of n attempts holds n - 1 of them.
    assert [len(batch) for batch in model.batches] == [3, 3, 3]
    assert {request.temperature for request in model.requests} == {0.2}
    assert [line["rewrite_calls"] for line in lines] == [0, 1, 1, 1]
    assert {line["draw"] for line in lines} == {0}


@pytest.mark.parametrize("memory", [1, 2, 3])
def test_memory_holds_the_last_reflections(judge: Judge, tmp_path: Path, memory: int) -> None:
    records, _ = run(judge, tmp_path / "r.jsonl", half, attempts=5, memory=memory)
    last = records["Scripted/1"][-1]["prompt"]
    assert [n for n in range(1, 5) if f"thought {n}" in last] == list(range(5 - memory, 5))


def test_feedback_changes_the_answer(judge: Judge, tmp_path: Path) -> None:
    def learns(request: GenerationRequest) -> str:
        number = number_of(request)
        return right(number) if "thought 2" in request.user else wrong(number)

    records, _ = run(judge, tmp_path / "r.jsonl", learns)
    assert [line["pass_rate"] for line in records["Scripted/3"]] == [0.0, 0.0, 1.0]


def test_no_prompt_holds_a_test_that_only_the_report_may_use(judge: Judge, tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(request: GenerationRequest) -> str:
        seen.append(request.user)
        return half_right(number_of(request))

    tasks = [make_task(number, plus=True) for number in (1, 2)]
    _, model = run(judge, tmp_path / "h.jsonl", answer, tasks=tasks, protocol="held_out", shown_tests=9)
    assert any("add_1(3)" in text for text in seen)
    assert not any("100" in text for text in [*seen, *(request.user for request in model.requests)])
    # Under the other protocol the same test is a reward test, and shown: the search above would have found it.
    run(judge, tmp_path / "p.jsonl", answer, tasks=tasks, protocol="paper", shown_tests=9)
    assert any("add_1(100)" in text for text in seen)


def test_the_answer_is_the_best_code_not_the_last(judge: Judge, tmp_path: Path) -> None:
    def worse_later(request: GenerationRequest) -> str:
        number = number_of(request)
        return wrong(number) if "thought" in request.user else half_right(number)

    records, _ = run(judge, tmp_path / "r.jsonl", worse_later)
    lines = records["Scripted/1"]
    assert [line["pass_rate"] for line in lines] == [0.5, 0.0, 0.0, 0.0]
    assert summarize("reflexion", lines).solved == 0


def test_one_attempt_is_judged_too(judge: Judge, tmp_path: Path) -> None:
    """In the authors' loop a first answer that fails the inner test is, at a limit of 1, never run on the others."""
    records, _ = run(judge, tmp_path / "r.jsonl", half, attempts=1)
    assert [(line["pass_rate"], line["report_pass_rate"]) for line in records["Scripted/1"]] == [(0.5, 0.5)]


def test_answers_without_code_or_thought(judge: Judge, tmp_path: Path) -> None:
    records, _ = run(judge, tmp_path / "r.jsonl", lambda request: "I cannot do this.", rewrite=lambda request: "")
    line = records["Scripted/1"][1]
    assert line["note"] == "reflection empty"
    assert "def add_1(x: int) -> int:" in line["prompt"]
    assert line["prompt"].endswith("What went wrong:\nSee the test results.")


def test_a_loop_does_not_depend_on_the_batch(judge: Judge, tmp_path: Path) -> None:
    first, _ = run(judge, tmp_path / "a.jsonl", half)
    second, _ = run(judge, tmp_path / "b.jsonl", half, batch_size=1)
    assert {k: [line["prompt"] for line in v] for k, v in first.items()} == {
        k: [line["prompt"] for line in v] for k, v in second.items()
    }


def step_of(judge: Judge, code: str | None, suite: TestSuite, task: Task) -> Step:
    (verdict,) = judge.judge([Candidate(code, task, suite)])
    generation = Generation(code or "", 1, 1, "stop")
    return Step(0, "direct", Prompt("", ""), 0, generation, code, verdict, 0.0, False, False)


def test_feedback_of_each_kind_of_test(judge: Judge) -> None:
    suite = TestSuite(
        "base",
        (
            CallTest((1,), True, Comparison.TRUTH),
            CallTest((2,), False, Comparison.TRUTH),
            CallTest((3,), False, Comparison.NOT_NONE),
            CallTest((list(range(99)),), 1),
            AssertTest("assert f(5) > 5"),
        ),
    )
    task = Task("T/1", "t", "", "", suite, entry_point="f")
    text = feedback(step_of(judge, "def f(x):\n    return 1 / (x - 2)", suite, task), suite, most=9, entry_point="f")
    lines = text.splitlines()
    assert lines[:2] == ["Passed:", "assert f(1)"]
    assert lines[3].startswith("assert not f(2)  # line 2: ZeroDivisionError")
    assert lines[4].startswith("assert f(3) is None  # returned 1.0")
    assert lines[5].startswith("assert f([0, 1, 2,")
    assert len(lines[5]) < 300
    assert lines[6].startswith("assert f(5) > 5  # ")
    assert feedback(step_of(judge, None, suite, task), suite, most=1).startswith("No code could be read")
    broken = feedback(step_of(judge, "def f(x:", suite, task), suite, most=3, entry_point="f")
    assert broken.startswith("Failed:\nThe code does not run: line 1: SyntaxError")
    assert len(broken.splitlines()) == 2


def test_feedback_of_a_program(judge: Judge) -> None:
    suite = TestSuite("base", (StdinTest("1\n", "2\n"),))
    task = Task("T/2", "t", "", "", suite, style="stdin")
    text = feedback(step_of(judge, "print(int(input()))", suite, task), suite, most=1)
    assert (
        text
        == r"""Failed:
input '1\n' prints '2\n'  # printed '1\n'"""
    )
