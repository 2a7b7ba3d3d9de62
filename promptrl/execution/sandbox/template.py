"""The warm process behind one worker: confined once, then one fork per candidate, and nothing left after each.

It never runs a line of a candidate itself. It starts the candidate's process, passes its records on, ends it when
its time is up and removes what it leaves. In the strongest set-up it is process 1 of its own pid namespace: no
candidate can signal it, and when it ends the kernel ends everything else.
"""

# Plain system calls and their errno, as in the code around them:
# ruff: noqa: PTH101, PTH110, PTH116, PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import marshal
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

from . import clearing, confine, lockdown, protocol, pytests, runner
from .supervise import Supervisor

PRELOADED: Final = (
    "abc", "array", "ast", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json",
    "math", "numbers", "operator", "random", "re", "statistics", "string", "struct", "textwrap", "time", "traceback",
    "types", "typing", "unicodedata", "zlib",
)  # fmt: skip
"""Imported once in the template, so that no candidate pays for them; `threading` would slow down every fork."""

_RESERVED_FD: Final = 64


def serve() -> NoReturn:
    """Confine this process as the judge asks, say what came of it, then answer jobs until the judge goes away."""
    settings = json.loads(protocol.read_frame(0))
    source, sink, files = _hide_channel(settings["files"])
    try:
        report = _confine(settings)
        preamble = _preload(settings["preamble"])
    except OSError as exc:
        protocol.write_frame(sink, json.dumps({"error": exc.strerror or str(exc)}).encode())
        os._exit(1)
    protocol.write_frame(sink, json.dumps({"report": report}).encode())
    template = Template(settings, report, preamble, source, sink, files)
    try:
        while True:
            frame = protocol.read_frame(source)
            if frame != protocol.STOP:  # sent just after the job it was meant for had ended
                template.answer(marshal.loads(frame))
    except (EOFError, BrokenPipeError):
        template.clear_processes()
        os._exit(0)
    except BaseException:
        # A fault of the sandbox, not of a candidate: told in full, and the judge raises it as such.
        text = traceback.format_exc()[-2000:].encode()
        protocol.write_all(sink, protocol.pack_record(0, protocol.BROKEN, 0.0, text))
        os._exit(1)


def _hide_channel(files: list[int]) -> tuple[int, int, list[int]]:
    """Move the judge's pipes to high descriptors and leave /dev/null in their place."""
    source = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _RESERVED_FD)
    sink = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _RESERVED_FD)
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _RESERVED_FD) for descriptor in files]
    for descriptor in files:
        os.close(descriptor)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    return source, sink, moved


def _confine(settings: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] = {"namespaces": [], "missing": {}, "identity_dropped": False}
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE"):
        signal.signal(getattr(signal, name), signal.SIG_IGN if name == "SIGPIPE" else signal.SIG_DFL)
    if settings["namespaces"]:
        report["namespaces"] = confine.enter_namespaces()
        confine.build_root(settings["visible"], settings["hidden"], settings["packages"], settings["temp_bytes"])
        _continue_as_first_process()
        report["identity_dropped"] = confine.become_nobody(os.__file__)
        lockdown.die_with_parent()
        work = confine.WORK
    else:
        work = settings["work"]
        report["missing"]["namespaces"] = "isolation: rlimits"
        # No die_with_parent here: the kernel would act when the thread that started us ends. A closed pipe tells us.
        lockdown.adopt_orphans()
    os.chdir(work)
    report["work"] = work
    readable = ["/"] if settings["namespaces"] else [*confine.SYSTEM, *settings["visible"], *settings["packages"]]
    report["landlock"] = lockdown.landlock_version() if settings["landlock"] else 0
    report["readable"] = [path for path in readable if os.path.exists(path)]
    # The kernel does not count processes of root: where that is who we are, new processes are refused instead.
    report["processes"] = os.geteuid() != 0
    report["seccomp"] = settings["seccomp"]
    if settings["namespaces"]:
        harden(report, "/tmp")
    return report


def _continue_as_first_process() -> None:
    """Fork into the new pid namespace; the outer process only waits, so that ending it ends the namespace."""
    child = os.fork()
    if child == 0:
        if os.getppid() not in (0, 1):
            os._exit(1)
        return
    for descriptor in range(_RESERVED_FD, _RESERVED_FD + 8):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    lockdown.drop_capabilities()
    os.waitpid(child, 0)
    os._exit(0)


def harden(report: dict[str, Any], writable: str) -> None:
    """Give up all rights that no candidate needs; what the kernel does not offer is noted under `missing`."""
    lockdown.drop_capabilities()
    if report["landlock"]:
        try:
            lockdown.landlock(report["readable"], writable)
        except OSError as exc:
            report["landlock"] = 0
            report["missing"]["landlock"] = str(exc)
    else:
        report["missing"]["landlock"] = "the kernel does not offer it"
    if report["seccomp"]:
        try:
            lockdown.filter_syscalls()
        except OSError as exc:
            report["seccomp"] = False
            report["missing"]["seccomp"] = str(exc)


def _preload(preamble: str) -> dict[str, Any]:
    import site

    site.setquit()  # `exit` and `quit` exist in an ordinary interpreter
    for name in PRELOADED:
        try:
            __import__(name)
        except ImportError:
            continue
    names: dict[str, Any] = {}
    exec(compile(preamble, "<preamble>", "exec"), names)
    names.pop("__builtins__", None)
    return names


class Template:
    """Answers one job after the other with the records of a fresh process each."""

    def __init__(
        self,
        settings: dict[str, Any],
        report: dict[str, Any],
        preamble: dict[str, Any],
        source: int,
        sink: int,
        files: list[int],
    ) -> None:
        self.settings = settings
        self.report = report
        self.preamble = preamble
        self.source = source
        self.sink = sink
        self.files = files
        self.has_numpy = self.has_pytest = False
        places = [confine.PACKAGES] if settings["namespaces"] else settings["search_path"]
        sys.path += [path for path in places if path not in sys.path]
        self.own_modules = [name for name in sys.modules if name == "sandbox" or name.startswith("sandbox.")]
        # Whatever is made here is not made, page by page, in every candidate's copy of this process.
        runner.open_streams()
        self.clock = runner.Clock()
        self.outbox = protocol.Outbox()
        gc.collect()
        gc.freeze()

    def answer(self, job: dict[str, Any]) -> None:
        if not self.has_numpy and "numpy" in job["code"]:
            # Paid once here, or 0.2 s in every candidate that uses it.
            with contextlib.suppress(ImportError):
                __import__("numpy")
            self.has_numpy = True
            gc.collect()
            gc.freeze()
        if "pytest" in job and not self.has_pytest:
            pytests.preload()
            self.has_pytest = True
            gc.collect()
            gc.freeze()
        job["preamble"], job["clock"], job["outbox"] = self.preamble, self.clock, self.outbox
        job["apart"], job["stdin"], job["stdout"] = self.files
        supervisor = Supervisor(job, self.spawn, self.clear_processes, self.source, self.sink)
        stopped = supervisor.run()
        renew = not (self.clear_processes() and self.clear_files())
        payload = json.dumps({"renew": renew, "stopped": stopped}).encode()
        protocol.write_all(self.sink, protocol.pack_record(supervisor.total, protocol.FINISHED, 0.0, payload))

    def spawn(
        self, job: dict[str, Any], body: Callable[[int], None], stdin: int, stdout: int, trusted: bool = False
    ) -> tuple[int, int]:
        """Fork a process that runs `body` with the write end of a new pipe; returns its pid and the read end.

        A `trusted` one never runs a line of a candidate, and may read what lies apart.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid:
            os.close(writer)
            os.set_blocking(reader, False)
            return pid, reader
        try:
            if not trusted:
                os.close(self.files[0])
            self._prepare(reader, job, stdin, stdout)
            body(writer)
        except BaseException:
            pass
        finally:
            runner.finish()
        raise AssertionError("unreachable")

    def _prepare(self, reader: int, job: dict[str, Any], stdin: int, stdout: int) -> None:
        os.setsid()
        if stdin >= 0:
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
        for descriptor in (self.source, self.sink, reader, *self.files[1:]):
            os.close(descriptor)
        limits = job["resources"]
        if not self.report["namespaces"]:
            harden(self.report, self.report["work"])
            if self.report["seccomp"]:
                lockdown.filter_reach(os.getpid())
        if not self.report["processes"] and self.report["seccomp"]:
            lockdown.filter_new_processes()
        lockdown.limit_resources(**limits)
        for name in self.own_modules:
            del sys.modules[name]
        sys.argv = ["solution.py"]
        runner.fresh_module("__main__")
        random.seed(0)  # the same code gets the same verdict each time

    def clear_processes(self) -> bool:
        """End every process that is left and wait for it; False where one could not be ended."""
        for _ in range(5000):
            if self.report["namespaces"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)  # all but process 1, in one sweep that no fork can outrun
            else:
                for pid in _children():
                    for kill, target in ((os.killpg, pid), (os.kill, pid)):
                        with contextlib.suppress(OSError):
                            kill(target, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return True
            time.sleep(0.001)
        return False

    def clear_files(self) -> bool:
        """Empty the temporary folder; False where something could not be removed."""
        places = [self.report["work"], "/tmp"] if self.report["namespaces"] else [self.report["work"]]
        os.chdir("/")
        try:
            for place in places:
                if os.stat(place).st_uid == os.geteuid():
                    os.chmod(place, 0o700)
                clearing.empty_folder(place, keep=self.report["work"])
            os.chdir(self.report["work"])
        except OSError:
            return False
        return True


def _children() -> list[int]:
    """Every child of this process; as a subreaper it inherits all descendants that lose their parent."""
    own = os.getpid()
    found: list[int] = []
    try:
        listed = os.listdir("/proc")
    except OSError:
        return found
    parents: dict[int, int] = {}
    for name in listed:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError) as exc:
                if isinstance(exc, OSError) and exc.errno not in (errno.ENOENT, errno.ESRCH, errno.EACCES):
                    raise
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != own:
            ancestor = parents[ancestor]
        if ancestor == own and pid != own:
            found.append(pid)
    return found
