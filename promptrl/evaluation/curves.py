"""Learning curves of several runs: means and bands over seeds, steps to a threshold, pictures.

Curves show the share of tasks solved and never returns, which two rewards measure in different units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from promptrl.atomic import write_atomically
from promptrl.errors import PromptRLError
from promptrl.evaluation.records import Record, columns
from promptrl.evaluation.statistics import CONFIDENCE, Interval
from promptrl.methods.validation import ValidationResult

_STYLES: Final = (("-", "o", "0.0"), ("--", "s", "0.45"), (":", "^", "0.25"), ("-.", "D", "0.6"))
"""Line, marker and grey level per curve: any two differ without colour."""


@dataclass(frozen=True)
class Curve:
    """A share against environment steps.

    Attributes:
        steps: environment steps, ascending, shape (points,).
        values: in [0, 1], shape (points,).
    """

    steps: NDArray[np.float64]
    values: NDArray[np.float64]


def finished_episodes(records: Iterable[Record]) -> pd.DataFrame:
    """One row per episode of training, in the order they began: `start` (environment steps), `ret`, `solved`.

    Episodes stand where they began. Ordered by their ends, a curve would fall by itself: among episodes that run side
    by side the solved ones end first. For the same reason the table stops before the first that was not finished.
    """
    frame = pd.DataFrame(
        [
            (episode, reward, terminated, terminated or truncated)
            for episode, reward, terminated, truncated in columns(
                records, ("episode", "reward", "terminated", "truncated")
            )
        ],
        columns=["episode", "reward", "solved", "ended"],
    )
    frame["step"] = range(1, len(frame) + 1)
    episodes = frame.groupby("episode").agg(
        start=("step", "min"), ret=("reward", "sum"), solved=("solved", "max"), ended=("ended", "max")
    )
    episodes = episodes.sort_values("start")
    return episodes[episodes["ended"].astype(bool).cummin()]


def solved_curve(records: Iterable[Record], *, window: int = 32) -> Curve:
    """Share of episodes solved in training: means over `window` episodes, each at the start of its last episode.

    Empty where fewer than `window` episodes were finished: a mean over few would reach any threshold by chance.
    """
    episodes = finished_episodes(records)
    means = episodes["solved"].astype(float).rolling(window, min_periods=window).mean().dropna()
    return Curve(
        episodes.loc[means.index, "start"].to_numpy(dtype=np.float64),
        means.to_numpy(dtype=np.float64),
    )


def validation_curve(results: Sequence[ValidationResult]) -> Curve:
    """Strict Pass@1 on the validation tasks."""
    return Curve(
        np.array([result.steps for result in results], dtype=np.float64),
        np.array([result.strict for result in results], dtype=np.float64),
    )


def steps_to_reach(curve: Curve, threshold: float) -> int | None:
    """The first of the curve's steps at which it is at least `threshold`; None where it never is."""
    reached = np.flatnonzero(curve.values >= threshold)
    return int(curve.steps[reached[0]]) if len(reached) else None


def t_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """Student's t interval of the mean over runs, cut to [0, 1]; not a number for fewer than two runs.

    Args:
        values: one share per run, shape (runs,).
        confidence: in (0, 1).

    Raises:
        PromptRLError: for no value at all.
    """
    if not len(values):
        raise PromptRLError("a mean over no runs does not exist; at least one run is needed")
    if len(values) == 1:
        return Interval(math.nan, math.nan)
    mean, error = float(np.mean(values)), float(stats.sem(values))
    half = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1)) * error
    return Interval(max(0.0, mean - half), min(1.0, mean + half))


def mean_curve(curves: Sequence[Curve], *, points: int = 100) -> pd.DataFrame:
    """Mean and t interval over seeds where all curves have values: `step`, `mean`, `low`, `high`, `runs`.

    Curves with the same steps are averaged there, others at `points` evenly spaced steps between which each is taken
    to be straight. Empty where a curve is empty or no step is common to all.
    """
    columns = ["step", "mean", "low", "high", "runs"]
    if not curves or any(len(curve.steps) == 0 for curve in curves):
        return pd.DataFrame(columns=columns, dtype=float)
    first, last = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    if first > last:
        return pd.DataFrame(columns=columns, dtype=float)
    same = all(np.array_equal(curve.steps, curves[0].steps) for curve in curves)
    grid = curves[0].steps if same else np.linspace(first, last, points)
    table = np.stack([np.interp(grid, curve.steps, curve.values) for curve in curves])  # (runs, steps)
    intervals = [t_interval([float(v) for v in column]) for column in table.T]
    return pd.DataFrame(
        {
            "step": grid,
            "mean": table.mean(axis=0),
            "low": [interval.low for interval in intervals],
            "high": [interval.high for interval in intervals],
            "runs": len(curves),
        }
    )


def plot_learning_curves(panels: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path, *, title: str) -> None:
    """One panel per score, one line per variant: mean over seeds, and its interval as a band.

    Args:
        panels: per panel (the label of its axis) and variant (the label of its line) a curve per seed.
        path: the PNG to write; an SVG is written beside it.
        title: of the picture.
    """
    # Salt and no date: else an SVG differs each time it is drawn. No mathematics: a name may hold a dollar sign.
    with plt.rc_context({"svg.hashsalt": "promptrl", "text.parse_math": False}):
        figure, axes = plt.subplots(
            len(panels), 1, sharex=True, squeeze=False, figsize=(7, 2.8 * len(panels)), constrained_layout=True
        )
        for axis, (label, variants) in zip(axes[:, 0], panels.items(), strict=True):
            for number, (variant, curves) in enumerate(variants.items()):
                _draw(axis, mean_curve(curves), f"{variant} (n = {len(curves)})", number)
            axis.set_ylabel(label)
            axis.set_ylim(0, 100)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
        axes[-1, 0].set_xlabel("environment steps")
        axes[0, 0].set_title(title, fontsize=10)
        for suffix, metadata in ((".png", None), (".svg", {"Date": None})):
            with write_atomically(path.with_suffix(suffix)) as temporary:
                figure.savefig(temporary, dpi=150, metadata=metadata)
        plt.close(figure)


def _draw(axis: Any, mean: pd.DataFrame, label: str, number: int) -> None:
    line, _, grey = _STYLES[number % len(_STYLES)]
    _, marker, _ = _STYLES[(number + number // len(_STYLES)) % len(_STYLES)]  # the fifth has the first one's line only
    label = f" {label}" if label.startswith("_") else label  # a legend leaves out what begins with an underscore
    every = max(1, len(mean) // 10)
    axis.plot(
        mean["step"], 100 * mean["mean"], color=grey, linestyle=line, marker=marker, markevery=every, ms=4, label=label
    )
    if mean["low"].notna().any():
        hatch = ("////", "\\\\\\\\", "||||", "....")[number % 4]
        axis.fill_between(
            mean["step"], 100 * mean["low"], 100 * mean["high"], facecolor=grey, edgecolor=grey, alpha=0.15, hatch=hatch
        )
