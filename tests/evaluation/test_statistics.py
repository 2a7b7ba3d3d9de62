"""Statistics against their definitions, by brute force."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from promptrl.errors import PromptRLError
from promptrl.evaluation.statistics import (
    EXACT_BELOW,
    Interval,
    bootstrap_mean,
    holm,
    interquartile_mean,
    majority,
    mcnemar_test,
    paired_bootstrap,
    stratified_bootstrap,
    wilson_interval,
)

PAIRS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


def sides(both: int, only_first: int, only_second: int, neither: int = 0) -> tuple[list[bool], list[bool]]:
    first = [True] * (both + only_first) + [False] * (only_second + neither)
    second = [True] * both + [False] * only_first + [True] * only_second + [False] * neither
    return first, second


@given(PAIRS)
def test_mcnemar_below_25_discordant_pairs_is_the_binomial_test(pairs: list[tuple[bool, bool]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    test = mcnemar_test(first, second)
    b, c = sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    assert (test.only_first, test.only_second, test.discordant) == (b, c, b + c)
    assert test.both + test.neither + b + c == len(pairs)
    if b + c < EXACT_BELOW:
        assert test.test == "exact"
        # Every way in which the discordant pairs could have fallen, each as likely as the other.
        extreme = sum(math.comb(b + c, k) for k in range(b + c + 1) if abs(k - (b + c) / 2) >= abs(b - (b + c) / 2))
        assert test.p_value == pytest.approx(min(1.0, extreme / 2 ** (b + c)))
    else:
        assert test.test == "chi2"
        assert test.p_value == pytest.approx(stats.chi2.sf((abs(b - c) - 1) ** 2 / (b + c), 1))


def test_the_exact_test_ends_at_25_discordant_pairs() -> None:
    assert mcnemar_test(*sides(0, 20, 4)).test == "exact"
    at = mcnemar_test(*sides(3, 20, 5))
    assert at.test == "chi2"
    assert at.p_value == pytest.approx(stats.chi2.sf(14**2 / 25, 1))
    assert (at.odds_ratio, at.cohens_g) == (4.0, pytest.approx(0.3))


@given(PAIRS)
def test_mcnemar_does_not_ask_who_is_first(pairs: list[tuple[bool, bool]]) -> None:
    one, other = mcnemar_test(*zip(*pairs, strict=True)), mcnemar_test(*[[p[i] for p in pairs] for i in (1, 0)])
    assert one.p_value == pytest.approx(other.p_value)
    if one.discordant:
        assert one.cohens_g == pytest.approx(-other.cohens_g)


def test_effect_sizes_where_nothing_or_one_side_differs() -> None:
    same = mcnemar_test([True, False], [True, False])
    assert same.p_value == 1.0
    assert math.isnan(same.odds_ratio)
    assert math.isnan(same.cohens_g)
    one_sided = mcnemar_test(*sides(1, 3, 0))
    assert (one_sided.odds_ratio, one_sided.cohens_g) == (math.inf, 0.5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_the_step_down_of_its_definition(p_values: list[float]) -> None:
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    wanted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        wanted[index] = highest
    assert holm(p_values) == pytest.approx(wanted)


@given(st.integers(1, 400), st.data())
def test_wilson_is_its_formula(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    z, p = stats.norm.ppf(0.975), k / n
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    found = wilson_interval(k, n)
    assert (found.low, found.high) == (pytest.approx(centre - half, abs=1e-9), pytest.approx(centre + half, abs=1e-9))
    assert 0.0 <= found.low <= p <= found.high <= 1.0


def test_an_interval_needs_tasks_and_possible_counts() -> None:
    for k, n in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(PromptRLError, match=f"got {k} of {n}"):
            wilson_interval(k, n)
    with pytest.raises(PromptRLError, match="same tasks on both sides, got 2 and 1"):
        mcnemar_test([True, False], [True])
    with pytest.raises(PromptRLError, match="at least one task"):
        paired_bootstrap([], [])


def test_the_bootstrap_of_three_tasks_against_all_its_27_draws() -> None:
    scores = [0.0, 0.3, 1.0]
    means = sorted(float(np.mean(draw)) for draw in product(scores, repeat=3))
    found = bootstrap_mean(scores, confidence=0.8)
    # The inverse of the exact distribution: 10 % below and 10 % above.
    assert found.low == pytest.approx(means[2], abs=0.02)
    assert found.high == pytest.approx(means[-3], abs=0.02)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_paired_intervals_hold_the_difference_and_turn_with_the_sides(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    interval = paired_bootstrap(first, second, resamples=299)
    assert interval == paired_bootstrap(first, second, resamples=299)
    turned = paired_bootstrap(second, first, resamples=299)
    assert (turned.low, turned.high) == (pytest.approx(-interval.high), pytest.approx(-interval.low))
    assert paired_bootstrap(first, first, resamples=99) == Interval(0.0, 0.0)
    low, high = min(a - b for a, b in pairs), max(a - b for a, b in pairs)
    assert low - 1e-9 <= interval.low <= interval.high <= high + 1e-9


def test_pairs_tell_a_steady_difference_from_tasks_that_differ() -> None:
    hard_and_easy = [0.1, 0.9] * 30
    a_little_better = [score + 0.05 for score in hard_and_easy]
    interval = paired_bootstrap(a_little_better, hard_and_easy)
    assert (interval.low, interval.high) == (pytest.approx(0.05), pytest.approx(0.05))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_interquartile_mean_cuts_a_quarter_at_each_end(scores: list[float]) -> None:
    cut = len(scores) // 4
    assert interquartile_mean([scores]) == pytest.approx(float(np.mean(sorted(scores)[cut : len(scores) - cut])))


def test_runs_are_drawn_within_their_benchmark() -> None:
    # Each benchmark's runs agree, so that drawing within it changes nothing; across them it would.
    assert stratified_bootstrap([[0.2, 0.8]] * 4) == Interval(pytest.approx(0.5), pytest.approx(0.5))  # type: ignore[arg-type]
    spread = stratified_bootstrap([[0.1], [0.2], [0.3]])
    assert spread.low == pytest.approx(0.1, abs=0.04)
    assert spread.high == pytest.approx(0.3, abs=0.04)
    assert spread == stratified_bootstrap([[0.1], [0.2], [0.3]])
    assert spread != stratified_bootstrap([[0.1], [0.2], [0.31]])


def test_majority_is_more_than_half_and_ties_go_to_the_first_run() -> None:
    assert majority([[True, True, False, False], [True, False, True, False]]) == [True, True, False, False]
    assert majority([[True, False], [True, True], [False, True]]) == [True, True]
    assert majority([[True, True], [False, False], [False, True]]) == [False, True]
    assert majority([[True, False]]) == [True, False]
