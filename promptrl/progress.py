"""Progress of long work: a bar on a terminal, now and then a line in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LOG_SECONDS: Final = 30.0

Advance = Callable[[int, Mapping[str, float]], None]


@contextmanager
def progress_bar(title: str, total: int, console: Console, *, unit: str) -> Iterator[Advance]:
    """Give a function that is told how much is done, with figures to show beside it."""
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(title, total=total, figures="")
            yield lambda done, figures: bar.update(task, completed=done, figures=_figures(figures))
        return

    started = last = time.monotonic()
    ended = False

    def log(done: int, figures: Mapping[str, float]) -> None:
        nonlocal last, ended
        now = time.monotonic()
        if ended or (done < total and now - last < LOG_SECONDS):
            return
        last, ended = now, done >= total
        rate = done / max(now - started, 1e-9)
        console.print(
            f"{title}: {done}/{total} {unit}, {now - started:.0f} s, {rate:.2f}/s {_figures(figures)}".rstrip(),
            highlight=False,
            soft_wrap=True,
        )

    yield log


def _figures(figures: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.2f}" for name, value in figures.items())
