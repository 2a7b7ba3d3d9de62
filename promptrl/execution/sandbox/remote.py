"""Assertions kept away from the candidate: they run in a process of their own and call the candidate's functions.

The tester is forked from the template like the candidate, but never holds a line of the candidate's code. Calls and
what they return cross over as plain data, so a candidate can neither see an assertion, nor change what it uses, nor
report that it held.
"""

from __future__ import annotations

import builtins
import contextlib
import marshal
import operator
import os
import types
from collections.abc import Callable
from typing import Any, Final

from . import codec, crossing, protocol, runner

globals()["__builtins__"] = dict(vars(builtins))  # a candidate's changes to builtins do not reach these functions

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
    kept = _Kept()
    while True:
        try:
            frame = _read_frame(ask)
        except EOFError:
            return
        request = _loads(frame[1:]) if frame[:1] == b"m" else _decode(frame[1:])
        if request[0] == "test":
            run.test(request[1], tests[request[1]], namespace, entry)
        elif request[0] == "name":
            run.send(0, protocol.VALUE, 0.0, _encode(_kind_of(namespace, request[1], kept)))
        else:
            _answer(run, request, namespace, entry, kept)


def _answer(
    run: runner.Runner, request: Any, namespace: dict[str, Any], entry: Callable[..., Any], kept: _Kept
) -> None:
    _, (place, name), limit, contents, args, kwargs = request
    parts = [crossing.empty_part(content) for content in contents]
    reader = crossing.Reader(parts, kept.get)
    for part, content in zip(parts, contents, strict=True):
        reader.fill(part, content)

    def pack(value: Any) -> bytes:
        writer = crossing.Writer(parts, kept.keep)
        after = [writer.content(part) for part in parts]
        changed = [new if new != old else None for new, old in zip(after, contents, strict=True)]
        payload = _encode((writer.write(value), changed))
        return _encode(None) if payload.startswith(b'["#"') else payload

    if place == "operation":
        function = _OPERATIONS[name]
    elif place == "object":
        function = kept.objects[name]
    else:
        function = entry if name == run.job["entry"] else namespace[name]
    run.answer(limit, function, reader.items(args), {key: reader.read(value) for key, value in kwargs.items()}, pack)


class _Kept:
    """Results that stay in the candidate's process, by number."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}

    def keep(self, value: Any) -> tuple[str, int, str]:
        number = self.numbers.setdefault(id(value), len(self.objects))
        if number == len(self.objects):
            self.objects.append(value)
        return ("o", number, codec.type_name_of(value))

    def get(self, node: Any) -> Any:
        return self.objects[node[1]]


def _take(iterator: Any, number: int) -> list[Any]:
    items: list[Any] = []
    with contextlib.suppress(StopIteration):
        while len(items) < number:
            items.append(next(iterator))
    return items


_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "iter": iter, "take": _take, "len": len, "str": str, "repr": repr, "bool": bool, "int": int, "float": float,
    "getattr": getattr, "getitem": operator.getitem,
}  # fmt: skip


def _kind_of(namespace: dict[str, Any], name: str, kept: _Kept) -> tuple[str, Any]:
    if name not in namespace:
        return "missing", None
    value = namespace[name]
    if isinstance(value, types.ModuleType):
        return "module", str(getattr(value, "__name__", ""))
    if callable(value):
        return "function", None
    return "value", crossing.Writer([], kept.keep).write(value)


# -- in the tester's process -------------------------------------------------------------------------------------


class Stand:
    """Stands for something of the candidate's that has no plain form.

    It does what a test may ask and the answer is plain data again. It takes no part in comparisons and arithmetic,
    for those would let the candidate decide whether an assertion holds.
    """

    __slots__ = ("_batch", "_call", "_number", "_type_name", "_waiting")

    def __init__(self, call: Callable[..., Any], number: int, type_name: str) -> None:
        self._call, self._number, self._type_name = call, number, type_name
        self._waiting: list[Any] = []
        self._batch = 1

    def _do(self, operation: str, *args: Any) -> Any:
        return self._call(("operation", operation), (self, *args), {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{self._type_name!r} object has no attribute {name!r}")
        return self._do("getattr", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(("object", self._number), args, kwargs)

    def __iter__(self) -> Any:
        return self._do("iter")

    def __next__(self) -> Any:
        # Twice as many each time: long ones do not take a round trip for every item, and endless ones end.
        if not self._waiting:
            self._waiting = self._do("take", self._batch)[::-1]
            self._batch = min(2 * self._batch, 1024)
            if not self._waiting:
                raise StopIteration
        return self._waiting.pop()

    def __len__(self) -> int:
        return int(self._do("len"))

    def __bool__(self) -> bool:
        return bool(self._do("bool"))

    def __int__(self) -> int:
        return int(self._do("int"))

    def __float__(self) -> float:
        return float(self._do("float"))

    def __str__(self) -> str:
        return str(self._do("str"))

    def __repr__(self) -> str:
        return str(self._do("repr"))

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", key)


def _reference_to(value: Any) -> Any:
    return ("o", value._number, value._type_name) if type(value) is Stand else ("p", None)


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
        # This process is trusted, so what it sends may be marshalled, of whatever size it is.
        frame = b"m" + marshal.dumps(parts, 2) if codec.is_native(parts) else b"j" + _encode(parts)
        protocol.write_frame(self.ask, frame)

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
        return crossing.Reader([], self.reference).read(value) if kind == "value" else None

    def stand_in(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(("name", name), args, kwargs)

        call.__name__ = name
        return call

    def reference(self, node: Any) -> Stand:
        tag, number, name = node
        if tag != "o" or type(number) is not int:
            raise ValueError("not a reference")
        return Stand(self.call, number, str(name))

    def call(self, target: tuple[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts = crossing.parts_of((*args, *kwargs.values()))
        writer = crossing.Writer(parts, _reference_to)
        contents = [writer.content(part) for part in parts]
        named = {key: writer.write(value) for key, value in kwargs.items()}
        self.request("call", target, self.limit, contents, writer.items(args), named)
        _, status, seconds, payload = self.receive()
        self.seconds += seconds
        if status == protocol.TIMEOUT:
            raise _OutOfTime
        try:
            answer = _decode(payload)
            if status == protocol.VALUE:
                if answer is None:
                    raise _RaisedError("the value is too large for an assertion")
                result, after = answer
                reader = crossing.Reader(parts, self.reference)
                for part, content in zip(parts, after, strict=True):
                    if content is not None:
                        reader.fill(part, content)
                return reader.read(result)
            kind, text = answer
        except (ValueError, TypeError, LookupError, RecursionError):  # not what `_answer` writes
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
