"""Faults of the published code of EPiC and Reflexion that can be tried here, and that no method of this package has.

Those that concern one search alone (the stop over the whole data set, the answer of the original prompt) are
tried in the tests of that search.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptrl.errors import TaskError
from promptrl.evaluation.records import read_records
from promptrl.evaluation.runner import evaluate
from promptrl.execution import Judge
from promptrl.execution.extraction import extract_code
from promptrl.execution.judge import Candidate
from promptrl.methods import MethodContext, make_method
from promptrl.refinement.budget import MeteredModel
from promptrl.tasks.task import TestSuite
from tests.scripted import ScriptedModel, half_right, make_engine, make_task, number_of, right


@pytest.mark.parametrize(
    ("code", "entry_point"),
    [
        ("def greet():\n    return 'hello python'", "greet"),  # EPiC deletes the word "python" everywhere
        ("def show(x):\n    if x: print(x)\n    return x", "show"),  # EPiC comments out prints, and the body is gone
        ("def first(xs):\n    return xs[0]", "first"),  # Reflexion strips signs at the end instead of a suffix
        ("def double(N):\n    return 2 * N", "double"),
    ],
)
def test_code_is_taken_as_it_stands(code: str, entry_point: str) -> None:
    for answer in (code, f"```python\n{code}\n```", f"Here it is:\n```\n{code}\n```\nDone."):
        found = extract_code(answer, entry_point=entry_point).code
        assert found is not None
        assert found.strip() == code


def test_no_tests_are_no_pass() -> None:
    """Without tests EPiC's fitness is 1, and Reflexion accepts the first answer."""
    with pytest.raises(TaskError, match="a suite needs at least one"):
        TestSuite("base", ())


def test_a_candidate_that_leaves_takes_nobody_with_it(judge: Judge) -> None:
    """`SystemExit` passes through Reflexion's handler, and its threads are never stopped."""
    task = make_task(1)
    codes = ["raise SystemExit", "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()"]
    verdicts = judge.judge([Candidate(code, task, task.base) for code in (*codes, right(1))])
    assert [verdict.pass_rate for verdict in verdicts] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", ["epic", "reflexion"])
def test_a_resumed_run_has_the_numbers_of_a_whole_one(judge: Judge, tmp_path: Path, name: str) -> None:
    """Reflexion skips by the number of log lines, and counts what is solved from the input rows."""
    tasks = [make_task(number) for number in range(1, 5)]

    def run(path: Path, *, resume: bool) -> object:
        model = MeteredModel(ScriptedModel(lambda request: f" Add {number_of(request)} to `x`, way {request.draw}."))
        engine = make_engine(
            lambda r: right(3) if number_of(r) == 3 else half_right(number_of(r)), judge, rewriter=model, horizon=4
        )
        context = MethodContext(engine.actions, 0, rewriter=model, vectors=engine.encoder, attempts=4)  # type: ignore[arg-type]
        return evaluate(
            make_method(name, context), engine, tasks, path, seed=0, meter=model, batch_size=2, resume=resume
        )

    whole = run(tmp_path / "whole.jsonl", resume=False)
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    # The tasks in another order than the file's, and one of them cut off in the middle.
    of = {number: [line for line in lines if json.loads(line)["task_id"] == f"Scripted/{number}"] for number in (2, 3)}
    (tmp_path / "cut.jsonl").write_text("".join([*of[3], *of[2][:-1]]))
    assert run(tmp_path / "cut.jsonl", resume=True) == whole
    assert len(list(read_records(tmp_path / "cut.jsonl"))) == len(lines)


def test_an_answer_without_code_is_no_prompt_for_one(judge: Judge, tmp_path: Path) -> None:
    """After errors EPiC lets the prompt itself stand in for the code."""
    engine = make_engine(lambda request: "", judge, horizon=1)
    method = make_method("direct", MethodContext(engine.actions, 0))
    evaluate(method, engine, [make_task(1)], tmp_path / "r.jsonl", seed=0)
    (record,) = read_records(tmp_path / "r.jsonl")
    assert (record["code"], record["status"], record["error"]) == (None, "error", "no code found: the answer is empty")
