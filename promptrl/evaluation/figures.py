"""A comparison's pictures, PNG and SVG: readable in greyscale, with units on the axes, made from records alone.

Methods are told apart by line style, marker and hatch, never by colour only. SVGs hold no date and no random names, so
that the same records give the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from promptrl.atomic import write_atomically
from promptrl.evaluation.comparison import Comparison
from promptrl.evaluation.curves import Curve, plot_learning_curves, solved_curve, validation_curve
from promptrl.evaluation.outcomes import action_gains, action_shares, step_frame
from promptrl.evaluation.records import read_records
from promptrl.evaluation.run_folders import TRAINED
from promptrl.evaluation.series import Series
from promptrl.methods.validation import read_validation

STYLE: Final[Any] = {
    "svg.hashsalt": "promptrl",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a name may hold a dollar sign
}
_LINES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)), (0, (4, 1, 1, 1)))
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
_GREYS: Final = ("black", "0.35", "black", "0.5", "black", "0.35", "black", "0.5")
_HATCHES: Final = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo")
_FILLS: Final = ("white", "0.8", "0.95", "0.6", "0.85", "0.75", "0.9")
_SHADES: Final = LinearSegmentedColormap.from_list("shades", ["white", "0.5"])
_MOST_INSIDE: Final = 5
"""Names in a legend that leave room for lines beside them."""
_BINS: Final = 12
"""Parts of the training for which the shares of the actions are shown."""


def write_figures(comparison: Comparison, output: Path) -> list[Path]:
    """Draw every picture for which there are records; returns the files, PNG and SVG of each."""
    written: list[Path] = []
    makers: dict[str, Callable[[Comparison], Figure | None]] = {
        "solved_at_step": solved_at_step_figure,
        "cost_and_score": cost_figure,
        "actions_by_step": actions_by_step_figure,
        "gain_per_action": gain_figure,
        "actions_over_training": actions_over_training_figure,
    }
    for name, make in makers.items():
        with plt.rc_context(STYLE):
            figure = make(comparison)
            if figure is not None:
                written += _save(figure, output / name)
    return [*written, *write_learning_curves(comparison, output)]


def solved_at_step_figure(comparison: Comparison) -> Figure:
    """Share of tasks solved within 1 … T attempts, a panel per block."""
    figure, axes = _panels(len(comparison.blocks), width=_width(comparison), height=3.8)
    for axis, block in zip(axes, comparison.blocks, strict=True):
        steps = range(1, block.horizon + 1)
        for index, entry in enumerate(block.entries):
            axis.plot(steps, [100 * share for share in entry.solved_at_step], label=_named(entry.label), **_line(index))
        axis.set_xticks(steps)
        axis.set_xlabel("attempts per task")
        axis.set_ylabel(f"tasks solved (% of {len(block.task_ids)})")
        axis.set_title(str(block.key))
        _legend(axis)
    return figure


def _width(comparison: Comparison) -> float:
    """Of a panel, in inches, with room for a legend beside it where there has to be one."""
    return 5.4 if max(len(block.entries) for block in comparison.blocks) <= _MOST_INSIDE else 7.6


def _legend(axis: Axes) -> None:
    """Inside the panel where few lines leave room for it, else beside it."""
    if len(axis.get_legend_handles_labels()[1]) > _MOST_INSIDE:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axis.legend()


def cost_figure(comparison: Comparison) -> Figure:
    """Strict Pass@1 against tokens per task, a panel per block; bars are the intervals of the table."""
    figure, axes = _panels(len(comparison.blocks), width=_width(comparison), height=3.8)
    for axis, block in zip(axes, comparison.blocks, strict=True):
        for index, entry in enumerate(block.entries):
            score = 100 * entry.strict
            low, high = 100 * entry.strict_interval.low, 100 * entry.strict_interval.high
            axis.errorbar(
                (entry.tokens_in + entry.tokens_out) / entry.n,
                score,
                yerr=[[max(0.0, score - low)], [max(0.0, high - score)]],
                label=_named(entry.label),
                color=_GREYS[index % len(_GREYS)],
                marker=_MARKERS[index % len(_MARKERS)],
                markerfacecolor="white" if (index + index // len(_MARKERS)) % 2 else None,
                linestyle="none",
                capsize=3,
                elinewidth=0.8,
            )
        axis.set_xlim(left=0)
        axis.set_xlabel("tokens in and out per task")
        axis.set_ylabel("Strict Pass@1 (%), 95 % interval")
        axis.set_title(f"{block.key}, n = {len(block.task_ids)}")
        _legend(axis)
    return figure


def actions_by_step_figure(comparison: Comparison) -> Figure | None:
    """Share of each action at each attempt of the evaluation, for methods that choose, even if always the same."""
    panels = [
        (f"{row.label}\n{block.key}", action_shares(frame), frame)
        for block in comparison.blocks
        for row in block.series
        if (frame := _evaluation_frame(row))["action"].nunique() > 1 or row.method in TRAINED
    ]
    if not panels:
        return None
    names = _action_names(frame for _, _, frame in panels)
    figure, axes = _panels(len(panels), width=4.2, height=3.4)
    for axis, (title, shares, frame) in zip(axes, panels, strict=True):
        _stacked(axis, shares, names)
        counts = frame["step"].value_counts()
        axis.set_xticks(list(shares.index), [f"{step}\n{counts[step]}" for step in shares.index])
        axis.set_xlabel("attempt, and how many were made")
        axis.set_title(title)
    _legend_below(figure, axes[0])
    return figure


def actions_over_training_figure(comparison: Comparison) -> Figure | None:
    """Share of each action along the training steps, a panel per trained row; the mean over seeds."""
    panels = []
    for block in comparison.blocks:
        for row in block.series:
            frames = _training_frames(row)
            if frames:
                panels.append((f"{row.label}, {_seeds(len(frames))}\n{block.key}", frames))
    if not panels:
        return None
    names = _action_names(frame for _, frames in panels for frame in frames)
    figure, axes = _panels(len(panels), width=4.6, height=3.4)
    for axis, (title, frames) in zip(axes, panels, strict=True):
        length = max(len(frame) for frame in frames)
        edges = np.linspace(0, length, min(_BINS, length) + 1)
        for index, name in enumerate(names):
            per_run = [_binned_share(frame, name, edges) for frame in frames]
            centres = (edges[:-1] + edges[1:]) / 2
            _band(axis, centres, 100 * np.array(per_run), index, name)
        axis.set_ylim(0, 100)
        axis.set_xlabel("environment steps")
        axis.set_ylabel("share of steps (%)")
        axis.set_title(title)
    _legend_below(figure, axes[0])
    return figure


def gain_figure(comparison: Comparison) -> Figure | None:
    """Mean change of the pass rate by action and attempt, with the number of attempts, a heat map per row."""
    panels = []
    for block in comparison.blocks:
        for row in block.series:
            frame = _evaluation_frame(row)
            if frame["action"].nunique() > 1 and frame["gain"].notna().any():
                panels.append((f"{row.label}, evaluation\n{block.key}", action_gains(frame)))
            training = [frame for frame in _training_frames(row) if frame["gain"].notna().any()]
            if training:
                panels.append((f"{row.label}, training\n{block.key}", action_gains(pd.concat(training))))
    if not panels:
        return None
    bound = max(0.01, max(float(gains["mean"].abs().max()) for _, gains in panels))
    figure, axes = _panels(len(panels), width=4.4, height=2.8)
    image = None
    names = _action_names(gains.reset_index() for _, gains in panels)
    for axis, (title, gains) in zip(axes, panels, strict=True):
        means = gains["mean"].unstack().reindex(names)
        values, counts = means.to_numpy(dtype=float), gains["count"].unstack().reindex(names).to_numpy(dtype=float)
        # Grey alone cannot show a sign, so the number stands in each field, which is never too dark to read it.
        image = axis.imshow(values, cmap=_SHADES, vmin=-bound, vmax=bound, aspect="auto")
        axis.set_xticks(range(len(means.columns)), [str(step) for step in means.columns])
        axis.set_yticks(range(len(means.index)), list(means.index))
        axis.grid(visible=False)
        for i, j in np.ndindex(values.shape):
            text = "never"
            if not np.isnan(values[i, j]):
                mean = round(float(values[i, j]), 2) + 0.0  # + 0.0: no −0.00
                text = f"{mean:+.2f}\nn = {int(counts[i, j])}".replace("-", "−")
            axis.text(j, i, text, ha="center", va="center", fontsize=7)
        axis.set_xlabel("attempt")
        axis.set_title(title)
    if image is not None:
        figure.colorbar(image, ax=axes, shrink=0.8).set_label("mean change of pass rate")
    return figure


def write_learning_curves(comparison: Comparison, output: Path) -> list[Path]:
    """Share solved in training and in validation against environment steps, a file per block that was trained in."""
    written = []
    for block in comparison.blocks:
        panels: dict[str, dict[str, list[Curve]]] = {}
        for row in block.series:
            runs = row.runs.values() if row.method in TRAINED else ()
            found = {
                "solved in training (%)": [solved_curve(read_records(run.training)) for run in runs if run.training],
                "solved in validation (%)": [
                    validation_curve(read_validation(run.validation)) for run in runs if run.validation
                ],
            }
            for label, curves in found.items():
                if kept := [curve for curve in curves if len(curve.steps)]:
                    panels.setdefault(label, {})[row.label] = kept
        if panels:
            name = "learning_curves" if len(comparison.blocks) == 1 else f"learning_curves-{block.key.slug}"
            path = output / f"{name}.png"
            plot_learning_curves(panels, path, title=str(block.key))
            written += [path, output / f"{name}.svg"]
    return written


def _band(axis: Axes, x: NDArray[np.float64], runs: NDArray[np.float64], index: int, label: str) -> None:
    """The mean over runs, and a band from the lowest to the highest; `runs` has the shape (runs, points)."""
    counted = np.any(~np.isnan(runs), axis=0)
    axis.plot(x[counted], np.nanmean(runs[:, counted], axis=0), label=_named(label), **_line(index))
    if len(runs) > 1:
        low, high = np.nanmin(runs[:, counted], axis=0), np.nanmax(runs[:, counted], axis=0)
        axis.fill_between(x[counted], low, high, color=_GREYS[index % len(_GREYS)], alpha=0.15, linewidth=0)


def _binned_share(frame: pd.DataFrame, action: str, edges: NDArray[np.float64]) -> list[float]:
    """Share of an action in each part of the training, not a number where a run has no steps."""
    position = np.arange(len(frame)) + 0.5
    chosen = (frame["action"] == action).to_numpy(dtype=float)
    parts = [(position >= low) & (position < high) for low, high in pairwise(edges)]
    return [float(chosen[part].mean()) if part.any() else float("nan") for part in parts]


def _stacked(axis: Axes, shares: pd.DataFrame, names: Sequence[str]) -> None:
    below = np.zeros(len(shares))
    for index, name in enumerate(names):
        heights = 100 * shares[name].to_numpy() if name in shares else np.zeros(len(shares))
        axis.bar(
            list(shares.index),
            heights,
            bottom=below,
            label=_named(name),
            color=_FILLS[index % len(_FILLS)],
            hatch=_HATCHES[index % len(_HATCHES)],
            edgecolor="black",
            linewidth=0.6,
        )
        below = below + heights
    axis.set_ylabel("share of attempts (%)")
    axis.set_ylim(0, 100)
    axis.grid(visible=False)


def _evaluation_frame(row: Series) -> pd.DataFrame:
    return pd.concat([step_frame(run.records(row.method)) for run in row.runs.values()], ignore_index=True)


def _training_runs(row: Series) -> list[Path]:
    """The files of training of a row's runs; a row that is not trained has none."""
    if row.method not in TRAINED:
        return []
    return [run.training for run in row.runs.values() if run.training]


def _training_frames(row: Series) -> list[pd.DataFrame]:
    return [frame for path in _training_runs(row) if len(frame := step_frame(read_records(path)))]


def _action_names(frames: Iterable[pd.DataFrame]) -> list[str]:
    """All actions that occur, the package's own first, so that each has one hatch throughout a picture."""
    found = {str(name) for frame in frames for name in frame["action"].unique()}
    own = [name for name in ("direct", "lexical", "semantic") if name in found]
    return [*own, *sorted(found - set(own))]


def _panels(number: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, three to a row at most."""
    columns = min(number, 3)
    rows = -(-number // columns)
    figure, grid = plt.subplots(
        rows, columns, squeeze=False, figsize=(width * columns, height * rows), layout="constrained"
    )
    axes: list[Axes] = list(grid.flat)
    for axis in axes[number:]:
        axis.remove()
    return figure, axes[:number]


def _legend_below(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4))


def _named(label: str) -> str:
    """A label that a legend shows: matplotlib leaves out those that begin with an underscore."""
    return f" {label}" if label.startswith("_") else label


def _line(index: int) -> dict[str, Any]:
    again = index + index // len(_MARKERS)  # the ninth has the first one's marker, and another line
    return {
        "linestyle": _LINES[again % len(_LINES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "color": _GREYS[index % len(_GREYS)],
        "markersize": 5,
        "markerfacecolor": "white" if again % 2 else _GREYS[index % len(_GREYS)],
        "linewidth": 1.4,
    }


def _seeds(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"


def _save(figure: Figure, stem: Path) -> list[Path]:
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        with write_atomically(path) as temporary:
            figure.savefig(temporary, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        figure.set_layout_engine("none")  # what was laid out for the first is right for the second
    plt.close(figure)
    return paths
