"""From records to what became of each task, and to what each action did; every table and picture starts here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from promptrl.evaluation.metrics import answer_index, soft_success, solved_after
from promptrl.evaluation.records import Record, columns

_OF_A_STEP: Final = ["episode", "step", "action", "pass_rate"]


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """One method's work on one task, with one seed.

    Attributes:
        task_id: the task.
        solved: whether the answer that its own reward tests picked passes all report tests.
        some_step_solved: whether some step, picked or not, passes all report tests (an oracle's choice).
        misled: whether the answer passes all reward tests and fails report tests.
        soft: 1 − Π_t (1 − ρ_t) over the steps' report pass rates.
        solved_after: per step whether the task would be solved had it ended there.
        attempts: steps taken.
        model_calls: answers and rewrites, those from the cache included.
        cached_calls: how many of them came from the cache.
        tokens_in: of all calls.
        tokens_out: of all calls.
        seconds: of model time, as first spent.
        capped: whether a cap on calls or tokens ended the task.
    """

    task_id: str
    solved: bool
    some_step_solved: bool
    misled: bool
    soft: float
    solved_after: tuple[bool, ...]
    attempts: int
    model_calls: int
    cached_calls: int
    tokens_in: int
    tokens_out: int
    seconds: float
    capped: bool


def task_outcomes(records: Iterable[Record]) -> dict[str, TaskOutcome]:
    """The outcomes of the finished tasks of one method's evaluation, by id, in the order of ids.

    A task without a line marked `last` was interrupted, and is left out.
    """
    return {task_id: _outcome(task_id, steps) for task_id, steps in sorted(_finished(records).items())}


def answers(records: Iterable[Record]) -> dict[str, Record]:
    """Per finished task the record of its answer, in the order of the file."""
    return {
        task_id: steps[answer_index([step["pass_rate"] for step in steps])]
        for task_id, steps in _finished(records).items()
    }


def _finished(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The steps of each finished task in order; the tasks in the order of the file."""
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(record["task_id"], []).append(record)
    return {
        task_id: sorted(steps, key=lambda step: int(step["step"]))
        for task_id, steps in by_task.items()
        if any(step.get("last") for step in steps)
    }


def _outcome(task_id: str, steps: Sequence[Record]) -> TaskOutcome:
    if len({step["step"] for step in steps}) < len(steps):
        raise ValueError(f"{task_id} has two lines of one step")
    rates = [float(step["pass_rate"]) for step in steps]
    report_rates = [float(step["report_pass_rate"]) for step in steps]
    for rate in (*rates, *report_rates):
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"a pass rate of {task_id} is {rate:g}")
    after = solved_after(rates, report_rates)
    return TaskOutcome(
        task_id=task_id,
        solved=after[-1],
        some_step_solved=max(report_rates) == 1.0,
        misled=max(rates) == 1.0 and not after[-1],
        soft=soft_success(report_rates),
        solved_after=tuple(after),
        attempts=len(steps),
        model_calls=sum(step["model_calls"] + step["rewrite_calls"] for step in steps),
        cached_calls=sum(step["cached"] + step["rewrite_cached"] for step in steps),
        tokens_in=sum(step["tokens_in"] + step["rewrite_tokens_in"] for step in steps),
        tokens_out=sum(step["tokens_out"] + step["rewrite_tokens_out"] for step in steps),
        seconds=sum(step["seconds"] + step["rewrite_seconds"] for step in steps),
        capped=any(step.get("capped") for step in steps),
    )


def step_frame(records: Iterable[Record]) -> pd.DataFrame:
    """One row per attempt, with `episode`, `step` (from 1), `action`, `pass_rate` and `gain`.

    `gain` is the pass rate on the reward tests less that of the step before; a first step has none.
    """
    frame = pd.DataFrame(
        [(episode, step + 1, action, float(rate)) for episode, step, action, rate in columns(records, _OF_A_STEP)],
        columns=_OF_A_STEP,
    )
    frame["gain"] = frame.groupby("episode")["pass_rate"].diff()
    return frame


def action_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Per step (row) the share of each action (column); rows add up to 1."""
    return pd.crosstab(frame["step"], frame["action"], normalize="index")


def action_gains(frame: pd.DataFrame) -> pd.DataFrame:
    """Per action and step the mean gain and how many attempts it is the mean of: columns `mean` and `count`."""
    gains = frame.dropna(subset=["gain"]).groupby(["action", "step"])["gain"]
    return gains.agg(["mean", "count"])
