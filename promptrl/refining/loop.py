"""Refines the prompts of one or many tasks, batched, until their tests pass or what may be spent is spent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from promptrl.errors import RunError
from promptrl.execution import Candidate, Verdict
from promptrl.methods.base import Method
from promptrl.models.base import Generation
from promptrl.refinement.budget import Budget, Cap, Ledger, MeteredModel
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.episode import Episode, Proposal, Step, task_rng
from promptrl.refinement.semantic import Semantic
from promptrl.refinement.state import StateName, observe
from promptrl.tasks.task import Task

Stop = Literal["solved", "steps", "method", "calls", "tokens", "seconds", "interrupted"]
"""Why a refinement ended: all tests passed, all steps taken, the method gave up, a cap, Ctrl-C."""

_FRAME_TOKENS: Final = 128
"""More than a chat template and the words around a prompt take."""


@dataclass(slots=True)
class Run:
    """One task under way, and in the end what came of it.

    Attributes:
        episode: The steps so far.
        ledger: What they cost.
        stop: Why it ended; None while it goes on.
        hold_out: The verdict of the tests kept back on the best code, where there are any; made at the end.
        refused: Where a cap on calls or tokens left no room for a step: how many that step might have taken.
    """

    episode: Episode
    ledger: Ledger = field(default_factory=Ledger)
    stop: Stop | None = None
    hold_out: Verdict | None = None
    refused: int | None = None


class Listener(Protocol):
    """Is told of every step and every end; what it raises ends the whole."""

    def stepped(self, run: Run, step: Step) -> None: ...

    def ended(self, run: Run) -> None: ...


class Purse:
    """The caps on everything together; seconds are those of the clock on the wall, from the first step on."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.ledger = Ledger(Budget(calls=budget.calls, tokens=budget.tokens))
        self._started = time.monotonic()

    def empty(self) -> Cap | None:
        """The first cap that leaves nothing to spend."""
        if self.budget.seconds is not None and time.monotonic() - self._started >= self.budget.seconds:
            return "seconds"
        return self.ledger.exceeded()

    def refuses(self, calls: int, tokens: int) -> Cap | None:
        """The first cap that does not leave room for so much more."""
        if self.budget.calls is not None and self.ledger.calls + calls > self.budget.calls:
            return "calls"
        if self.budget.tokens is not None and self.ledger.tokens + tokens > self.budget.tokens:
            return "tokens"
        return None


def refine_tasks(
    method: Method,
    engine: RefinementEngine,
    tasks: Sequence[Task],
    *,
    seed: int,
    listener: Listener,
    budget: Budget | None = None,
    meter: MeteredModel | None = None,
    state: StateName = "prompt",
    batch_size: int = 32,
) -> list[Run]:
    """Run `method` on every task, and judge the best code of each on the tests kept back.

    A step begins only where it fits into the caps for sure, as far as that can be told before it: a call is counted
    with its longest answer. Ctrl-C ends every running task with the best so far.

    Args:
        method: Chooses what is tried next.
        engine: Advances the episodes; its protocol has to be `held_out`.
        tasks: Their base tests reward and stop, their plus tests are kept back.
        seed: Of operators and method.
        listener: Is told of steps and ends.
        budget: Attempts for each task (the engine's horizon where unset), the other caps for all tasks together.
        meter: The language model that method and operators were given.
        state: Which observation the method is given.
        batch_size: How many tasks run at once.

    Returns:
        The tasks that were begun, in order; the others had no room any more.

    Raises:
        RunError: the method's choices do not fit the tasks that it was asked about.
    """
    budget = budget or Budget()
    purse = Purse(budget)
    granted = budget.attempts or engine.episode_settings.horizon
    horizon = min(method.attempts or granted, granted)
    waiting = list(tasks)[::-1]
    runs: list[Run] = []
    running: list[Run] = []
    cap: Cap | None = None
    try:
        while waiting or running:
            while waiting and len(running) < batch_size:
                task = waiting.pop()
                running.append(Run(engine.start(task, task_rng(seed, task.task_id), horizon=horizon)))
                runs.append(running[-1])
            cap = purse.empty()
            if cap is not None:
                break
            advanced = _advance(method, engine, running, purse, state, meter)
            for run, step in advanced:
                if run.episode.done:
                    run.stop = "solved" if step.terminated else "steps"
                listener.stepped(run, step)
            running = _end(running, engine, listener)
        for run in running:
            run.stop = _stop_of(cap)
    except KeyboardInterrupt:
        for run in running:
            run.stop = run.stop or "interrupted"
    _end(running, engine, listener)
    return runs


def _end(running: Sequence[Run], engine: RefinementEngine, listener: Listener) -> list[Run]:
    """Judge on the tests kept back what has ended; returns what goes on."""
    ended = [run for run in running if run.stop is not None]
    candidates: list[Candidate] = []
    judged: list[Run] = []
    for run in ended:
        best, kept_back = run.episode.best, run.episode.task.plus
        if best is not None and kept_back is not None:
            candidates.append(Candidate(best.code, run.episode.task, kept_back))
            judged.append(run)
    for run, verdict in zip(judged, engine.judge.judge(candidates), strict=True):
        run.hold_out = verdict
    for run in ended:
        listener.ended(run)
    return [run for run in running if run.stop is None]


def _advance(
    method: Method,
    engine: RefinementEngine,
    running: Sequence[Run],
    purse: Purse,
    state: StateName,
    meter: MeteredModel | None,
) -> list[tuple[Run, Step]]:
    """One attempt for every task that goes on and for which there is room."""
    episodes = [run.episode for run in running]
    choices = list(method.choose(episodes, observe(episodes, state, engine.actions, engine.encode)))
    if len(choices) != len(episodes):
        raise RunError(f"the method {method.name!r} made {len(choices)} choices for {len(episodes)} tasks")
    asked: list[tuple[Run, int | Proposal]] = []
    calls = tokens = 0
    for run, choice in zip(running, choices, strict=True):
        if choice is None:
            if not run.episode.steps:
                raise RunError(f"the method {method.name!r} ended {run.episode.task.task_id} before its first attempt")
            run.stop = "method"
            continue
        more_calls, more_tokens = _needs(engine, run.episode, choice)
        if cap := purse.refuses(calls + more_calls, tokens + more_tokens):
            run.stop, run.refused = _stop_of(cap), more_calls if cap == "calls" else more_tokens
            if isinstance(choice, Proposal):
                _pay(run, purse, choice.rewrites)
            continue
        calls, tokens = calls + more_calls, tokens + more_tokens
        asked.append((run, choice))
    proposals = engine.propose([run.episode for run, _ in asked], [choice for _, choice in asked])
    going: list[tuple[Run, Proposal]] = []
    calls = tokens = 0
    for (run, _), proposal in zip(asked, proposals, strict=True):
        _pay(run, purse, proposal.rewrites)
        more_tokens = _most_tokens_of(engine, run.episode, proposal)
        if cap := purse.refuses(calls + 1, tokens + more_tokens):
            run.stop, run.refused = _stop_of(cap), 1 if cap == "calls" else more_tokens
            continue
        calls, tokens = calls + 1, tokens + more_tokens
        going.append((run, proposal))
    if meter is not None:
        meter.settle(call for proposal in proposals for call in proposal.rewrites)
    if not going:
        return []
    steps = engine.attempt([run.episode for run, _ in going], [proposal for _, proposal in going])
    for (run, _), step in zip(going, steps, strict=True):
        for ledger in (run.ledger, purse.ledger):
            ledger.charge(step.generation, attempts=1)
    return [(run, step) for (run, _), step in zip(going, steps, strict=True)]


def _stop_of(cap: Cap | None) -> Stop:
    match cap:
        case "calls" | "tokens" | "seconds":
            return cap
    return "steps"


def _pay(run: Run, purse: Purse, rewrites: Sequence[Generation]) -> None:
    for ledger in (run.ledger, purse.ledger):
        ledger.charge(*rewrites)


def _needs(engine: RefinementEngine, episode: Episode, choice: int | Proposal) -> tuple[int, int]:
    """Model calls and tokens that a choice may take at most, as far as it can be known before it."""
    if isinstance(choice, Proposal):
        own = choice.rewrites
        spent = sum(call.tokens_in + call.tokens_out for call in own)
        return 1 + len(own), spent + _most_tokens_of(engine, episode, choice)
    attempt = _most_tokens_of(engine, episode, Proposal(episode.prompt))
    operator = engine.operators[engine.actions[choice]]
    if isinstance(operator, Semantic):
        settings = operator.settings
        rewrite = _most_tokens(episode.prompt.render(), settings.max_new_tokens) + 2 * _FRAME_TOKENS
        return 1 + settings.calls, attempt + settings.calls * (rewrite + settings.max_new_tokens)
    return 1, attempt


def _most_tokens_of(engine: RefinementEngine, episode: Episode, proposal: Proposal) -> int:
    """Tokens in and out that asking for code may take at most; a prompt asked before is known exactly."""
    new = engine.generation_settings.max_new_tokens
    for step in episode.steps:
        if step.prompt == proposal.prompt:
            return step.generation.tokens_in + new
    return _most_tokens(proposal.prompt.render(), new)


def _most_tokens(text: str, new: int) -> int:
    # Tokenizers of code models take three bytes or more for a token on the average.
    return len(text.encode("utf-8", "surrogatepass")) // 2 + _FRAME_TOKENS + new
