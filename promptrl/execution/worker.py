"""One sandboxed process as the judge sees it: start it, hand it a job, read its records, end it."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any, Final, NamedTuple

from promptrl.errors import SandboxError
from promptrl.execution.preamble import PREAMBLE
from promptrl.execution.sandbox import clearing, protocol
from promptrl.execution.settings import SandboxSettings

_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from sandbox import template; "
    "del sys.path[0]; sys.argv[:] = ['']; template.serve()"
)
_START_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 60.0
"""How much longer than the candidate's own wall limit the sandbox may take to answer before it counts as broken."""
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "PYTHONHASHSEED": "0",  # the order of a set of strings must not differ from run to run
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # no threads in the template, or forking it would not be safe
    "MKL_NUM_THREADS": "1",
}

RecordSink = Callable[[int, int, float, bytes], bool]
"""Takes index, status, CPU seconds and payload of one record; True asks the sandbox to stop there."""


class WorkerLostError(Exception):
    """The sandbox process ended or fell silent while a job ran."""


SandboxTest = tuple[object, ...]
"""What a candidate may see of one test: ("call", arguments, marshalled?, lazy?), ("stdin", bytes), ("assert",),
("inside", setup, source) or ("value", setup, statements, expression)."""


class InnerTests(NamedTuple):
    """The tests of one job, marshalled."""

    shown: bytes
    """One `SandboxTest` for each, for the candidate's process."""
    apart: bytes = b""
    """For the process that asserts: (setup, source) or None for each; empty where no test runs there."""


class Message(NamedTuple):
    """One job, and beside it what no process may see that a candidate's process is forked from."""

    job: bytes
    apart: bytes


def build_job(
    settings: SandboxSettings,
    code: str,
    entry: str | None,
    tests: InnerTests,
    limits: list[float],
    *,
    style: str = "function",
    setup: str = "",
    wall_limit: float | None = None,
    more: dict[str, Any] | None = None,
) -> Message:
    """One job as the sandbox reads it; `more` is what only some kinds of tests need."""
    wall = settings.wall_limit if wall_limit is None else wall_limit
    job = marshal.dumps(
        {
            "code": code.encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
            "style": style,
            "entry": entry,
            "setup": setup,
            "forgiving": settings.forgiving,
            "tests": tests.shown,
            "limits": limits,
            "import_limit": settings.import_time_limit,
            "wall_limit": wall,
            "max_timeouts": settings.max_timeouts,
            "max_restarts": settings.max_restarts,
            "output_bytes": settings.output_mb * 2**20,
            "resources": {
                "memory": settings.memory_mb * 2**20,
                "file_size": settings.file_size_mb * 2**20,
                "stack": settings.stack_mb * 2**20,
                "processes": settings.max_processes,
                "cpu_seconds": int(2 * wall) + 10,
                "open_files": 128,
            },
            **(more or {}),
        }
    )
    return Message(job, tests.apart)


@dataclass(frozen=True)
class Setup:
    """What a worker is started with."""

    settings: SandboxSettings
    namespaces: bool
    landlock: bool = True
    seccomp: bool = True
    visible: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    search_path: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, settings: SandboxSettings) -> Setup:
        """The files that a candidate may see: the standard library and the packages named in the settings."""
        paths = sysconfig.get_paths()
        stdlib = sorted({paths["stdlib"], paths["platstdlib"]})
        hidden = {f"{folder}/{name}" for folder in stdlib for name in ("site-packages", "dist-packages", "test")}
        hidden |= {paths["purelib"], paths["platlib"], "/usr/lib/python3/dist-packages", "/usr/src", "/usr/share"}
        packages, search_path = [], []
        for name in settings.packages:
            spec = util.find_spec(name)
            if spec is None or spec.origin is None:
                continue
            origin = Path(spec.origin)
            place = origin.parent if spec.submodule_search_locations else origin
            packages.append(str(place))
            libraries = place.with_name(f"{name}.libs")
            if libraries.is_dir():
                packages.append(str(libraries))
            search_path.append(str(place.parent))
        return cls(
            settings, settings.isolation != "rlimits", True, True, stdlib, sorted(hidden), packages, search_path
        )  # fmt: skip


class Worker:
    """A running sandbox process.

    Raises:
        SandboxError: it does not start, or cannot confine itself; the message says why.
    """

    def __init__(self, setup: Setup) -> None:
        settings = self._settings = setup.settings
        self._temp = None if setup.namespaces else tempfile.mkdtemp(prefix="promptrl-sandbox-")
        # Assertions lie here for the process that runs them; the template, whose memory candidates inherit, never reads
        # them, and candidates do not have the descriptor.
        self._files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("tests", "stdin", "stdout")]
        self._apart = self._files[0]
        command = [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _BOOT, str(Path(__file__).parent)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env={**_ENVIRONMENT, "HOME": self._temp or "/tmp/work"},
            pass_fds=self._files,
            start_new_session=True,  # Ctrl-C is for the run, which then closes its workers in order
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._sink = self._process.stdin.fileno()
        self._source = self._process.stdout.fileno()
        message = {
            "namespaces": setup.namespaces,
            "landlock": setup.landlock,
            "seccomp": setup.seccomp,
            "visible": setup.visible,
            "hidden": setup.hidden,
            "packages": setup.packages,
            "search_path": setup.search_path,
            "temp_bytes": 2 * settings.file_size_mb * 2**20,
            "work": self._temp,
            "preamble": PREAMBLE,
            "files": self._files,
        }
        try:
            protocol.write_frame(self._sink, json.dumps(message).encode())
            self.report = self._read_report()
        except BaseException:
            self.close()
            raise

    def _read_report(self) -> dict[str, Any]:
        assert self._process.stderr is not None
        ready, _, _ = select.select([self._source], [], [], _START_SECONDS)
        try:
            if not ready:
                raise SandboxError(f"the sandbox did not start within {_START_SECONDS:.0f} s")
            answer: dict[str, Any] = json.loads(protocol.read_frame(self._source))
        except EOFError:
            errors = self._process.stderr.read() or b""
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise SandboxError(f"the sandbox process ended while it was set up: {last or 'no message'}") from None
        self._process.stderr.close()
        if "error" in answer:
            raise SandboxError(
                f"candidates cannot be confined on this machine ({answer['error']}); "
                "set `sandbox.isolation: rlimits` to go on with resource limits, and no namespaces"
                if self._temp is None
                else f"the sandbox cannot be set up: {answer['error']}"
            )
        report: dict[str, Any] = answer["report"]
        return report

    def run(self, message: Message, wall_limit: float, accept: RecordSink) -> bool:
        """Run one job and pass its records on as they come.

        Returns:
            Whether this worker is as good as new; otherwise it is to be closed.

        Raises:
            WorkerLostError: the sandbox ended, fell silent, or sent what is not a record.
        """
        deadline = time.monotonic() + wall_limit + _ANSWER_SECONDS
        reader = protocol.RecordReader()
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        stopped = False
        try:
            os.ftruncate(self._apart, 0)
            os.pwrite(self._apart, message.apart, 0)
            protocol.write_frame(self._sink, message.job)
            while True:
                record = reader.next()
                if record is None:
                    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                        raise WorkerLostError("no answer within the limit")
                    data = os.read(self._source, 1 << 18)
                    if not data:
                        raise WorkerLostError("the sandbox process ended")
                    reader.feed(data)
                    continue
                if record[1] == protocol.FINISHED:
                    return not json.loads(record[3])["renew"]
                if record[1] == protocol.BROKEN:
                    raise SandboxError(f"the sandbox broke: {record[3].decode(errors='replace')}")
                if not stopped and accept(*record):
                    stopped = True
                    protocol.write_frame(self._sink, protocol.STOP)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise WorkerLostError(str(exc)) from exc

    def probe(self) -> bool:
        """Run a harmless job; True where its records come back as they should.

        Raises:
            WorkerLostError: as `run`.
        """
        statuses: list[int] = []

        def accept(index: int, status: int, seconds: float, payload: bytes) -> bool:
            statuses.append(status)
            return False

        job = build_job(
            self._settings,
            "def probe(): return 1",
            "probe",
            InnerTests(marshal.dumps([("call", marshal.dumps(()), True, False)])),
            [5.0],
        )
        return self.run(job, 30.0, accept) and statuses == [protocol.READY, protocol.VALUE]

    def close(self) -> None:
        """End the sandbox and everything in it, and remove its temporary folder."""
        process = self._process
        if process.poll() is None:
            process.kill()
            process.wait()
        while self._files:
            os.close(self._files.pop())
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        if self._temp is not None:
            with contextlib.suppress(OSError):
                clearing.empty_folder(self._temp)
                Path(self._temp).rmdir()
