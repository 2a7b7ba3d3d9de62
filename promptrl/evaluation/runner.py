"""Runs a method over tasks, under a budget that the runner itself counts, and keeps every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from promptrl.atomic import write_atomically
from promptrl.errors import RunError
from promptrl.evaluation.metrics import strict_pass_at_1
from promptrl.evaluation.outcomes import task_outcomes
from promptrl.evaluation.records import Record, RecordFile, read_records, step_record
from promptrl.methods.base import Method
from promptrl.refinement.budget import Budget, Cap, Ledger, MeteredModel
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.episode import Episode, Proposal, task_rng
from promptrl.refinement.state import StateName, observe, state_size
from promptrl.tasks.task import Task

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class MethodResult:
    """A method's scores and costs over `n` tasks; calls and tokens include rewriting and reflecting.

    `seconds` is model time as first spent, so that answers taken from the cache cost what they once cost.
    `misled` counts tasks whose answer passes the reward tests and fails the report tests.
    """

    method: str
    n: int
    solved: int
    strict: float
    soft: float
    attempts: int
    model_calls: int
    cached_calls: int
    tokens_in: int
    tokens_out: int
    seconds: float
    misled: int
    task_ids: tuple[str, ...]


@dataclass(slots=True)
class _Running:
    """A task under way: its place in the order, its episode, what it spent, and why it was stopped early."""

    number: int
    episode: Episode
    ledger: Ledger
    done: bool = False
    capped: Cap | None = None


def evaluate(
    method: Method,
    engine: RefinementEngine,
    tasks: Sequence[Task],
    path: Path,
    *,
    seed: int,
    budget: Budget | None = None,
    meter: MeteredModel | None = None,
    state: StateName = "prompt",
    batch_size: int = 32,
    resume: bool = False,
    on_progress: Progress | None = None,
) -> MethodResult:
    """Run `method` on every task and write its steps to `path`, a task's lines together when it is finished.

    No attempt is begun once a cap of the budget is reached, be it by the rewriting that was to lead to it; the
    first attempt of a task is always granted, so that every task has an answer.

    Args:
        method: chooses; no more than the budget is granted, whatever it asks for.
        engine: advances the episodes.
        tasks: each is one episode; its random numbers depend on `seed` and its id alone.
        path: a file of JSON lines.
        seed: of the operators' and the method's random numbers.
        budget: what each task may spend; as many attempts as the engine's horizon where it names none.
        meter: the language model that the method, and the engine's operators, were given.
        state: which observation the method is given.
        batch_size: how many episodes run at once.
        resume: skip the tasks that `path` holds already.
        on_progress: called with (tasks finished, tasks in all).

    Raises:
        RunError: when `path` holds records and `resume` is not set, or when the method's choices do not fit the
            tasks it was asked about or leave model calls that no task is charged for.
    """
    finished = _finished(path, resume)
    budget = budget or Budget()
    granted = budget.attempts or engine.episode_settings.horizon
    horizon = min(method.attempts or granted, granted)
    waiting = [(number, task) for number, task in enumerate(tasks) if task.task_id not in finished]
    waiting.reverse()
    records = RecordFile(path)
    running: list[_Running] = []
    done = len(tasks) - len(waiting)
    try:
        while waiting or running:
            while waiting and len(running) < batch_size:
                number, task = waiting.pop()
                episode = engine.start(task, task_rng(seed, task.task_id), horizon=horizon)
                running.append(_Running(number, episode, Ledger(budget)))
            if meter:
                meter.lend([budget] * len(running))
            _advance(method, engine, running, state, meter)
            ended = [run for run in running if run.done]
            for run, reports in zip(ended, engine.report([run.episode for run in ended]), strict=True):
                lines = [
                    step_record(run.episode, step, method=method.name, seed=seed, episode_number=run.number, report=r)
                    for step, r in zip(run.episode.steps, reports, strict=True)
                ]
                lines[-1] |= {"last": True, "capped": run.capped}
                records.append(*lines)
            running = [run for run in running if not run.done]
            done += len(ended)
            if on_progress:
                on_progress(done, len(tasks))
        if meter:
            _refuse_uncharged(method, meter.settle(()))
    finally:
        records.close()
    wanted = {task.task_id for task in tasks}
    return summarize(method.name, [record for record in read_records(path) if record["task_id"] in wanted])


def _advance(
    method: Method,
    engine: RefinementEngine,
    running: Sequence[_Running],
    state: StateName,
    meter: MeteredModel | None,
) -> None:
    """One attempt for every running task whose method goes on and whose budget allows it."""
    episodes = [run.episode for run in running]
    if getattr(method, "reads_states", True):
        observations = observe(episodes, state, engine.actions, engine.encode)
    else:  # encoding them would be most of what an evaluation costs whose answers are all kept
        observations = np.zeros((len(episodes), state_size(state, len(engine.actions))), dtype=np.float32)
    choices = list(method.choose(episodes, observations))
    if len(choices) != len(episodes):
        raise RunError(f"the method {method.name!r} made {len(choices)} choices for {len(episodes)} tasks")
    asked: list[tuple[_Running, int | Proposal]] = []
    for run, choice in zip(running, choices, strict=True):
        if choice is not None:
            asked.append((run, choice))
        elif run.episode.steps:
            run.done = True
        else:
            raise RunError(f"the method {method.name!r} ended {run.episode.task.task_id} before its first attempt")
    proposals = engine.propose([run.episode for run, _ in asked], [choice for _, choice in asked])
    if meter:
        _refuse_uncharged(method, meter.settle(call for proposal in proposals for call in proposal.rewrites))
    going: list[tuple[_Running, Proposal]] = []
    for (run, _), proposal in zip(asked, proposals, strict=True):
        cap = run.ledger.would_exceed(*proposal.rewrites)
        if cap is None or not run.episode.steps:
            going.append((run, proposal))
        else:
            _stop(run, cap, proposal)
    if not going:
        return
    steps = engine.attempt([run.episode for run, _ in going], [proposal for _, proposal in going])
    for (run, _), step in zip(going, steps, strict=True):
        run.ledger.charge_step(step)
        cap = run.ledger.exceeded()
        run.done = run.episode.done or cap is not None
        run.capped = None if run.episode.done else cap


def _stop(run: _Running, cap: Cap, proposal: Proposal) -> None:
    """End a task whose budget went on rewriting; what that cost is kept with its last step."""
    run.done, run.capped = True, cap
    run.ledger.charge(*proposal.rewrites)
    last = run.episode.steps[-1]
    run.episode.steps[-1] = replace(last, rewrites=(*last.rewrites, *proposal.rewrites))


def _refuse_uncharged(method: Method, uncharged: int) -> None:
    if uncharged:
        raise RunError(
            f"the method {method.name!r} made {uncharged} model calls that no task is charged for; each call has to be "
            "in the 'rewrites' of a proposal"
        )


def summarize(method: str, records: Sequence[Record]) -> MethodResult:
    """Scores and costs of the finished tasks, from records alone.

    A task counts as solved when the answer that its own reward tests picked (the first step with the
    highest pass rate) passes all report tests; Soft takes all steps' pass rates on the report tests.
    """
    outcomes = task_outcomes(records).values()
    return MethodResult(
        method=method,
        n=len(outcomes),
        solved=sum(outcome.solved for outcome in outcomes),
        strict=strict_pass_at_1([outcome.solved for outcome in outcomes]),
        soft=float(np.mean([outcome.soft for outcome in outcomes])),
        attempts=sum(outcome.attempts for outcome in outcomes),
        model_calls=sum(outcome.model_calls for outcome in outcomes),
        cached_calls=sum(outcome.cached_calls for outcome in outcomes),
        tokens_in=sum(outcome.tokens_in for outcome in outcomes),
        tokens_out=sum(outcome.tokens_out for outcome in outcomes),
        seconds=sum(outcome.seconds for outcome in outcomes),
        misled=sum(outcome.misled for outcome in outcomes),
        task_ids=tuple(outcome.task_id for outcome in outcomes),
    )


def _finished(path: Path, resume: bool) -> set[str]:
    """The ids of the tasks that a file holds whole; lines of an unfinished task are removed from it."""
    if not path.exists() or path.stat().st_size == 0:
        return set()
    if not resume:
        raise RunError(f"{path} holds records already; use --resume to go on, or another --output")
    lines = list(read_records(path))
    finished = {record["task_id"] for record in lines if record.get("last")}
    kept = [record for record in lines if record["task_id"] in finished]
    with write_atomically(path) as temporary:
        records = RecordFile(temporary)
        records.append(*kept)
        records.close()
    return finished
