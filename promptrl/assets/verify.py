"""The cache folder, and the check that a file holds the bytes it should.

Hashing half a gigabyte at every start would be felt, so a passed check leaves a mark in the cache. The mark's name is
drawn from the file's path, size, modification time and expected hash: a file that was touched since is hashed again.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from promptrl.assets.table import Asset, PinnedFile
from promptrl.errors import AssetError

CHUNK = 1 << 20
"""Bytes read at a time when hashing, copying or joining."""


def cache_dir() -> Path:
    """The folder of everything kept between runs: `PROMPTRL_CACHE_DIR` or `~/.cache/promptrl`; made if absent.

    Raises:
        AssetError: the folder cannot be created.
    """
    named = os.environ.get("PROMPTRL_CACHE_DIR")
    folder = Path(named).expanduser().absolute() if named else Path.home() / ".cache" / "promptrl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AssetError(
            f"the cache folder {folder} cannot be created ({error.strerror}); "
            "set PROMPTRL_CACHE_DIR to a folder that can be written"
        ) from error
    return folder


def cached_path(asset: Asset) -> Path:
    """Where the cache keeps this asset; nothing need be there yet."""
    if asset.kind == "data":
        return cache_dir() / "data" / asset.filename
    folder = cache_dir() / "models" / asset.name
    return folder if asset.folder else folder / asset.filename


def sha256_of(path: Path, *, unpacked: bool = False) -> str:
    """The hex sha256 of a file's bytes, or of its gunzipped content.

    Raises:
        OSError, EOFError, zlib.error: the file cannot be read, or unpacked.
    """
    digest = hashlib.sha256()
    with cast(BinaryIO, gzip.open(path, "rb") if unpacked else path.open("rb")) as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def is_present(asset: Asset, path: Path) -> bool:
    """Whether something is there to be checked: the file, or a folder that holds the asset's main file."""
    return (path / asset.files[0].name).is_file() if asset.folder else path.is_file()


def problem_with(asset: Asset, path: Path, *, rehash: bool = False, note: bool = True) -> str | None:
    """What is wrong with the asset at `path`, as a phrase that names path, expected and found; None if nothing is.

    Args:
        asset: the row of the table that says what should be there.
        path: an existing file, or folder for a folder asset.
        rehash: read every byte again, whatever an earlier check left as a mark.
        note: leave a mark if the file is right; pointless for a file about to be moved.
    """
    for file in asset.files:
        problem = _problem_with_file(file, path / file.name if asset.folder else path, rehash, note)
        if problem:
            return problem
    return None


def is_marked(asset: Asset, path: Path) -> bool:
    """Whether every pinned file of the asset at `path` passed its check and was not touched since."""
    return all(
        _mark(file, path / file.name if asset.folder else path).exists()
        for file in asset.files
        if file.sha256 is not None
    )


def mark(asset: Asset, path: Path) -> None:
    """Note that the files at `path` were found right, so that the next start need not read them again."""
    for file in asset.files:
        if file.sha256 is not None:
            _set_mark(_mark(file, path / file.name if asset.folder else path))


def _problem_with_file(file: PinnedFile, path: Path, rehash: bool, note: bool) -> str | None:
    if not path.is_file():
        return f"{path} is missing"
    if file.sha256 is None:
        return f"{path} is empty" if path.stat().st_size == 0 else None
    noted = _mark(file, path)
    if noted.exists() and not rehash:
        return None
    noted.unlink(missing_ok=True)
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"{path} has {size:,} bytes where {file.size:,} are expected (sha256 {file.sha256})"
    try:
        found = sha256_of(path, unpacked=file.unpacked)
    except (OSError, EOFError, zlib.error) as error:
        return f"{path} cannot be read ({error}), expected sha256 {file.sha256}"
    if found != file.sha256:
        return f"{path} has the wrong sha256 (expected {file.sha256}, found {found})"
    if note:
        _set_mark(noted)
    return None


def _mark(file: PinnedFile, path: Path) -> Path:
    """The mark's place; symbolic links are followed, so that a re-pointed link is a different file."""
    real = path.resolve()
    try:
        stat = real.stat()
    except OSError:
        return cache_dir() / "verified" / "absent"  # never written
    key = "\0".join([str(real), str(stat.st_size), str(stat.st_mtime_ns), str(file.sha256)])
    return cache_dir() / "verified" / hashlib.sha256(key.encode()).hexdigest()[:32]


def _set_mark(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
