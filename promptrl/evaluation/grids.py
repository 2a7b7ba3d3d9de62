"""Tables as Markdown, CSV and LaTeX (booktabs), and how numbers are written in them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from promptrl.errors import RunError
from promptrl.evaluation.statistics import Interval

DASH: Final = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place of a table; how it is marked up depends on the format."""

    text: str
    bold: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Grid:
    """One table: a heading, columns (the first is text, the others are numbers), rows and a caption."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    label: str


def csv_text(rows: Sequence[dict[str, object]], columns: Sequence[str] | None = None) -> str:
    """Rows as CSV, in the order of `columns` where they are given."""
    return str(pd.DataFrame(rows, columns=list(columns) if columns else None).to_csv(index=False, lineterminator="\n"))


def render(grids: Sequence[Grid], fmt: str) -> str:
    """Tables one below the other; each has its heading where there are several.

    Raises:
        RunError: for a format other than `md` and `tex`.
    """
    makers = {"md": _markdown, "tex": _latex}
    if fmt not in makers:
        raise RunError(f"format {fmt!r} is unknown; allowed are md, csv, tex")
    return "\n".join(makers[fmt](grid, heading=len(grids) > 1) for grid in grids)


def _markdown(grid: Grid, *, heading: bool) -> str:
    def cell(value: Cell) -> str:
        text = escape_markdown(value.text)
        return (f"**{text}**" if value.bold else text) + value.mark.replace("*", "\\*")

    lines = [f"## {escape_markdown(grid.title)}", ""] if heading else []
    lines += [
        "| " + " | ".join(map(escape_markdown, grid.columns)) + " |",
        "| --- |" + " ---: |" * (len(grid.columns) - 1),
    ]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in grid.rows]
    return "\n".join([*lines, "", escape_markdown(grid.caption), ""])


_MARKUP: Final = re.compile(
    r"[|*`]|\\(?=[^\w\s])|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])|&(?=#?\w+;)"  # a_b and p < 0.05 are no markup
)


def escape_markdown(text: str) -> str:
    """A text such that Markdown shows it as it is, in one line and within one cell of a table."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _latex(grid: Grid, *, heading: bool) -> str:
    def cell(value: Cell) -> str:
        text = escape_latex(value.text)
        return (f"\\textbf{{{text}}}" if value.bold else text) + (f"$^{{{value.mark}}}$" if value.mark else "")

    lines = [
        "\\begin{table*}[t]",
        "  \\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}",
        f"  \\caption{{{escape_latex(grid.caption)}}}",
        f"  \\label{{{grid.label}}}",
        f"  \\begin{{tabular}}{{l{'r' * (len(grid.columns) - 1)}}}",
        "    \\toprule",
        "    " + " & ".join(map(escape_latex, grid.columns)) + " \\\\",
        "    \\midrule",
        # Between \\ and a star or a bracket LaTeX needs something, or takes them for its own.
        *(
            "    " + ("{}" if row[0].text[:1] in "*[" else "") + " & ".join(map(cell, row)) + " \\\\"
            for row in grid.rows
        ),
        "    \\bottomrule",
        "  \\end{tabular}",
        "\\end{table*}",
    ]
    return "\n".join([*lines, ""])


_LATEX: Final = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "|": "\\textbar{}",
    "`": "\\textasciigrave{}",
    "<": "$<$",
    ">": "$>$",
    "Δ": "$\\Delta$",
    "∞": "$\\infty$",
    "−": "$-$",
    "–": "--",
}


def escape_latex(text: str) -> str:
    """A text such that LaTeX prints it as it is."""
    return "".join(_LATEX.get(char, char) for char in " ".join(text.split()))


def percent_text(value: float | None) -> str:
    """A share as a percentage, or a dash."""
    return DASH if value is None else f"{100 * value:.2f}"


def interval_text(interval: Interval | None) -> str:
    """An interval of shares in percent, or a dash."""
    if interval is None:
        return DASH
    low, high = (_minus(f"{round(100 * end, 1) + 0.0:.1f}") for end in (interval.low, interval.high))  # + 0.0: no −0.0
    return f"[{low}, {high}]"


def number_text(value: float | None, digits: int) -> str:
    """A number with so many digits after the point, or a dash."""
    return DASH if value is None else f"{value:.{digits}f}"


def p_value_text(value: float) -> str:
    """A p-value, or that it is below 0.001."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def ratio_text(value: float) -> str:
    """A ratio that may be infinite or unknown."""
    return DASH if math.isnan(value) else "∞" if math.isinf(value) else f"{value:.2f}"


def signed_text(value: float, digits: int) -> str:
    """A difference with its sign."""
    return DASH if math.isnan(value) else _minus(f"{round(value, digits) + 0.0:+.{digits}f}")  # + 0.0: no −0.00


def _minus(text: str) -> str:
    return text.replace("-", "−")
