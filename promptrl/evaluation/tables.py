"""Results as tables: on a terminal and as Markdown, with n and the counts beside every rate."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from promptrl.evaluation.runner import MethodResult

_COLUMNS = (
    "method",
    "n",
    "solved",
    "Strict Pass@1 %",
    "Soft Pass@1 %",
    "attempts",
    "model calls",
    "tokens in",
    "tokens out",
    "seconds",
)
_LEAST_WIDTH = 105


def _cells(result: MethodResult) -> list[str]:
    return [
        result.method,
        str(result.n),
        str(result.solved),
        f"{100 * result.strict:.2f}",
        f"{100 * result.soft:.2f}",
        str(result.attempts),
        str(result.model_calls),
        str(result.tokens_in),
        str(result.tokens_out),
        f"{result.seconds:.0f}",
    ]


def print_table(results: Sequence[MethodResult], caption: str, console: Console) -> None:
    """On a terminal or into a log; never so narrow that a number is cut."""
    table = Table(caption=caption, caption_justify="left", box=box.SIMPLE, padding=(0, 1))
    for column in _COLUMNS:
        first = column == "method"
        table.add_column(column, justify="left" if first else "right", no_wrap=first, min_width=13 if first else None)
    for result in results:
        table.add_row(*_cells(result))
    Console(file=console.file, width=max(console.width, _LEAST_WIDTH)).print(table)


def markdown_table(results: Sequence[MethodResult], caption: str) -> str:
    """For a README; the caption follows the table."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "| --- |" + " ---: |" * (len(_COLUMNS) - 1)]
    lines += ["| " + " | ".join(_cells(result)) + " |" for result in results]
    return "\n".join([*lines, "", caption, ""])
