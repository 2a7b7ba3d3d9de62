"""What a loaded benchmark is, and reading its file row by row with errors that name the row."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from promptrl.errors import TaskError
from promptrl.tasks.task import Task

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is not used, and why, in words for people."""

    task_id: str
    reason: str


@dataclass(frozen=True)
class Benchmark:
    """The tasks of one file, in the file's order.

    Attributes:
        name: One of `promptrl.tasks.BENCHMARKS`.
        tasks: Every usable task.
        sha256: Of the file's content after decompression, so that packing the same rows again changes nothing.
        source: The file that was read.
        left_out: Rows that could not become a task, each with its reason.
    """

    name: str
    tasks: tuple[Task, ...]
    sha256: str
    source: Path
    left_out: tuple[LeftOut, ...] = ()

    @cached_property
    def by_id(self) -> Mapping[str, Task]:
        """The tasks by their id."""
        return {task.task_id: task for task in self.tasks}


class RowError(Exception):
    """One row cannot become a task; the loader turns this into a `LeftOut` and goes on."""


def read_content(path: Path) -> tuple[str, str]:
    """Read a text file, gunzipped where its name or first bytes say so.

    Returns:
        The text, and the sha256 of its bytes.

    Raises:
        TaskError: when the file is missing, unreadable or not UTF-8.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig"), hashlib.sha256(data).hexdigest()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {_why(error)}") from error


def read_lines(path: Path, *, name: Path | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a text file, gzipped or not, with their numbers from 1; blank lines are skipped.

    Args:
        path: The file.
        name: What messages call it, where that is not its path.

    Raises:
        TaskError: when the file is missing, unreadable or not UTF-8; the message names the line where there is one.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(raw, "rb") if packed else raw as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{name or path}, line {number}: not UTF-8 text") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"{name or path}: cannot be read: {_why(error)}") from error


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def parse_json(text: str, where: str) -> object:
    """The value of a JSON text.

    Raises:
        TaskError: when it is not JSON; the message begins with `where`.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: not valid JSON ({error})") from error


def json_lines(text: str, path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a JSON-lines text with their line numbers, counted from 1; blank lines are skipped.

    Raises:
        TaskError: when a line is not a JSON object; the message names the file and the line.
    """
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = parse_json(line, f"{path}, line {number}")
        if not isinstance(row, dict):
            raise TaskError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
        yield number, row


def text_of(row: Row, key: str, *, default: str | None = None) -> str:
    """The text under `key`, with line ends made LF.

    Raises:
        RowError: when the key is missing (and there is no default) or not text.
    """
    value = row.get(key, default)
    if not isinstance(value, str):
        raise RowError(f"key {key!r} must be text, found {'nothing' if value is None else type(value).__name__}")
    return value.replace("\r\n", "\n").replace("\r", "\n")


def texts_of(row: Row, key: str) -> list[str]:
    """The list of texts under `key`, empty where the key is missing, with line ends made LF.

    Raises:
        RowError: when the value is anything else.
    """
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RowError(f"key {key!r} must be a list of texts")
    return [item.replace("\r\n", "\n").replace("\r", "\n") for item in value]
