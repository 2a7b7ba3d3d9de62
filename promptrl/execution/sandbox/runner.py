"""What happens in the process that runs one candidate: import, calls, one record per test.

This code shares its process with the candidate, so nothing here is secret and nothing here decides a verdict: it
reports values, and the judge, outside, compares them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums that `signal` makes of every number
import atexit
import builtins
import marshal
import os
import posix
import resource
import sys
import time
import types
from collections.abc import Callable
from typing import Any, Final

from . import codec, confine, protocol

globals()["__builtins__"] = dict(vars(builtins))  # a candidate's changes to builtins do not reach these functions

MODULE_NAME: Final = "submission"
FILE_NAME: Final = "<solution>"
_DETAIL_LIMIT: Final = 300
_TICK: Final = 0.04
_FLUSH_SECONDS: Final = 0.002
_RECORD_SECONDS: Final = 0.000_02
"""What a test costs beside the call; adding up such estimates is cheaper than asking a clock after each test."""
ENCODE_SECONDS: Final = 20.0

_encode, _decode, _opaque = codec.encode, codec.decode, codec.Opaque
_pack_record, _write_all = protocol.pack_record, protocol.write_all
_monotonic = time.monotonic
_cpu_time, _getrusage, _self_usage = time.process_time, resource.getrusage, resource.RUSAGE_SELF
_setitimer, _timer_wall, _timer_cpu = _signal.setitimer, _signal.ITIMER_REAL, _signal.ITIMER_PROF
_signal_handler, _sigalrm, _sigprof = _signal.signal, _signal.SIGALRM, _signal.SIGPROF
_run_exit_handlers = atexit._run_exitfuncs
_loads, _exit, _compile, _exec, _eval = marshal.loads, posix._exit, compile, exec, eval


class OutOfTime(BaseException):
    """Raised in the candidate by the timers; not an `Exception`, so that ordinary handlers let it through."""


class Clock:
    """Limits by CPU time, so that a busy machine does not turn right answers into time-outs.

    A candidate that waits (sleeps, reads, joins) uses no CPU: when the same limit has passed on the wall clock, and
    the process gave the processor up by itself and used less than half of the limit, its time is up as well. The
    timers tick all the time, so that the thousands of quick tests of a suite cost no system calls to arm them.
    """

    def __init__(self) -> None:
        self.armed = False
        self.limit = self.started = self.wall_started = 0.0
        self.waits = -1
        _signal_handler(_sigalrm, self.on_wall)
        _signal_handler(_sigprof, self.on_cpu)

    def start(self) -> None:
        """Let the timers tick in this process."""
        _setitimer(_timer_cpu, _TICK, _TICK)
        _setitimer(_timer_wall, _TICK, _TICK)

    def arm(self, limit: float) -> None:
        self.limit, self.waits, self.started = limit, -1, _cpu_time()
        self.armed = True

    def disarm(self) -> float:
        """Stop counting and return the CPU seconds since `arm`."""
        self.armed = False
        return _cpu_time() - self.started

    def on_cpu(self, number: int, frame: object) -> None:
        # Raised at every tick once the time is up: a bare `except:` swallows the first one only.
        if self.armed and _cpu_time() - self.started >= self.limit:
            raise OutOfTime

    def on_wall(self, number: int, frame: object) -> None:
        if not self.armed:
            return
        waits = _getrusage(_self_usage).ru_nvcsw
        if self.waits < 0:  # the first tick under this limit, at most one after its start
            self.waits, self.wall_started = waits, _monotonic()
        elif (
            _monotonic() - self.wall_started >= self.limit
            and waits > self.waits
            and _cpu_time() - self.started < self.limit / 2
        ):
            raise OutOfTime


def describe(exc: BaseException) -> str:
    """The exception as one line: the line number in the candidate's code, its type and message."""
    line = 0
    trace = exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(exc, SyntaxError):
        line = exc.lineno or 0
    name = codec.type_name_of(exc)
    try:
        message = str(exc.msg if isinstance(exc, SyntaxError) else exc)[:_DETAIL_LIMIT]
    except OutOfTime:
        raise
    except BaseException:
        message = ""
    where = f"line {line}: " if line else ""
    return f"{where}{name}: {message}" if message else f"{where}{name}"


def _text(detail: str) -> bytes:
    return detail.encode("utf-8", "backslashreplace")[: 4 * _DETAIL_LIMIT]


def fresh_module(name: str) -> types.ModuleType:
    """An empty module, registered under its name: dataclasses and pickling look it up there."""
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    return module


def _find_entry(names: dict[str, Any], entry: str, forgiving: bool) -> Callable[..., Any]:
    if entry in names:
        found: Callable[..., Any] = names[entry]
        return found
    solution = names.get("Solution")
    if forgiving and isinstance(solution, type) and hasattr(solution, entry):
        method: Callable[..., Any] = getattr(solution(), entry)
        return method
    raise NameError(f"the code does not define {entry!r}")


def _materialise(value: Any) -> Any:
    """Run a lazy iterable to its end, where the test asks only which items there are."""
    packed_as_is = type(value) in (list, tuple, set, frozenset, dict, str, bytes, type(None), bool, int, float)
    return value if packed_as_is or not hasattr(value, "__iter__") else list(value)


def _evaluate(namespace: dict[str, Any], setup: str, before: str, expression: str) -> Any:
    """What an assertion compares with a constant that only the judge knows."""
    scope = dict(namespace)
    for text in (setup, before):
        if text:
            _exec(_compile(text, "<test>", "exec", dont_inherit=True), scope)
    return _eval(_compile(expression, "<test>", "eval", dont_inherit=True), scope)


class Runner:
    """Runs the tests of one job from `start` on and writes a record for each."""

    def __init__(self, job: dict[str, Any], out: int, preamble: dict[str, Any], outbox: protocol.Outbox | None) -> None:
        self.job = job
        self.out = out
        self.outbox = outbox
        self.unwritten = 0.0
        self.preamble = preamble if job["forgiving"] else {}
        self.clock: Clock = job["clock"]

    def send(self, index: int, status: int, seconds: float, payload: bytes) -> None:
        record = _pack_record(index, status, seconds, payload)
        outbox = self.outbox
        if outbox is not None and status == protocol.VALUE and outbox.append(record):
            # The template finds it there even if this process dies; a system call per quick test would cost more
            # than the test.
            self.unwritten += seconds + _RECORD_SECONDS
            if self.unwritten > _FLUSH_SECONDS:
                self.flush()
            return
        self.flush()
        _write_all(self.out, record)

    def flush(self) -> None:
        """Write the records that wait."""
        self.unwritten = 0.0
        if self.outbox is not None:
            waiting = self.outbox.take()
            if waiting:
                _write_all(self.out, waiting)

    def run(self, start: int) -> None:
        tests = _loads(self.job["tests"])
        names = self.load()
        if names is None:
            return
        namespace, entry = names
        limits = self.job["limits"]
        for index in range(start, len(tests)):
            if limits[index] != limits[index - 1]:
                self.flush()  # the template must know which limit is running
            self.test(index, tests[index], namespace, entry)
        self.flush()

    def test(self, index: int, test: Any, namespace: dict[str, Any], entry: Callable[..., Any]) -> None:
        kind, *content = test
        limit = self.job["limits"][index]
        if kind == "call":
            blob, native, lazy = content
            self.call(index, limit, entry, _loads(blob) if native else _decode(blob), lazy)
        elif kind == "value":
            self.call(index, limit, _evaluate, (namespace, *content), False)
        else:
            self.check(index, limit, namespace, *content)

    def load(self) -> tuple[dict[str, Any], Callable[..., Any]] | None:
        """Import the candidate; None, with a record that says why, where that fails."""
        clock = self.clock
        entry = self.job["entry"]
        found: Any = None
        failure, detail = protocol.READY, ""
        try:
            try:
                clock.start()
                clock.arm(self.job["import_limit"])
                module = fresh_module(MODULE_NAME)
                module.__dict__.update(self.preamble)
                for source in (self.job["setup"], self.job["code"]):
                    if source:
                        _exec(_compile(source, FILE_NAME, "exec", dont_inherit=True), module.__dict__)
                if entry is not None:
                    found = _find_entry(module.__dict__, entry, self.job["forgiving"])
            except OutOfTime:
                failure = protocol.TIMEOUT
            except BaseException as exc:
                failure, detail = protocol.EXCEPTION, describe(exc)
        except OutOfTime:
            failure = protocol.TIMEOUT
        clock.armed = False  # between an `except` above and this line stands no call, so no timer can strike
        seconds = clock.disarm()
        self.send(protocol.IMPORT, failure, seconds, _text(detail))
        return (module.__dict__, found) if failure == protocol.READY else None

    def call(self, index: int, limit: float, entry: Callable[..., Any], args: Any, lazy: bool) -> None:
        clock = self.clock
        status, payload, seconds = protocol.TIMEOUT, b"", 0.0
        try:
            try:
                clock.arm(limit)
                value = entry(*args)
                if lazy:
                    value = _materialise(value)
                seconds = _cpu_time() - clock.started
                try:
                    payload = _encode(value)
                except OutOfTime:
                    # The call was in time, and its value is large: that gets time of its own.
                    self.send(index, protocol.RETURNED, seconds, b"")
                    clock.arm(ENCODE_SECONDS)
                    payload = _encode(value)
                status = protocol.VALUE
            except OutOfTime:
                status = protocol.TIMEOUT
            except BaseException as exc:
                status, payload = protocol.EXCEPTION, _text(describe(exc))
        except OutOfTime:
            status = protocol.TIMEOUT
        clock.armed = False
        seconds = seconds or clock.disarm()
        self.send(index, status, seconds, payload)

    def answer(
        self, limit: float, function: Callable[..., Any], args: Any, kwargs: Any, pack: Callable[[Any], bytes]
    ) -> None:
        """Call for a tester in another process, and send back the result as `pack` writes it."""
        clock = self.clock
        status, payload = protocol.TIMEOUT, b""
        try:
            try:
                clock.arm(limit)
                value = function(*args, **kwargs)
                payload = pack(value)
                status = protocol.VALUE
            except OutOfTime:
                status = protocol.TIMEOUT
            except BaseException as exc:
                status, payload = protocol.EXCEPTION, _encode((codec.type_name_of(exc), describe(exc)))
        except OutOfTime:
            status = protocol.TIMEOUT
        clock.armed = False
        self.send(0, status, clock.disarm(), payload)

    def check(self, index: int, limit: float, namespace: dict[str, Any], setup: str, source: str) -> None:
        clock = self.clock
        status, detail, seconds = protocol.TIMEOUT, "", 0.0
        try:
            try:
                scope = dict(namespace)
                clock.arm(limit)
                for text in (setup, source):
                    if text:
                        _exec(_compile(text, "<test>", "exec", dont_inherit=True), scope)
                seconds = clock.disarm()
                status = protocol.HELD
            except OutOfTime:
                status = protocol.TIMEOUT
            except AssertionError as exc:
                status, detail = protocol.FALSE, describe(exc)
            except BaseException as exc:
                status, detail = protocol.EXCEPTION, describe(exc)
        except OutOfTime:
            status = protocol.TIMEOUT
        clock.armed = False
        seconds = seconds or clock.disarm()
        self.send(index, status, seconds, _text(detail))


def run_program(job: dict[str, Any], index: int, out: int, preamble: dict[str, Any]) -> None:
    """Run the candidate as `__main__`; its input and output are already in place as descriptors 0 and 1."""
    clock: Clock = job["clock"]
    module = fresh_module("__main__")
    if job["forgiving"]:
        module.__dict__.update(preamble)
    status, detail = protocol.TIMEOUT, ""
    try:
        try:
            clock.start()
            clock.arm(job["limits"][index])
            for source in (job["setup"], job["code"]):
                if source:
                    _exec(_compile(source, FILE_NAME, "exec", dont_inherit=True), module.__dict__)
            status = protocol.VALUE
        except OutOfTime:
            status = protocol.TIMEOUT
        except SystemExit as exc:
            if exc.code in (None, 0, False):
                status = protocol.VALUE
            else:
                status, detail = protocol.EXCEPTION, describe(exc)
        except BaseException as exc:
            status, detail = protocol.EXCEPTION, describe(exc)
        if status == protocol.VALUE:
            try:
                _end_of_program()
            except OutOfTime:
                raise
            except BaseException as exc:
                status, detail = protocol.EXCEPTION, describe(exc)
    except OutOfTime:
        status = protocol.TIMEOUT
    clock.armed = False
    seconds = clock.disarm()
    _write_all(out, _pack_record(index, status, seconds, _text(detail)))


def write_input(text: bytes) -> None:
    """Make the program's input readable by its name; without namespaces the system's own name leads to it."""
    try:
        target = os.readlink("/dev/stdin")  # noqa: PTH115
        if target == confine.INPUT:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            _write_all(descriptor, text)
            os.close(descriptor)
    except OSError:
        return  # the program then says itself that it cannot read it


def _end_of_program() -> None:
    """Do what the interpreter does when a program ends: wait for its threads, run exit handlers, write output."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    _run_exit_handlers()
    for stream in (sys.stdout, sys.__stdout__):
        # A program may close its output itself; what it printed counts.
        if stream is not None and hasattr(stream, "flush") and not getattr(stream, "closed", False):
            stream.flush()


def open_streams() -> None:
    """Give the candidate ordinary text streams over the descriptors 0 to 2."""
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def finish() -> None:
    """End the process at once: no exit handlers, no waiting for the candidate's threads."""
    _exit(0)
