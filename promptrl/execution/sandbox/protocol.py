"""The frames between judge, template and candidate; every length is checked before anything is read."""

from __future__ import annotations

import builtins
import mmap
import os
import struct
from typing import Final

globals()["__builtins__"] = dict(vars(builtins))  # a candidate's changes to builtins do not reach these functions

FRAME: Final = struct.Struct("<I")
RECORD: Final = struct.Struct("<iBdI")
"""Test index (IMPORT for the import), status, CPU seconds, length of the payload that follows."""

IMPORT: Final = -1
READY: Final = 0
"""The code was imported and defines what is asked for."""
VALUE: Final = 1
"""The payload is an encoded value (or, for a program, what it printed)."""
EXCEPTION: Final = 2
TIMEOUT: Final = 3
CRASHED: Final = 4
HELD: Final = 5
"""An assertion ran to its end without raising."""
FALSE: Final = 6
"""An assertion was false."""
RETURNED: Final = 7
"""The call has returned and its value is being written; no outcome yet."""
FINISHED: Final = 8
"""Sent by the template alone: the candidate is gone and its traces are removed."""

BROKEN: Final = 9
"""The template itself failed; the payload says how."""

STOP: Final = b"stop"
"""The judge's word that it has seen enough of the running job."""

MAX_PAYLOAD: Final = 80 * 2**20
"""Room for what a program may print."""
MAX_VALUE: Final = 9 * 2**20
"""Room for an encoded value, which is all that a candidate's process sends."""

_read, _write = os.read, os.write


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however often it takes."""
    view = memoryview(data)
    while view:
        view = view[_write(descriptor, view) :]


def read_some(descriptor: int) -> bytes:
    """What there is to read, at most 256 kB; empty at the end."""
    return _read(descriptor, 1 << 18)


def read_exactly(descriptor: int, length: int) -> bytes:
    """Read `length` bytes.

    Raises:
        EOFError: the other side closed before that.
    """
    parts = []
    while length:
        part = _read(descriptor, min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def read_frame(descriptor: int) -> bytes:
    """Read one frame; raises EOFError where the other side closed."""
    return read_exactly(descriptor, FRAME.unpack(read_exactly(descriptor, FRAME.size))[0])


def write_frame(descriptor: int, data: bytes) -> None:
    """Write `data` with its length before it."""
    write_all(descriptor, FRAME.pack(len(data)) + data)


def pack_record(index: int, status: int, seconds: float, payload: bytes) -> bytes:
    """One record as it goes through a pipe."""
    return RECORD.pack(index, status, seconds, len(payload)) + payload


_ZEROS: Final = bytes(1 << 16)


class Outbox:
    """Records that a candidate's process has not written yet, in memory that it shares with the template."""

    SIZE: Final = 1 << 16

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, self.SIZE)
        self.used = 0

    def reset(self) -> None:
        """Wipe everything; for use before a process is forked, which shall find nothing of the one before it."""
        self.used = 0
        self.memory[:] = _ZEROS

    def append(self, record: bytes) -> bool:
        """Keep the record; False where it does not fit."""
        end = 4 + self.used + len(record)
        if end > self.SIZE:
            return False
        self.memory[4 + self.used : end] = record
        self.used = end - 4
        self.memory[:4] = FRAME.pack(self.used)
        return True

    def take(self) -> bytes:
        """What was kept, which is then the caller's to write."""
        data = self.memory[4 : 4 + self.used]
        self.used = 0
        self.memory[:4] = FRAME.pack(0)
        return data

    def left(self) -> bytes:
        """What a process that has ended left unwritten."""
        used = min(FRAME.unpack_from(self.memory)[0], self.SIZE - 4)
        data = self.memory[4 : 4 + used]
        self.reset()
        return data


class RecordReader:
    """Cuts a stream of bytes into records; the stream may have been written by a hostile process."""

    def __init__(self, longest: int = MAX_PAYLOAD) -> None:
        self.pending = bytearray()
        self.longest = longest

    def feed(self, data: bytes) -> None:
        self.pending += data

    def next(self) -> tuple[int, int, float, bytes] | None:
        """The next whole record, or None where more bytes are needed.

        Raises:
            ValueError: the record claims a payload longer than `longest` bytes.
        """
        if len(self.pending) < RECORD.size:
            return None
        index, status, seconds, length = RECORD.unpack_from(self.pending)
        if length > self.longest:
            raise ValueError("record too long")
        end = RECORD.size + length
        if len(self.pending) < end:
            return None
        payload = bytes(self.pending[RECORD.size : end])
        del self.pending[:end]
        return index, status, seconds, payload

    def values(self, first: int, end: int) -> tuple[int, bytes]:
        """The whole records of values that come next, as they were written, to be passed on in one piece.

        Args:
            first: the test that the first of them has to be of; the others follow in order.
            end: the test before which they stop.

        Returns:
            How many there are, and their bytes.
        """
        pending, unpack, start = self.pending, RECORD.unpack_from, 0
        index, size = first, len(self.pending)
        while index < end and start + RECORD.size <= size:
            number, status, _, length = unpack(pending, start)
            stop = start + RECORD.size + length
            if number != index or status != VALUE or length > self.longest or stop > size:
                break
            start, index = stop, index + 1
        data = bytes(pending[:start])
        del pending[:start]
        return index - first, data
