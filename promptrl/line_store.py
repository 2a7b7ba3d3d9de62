"""A file of `key checksum json` lines that several processes append to and that damage cannot spoil.

SQLite was the alternative: its write-ahead log needs shared memory that network file systems lack, and one damaged
page can cost the whole database. Here a batch is one write under a file lock, and damage, be it a writer killed in
mid-line or a bit that flipped, costs the lines it touches and nothing else: a line whose checksum does not fit is
counted and skipped.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

if os.name == "posix":
    import fcntl

_KEY_CHARS: Final = 64
_SUM_CHARS: Final = 32
_HEAD_CHARS: Final = _KEY_CHARS + 1 + _SUM_CHARS + 1


def _checksum(key: str, payload: bytes) -> str:
    return hashlib.sha256(key.encode() + payload).hexdigest()[:_SUM_CHARS]


class LineStore:
    """One file of lines, with an index of where each key's line lies.

    Attributes:
        path: the file; made, with its folder, when first written to.
        index: offset and length of each key's line, as of the last `refresh`.
        damaged: lines found damaged so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index: dict[str, tuple[int, int]] = {}
        self.damaged = 0
        self._read_to = 0
        self._identity: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read the lines that were added since, by this process or another."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._identity or status.st_size < self._read_to:  # cleared or replaced meanwhile
                    self.index.clear()
                    self.damaged, self._read_to, self._identity = 0, 0, identity
                if status.st_size == self._read_to:
                    return
                file.seek(self._read_to)
                data = file.read()
        except FileNotFoundError:
            self.index.clear()
            self.damaged, self._read_to, self._identity = 0, 0, None
            return
        start = 0
        while (end := data.find(b"\n", start)) >= 0:  # a last line without its end is still being written: next time
            self._add_line(data[start:end], self._read_to + start)
            start = end + 1
        self._read_to += start

    def _add_line(self, line: bytes, offset: int) -> None:
        if not line:
            return
        try:
            key, checksum = line[:_KEY_CHARS].decode(), line[_KEY_CHARS + 1 : _HEAD_CHARS - 1].decode()
        except UnicodeDecodeError:
            self.damaged += 1
            return
        if len(line) <= _HEAD_CHARS or _checksum(key, line[_HEAD_CHARS:]) != checksum:
            self.damaged += 1
            return
        self.index[key] = (offset, len(line))

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The payloads there are for these keys (64 hex digits each)."""
        with self._lock:
            self.refresh()
            wanted = [(key, self.index[key]) for key in keys if key in self.index]
            if not wanted:
                return {}
            found: dict[str, bytes] = {}
            with self.path.open("rb") as file:
                for key, (offset, length) in wanted:
                    file.seek(offset)
                    line = file.read(length)
                    head, payload = line[:_HEAD_CHARS], line[_HEAD_CHARS:]
                    if head == f"{key} {_checksum(key, payload)} ".encode():
                        found[key] = payload
                    else:  # altered since it was indexed
                        self.damaged += 1
                        del self.index[key]
            return found

    def append(self, items: Sequence[tuple[str, bytes]]) -> None:
        """Write a line for each key and payload (without a line's end in it), all in the system's hands on return.

        Raises:
            OSError: the file cannot be written.
        """
        lines = b"".join(f"{key} {_checksum(key, payload)} ".encode() + payload + b"\n" for key, payload in items)
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                with _locked(descriptor):
                    size = os.fstat(descriptor).st_size
                    # A writer that was killed may have left half a line: end it, so that ours starts on its own.
                    if size and os.pread(descriptor, 1, size - 1) != b"\n":
                        lines = b"\n" + lines
                    view = memoryview(lines)
                    while view:
                        view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    if os.name != "posix":  # appends of other processes are then kept apart by the checksums alone
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
