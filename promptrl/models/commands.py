"""`promptrl cache list | clear`: what is kept of the models' answers, and removing it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from promptrl.assets import cache_dir
from promptrl.errors import ConfigError
from promptrl.line_store import LineStore
from promptrl.models.cache import CacheSize, GenerationCache

cache_app = typer.Typer(help="Show or remove the kept answers of models.", no_args_is_help=True)


def answer_cache() -> GenerationCache:
    """The cache that runs use."""
    return GenerationCache(cache_dir() / "generations")


@cache_app.command("list")
def list_cache() -> None:
    """Show for each model how many answers are kept, what they take, and how many lines are damaged."""
    cache = answer_cache()
    sizes = cache.sizes()
    console = Console(width=None if os.isatty(1) else 200)
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    table.add_column("fingerprint")
    for heading in ("answers", "MB", "damaged"):
        table.add_column(heading, justify="right")
    for size in sizes:
        table.add_row(size.model, size.fingerprint, f"{size.entries:,}", _megabytes(size), str(size.damaged))
    if sizes:
        console.print(table)
    answers, megabytes = sum(size.entries for size in sizes), sum(size.size_bytes for size in sizes) / 1e6
    console.print(f"{answers:,} answers, {megabytes:,.2f} MB in {cache.folder}", soft_wrap=True, highlight=False)
    files = _verdict_files()
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    console.print(f"{_count_verdicts(files):,} verdicts, {megabytes:,.2f} MB", soft_wrap=True, highlight=False)


@cache_app.command("clear")
def clear_cache(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="a name or fingerprint, or its start, from `cache list`")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="the answers of all models")] = False,
    verdicts: Annotated[bool, typer.Option("--verdicts", help="the kept verdicts; answers stay")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Remove the answers of one model, in all its precisions where a name is given, or of all, or the verdicts."""
    if (model is not None) + every + verdicts != 1:
        raise ConfigError("name one model, by name or fingerprint, or say --all, or --verdicts")
    if verdicts:
        _clear_verdicts(yes)
        return
    cache = answer_cache()
    sizes = cache.sizes()
    chosen = [size for size in sizes if model is None or size.is_meant_by(model)]
    if not chosen:
        if model is None:
            typer.echo("nothing is kept")
            return
        known = ", ".join(size.name for size in sizes) or "none"
        raise ConfigError(f"there are no answers of {model!r}; kept are those of: {known}")
    for size in chosen:
        typer.echo(f"{size.model}  {size.fingerprint}  {size.entries:,} answers, {_megabytes(size)} MB")
    if not yes:
        typer.confirm("Remove them?", abort=True)
    freed = sum(cache.clear(size.name) for size in chosen)
    typer.echo(f"removed, {freed / 1e6:,.2f} MB freed")


def _verdict_files() -> list[Path]:
    return sorted((cache_dir() / "verdicts").glob("*.jsonl"))


def _count_verdicts(files: list[Path]) -> int:
    stores = [LineStore(path) for path in files]
    for store in stores:
        store.refresh()
    return sum(len(store.index) for store in stores)


def _clear_verdicts(yes: bool) -> None:
    files = _verdict_files()
    typer.echo(f"{_count_verdicts(files):,} verdicts")
    if files and not yes:
        typer.confirm("Remove them?", abort=True)
    for path in files:
        path.unlink(missing_ok=True)
    typer.echo("removed" if files else "nothing is kept")


def _megabytes(size: CacheSize) -> str:
    return f"{size.size_bytes / 1e6:,.2f}"
