"""Assertions kept away from the candidate: they run in a process of their own and call the candidate's functions.

The tester is forked from the template like the candidate, but never holds a line of the candidate's code. Calls and
what they return cross over as plain data, so a candidate can neither see an assertion, nor change what it uses, nor
report that it held.
"""

from __future__ import annotations

import builtins
import contextlib
import marshal
import os
import types
from collections.abc import Callable
from typing import Any, Final

from . import codec, protocol, runner

globals()["__builtins__"] = dict(vars(builtins))  # a candidate's changes to builtins do not reach these functions

_MUTABLE: Final = (list, dict, set, bytearray)
_loads, _encode, _decode = marshal.loads, codec.encode, codec.decode
_read_frame = protocol.read_frame


class _Gone(BaseException):
    """The candidate's process has ended."""


class _OutOfTime(BaseException):
    """The candidate used up the test's time."""


class _RaisedError(Exception):
    """The candidate raised something that is not a builtin exception."""


# -- in the candidate's process ----------------------------------------------------------------------------------


def serve_calls(run: runner.Runner, ask: int) -> None:
    """Import the candidate, then answer one request after the other until the tester goes away."""
    loaded = run.load()
    if loaded is None:
        return
    namespace, entry = loaded
    tests = _loads(run.job["tests"])
    while True:
        try:
            request = _decode(_read_frame(ask))
        except EOFError:
            return
        if request[0] == "test":
            run.test(request[1], tests[request[1]], namespace, entry)
        elif request[0] == "name":
            run.send(0, protocol.VALUE, 0.0, _encode(_kind_of(namespace, request[1])))
        else:
            _, name, args, kwargs, limit = request
            function = entry if name == run.job["entry"] else namespace[name]
            run.answer(limit, function, args, kwargs)


def _kind_of(namespace: dict[str, Any], name: str) -> tuple[str, Any]:
    if name not in namespace:
        return "missing", None
    value = namespace[name]
    if isinstance(value, types.ModuleType):
        return "module", str(getattr(value, "__name__", ""))
    if callable(value):
        return "function", None
    return "value", value


# -- in the tester's process -------------------------------------------------------------------------------------


def read_file(descriptor: int) -> bytes:
    """The whole of a file that is open; every process has a place of its own in it."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


class Tester:
    """Runs the tests of one job from `start` on against a candidate at the other end of two pipes."""

    def __init__(self, job: dict[str, Any], out: int, ask: int, reply: int, preamble: dict[str, Any]) -> None:
        self.job = job
        self.out = out
        self.ask = ask
        self.reply = reply
        self.preamble = preamble
        self.reader = protocol.RecordReader(protocol.MAX_VALUE)
        self.names: dict[str, Any] = {}
        self.seconds = 0.0
        self.limit = 0.0

    def run(self, start: int) -> None:
        try:
            imported = self.receive()
            self.send(protocol.IMPORT, *imported[1:])
            if imported[1] != protocol.READY:
                return
            tests = _loads(self.job["tests"])
            apart = _loads(read_file(self.job["apart"]))
            for index in range(start, len(tests)):
                self.limit, self.seconds = self.job["limits"][index], 0.0
                if tests[index][0] == "assert":
                    status, detail = self.check(*apart[index])
                    self.send(index, status, self.seconds, detail.encode("utf-8", "backslashreplace"))
                else:
                    self.request("test", index)
                    record = self.receive()
                    while record[1] == protocol.RETURNED:
                        record = self.receive()
                    status = record[1]
                    held = status in (protocol.HELD, protocol.FALSE) and tests[index][0] != "inside"
                    self.send(index, protocol.CRASHED if held else status, *record[2:])
        except (_Gone, BrokenPipeError):
            return  # without a record; the template knows how the candidate ended

    def send(self, index: int, status: int, seconds: float, payload: bytes) -> None:
        protocol.write_all(self.out, protocol.pack_record(index, status, seconds, payload))

    def request(self, *parts: Any) -> None:
        protocol.write_frame(self.ask, _encode(parts))

    def receive(self) -> tuple[int, int, float, bytes]:
        while True:
            try:
                record = self.reader.next()
            except ValueError:
                raise _Gone from None
            if record is not None:
                return record
            data = protocol.read_some(self.reply)
            if not data:
                raise _Gone
            self.reader.feed(data)

    def check(self, setup: str, source: str) -> tuple[int, str]:
        """Run one assertion; returns the status and a text for people."""
        try:
            scope = dict(self.preamble)
            for text in (setup, source):
                if text:
                    code = compile(text, "<test>", "exec", dont_inherit=True)
                    self.supply(code, scope)
                    exec(code, scope)
        except (_Gone, BrokenPipeError):
            raise
        except _OutOfTime:
            return protocol.TIMEOUT, ""
        except BaseException as exc:
            remote = getattr(exc, "remote", None)
            if remote is None and isinstance(exc, AssertionError):
                return protocol.FALSE, runner.describe(exc)
            return protocol.EXCEPTION, runner.describe(exc) if remote is None else str(remote)
        return protocol.HELD, ""

    def supply(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """Put stand-ins for the candidate's names that the test mentions into `scope`."""
        entry = self.job["entry"]
        for name in _names_in(code):
            if name == entry:
                scope[name] = self.stand_in(name)
            elif name not in scope and not hasattr(builtins, name):
                if name not in self.names:
                    self.names[name] = self.look_up(name)
                if self.names[name] is not None:
                    scope[name] = self.names[name]

    def look_up(self, name: str) -> Any:
        self.request("name", name)
        try:
            kind, value = _decode(self.receive()[3])
        except (ValueError, TypeError):
            return None
        if kind == "function":
            return self.stand_in(name)
        if kind == "module" and isinstance(value, str):
            try:
                return __import__(value.partition(".")[0])
            except ImportError:
                return None
        return value if kind == "value" else None

    def stand_in(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(name, args, kwargs)

        call.__name__ = name
        return call

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.request("call", name, args, kwargs, self.limit)
        _, status, seconds, payload = self.receive()
        self.seconds += seconds
        if status == protocol.TIMEOUT:
            raise _OutOfTime
        try:
            answer = _decode(payload)
            if status == protocol.VALUE:
                value, after = answer
                for old, new in zip(args, after, strict=True):
                    _overwrite(old, new)
                return value.value if isinstance(value, codec.Typed) else value
            kind, text = answer
        except ValueError:
            raise _Gone from None
        known = getattr(builtins, str(kind), None)
        error: Any = _RaisedError(text)
        if isinstance(known, type) and issubclass(known, Exception):
            with contextlib.suppress(TypeError):  # one that takes more than a message
                error = known(text)
        error.remote = str(text)
        raise error


def _names_in(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _overwrite(old: Any, new: Any) -> None:
    """Repeat on the tester's argument what the candidate did to its copy."""
    if type(old) is not type(new) or type(old) not in _MUTABLE or old == new:
        return
    if type(old) is dict or type(old) is set:
        old.clear()
        old.update(new)
    else:
        old[:] = new
