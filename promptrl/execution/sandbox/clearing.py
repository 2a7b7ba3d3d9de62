"""Removing what a candidate left in its folder, however deep it goes and whatever rights it took away."""

from __future__ import annotations

import os
import stat
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def empty_folder(folder: str, keep: str = "") -> None:
    """Remove everything in `folder` but the path `keep`; follows no link.

    Goes down and up by descriptor: neither the length of a path nor this function's own stack sets a limit.

    Raises:
        OSError: something could not be removed.
    """
    here = os.open(folder, _FOLDER)
    trail: list[str] = []
    try:
        pending = [[name for name in os.listdir(here) if f"{folder}/{name}" != keep]]  # noqa: PTH208
        while True:
            if pending[-1]:
                name = pending[-1].pop()
                if not stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=here)
                    continue
                os.chmod(name, 0o700, dir_fd=here)
                here = _moved(here, name)
                trail.append(name)
                pending.append(os.listdir(here))  # noqa: PTH208
            elif trail:
                here = _moved(here, "..")
                pending.pop()
                os.rmdir(trail.pop(), dir_fd=here)
            else:
                return
    finally:
        os.close(here)


def _moved(here: int, name: str) -> int:
    there = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return there
