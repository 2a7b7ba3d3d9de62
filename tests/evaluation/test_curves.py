"""Learning curves: means over known seeds, thresholds, and pictures that are the same twice."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from promptrl.errors import PromptRLError
from promptrl.evaluation.curves import (
    Curve,
    finished_episodes,
    mean_curve,
    plot_learning_curves,
    solved_curve,
    steps_to_reach,
    t_interval,
)
from promptrl.evaluation.records import Record

shares = st.floats(0, 1)


def curve(steps: list[float], values: list[float]) -> Curve:
    return Curve(np.array(steps, dtype=float), np.array(values, dtype=float))


def records(*episodes: str) -> list[Record]:
    """Episodes one after the other: a letter per attempt, `+` solved, `-` failed, and `.` for a running one's last."""
    return [
        {
            "episode": number,
            "reward": 1.0 if mark == "+" else -1.0,
            "terminated": mark == "+",
            "truncated": mark == "-" and place + 1 == len(marks),
        }
        for number, marks in enumerate(episodes)
        for place, mark in enumerate(marks)
    ]


def test_episodes_stand_where_they_began_and_end_before_the_first_unfinished() -> None:
    frame = finished_episodes(records("--+", "+", "--", "-.", "+"))
    assert list(frame["start"]) == [1, 4, 5]
    assert list(frame["solved"]) == [True, True, False]
    assert list(frame["ret"]) == [-1.0, 1.0, -2.0]


def test_a_share_needs_a_full_window() -> None:
    found = solved_curve(records("+", "-", "+", "+"), window=2)
    assert list(found.steps) == [2, 3, 4]
    assert list(found.values) == [0.5, 0.5, 1.0]
    assert len(solved_curve(records("+", "+"), window=3).steps) == 0


def test_the_first_step_at_which_a_threshold_is_reached() -> None:
    found = curve([10, 20, 30, 40], [0.1, 0.5, 0.4, 0.9])
    assert [steps_to_reach(found, threshold) for threshold in (0.05, 0.5, 0.6, 0.95)] == [10, 20, 40, None]


def test_the_mean_of_known_curves() -> None:
    same = mean_curve([curve([16, 32], [0.0, 0.5]), curve([16, 32], [1.0, 0.5])])
    assert list(same["step"]) == [16, 32]
    assert list(same["mean"]) == [0.5, 0.5]
    assert list(same["low"]) == [0.0, 0.5]
    assert list(same["high"]) == [1.0, 0.5]
    other = mean_curve([curve([0, 10], [0, 1]), curve([5, 20], [0, 0.3])], points=3)
    assert list(other["step"]) == [5, 7.5, 10]
    assert list(other["mean"]) == pytest.approx([0.25, (0.75 + 0.05) / 2, (1 + 0.1) / 2])
    assert mean_curve([curve([], []), curve([1], [1])]).empty
    assert mean_curve([curve([1, 2], [0, 0]), curve([3, 4], [0, 0])]).empty
    assert mean_curve([curve([1, 2], [0, 1])])["low"].isna().all()


@given(st.lists(shares, min_size=2, max_size=6))
def test_the_interval_is_students(values: list[float]) -> None:
    found = t_interval(values)
    assert 0 <= found.low <= np.mean(values) + 1e-9
    assert np.mean(values) - 1e-9 <= found.high <= 1
    error = stats.sem(values)
    if error > 1e-12:
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), error)
        assert (found.low, found.high) == pytest.approx((max(0, low), min(1, high)))


def test_an_interval_of_one_run_is_none_and_of_no_run_an_error() -> None:
    assert math.isnan(t_interval([0.5]).low)
    with pytest.raises(PromptRLError, match="a mean over no runs"):
        t_interval([])


def test_pictures_are_the_same_twice(tmp_path: Path) -> None:
    panels = {
        "solved (%)": {"a": [curve([1, 2, 3], [0, 0.5, 1]), curve([1, 2, 3], [0, 0.1, 0.2])], "b": [curve([], [])]},
        "validation (%)": {"a": [curve([2], [0.3])]},
    }
    for name in ("one", "two"):
        plot_learning_curves(panels, tmp_path / f"{name}.png", title="two curves")
    for suffix in (".png", ".svg"):
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()
    assert "environment steps" in (tmp_path / "one.svg").read_text()
