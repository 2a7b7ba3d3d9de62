"""The table of a sampling sweep: a row per temperature and suite, a column per k."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from promptrl.evaluation.sampling import SuiteScore


def _columns(scores: Sequence[SuiteScore]) -> list[str]:
    ks = sorted({found.k for score in scores for found in score.scores})
    return ["temperature", "tests", "n", "samples", "passed", *(f"pass@{k} %" for k in ks)]


def _rows(scores: Sequence[SuiteScore]) -> list[list[str]]:
    """One row per score; a k that there are too few samples for is a dash."""
    ks = sorted({found.k for score in scores for found in score.scores})
    rows = []
    for score in scores:
        found = {at.k: at for at in score.scores}
        cells = [
            f"{100 * found[k].value:.2f} [{100 * found[k].interval.low:.1f}, {100 * found[k].interval.high:.1f}]"
            if k in found
            else "–"
            for k in ks
        ]
        counts = [str(score.tasks), str(score.samples_per_task), str(score.passed)]
        rows.append([f"{score.temperature:g}", score.suite, *counts, *cells])
    return rows


def print_sampling_table(scores: Sequence[SuiteScore], caption: str, console: Console) -> None:
    """On a terminal or into a log; never so narrow that a number is cut."""
    table = Table(caption=caption, caption_justify="left", box=box.SIMPLE, padding=(0, 1))
    for column in _columns(scores):
        table.add_column(column, justify="left" if column == "tests" else "right", no_wrap=True)
    for row in _rows(scores):
        table.add_row(*row)
    needed = Console(width=10_000).measure(table).maximum
    Console(file=console.file, width=max(console.width, needed)).print(table)


def markdown_sampling_table(scores: Sequence[SuiteScore], caption: str) -> str:
    """For a README; the caption follows the table."""
    columns = _columns(scores)
    lines = ["| " + " | ".join(columns) + " |", "| ---: | --- |" + " ---: |" * (len(columns) - 2)]
    lines += ["| " + " | ".join(row) + " |" for row in _rows(scores)]
    return "\n".join([*lines, "", caption, ""])
