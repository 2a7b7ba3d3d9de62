"""What `promptrl compare` and `promptrl export` do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from promptrl.errors import RunError
from promptrl.evaluation.check_files import print_text
from promptrl.evaluation.comparison import FORMATS, build_comparison, compare
from promptrl.evaluation.comparison_tables import pairs_table, table
from promptrl.evaluation.export import export_samples


def run_compare(run_dirs: Sequence[Path], fmt: str | None = None, output: Path | None = None) -> None:
    """Compare run folders; print the tables, and write them with pictures where there is an output folder.

    Args:
        run_dirs: the run folders.
        fmt: `md`, `csv`, `tex` or `all`; unset, Markdown is printed and all formats are written.
        output: the folder to write to; nothing is written where unset.

    Raises:
        RunError: for an unknown format, `all` without a folder, or runs that cannot be compared.
    """
    if fmt not in (None, *FORMATS, "all"):
        raise RunError(f"--format {fmt!r} is unknown; allowed are {', '.join(FORMATS)} and all")
    if fmt == "all" and output is None:
        raise RunError("--format all needs --output with a folder to write to")
    shown = "md" if fmt in (None, "all") else fmt
    if output is None:
        comparison = build_comparison(run_dirs)
    else:
        comparison = compare(run_dirs, output, FORMATS if fmt in (None, "all") else (shown,))
    print_text(f"{table(comparison, shown)}\n{pairs_table(comparison, shown)}".rstrip("\n"))
    if output is not None:
        print_text(f"\nwritten to {output}")


def run_export(run_dir: Path, method: str, output: Path) -> None:
    """Write a method's answers as samples, and say how many there are."""
    number = export_samples(run_dir, method, output)
    print_text(f"{number} samples written to {output}")
