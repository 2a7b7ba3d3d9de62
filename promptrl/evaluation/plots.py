"""Pictures, readable in greyscale, with units on the axes; made from records alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from promptrl.atomic import write_atomically
from promptrl.evaluation.curves import finished_episodes
from promptrl.evaluation.records import Record


def learning_curve(records: Iterable[Record], path: Path, *, window: int = 32) -> None:
    """Return and share of tasks solved per episode, as running means over `window` episodes, against steps.

    Args:
        records: of training, in the order they were made.
        path: the PNG to write.
        window: episodes per mean; fewer where there are fewer.
    """
    episodes = finished_episodes(records)
    means = episodes[["ret", "solved"]].astype(float).rolling(window, min_periods=1).mean()

    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 5), constrained_layout=True)
    top.plot(episodes["start"], means["ret"], color="black")
    top.set_ylabel("return per episode")
    bottom.plot(episodes["start"], 100 * means["solved"], color="black", linestyle="--")
    bottom.set_ylabel("episodes solved (%)")
    bottom.set_xlabel("environment steps at the episode's start")
    top.set_title(f"Training, running mean over {window} episodes ({len(episodes)} in all)", fontsize=10)
    for axis in (top, bottom):
        axis.grid(alpha=0.3)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=150)
    plt.close(figure)
