"""What passes between the process that asserts and the candidate's: plain data, and references to what is not.

Lists, dicts and sets among the arguments of a call keep their identity: both sides number them in the same order, so
that what the call does to one, or that it returns one, is seen on the other side. What has no plain form stays where
it is; the other side gets a number for it.
"""

from __future__ import annotations

import builtins
import datetime
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from . import codec

globals()["__builtins__"] = dict(vars(builtins))  # a candidate's changes to builtins do not reach these functions

_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_TAGS: Final[dict[type, str]] = {list: "l", tuple: "t", set: "s", frozenset: "f", dict: "d"}
_PARTS: Final = frozenset({list, dict, set, bytearray})
_VIEWS: Final[dict[type, str]] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
_TIMES: Final[dict[type, tuple[str, ...]]] = {
    datetime.date: ("year", "month", "day"),
    datetime.datetime: ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    datetime.time: ("hour", "minute", "second", "microsecond"),
    datetime.timedelta: ("days", "seconds", "microseconds"),
}
_TIME_TYPES: Final = {kind.__name__: kind for kind in _TIMES}
_DTYPE: Final = re.compile(r"[<>|=]?[biufcU]\d{1,6}")

Keep = Callable[[Any], Any]
"""Turns what has no plain form into its reference, or a reference back into what stands for it."""


def parts_of(values: Iterable[Any]) -> list[Any]:
    """Every list, dict, set and bytearray within the values, outer ones first, each once."""
    found: dict[int, Any] = {}
    todo = list(values)[::-1]
    while todo:
        value = todo.pop()
        kind = type(value)
        if kind in _PARTS:
            if id(value) in found:
                continue
            found[id(value)] = value
        elif kind is not tuple:
            continue
        inner = list(value) if kind is not dict else list(value.values())
        if not _ATOMS.issuperset(map(type, inner)):
            todo += inner[::-1]
    return list(found.values())


class Writer:
    """Puts values into a form that the codec carries; `parts` are written as their numbers."""

    def __init__(self, parts: list[Any], keep: Keep) -> None:
        self.numbers = {id(part): number for number, part in enumerate(parts)}
        self.keep = keep

    def write(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        number = self.numbers.get(id(value))
        if number is not None:
            return ("m", number)
        return self.content(value)

    def content(self, value: Any) -> Any:
        """The value's own items, even if it is one of the parts."""
        kind = type(value)
        tag = _TAGS.get(kind)
        if tag is not None:
            return (tag, self.items(value if kind is not dict else [x for pair in value.items() for x in pair]))
        if kind in _VIEWS:
            return ("v", _VIEWS[kind], self.items(value))
        if kind in _TIMES and getattr(value, "tzinfo", None) is None:
            return ("dt", kind.__name__, [getattr(value, name) for name in _TIMES[kind]])
        numpy = sys.modules.get("numpy")
        if numpy is not None and kind is getattr(numpy, "ndarray", None) and _DTYPE.fullmatch(value.dtype.str):
            return ("nd", value.dtype.str, self.write(value.tolist()))
        text = codec.encode(value)
        return self.keep(value) if b'["x"' in text else ("p", value)

    def items(self, values: Iterable[Any]) -> list[Any]:
        items = list(values)
        return items if _ATOMS.issuperset(map(type, items)) else [self.write(item) for item in items]


class Reader:
    """Makes values of what a `Writer` wrote."""

    def __init__(self, parts: list[Any], restore: Keep) -> None:
        self.parts = parts
        self.restore = restore

    def read(self, node: Any) -> Any:
        if type(node) is not tuple:
            return node
        tag, *rest = node
        if tag == "m":
            return self.parts[rest[0]]
        if tag == "l":
            return self.items(rest[0])
        if tag == "t":
            return tuple(self.items(rest[0]))
        if tag == "s":
            return set(self.items(rest[0]))
        if tag == "f":
            return frozenset(self.items(rest[0]))
        if tag == "d":
            items = self.items(rest[0])
            return dict(zip(items[::2], items[1::2], strict=True))
        if tag == "p":
            return rest[0]
        if tag == "v":
            return _view(rest[0], self.items(rest[1]))
        if tag == "dt":
            return _TIME_TYPES[rest[0]](*rest[1])
        if tag == "nd" and _DTYPE.fullmatch(rest[0]):
            return __import__("numpy").array(self.read(rest[1]), dtype=rest[0])
        return self.restore(node)

    def items(self, nodes: list[Any]) -> list[Any]:
        return [self.read(node) for node in nodes]

    def fill(self, part: Any, node: Any) -> None:
        """Give a part the content that it has on the other side."""
        new = self.read(node)
        if type(part) is dict or type(part) is set:
            part.clear()
            part.update(new)
        else:
            part[:] = new


def empty_part(node: Any) -> Any:
    """A part of the kind that the node describes, to be filled."""
    return {"l": list, "s": set, "d": dict, "p": bytearray}[node[0]]()


def _view(kind: str, items: list[Any]) -> Any:
    if kind == "keys":
        return dict.fromkeys(items).keys()
    return dict(items).items() if kind == "items" else dict(enumerate(items)).values()
