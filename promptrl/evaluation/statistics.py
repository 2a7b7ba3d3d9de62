"""Is a difference real? Paired tests, corrections and intervals: pure functions, each on a well-kept library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from promptrl.errors import PromptRLError

EXACT_BELOW: Final = 25
"""Discordant pairs below which McNemar's test is exact; from there on it is chi-squared with continuity correction."""

RESAMPLES: Final = 9999
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; both ends belong to it."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class McNemar:
    """McNemar's test of two methods on the same tasks.

    Attributes:
        both: tasks that both solve.
        only_first: tasks that the first alone solves (b).
        only_second: tasks that the second alone solves (c).
        neither: tasks that none solves.
        test: `exact` (binomial) or `chi2` (with continuity correction).
        p_value: two-sided.
        odds_ratio: b / c: infinite where c = 0, not a number where b = c = 0.
        cohens_g: b / (b + c) − 1/2, in [−1/2, 1/2], positive where the first solves more; not a number where
            b = c = 0. 0.05, 0.15 and 0.25 are called small, medium and large (Cohen 1988).
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    test: str
    p_value: float
    odds_ratio: float
    cohens_g: float

    @property
    def discordant(self) -> int:
        """Tasks that one of the two solves and the other does not; the test looks at nothing else."""
        return self.only_first + self.only_second


def mcnemar_test(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """McNemar's test (1947) of whether two methods solve the same share of the same tasks.

    Args:
        first: per task whether the first method solves it, shape (tasks,).
        second: the same of the second method, in the same order of tasks.

    Raises:
        PromptRLError: when the lengths differ or there are no tasks.
    """
    _require_pairs(len(first), len(second))
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    both, only_first, only_second = int(np.sum(a & b)), int(np.sum(a & ~b)), int(np.sum(~a & b))
    neither = len(a) - both - only_first - only_second
    discordant = only_first + only_second
    exact = discordant < EXACT_BELOW
    result = mcnemar([[both, only_first], [only_second, neither]], exact=exact, correction=True)
    return McNemar(
        both=both,
        only_first=only_first,
        only_second=only_second,
        neither=neither,
        test="exact" if exact else "chi2",
        p_value=float(result.pvalue),
        odds_ratio=only_first / only_second if only_second else (math.inf if only_first else math.nan),
        cohens_g=only_first / discordant - 0.5 if discordant else math.nan,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values of a family of tests, in the family's order."""
    return [float(p) for p in multipletests(p_values, method="holm")[1]] if p_values else []


def wilson_interval(successes: int, n: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's (1927) score interval of a proportion.

    Raises:
        PromptRLError: when n < 1, or `successes` is not among 0 to n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise PromptRLError(f"an interval needs n of at least 1 and 0 ≤ successes ≤ n, got {successes} of {n}")
    low, high = proportion_confint(successes, n, alpha=1 - confidence, method="wilson")
    # At the ends the formula gives 0 and 1, which rounding must not miss.
    return Interval(float(low) if successes else 0.0, float(high) if successes < n else 1.0)


def bootstrap_mean(
    scores: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval:
    """Percentile bootstrap interval of a mean over tasks; whole tasks are drawn, with replacement.

    Args:
        scores: one per task, shape (tasks,).
        seed: of the generator that draws.
        resamples: how often a set of tasks is drawn.
        confidence: in (0, 1).
    """
    _require_pairs(len(scores), len(scores))
    if len(scores) == 1:  # nothing can be drawn but the one task
        return Interval(float(scores[0]), float(scores[0]))
    found = stats.bootstrap(
        (np.asarray(scores, dtype=float),),
        np.mean,
        vectorized=True,
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def paired_bootstrap(
    first: Sequence[float],
    second: Sequence[float],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Percentile bootstrap interval of mean(first) − mean(second), tasks drawn in pairs.

    The mean of differences is the difference of means, so drawing pairs is drawing differences.

    Args:
        first: the first method's score per task, shape (tasks,).
        second: the second method's, in the same order of tasks.
        seed: of the generator that draws.
        resamples: how often a set of tasks is drawn.
        confidence: in (0, 1).

    Raises:
        PromptRLError: when the lengths differ or there are no tasks.
    """
    _require_pairs(len(first), len(second))
    differences = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    return bootstrap_mean([float(d) for d in differences], seed=seed, resamples=resamples, confidence=confidence)


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores (Agarwal et al. 2021, arXiv 2108.13264).

    Args:
        scores: shape (runs, benchmarks). A quarter of all entries, rounded down, is cut at each end; of fewer than
            four nothing is cut, and the result is the mean.
    """
    return float(stats.trim_mean(np.asarray(scores, dtype=float), proportiontocut=0.25, axis=None))


def stratified_bootstrap(
    scores: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval:
    """Percentile interval of the interquartile mean, runs drawn with replacement within each benchmark.

    Args:
        scores: shape (runs, benchmarks); each column is a stratum.
        seed: of the generator that draws.
        resamples: how often runs are drawn.
        confidence: in (0, 1).
    """
    table: NDArray[np.float64] = np.asarray(scores, dtype=float)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(table.shape[0], size=(resamples, *table.shape))
    flat = table[drawn, np.arange(table.shape[1])].reshape(resamples, -1)
    means = stats.trim_mean(flat, proportiontocut=0.25, axis=1)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(float(low), float(high))


def majority(runs: Sequence[Sequence[bool]]) -> list[bool]:
    """Per task, whether more than half of a method's runs solve it, or half of them and the first among those.

    Were a tie a miss, two runs would have to agree where one run has nobody to agree with, and a method would lose by
    being run twice.

    Args:
        runs: shape (runs, tasks).
    """
    return [2 * sum(votes) + bool(votes[0]) > len(votes) for votes in zip(*runs, strict=True)]


def _require_pairs(first: int, second: int) -> None:
    if first != second:
        raise PromptRLError(f"a paired comparison needs the same tasks on both sides, got {first} and {second}")
    if first == 0:
        raise PromptRLError("a score over no tasks does not exist; at least one task is needed")
