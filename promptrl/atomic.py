"""Files that are whole or not there: written under another name and renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` (same ending); rename it to `path` if the block succeeds, else remove it."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    temporary.unlink(missing_ok=True)  # left by a killed process that had this number
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
