"""Nobody overruns a budget: caps, hidden calls, searches without end, and what the records say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from promptrl.errors import RunError
from promptrl.evaluation.records import Record, read_records
from promptrl.evaluation.runner import MethodResult, evaluate
from promptrl.execution import Judge
from promptrl.methods import Method, MethodContext, make_method
from promptrl.models.base import Generation, GenerationRequest
from promptrl.refinement.budget import Budget, Ledger, MeteredModel
from promptrl.refinement.episode import Episode, Proposal
from tests.scripted import ScriptedModel, make_engine, make_task, number_of, right, wrong

TASKS = [make_task(number) for number in (1, 2)]
Choose = Callable[["Own", Sequence[Episode]], list[int | Proposal | None]]


class Own:
    """A method made of one function; each scripted answer is 10 tokens in, 5 out and 0.1 s."""

    name: str = "own"
    attempts: int | None = 99

    def __init__(self, choose: Choose) -> None:
        self.model = MeteredModel(ScriptedModel(lambda request: "Say it better."))
        self._choose = choose

    def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> list[int | Proposal | None]:
        return self._choose(self, episodes)

    def ask(self, n: int = 1) -> list[Generation]:
        return self.model.generate([GenerationRequest("better?", draw=draw) for draw in range(n)])


def another(episode: Episode, *rewrites: Generation) -> Proposal:
    """A prompt that was never tried."""
    return Proposal(episode.prompt.with_instruction(f"Way {len(episode.steps)}."), rewrites=rewrites)


def never(request: GenerationRequest) -> str:
    return wrong(number_of(request))


def run(
    judge: Judge,
    path: Path,
    choose: Choose | None = None,
    method: Method | None = None,
    answer: Callable[[GenerationRequest], str] = never,
    **budget: float,
) -> tuple[MethodResult, dict[str, list[Record]]]:
    own = Own(choose or (lambda method, episodes: [another(episode) for episode in episodes]))
    engine = make_engine(answer, judge, rewriter=own.model, horizon=4)
    result = evaluate(
        method or own,
        engine,
        TASKS,
        path / "own.jsonl",
        seed=0,
        budget=Budget.model_validate(budget),
        meter=own.model,
        batch_size=2,
    )
    by_task: dict[str, list[Record]] = {}
    for record in read_records(path / "own.jsonl"):
        by_task.setdefault(record["task_id"], []).append(record)
    return result, by_task


def one_rewrite_each(method: Own, episodes: Sequence[Episode]) -> list[int | Proposal | None]:
    return [another(e, *method.ask()) for e in episodes]


def test_more_attempts_than_the_budget_are_not_granted(judge: Judge, tmp_path: Path) -> None:
    assert run(judge, tmp_path / "horizon")[0].attempts == 2 * 4
    result, records = run(judge, tmp_path / "budget", attempts=2)
    assert result.attempts == 2 * 2
    assert [r["capped"] for r in records["Scripted/1"] if "capped" in r] == [None]
    assert records["Scripted/1"][-1]["truncated"]


@pytest.mark.parametrize(
    ("budget", "attempts", "capped"),
    [
        ({"calls": 5}, 2, "calls"),  # 2 + 2 calls; the fifth goes on a rewrite that is not tried any more
        ({"calls": 4}, 2, "calls"),
        ({"tokens": 60}, 2, "tokens"),
        ({"seconds": 0.35}, 2, "seconds"),
        ({"calls": 100, "tokens": 46}, 2, "tokens"),
        ({"calls": 8}, 4, None),
    ],
)
def test_a_cap_ends_an_episode(
    judge: Judge, tmp_path: Path, budget: dict[str, Any], attempts: int, capped: str | None
) -> None:
    result, records = run(judge, tmp_path, one_rewrite_each, **budget)
    assert result.attempts == 2 * attempts
    for lines in records.values():
        assert lines[-1]["last"]
        assert lines[-1]["capped"] == capped
        assert all("capped" not in line for line in lines[:-1])
        assert sum(line["model_calls"] + line["rewrite_calls"] for line in lines) <= budget.get("calls", 100)


def test_rewriting_that_was_not_tried_is_paid_for(judge: Judge, tmp_path: Path) -> None:
    result, records = run(judge, tmp_path, one_rewrite_each, calls=5)
    assert [line["rewrite_calls"] for line in records["Scripted/1"]] == [1, 2]
    assert (result.model_calls, result.tokens_in) == (2 * 5, 2 * 5 * 10)


def test_the_first_attempt_is_always_granted(judge: Judge, tmp_path: Path) -> None:
    result, records = run(judge, tmp_path, one_rewrite_each, calls=1)
    assert (result.attempts, records["Scripted/2"][-1]["capped"]) == (2, "calls")


def test_operators_are_metered_too(judge: Judge, tmp_path: Path) -> None:
    _, records = run(judge, tmp_path, lambda method, episodes: [2] * len(episodes), calls=4)
    assert [line["action"] for line in records["Scripted/1"]] == ["semantic", "semantic"]
    assert records["Scripted/1"][-1]["capped"] == "calls"


def test_a_solved_task_is_not_called_capped(judge: Judge, tmp_path: Path) -> None:
    _, records = run(judge, tmp_path, one_rewrite_each, answer=lambda r: right(number_of(r)), calls=2)
    assert (records["Scripted/1"][-1]["terminated"], records["Scripted/1"][-1]["capped"]) == (True, None)


def hidden(method: Own, episodes: Sequence[Episode]) -> list[int | Proposal | None]:
    method.ask(3)
    return [another(episode) for episode in episodes]


def forged(method: Own, episodes: Sequence[Episode]) -> list[int | Proposal | None]:
    method.ask(1)
    return [another(episode, Generation("Say it better.", 0, 0, "stop")) for episode in episodes]


@pytest.mark.parametrize(("choose", "calls"), [(hidden, 3), (forged, 1)])
def test_calls_that_nobody_pays_for_are_refused(judge: Judge, tmp_path: Path, choose: Choose, calls: int) -> None:
    with pytest.raises(RunError, match=f"the method 'own' made {calls} model calls that no task is charged for"):
        run(judge, tmp_path, choose)


def test_a_kept_model_is_still_metered(judge: Judge, tmp_path: Path) -> None:
    def early() -> Own:
        own = Own(lambda method, episodes: [another(episode) for episode in episodes])
        own.ask(7)  # before the first task
        return own

    own = early()
    engine = make_engine(never, judge)
    with pytest.raises(RunError, match="made 7 model calls"):
        evaluate(own, engine, TASKS, tmp_path / "early.jsonl", seed=0, meter=own.model)
    late = Own(lambda method, episodes: [another(episode) for episode in episodes])

    def ask_at_the_end(done: int, total: int) -> None:
        if done == total:
            late.ask(2)

    with pytest.raises(RunError, match="made 2 model calls"):
        evaluate(late, engine, TASKS, tmp_path / "late.jsonl", seed=0, meter=late.model, on_progress=ask_at_the_end)


@pytest.mark.parametrize("budget", [{"calls": 6}, {"tokens": 100}, {"seconds": 1}])
def test_a_population_without_end_is_stopped(judge: Judge, tmp_path: Path, budget: dict[str, Any]) -> None:
    def breed(method: Own, episodes: Sequence[Episode]) -> list[int | Proposal | None]:
        population: list[Generation] = []
        while True:
            population += method.ask()

    with pytest.raises(RunError, match=r"one choice asked for [\d.]+ \w+ of the language model; the 2 tasks"):
        run(judge, tmp_path, breed, **budget)


def test_a_method_may_end_a_task_after_an_attempt(judge: Judge, tmp_path: Path) -> None:
    result, records = run(judge, tmp_path / "a", lambda m, episodes: [None if e.steps else 0 for e in episodes])
    assert (result.attempts, records["Scripted/1"][-1]["last"], records["Scripted/1"][-1]["capped"]) == (2, True, None)
    with pytest.raises(RunError, match="ended Scripted/1 before its first attempt"):
        run(judge, tmp_path / "b", lambda method, episodes: [None] * len(episodes))
    with pytest.raises(RunError, match="made 1 choices for 2 tasks"):
        run(judge, tmp_path / "c", lambda method, episodes: [0])


def test_own_methods_are_within_the_budget(judge: Judge, tmp_path: Path) -> None:
    for name in ("epic", "reflexion", "random-hybrid"):
        meter = MeteredModel(ScriptedModel(lambda request: f" Add it, way {request.draw}."))
        engine = make_engine(never, judge, rewriter=meter, horizon=5)
        context = MethodContext(engine.actions, 0, rewriter=meter, vectors=engine.encoder, attempts=5)  # type: ignore[arg-type]
        path = tmp_path / f"{name}.jsonl"
        result = evaluate(make_method(name, context), engine, TASKS, path, seed=0, budget=Budget(calls=6), meter=meter)
        assert result.model_calls <= 2 * 6 + 2 * 3
        assert result.attempts <= 10


answers = st.builds(
    Generation,
    st.just(""),
    st.integers(0, 50),
    st.integers(0, 50),
    st.just("stop"),
    st.integers(0, 8).map(lambda n: n / 4),
)


@given(st.lists(answers, max_size=8), st.integers(1, 200), st.integers(1, 8))
def test_a_ledger_counts_in_any_order(generations: list[Generation], tokens: int, calls: int) -> None:
    budget = Budget(tokens=tokens, calls=calls)
    whole, parts = Ledger(budget), Ledger(budget)
    whole.charge(*generations, attempts=1)
    for generation in reversed(generations):
        parts.charge(generation)
    parts.charge(attempts=1)
    assert whole == parts
    spent = sum(g.tokens_in + g.tokens_out for g in generations)
    expected = "calls" if len(generations) >= calls else "tokens" if spent >= tokens else None
    assert whole.exceeded() == expected
    assert Ledger(budget).would_exceed(*generations) == expected
    assert Ledger().would_exceed(*generations) is None
