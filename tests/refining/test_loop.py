"""The loop with a scripted model: steps, ends, caps and Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from promptrl.errors import RunError
from promptrl.execution import Judge
from promptrl.methods.base import MethodContext
from promptrl.methods.fixed import RandomHybrid, RepeatDirect
from promptrl.models.base import Generation, GenerationRequest
from promptrl.refinement.budget import Budget, MeteredModel
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.episode import Episode, Proposal, Step
from promptrl.refining.loop import Run, refine_tasks
from tests.scripted import Answer, ScriptedModel, half_right, make_engine, make_task, number_of, right, wrong


class Log:
    """Keeps what the loop tells, and may press Ctrl-C after a number of steps."""

    def __init__(self, interrupt_after: int = 10**9) -> None:
        self.steps: list[tuple[str, int]] = []
        self.ended_tasks: list[str] = []
        self.interrupt_after = interrupt_after

    def stepped(self, run: Run, step: Step) -> None:
        self.steps.append((run.episode.task.task_id, step.index))
        if len(self.steps) == self.interrupt_after:
            raise KeyboardInterrupt

    def ended(self, run: Run) -> None:
        self.ended_tasks.append(run.episode.task.task_id)


def third_time(request: GenerationRequest) -> str:
    """Wrong, half right, then right."""
    number = number_of(request)
    return [wrong, half_right, right][min(request.draw, 2)](number)


def engine_of(judge: Judge, answer: Answer, horizon: int = 5) -> RefinementEngine:
    return make_engine(answer, judge, horizon=horizon, protocol="held_out")


def repeat_direct(engine: RefinementEngine) -> RepeatDirect:
    return RepeatDirect(MethodContext(engine.actions, 0))


def test_it_ends_when_all_tests_pass_and_judges_what_was_held_out(judge: Judge) -> None:
    engine = engine_of(judge, third_time)
    log = Log()
    tasks = [make_task(1, plus=True), make_task(2)]
    runs = refine_tasks(repeat_direct(engine), engine, tasks, seed=0, listener=log)
    assert [(run.stop, len(run.episode.steps), run.ledger.calls) for run in runs] == [("solved", 3, 3)] * 2
    assert runs[0].hold_out is not None
    assert runs[0].hold_out.tests_passed == 1
    assert runs[1].hold_out is None
    assert log.ended_tasks == ["Scripted/1", "Scripted/2"]
    assert isinstance(engine.coder, ScriptedModel)
    assert [len(batch) for batch in engine.coder.batches] == [2, 2, 2], "all tasks in one batch"


def test_what_was_held_out_reaches_neither_reward_nor_model(judge: Judge) -> None:
    fits_the_tests = "def add_1(x):\n    return x + 1 if x < 50 else 0"
    engine = engine_of(judge, lambda request: fits_the_tests)
    (run,) = refine_tasks(repeat_direct(engine), engine, [make_task(1, plus=True)], seed=0, listener=Log())
    assert (run.stop, run.episode.steps[0].reward) == ("solved", 1.0)
    assert run.hold_out is not None
    assert run.hold_out.tests_passed == 0
    assert isinstance(engine.coder, ScriptedModel)
    assert all("100" not in request.user for request in engine.coder.requests)


def test_all_steps_taken(judge: Judge) -> None:
    engine = engine_of(judge, lambda request: half_right(1))
    (run,) = refine_tasks(repeat_direct(engine), engine, [make_task(1)], seed=0, listener=Log())
    assert (run.stop, len(run.episode.steps)) == ("steps", 5)
    budget = Budget(attempts=2)
    (run,) = refine_tasks(repeat_direct(engine), engine, [make_task(1)], seed=0, listener=Log(), budget=budget)
    assert (run.stop, len(run.episode.steps)) == ("steps", 2)


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 7])
def test_calls_are_never_more_than_the_cap(judge: Judge, calls: int) -> None:
    engine = engine_of(judge, lambda request: wrong(number_of(request)))
    method = RandomHybrid(MethodContext(engine.actions, 3))
    log = Log()
    runs = refine_tasks(
        method, engine, [make_task(n) for n in range(3)], seed=3, listener=log, budget=Budget(calls=calls)
    )
    assert isinstance(engine.coder, ScriptedModel)
    rewriter = engine.operators["semantic"].rewriter  # type: ignore[attr-defined]
    assert sum(run.ledger.calls for run in runs) == len(engine.coder.requests) + len(rewriter.requests) <= calls
    assert len(log.steps) == len(engine.coder.requests)
    assert {run.stop for run in runs} == {"calls"}
    assert len(log.ended_tasks) == len(runs)


@given(tokens=st.integers(1, 4000))
@hypothesis_settings(max_examples=15, deadline=None)
def test_tokens_are_never_more_than_the_cap(judge: Judge, tokens: int) -> None:
    def generate(requests: Sequence[GenerationRequest]) -> list[Generation]:
        # As long as an answer can be: the frame and the text in, everything that is allowed out.
        return [
            Generation(wrong(1), len(request.user) // 3 + 60, request.max_new_tokens, "length") for request in requests
        ]

    engine = engine_of(judge, lambda request: "")
    engine.coder.generate = generate  # type: ignore[method-assign]
    engine.operators["semantic"].rewriter.generate = generate  # type: ignore[attr-defined]
    method = RandomHybrid(MethodContext(engine.actions, 1))
    (run,) = refine_tasks(method, engine, [make_task(1)], seed=1, listener=Log(), budget=Budget(tokens=tokens))
    assert run.ledger.tokens <= tokens
    assert run.stop == "tokens"
    assert run.refused is not None
    assert run.ledger.tokens + run.refused > tokens, "what the step that did not fit might have taken"


def test_seconds_on_the_clock_end_it_between_steps(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("promptrl.refining.loop.time", SimpleNamespace(monotonic=lambda: float(next(now))))
    engine = engine_of(judge, lambda request: wrong(1))
    (run,) = refine_tasks(
        repeat_direct(engine), engine, [make_task(1)], seed=0, listener=Log(), budget=Budget(seconds=2.5)
    )
    assert (run.stop, len(run.episode.steps)) == ("seconds", 2)


def test_ctrl_c_keeps_the_best_so_far(judge: Judge) -> None:
    engine = engine_of(judge, lambda request: half_right(1) if request.draw == 0 else wrong(1))
    log = Log(interrupt_after=2)
    (run,) = refine_tasks(repeat_direct(engine), engine, [make_task(1, plus=True)], seed=0, listener=log)
    assert (run.stop, len(run.episode.steps)) == ("interrupted", 2)
    best = run.episode.best
    assert best is not None
    assert (best.index, best.verdict.tests_passed) == (0, 2)
    assert run.hold_out is not None
    assert log.ended_tasks == ["Scripted/1"]


def test_tasks_that_find_no_room_are_not_begun(judge: Judge) -> None:
    engine = engine_of(judge, lambda request: wrong(number_of(request)), horizon=2)
    runs = refine_tasks(
        repeat_direct(engine),
        engine,
        [make_task(n) for n in range(4)],
        seed=0,
        listener=Log(),
        budget=Budget(calls=4),
        batch_size=2,
    )
    assert [(len(run.episode.steps), run.stop) for run in runs[:2]] == [(2, "steps")] * 2
    assert all(not run.episode.steps and run.stop == "calls" for run in runs[2:])


class AsksFirst:
    """Asks a model before each attempt, as searching methods do, and gives up after two."""

    name = "asks-first"
    attempts = None

    def __init__(self, model: MeteredModel) -> None:
        self.model = model

    def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> list[Proposal | None]:
        answers = self.model.generate([GenerationRequest("how?") for _ in episodes])
        return [
            None if len(episode.steps) == 2 else Proposal(episode.prompt, rewrites=(answer,))
            for episode, answer in zip(episodes, answers, strict=True)
        ]


def test_a_method_that_asks_a_model_pays_for_it_and_may_give_up(judge: Judge) -> None:
    engine = engine_of(judge, lambda request: wrong(1))
    meter = MeteredModel(ScriptedModel(lambda request: "so"))
    (run,) = refine_tasks(AsksFirst(meter), engine, [make_task(1)], seed=0, listener=Log(), meter=meter)
    assert (run.stop, run.ledger.calls, run.ledger.attempts) == ("method", 4, 2)
    (run,) = refine_tasks(
        AsksFirst(meter), engine, [make_task(1)], seed=0, listener=Log(), meter=meter, budget=Budget(calls=3)
    )
    assert (run.stop, len(run.episode.steps), run.ledger.calls) == ("calls", 1, 3)


def test_a_method_that_gives_up_at_once_is_at_fault(judge: Judge) -> None:
    class Idle(AsksFirst):
        def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> list[Proposal | None]:
            return [None for _ in episodes]

    engine = engine_of(judge, lambda request: wrong(1))
    meter = MeteredModel(ScriptedModel(lambda request: "so"))
    with pytest.raises(RunError, match=r"ended Scripted/1 before its first attempt"):
        refine_tasks(Idle(meter), engine, [make_task(1)], seed=0, listener=Log())
