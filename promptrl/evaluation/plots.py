"""Pictures, readable in greyscale, with units on the axes; made from records alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd

from promptrl.atomic import write_atomically
from promptrl.evaluation.records import Record


def learning_curve(records: Iterable[Record], path: Path, *, window: int = 32) -> None:
    """Return and share of tasks solved per episode, as running means over `window` episodes, against steps.

    Episodes stand where they began. Ordered by their ends, a curve would fall by itself: among episodes that run side
    by side the solved ones end first. For the same reason it stops before the first episode that was not finished.

    Args:
        records: of training, in the order they were made.
        path: the PNG to write.
        window: episodes per mean; fewer where there are fewer.
    """
    frame = pd.DataFrame(
        [(r["episode"], r["reward"], r["terminated"], r["terminated"] or r["truncated"]) for r in records],
        columns=["episode", "reward", "solved", "ended"],
    )
    frame["step"] = range(1, len(frame) + 1)
    episodes = frame.groupby("episode").agg(
        start=("step", "min"), ret=("reward", "sum"), solved=("solved", "max"), ended=("ended", "max")
    )
    episodes = episodes.sort_values("start")
    episodes = episodes[episodes["ended"].cummin()]
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
