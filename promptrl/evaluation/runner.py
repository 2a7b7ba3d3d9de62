"""Runs a method over tasks, under a budget that the runner itself counts, and keeps every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptrl.atomic import write_atomically
from promptrl.errors import RunError
from promptrl.evaluation.metrics import soft_pass_at_1, strict_pass_at_1
from promptrl.evaluation.records import Record, RecordFile, read_records, step_record
from promptrl.methods.base import Method, task_rng
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.episode import Episode
from promptrl.refinement.state import StateName, observe
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


def evaluate(
    method: Method,
    engine: RefinementEngine,
    tasks: Sequence[Task],
    path: Path,
    *,
    seed: int,
    state: StateName = "prompt",
    batch_size: int = 32,
    resume: bool = False,
    on_progress: Progress | None = None,
) -> MethodResult:
    """Run `method` on every task and write its steps to `path`, a task's lines together when it is finished.

    Args:
        method: chooses; at most `engine`'s horizon of attempts per task is granted, whatever it asks for.
        engine: advances the episodes.
        tasks: each is one episode; its random numbers depend on `seed` and its id alone.
        path: a file of JSON lines.
        seed: of the operators' and the method's random numbers.
        state: which observation the method is given.
        batch_size: how many episodes run at once.
        resume: skip the tasks that `path` holds already.
        on_progress: called with (tasks finished, tasks in all).

    Raises:
        RunError: when `path` holds records and `resume` is not set.
    """
    finished = _finished(path, resume)
    horizon = min(method.attempts or engine.episode_settings.horizon, engine.episode_settings.horizon)
    waiting = [(number, task) for number, task in enumerate(tasks) if task.task_id not in finished]
    waiting.reverse()
    records = RecordFile(path)
    running: list[tuple[int, Episode]] = []
    done = len(tasks) - len(waiting)
    try:
        while waiting or running:
            while waiting and len(running) < batch_size:
                number, task = waiting.pop()
                running.append((number, engine.start(task, task_rng(seed, task.task_id), horizon=horizon)))
            episodes = [episode for _, episode in running]
            observations = observe(episodes, state, engine.actions, engine.encode)
            engine.step(episodes, list(method.choose(episodes, observations)))
            ended = [(number, episode) for number, episode in running if episode.done]
            for (number, episode), reports in zip(ended, engine.report([e for _, e in ended]), strict=True):
                lines = [
                    step_record(episode, step, method=method.name, seed=seed, episode_number=number, report=report)
                    for step, report in zip(episode.steps, reports, strict=True)
                ]
                lines[-1]["last"] = True
                records.append(*lines)
            running = [(number, episode) for number, episode in running if not episode.done]
            done += len(ended)
            if on_progress:
                on_progress(done, len(tasks))
    finally:
        records.close()
    wanted = {task.task_id for task in tasks}
    return summarize(method.name, [record for record in read_records(path) if record["task_id"] in wanted])


def summarize(method: str, records: Sequence[Record]) -> MethodResult:
    """Scores and costs from records alone.

    A task counts as solved when the answer that its own reward tests picked (the first step with the
    highest pass rate) passes all report tests; Soft takes all steps' pass rates on the report tests.
    """
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(record["task_id"], []).append(record)
    answers = [max(steps, key=lambda step: (step["pass_rate"], -step["step"])) for steps in by_task.values()]
    solved = [answer["report_pass_rate"] == 1.0 for answer in answers]
    return MethodResult(
        method=method,
        n=len(by_task),
        solved=sum(solved),
        strict=strict_pass_at_1(solved),
        soft=soft_pass_at_1([[step["report_pass_rate"] for step in steps] for steps in by_task.values()]),
        attempts=len(records),
        model_calls=sum(record["model_calls"] + record["rewrite_calls"] for record in records),
        cached_calls=sum(record["cached"] + record["rewrite_cached"] for record in records),
        tokens_in=sum(record["tokens_in"] + record["rewrite_tokens_in"] for record in records),
        tokens_out=sum(record["tokens_out"] + record["rewrite_tokens_out"] for record in records),
        seconds=sum(record["seconds"] + record["rewrite_seconds"] for record in records),
        misled=sum(answer["pass_rate"] == 1.0 and answer["report_pass_rate"] < 1.0 for answer in answers),
        task_ids=tuple(sorted(by_task)),
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
