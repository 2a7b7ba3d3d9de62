from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptrl.errors import PromptRLError
from promptrl.evaluation.metrics import (
    answer_index,
    pass_at_k,
    soft_pass_at_1,
    soft_success,
    solved_after,
    solved_at_step,
    strict_pass_at_1,
)

RATES = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1.0]), min_size=1, max_size=6)


def test_the_worked_example_of_the_codex_paper() -> None:
    assert pass_at_k(200, 10, 1) == pytest.approx(0.05)
    # The exact value, 1 - C(190, 10) / C(200, 10); the biased 1 - 0.95 ** 10 would be 0.401.
    assert pass_at_k(200, 10, 10) == pytest.approx(1 - comb(190, 10) / comb(200, 10), abs=1e-12)
    assert round(pass_at_k(200, 10, 10), 4) == 0.4085


@given(st.integers(1, 9), st.data())
def test_pass_at_k_equals_counting_all_choices(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    choices = list(combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(min(choice) < c for choice in choices) / len(choices))


@pytest.mark.parametrize(("n", "c", "k"), [(1, 0, 2), (3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_pass_at_k_is_refused_where_it_does_not_exist(n: int, c: int, k: int) -> None:
    with pytest.raises(PromptRLError, match=f"n = {n}, c = {c}, k = {k}"):
        pass_at_k(n, c, k)


@given(st.lists(RATES, min_size=1, max_size=8))
def test_soft_is_never_below_strict(tasks: list[list[float]]) -> None:
    strict = strict_pass_at_1([max(rates) == 1.0 for rates in tasks])
    assert 0.0 <= strict <= soft_pass_at_1(tasks) <= 1.0


def test_soft_success_of_two_halves() -> None:
    assert soft_success([0.5, 0.5]) == 0.75
    assert soft_success([0.0]) == 0.0


def test_no_tasks_no_score() -> None:
    with pytest.raises(PromptRLError, match="at least one task"):
        strict_pass_at_1([])


STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=5)


@given(RATES)
def test_the_answer_is_the_first_of_the_highest(rates: list[float]) -> None:
    index = answer_index(rates)
    assert all(rate < rates[index] for rate in rates[:index])
    assert all(rate <= rates[index] for rate in rates[index:])


@given(st.lists(STEPS, min_size=1, max_size=6))
def test_solved_at_step_is_strict_of_the_tasks_cut_short(tasks: list[list[tuple[float, float]]]) -> None:
    curve = solved_at_step([solved_after([r for r, _ in steps], [p for _, p in steps]) for steps in tasks], horizon=5)
    for horizon in range(1, 6):
        cut = [steps[:horizon] for steps in tasks]
        solved = [steps[answer_index([rate for rate, _ in steps])][1] == 1.0 for steps in cut]
        assert curve[horizon - 1] == pytest.approx(strict_pass_at_1(solved))


@given(st.lists(RATES, min_size=1, max_size=6))
def test_where_the_same_tests_reward_and_report_a_curve_never_falls(tasks: list[list[float]]) -> None:
    curve = solved_at_step([solved_after(rates, rates) for rates in tasks], horizon=6)
    assert curve == sorted(curve)
    assert curve[-1] == strict_pass_at_1([max(rates) == 1.0 for rates in tasks])


def test_the_report_tests_do_not_pick_the_answer() -> None:
    # The second step passes all reward tests and fails a report test; the first would have passed no fewer of those.
    assert solved_after([0.5, 1.0], [1.0, 0.9]) == [True, False]
