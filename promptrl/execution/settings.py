"""How candidates are confined and how long they may run."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from promptrl.settings import Settings


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SandboxSettings(Settings):
    """The limits of one judge; sizes in MB (2**20 bytes), times in seconds.

    The time limit of a test is `max(time_limit_floor, time_limit_factor * reference_seconds)`, counted in CPU time so
    that a busy machine or many workers change no verdict; a test that waits instead of computing is stopped when the
    same time has passed on the wall clock.
    """

    isolation: Literal["auto", "namespaces", "rlimits"] = "auto"
    """`auto` and `namespaces` stop with the reason where namespaces cannot be had; `rlimits` runs without them."""
    workers: int = Field(default_factory=_usable_cores, ge=1, le=512)
    memory_mb: int = Field(default=4096, ge=64)
    """Address space of a candidate's process, the interpreter included."""
    stack_mb: int = Field(default=64, ge=1, le=1024)
    """Stack of the main thread; recursion through C code beyond it ends the process with SIGSEGV."""
    max_processes: int = Field(default=32, ge=4)
    """Processes and threads that one candidate may have at a time, the sandbox's own two included."""
    file_size_mb: int = Field(default=64, ge=1)
    """The largest file that a candidate may write, and twice this is all that its temporary folder holds."""
    output_mb: int = Field(default=16, ge=1, le=64)
    """What a program may print; what functions print is thrown away."""
    time_limit_floor: float = Field(default=1.0, gt=0)
    time_limit_factor: float = Field(default=4.0, ge=1)
    time_limit_default: float = Field(default=5.0, gt=0)
    """The limit of a test where the reference time is not known."""
    import_time_limit: float = Field(default=5.0, gt=0)
    wall_limit: float = Field(default=60.0, gt=0)
    """After this much wall-clock time the candidate's remaining tests count as out of time, without being run.

    More, by `time_limit_factor`, where the canonical solution itself takes so long over the whole suite.
    """
    max_timeouts: int = Field(default=3, ge=1)
    """After this many tests out of time the remaining ones count as out of time, without being run."""
    max_restarts: int = Field(default=3, ge=0)
    """How often a candidate whose process died goes on in a new one before its remaining tests count as crashed."""
    stop_when_decided: bool = False
    """Stop at the first test that does not pass, where only "all passed" matters; the others are `not_run`."""
    forgiving: bool = True
    """Common imports are there without being written, and `class Solution` stands in for a missing plain function.

    EvalPlus and HumanEval do neither: switch it off to compare verdicts with theirs. Switched off, a suite also keeps
    EvalPlus's tolerance as it does: once a test expects floats (or an empty list), 1e-6 holds for every later test of
    the suite. For rewards a tolerance holds for its own test only.
    """
    packages: tuple[str, ...] = ("numpy",)
    """Installed packages that candidates may import besides the standard library."""

    def time_limit(self, reference_seconds: float | None) -> float:
        """The limit of one test, in CPU seconds."""
        if reference_seconds is None:
            return self.time_limit_default
        return max(self.time_limit_floor, self.time_limit_factor * reference_seconds)
