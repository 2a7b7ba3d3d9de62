"""What people see: a bar and lines on a terminal, lines alone in a pipe."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from promptrl.execution import Outcome, Status, TestResult, Verdict
from promptrl.models.base import Generation
from promptrl.refinement.episode import Episode, Step
from promptrl.refinement.prompt import Prompt
from promptrl.refining.loop import Run
from promptrl.refining.result import refinement_of
from promptrl.refining.show import lines
from tests.scripted import make_task


def half_way() -> tuple[Run, Step]:
    task = make_task(1)
    prompt = Prompt.from_task(task)
    results = tuple(TestResult(Outcome.PASSED if n < 2 else Outcome.WRONG) for n in range(4))
    verdict = Verdict(Status.PARTIAL, results)
    step = Step(0, "lexical", prompt, 0, Generation("x", 1, 1, "stop"), "x = 1", verdict, 0.5, False, False)
    return Run(Episode(task, task.base, 5, np.random.default_rng(0), prompt, prompt, steps=[step])), step


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("many", [True, False])
def test_a_step_and_an_end(terminal: bool, many: bool) -> None:
    out = io.StringIO()
    run, step = half_way()
    with lines(Console(file=out, force_terminal=terminal, width=120, highlight=False), many=many) as progress:
        progress.expect(5)
        progress.stepped(run, step)
        run.stop = "interrupted"
        progress.ended(refinement_of(run, method="direct", model="m", seed=0), None)
    said = out.getvalue()
    if many:
        assert "Scripted/1: 2 of 4 tests, stopped by Ctrl-C" in said
    else:
        assert "step 1/5  lexical   2/4 tests, best 2/4 tests" in said
    assert ("\x1b[" in said) == terminal
    if terminal:
        assert "1/5" in said
        assert ("tasks" if many else "steps") in said
    else:
        assert said.count("\n") == 1


def test_a_capped_end_says_what_another_step_might_have_taken() -> None:
    run, _ = half_way()
    run.stop, run.refused = "tokens", 700
    out = io.StringIO()
    with lines(Console(file=out, width=120), many=True) as progress:
        progress.ended(refinement_of(run, method="direct", model="m", seed=0), None)
    assert "capped: --max-tokens left no room for another step, which may take 700" in out.getvalue()
    assert refinement_of(run, method="direct", model="m", seed=0).to_dict()["refused"] == 700


def test_a_long_reason_ends_with_a_whole_word() -> None:
    run, step = half_way()
    results = (TestResult(Outcome.EXCEPTION, "NameError: " + "word " * 30),) * 4
    step = replace(step, verdict=Verdict(Status.PARTIAL, results, error="NameError: " + "word " * 30))
    out = io.StringIO()
    with lines(Console(file=out, width=200), many=False) as progress:
        progress.stepped(run, step)
    assert "word…)" in out.getvalue()
