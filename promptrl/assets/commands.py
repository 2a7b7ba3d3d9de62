"""`promptrl assets list | get | verify`: what is on this machine, fetching it, and reading every byte of it again."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from promptrl.assets.fetch import say
from promptrl.assets.store import Place, find_asset, find_model, places, where
from promptrl.assets.table import ASSETS, Asset, asset_named
from promptrl.assets.verify import cache_dir, is_marked, is_present, problem_with
from promptrl.errors import AssetError

SMALL = 10_000_000
"""Bytes up to which `list` checks a file on the spot; a larger one only shows whether it was checked before."""

assets_app = typer.Typer(help="Find, fetch and verify weights and benchmark files.", no_args_is_help=True)


@assets_app.command("list")
def list_assets() -> None:
    """Show every known file: what it is, and whether it is on this machine."""
    console = Console(width=None if os.isatty(1) else 200)
    table = Table("name", "what", "from", "size", "licence", "where", "verified", box=None, pad_edge=False)
    for asset in ASSETS:
        place = where(asset)
        found = ("not here", "") if place is None else (place.label, _verified(asset, place))
        table.add_row(asset.name, asset.what, asset.source, _size(asset, place), asset.licence, *found)
    console.print(table)
    console.print(f"cache: {cache_dir()}", soft_wrap=True, highlight=False)


@assets_app.command("get")
def get_assets(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="names from `promptrl assets list`, or org/name")
    ],
) -> None:
    """Fetch files that are not on this machine yet, check them, and print where they are."""
    for name in names:  # refuse a misspelt name before an hour of downloads, not after
        if asset_named(name) is None and name.count("/") != 1:
            allowed = ", ".join(asset.name for asset in ASSETS)
            raise AssetError(f"there is no asset {name!r}: the names are {allowed}, or org/name of a model on the hub")
    for name in names:
        asset = asset_named(name)
        path = find_model(name) if asset is None else find_asset(asset)
        typer.echo(f"{name}: {path}")


@assets_app.command("verify")
def verify_assets() -> None:
    """Read every byte of what is here again; exit code 1 if something does not match its sha256."""
    wrong = 0
    for asset in ASSETS:
        present = [place for place in places(asset) if is_present(asset, place.path)]
        if not present:
            typer.echo(f"{asset.name}: not here")
        for place in present:
            problem = problem_with(asset, place.path, rehash=True)
            if problem is None:
                pinned = any(file.sha256 for file in asset.files)
                typer.echo(f"{asset.name}: {'right' if pinned else 'here, no sha256 to check'} ({place.path})")
                continue
            wrong += 1
            typer.echo(f"{asset.name}: WRONG, {problem}")
            if place.owner == "cache":
                say(f"`promptrl assets get {asset.name}` removes it and fetches it again")
    if wrong:
        raise typer.Exit(1)


def _verified(asset: Asset, place: Place) -> str:
    if not any(file.sha256 for file in asset.files):
        return "no sha256"
    if (asset.size or 0) > SMALL and not is_marked(asset, place.path):
        return "not yet"
    return "WRONG" if problem_with(asset, place.path) else "yes"


def _size(asset: Asset, place: Place | None) -> str:
    """The size that the table pins, else the size of what is here."""
    size = asset.size or (place.path.stat().st_size if place else 0)
    if not size:
        return "-"
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"
