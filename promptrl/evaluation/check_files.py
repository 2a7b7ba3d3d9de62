"""The files of `promptrl check`: samples that can be read only once, verdicts that are whole or not there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from promptrl.errors import TaskError


@contextmanager
def readable_twice(path: Path) -> Iterator[Path]:
    """The path itself, or that of a temporary copy where it is a pipe or the like, which gives its bytes only once.

    Raises:
        TaskError: when it cannot be copied.
    """
    if path.is_file() or path.is_dir() or not path.exists():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="promptrl-samples-") as folder:
        copy = Path(folder) / "samples"
        try:
            with path.open("rb") as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
        yield copy


class VerdictWriter:
    """Writes texts to a file; a full disk and the like are a `TaskError` that names the file."""

    def __init__(self, file: TextIO, name: Path) -> None:
        self._file = file
        self._name = name

    def write(self, text: str) -> None:
        """Write a text."""
        with _named(self._name):
            self._file.write(text)

    def flush(self) -> None:
        """Hand over what was written."""
        with _named(self._name):
            self._file.flush()


@contextmanager
def verdict_file(path: Path, *, apart_from: tuple[Path, ...]) -> Iterator[VerdictWriter]:
    """What takes the verdicts: they appear under the path when the block ends well, and not before.

    A device or a pipe is written to as it is.

    Args:
        path: The file; its folder has to be there, so that a slip of the pen makes none.
        apart_from: Files that are read meanwhile and must not be overwritten.

    Raises:
        TaskError: when the file is one of those, or cannot be written.
    """
    for other in apart_from:
        if path.exists() and other.exists() and path.samefile(other):
            raise TaskError(f"{path}: the verdicts cannot be written over a file that they are made from")
    if not path.parent.exists():
        raise TaskError(f"{path}: cannot be written: there is no folder {path.parent}")
    with _named(path):
        whole = not path.exists() or path.is_file()
        if path.exists() and whole:
            path.open("ab").close()  # says now if it may not be written
        place = path.resolve()
        target = place.with_name(f".{place.name}.{os.getpid()}.partial") if whole else path
        file = target.open("w", encoding="utf-8")
    try:
        yield VerdictWriter(file, path)
        with _named(path):
            file.close()
            if whole:
                target.replace(place)
    finally:
        with suppress(OSError):  # what could not be written before cannot be written now
            file.close()
        if whole:
            target.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TaskError(f"{path}: cannot be written: {error.strerror or error}") from error


def print_text(text: str) -> None:
    """Print a text to standard output.

    Raises:
        TaskError: when there is no room for it or nobody reads it.
    """
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError, AttributeError):
            # What is left in the buffer would be tried again at the end, and fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise TaskError(f"standard output: cannot be written: {error.strerror}") from error
