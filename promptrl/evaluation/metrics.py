"""Strict Pass@1, Soft Pass@1, pass@k and solved-at-step: pure functions over pass rates and counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from promptrl.errors import PromptRLError


def strict_pass_at_1(solved: Sequence[bool]) -> float:
    """Share of tasks that are solved; `solved` has one entry per task, and is not empty."""
    _require_tasks(len(solved))
    return float(np.mean(solved))


def soft_success(pass_rates: Sequence[float]) -> float:
    """1 − Π_t (1 − ρ_t): the cumulative probability of passing over one task's steps."""
    return float(1.0 - np.prod([1.0 - rate for rate in pass_rates]))


def soft_pass_at_1(pass_rates: Sequence[Sequence[float]]) -> float:
    """Mean of `soft_success` over tasks; never below Strict Pass@1 of the same steps."""
    _require_tasks(len(pass_rates))
    return float(np.mean([soft_success(rates) for rates in pass_rates]))


def answer_index(pass_rates: Sequence[float]) -> int:
    """Which step of a task is its answer: the first with the highest pass rate on the reward tests.

    The report tests have no say in it, so that nothing which a method could not see picks its answer. This is the one
    place where "solved" begins: a task is solved when this step's code passes all report tests.

    Args:
        pass_rates: of one task's steps on the reward tests, in order; not empty.
    """
    return max(range(len(pass_rates)), key=lambda index: (pass_rates[index], -index))


def solved_after(pass_rates: Sequence[float], report_pass_rates: Sequence[float]) -> list[bool]:
    """Per step t of one task, whether it would be solved had it ended after that step.

    Args:
        pass_rates: of the steps on the reward tests, shape (steps,).
        report_pass_rates: of the same steps on the report tests, shape (steps,).

    Returns:
        One truth value per step; the last is whether the task is solved.
    """
    return [report_pass_rates[answer_index(pass_rates[: end + 1])] == 1.0 for end in range(len(pass_rates))]


def solved_at_step(tasks: Sequence[Sequence[bool]], horizon: int) -> list[float]:
    """Share of tasks solved within t steps, for t = 1 to `horizon`; the last equals Strict Pass@1.

    Args:
        tasks: per task the truth values of `solved_after`; a task that ended early keeps its last one.
        horizon: most steps that a task may have.
    """
    _require_tasks(len(tasks))
    return [float(np.mean([steps[min(step, len(steps) - 1)] for steps in tasks])) for step in range(horizon)]


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimator 1 − C(n−c, k)/C(n, k), as a product (Chen et al. 2021, arXiv 2107.03374).

    Args:
        n: samples drawn of one task.
        c: how many of them are right.
        k: how many may be tried.

    Raises:
        PromptRLError: where n < k, c > n, or one is negative; the estimator does not exist there.
    """
    if k < 1 or c < 0 or n < k or c > n:
        raise PromptRLError(f"pass@k needs 1 ≤ k ≤ n and 0 ≤ c ≤ n, got n = {n}, c = {c}, k = {k}")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def _require_tasks(n: int) -> None:
    if n == 0:
        raise PromptRLError("a score over no tasks does not exist; at least one task is needed")
