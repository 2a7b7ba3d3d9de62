"""Plain data as text: what a candidate returns leaves the sandbox in this form and in no other.

Values are tagged JSON. What has no plain form becomes an `Opaque`, which equals nothing; a value too large to
carry becomes a `Digest` of its exact structure. Reading never runs code that the writer chose.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
import marshal
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from json import encoder as json_encoder
from typing import Any, Final

# Functions look builtins up where they were defined: with a private copy, a candidate that replaces `len` or `type`
# in the shared `builtins` module does not reach the functions below.
globals()["__builtins__"] = dict(vars(builtins))

MAX_ITEMS: Final = 400_000
"""Values with more parts than this leave the sandbox as a digest."""
MAX_TEXT: Final = 8 * 2**20
"""Values whose text is longer than this, in bytes, leave the sandbox as a digest."""
MAX_STRING: Final = 2**17
"""A text that is longer than this, in characters, leaves the sandbox as a digest."""
MAX_DEPTH: Final = 150
"""Values nested deeper than this are opaque; well below the recursion limit on both sides."""
MAX_DIGITS: Final = 2**14
"""Fractions of more hexadecimal digits than this, on either side, are opaque: reducing them takes too long."""
MAX_COLLISIONS: Final = 64
"""Different items of a set, or keys of a mapping, that may have the same hash."""
_NATIVE_INT: Final = 10**18
_SLICE: Final = 16_384
_FEW: Final = 512


class Opaque:
    """A value with no plain form: it equals nothing but itself."""

    __slots__ = ("type_name",)

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<{self.type_name} object>"


@dataclass(frozen=True, slots=True)
class Digest:
    """Stands for a value too large to carry: equal digests mean the same types, values and order."""

    type_name: str
    length: int
    """Number of items at the top level; -1 where the value has none."""
    blake2b: str

    def __repr__(self) -> str:
        return f"<{self.type_name} of {self.length} items, too large to keep, digest {self.blake2b[:12]}>"


@dataclass(frozen=True, slots=True)
class Typed:
    """A value that was an instance of a subclass (or a numpy scalar), judged by its plain value."""

    type_name: str
    value: Any


class CodecError(ValueError):
    """Text that is not a value in this encoding."""


class _TooLargeError(Exception):
    pass


_ATOMS: Final = frozenset({type(None), bool, str, float})
_ATOMS_AND_INT: Final = _ATOMS | {int}
_MARSHALLED: Final = _ATOMS | {int, complex, bytes}
_CONTAINERS: Final = frozenset({list, tuple, set, frozenset, dict})
_NAMED_TYPES: Final = {
    kind.__name__: kind
    for kind in (int, float, complex, bool, str, bytes, list, tuple, set, frozenset, dict, type(None), object, type)
}
_SEQUENCE_TAGS: Final[dict[type, str]] = {list: "l", tuple: "t", set: "s", frozenset: "f", deque: "q"}
_MAPPING_TAGS: Final[dict[type, str]] = {dict: "d", OrderedDict: "od", Counter: "ct", defaultdict: "d"}
_VIEW_TYPES: Final[tuple[type, ...]] = (type({}.keys()), type({}.items()))

# The C encoder itself, made now: replacing `json.dumps` or any method of `json.JSONEncoder` later changes nothing.
_join = "".join


def _refuse(value: object) -> object:
    raise CodecError(f"cannot write {type(value).__name__}")


_c_encode: Any = json_encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _refuse, json_encoder.encode_basestring_ascii, None, ":", ",", False, False, True
)


_TEXTS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_loads = json.JSONDecoder().decode


class _Packer:
    """Turns one value into JSON-ready form, counting its parts."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = 0

    def count(self, number: int) -> None:
        self.items += number
        if self.items > MAX_ITEMS:
            raise _TooLargeError

    def pack(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is int:
            return value if -_NATIVE_INT < value < _NATIVE_INT else ["i", hex(value)]
        if depth > MAX_DEPTH:
            return ["x", "deeply nested value"]
        tag = _SEQUENCE_TAGS.get(kind)
        if tag is not None:
            return [tag, *self.pack_items(value, len(value), depth)]
        tag = _MAPPING_TAGS.get(kind)
        if tag is not None:
            return [tag, *self.pack_items(_flatten(dict.items(value)), 2 * len(value), depth)]
        return self.pack_rare(value, kind, depth)

    def pack_items(self, values: Iterable[Any], number: int, depth: int) -> list[Any]:
        self.count(number)
        items = list(values)
        kinds = set(map(type, items))
        if kinds <= _ATOMS:
            return items
        if kinds == {int} and min(items) > -_NATIVE_INT and max(items) < _NATIVE_INT:
            return items
        pack, deeper = self.pack, depth + 1
        return [item if type(item) in _ATOMS else pack(item, deeper) for item in items]

    def pack_rare(self, value: Any, kind: type, depth: int) -> Any:
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is bytes:
            return ["b", value.hex()]
        if kind is bytearray:
            return ["B", value.hex()]
        if kind is range:
            return ["r", *map(hex, (value.start, value.stop, value.step))]
        if kind is Decimal:
            return ["D", str(value)]
        if kind is Fraction:
            top, bottom = hex(value.numerator), hex(value.denominator)
            return ["F", top, bottom] if len(top) + len(bottom) < MAX_DIGITS else ["x", "Fraction of many digits"]
        if kind is type:
            name = type_name_of_class(value)
            return ["y", name] if _NAMED_TYPES.get(name) is value else ["x", "type"]
        if value is Ellipsis:
            return ["e"]
        plain = plain_of(value)
        if type(plain) is Opaque:
            return ["x", plain.type_name]
        packed = self.pack(plain, depth + 1)
        return ["S", type_name_of(value), packed] if depth == 0 else packed


def _flatten(pairs: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
    for pair in pairs:
        yield from pair


def type_name_of(value: object) -> str:
    """The class's own name, without calling anything that the class defines; at most 80 characters."""
    return type_name_of_class(type(value))


def type_name_of_class(kind: type) -> str:
    """The name of a class as `type` keeps it; at most 80 characters."""
    return str.__str__(type.__dict__["__name__"].__get__(kind))[:80]


def plain_of(value: Any) -> Any:
    """The plain value under a subclass instance, a numpy scalar or a dict view; an `Opaque` where there is none.

    The base type's own functions read it, so that what a subclass overrides has no say.
    """
    mro = type.__dict__["__mro__"].__get__(type(value))
    for base, read in _PLAIN_READERS:
        if base in mro:
            return read(value)
    if type(value) in _VIEW_TYPES:
        try:
            return set(value)
        except TypeError:
            return list(value)
    numpy = sys.modules.get("numpy")
    generic = getattr(numpy, "generic", None)
    if isinstance(generic, type) and generic in mro:
        plain = value.item()
        if type(plain) in _ATOMS_AND_INT or type(plain) is complex:
            return plain
    return Opaque(type_name_of(value))


_PLAIN_READERS: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, lambda value: complex(complex.__dict__["real"].__get__(value), complex.__dict__["imag"].__get__(value))),
    (str, str.__str__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (bytearray, lambda value: bytes(bytearray.__getitem__(value, slice(None)))),
    (list, lambda value: list.__getitem__(value, slice(None))),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (dict, lambda value: dict(dict.items(value))),
)


def is_native(value: Any, depth: int = 0) -> bool:
    """Whether `marshal` keeps the value as it is, every type exactly: it would turn a bytearray into bytes."""
    kind = type(value)
    if kind in _MARSHALLED:
        return True
    if depth > MAX_DEPTH or kind not in _CONTAINERS:
        return False
    parts: Iterable[Any] = value if kind is not dict else [*value.keys(), *value.values()]
    if _MARSHALLED.issuperset(map(type, parts)):
        return True
    return all(is_native(part, depth + 1) for part in parts)


def encode(value: Any) -> bytes:
    """The value as ASCII text; never raises for plain data, whatever its size.

    Returns:
        Tagged JSON; of a digest where the value is larger than `MAX_ITEMS` parts, `MAX_TEXT` bytes, or, for a
        text, `MAX_STRING` characters.
    """
    text = b""
    # A long text is compared whole or not at all, so its digest says as much as itself.
    if type(value) is not str or len(value) <= MAX_STRING:
        with contextlib.suppress(_TooLargeError):
            text = _join(_c_encode(_Packer().pack(value), 0)).encode("ascii")
    if text and len(text) <= MAX_TEXT:
        return text
    summary = digest(value)
    if isinstance(summary, Opaque):
        return _join(_c_encode(["x", summary.type_name], 0)).encode("ascii")
    return _join(_c_encode(["#", summary.type_name, summary.length, summary.blake2b], 0)).encode("ascii")


def digest(value: Any) -> Digest | Opaque:
    """A digest of the value's exact structure, in C and in slices, so that memory stays flat.

    Here 1, 1.0 and True differ, unlike under `==`: a value this large is compared type by type.
    """
    state = hashlib.blake2b(digest_size=20)
    kind = type(value)
    length = -1
    try:
        if kind in (list, tuple):
            length = len(value)
            state.update(kind.__name__.encode())
            parts = iter(value)
            # Version 2 has no back references: equal values give equal bytes however their parts are shared.
            while part := list(islice(parts, _SLICE)):
                state.update(_rows_of_texts(part) or marshal.dumps(part, 2))
        elif kind in (set, frozenset):
            length = len(value)
            state.update(b"set")
            for item in sorted(hashlib.blake2b(marshal.dumps(item, 2), digest_size=20).digest() for item in value):
                state.update(item)
        elif kind in _MAPPING_TAGS:
            length = len(value)
            state.update(b"dict")
            pairs = dict.items(value)
            for item in sorted(hashlib.blake2b(marshal.dumps(pair, 2), digest_size=20).digest() for pair in pairs):
                state.update(item)
        else:
            state.update(marshal.dumps(value, 2))
    except (ValueError, TypeError):
        return Opaque(f"very large {type_name_of(value)}")
    return Digest(type_name_of(value), length, state.hexdigest())


def _rows_of_texts(part: list[Any]) -> bytes:
    """A slice of sequences of texts as bytes, exactly and several times faster than item by item; else nothing.

    The largest value of the benchmarks (Mbpp/255's, 128 million short texts) is of this form.
    """
    kinds = set(map(type, part))
    if kinds != {tuple} and kinds != {list}:
        return b""
    try:
        texts = list(map("\0".join, part))
    except TypeError:
        return b""
    sizes = list(map(len, part))
    # A separator inside a text would make the joined form ambiguous.
    if sum(text.count("\0") for text in texts) != sum(size - 1 for size in sizes if size):
        return b""
    return marshal.dumps((kinds == {tuple}, sizes, texts), 2)


def decode(text: bytes) -> Any:
    """The value that `encode` wrote; `Opaque`, `Digest` and, at the top only, `Typed` stand for themselves.

    Raises:
        CodecError: the text is not in this encoding; nothing else is ever raised, whatever the bytes are.
    """
    if len(text) > MAX_TEXT + _SLICE or _is_bloated(text):
        raise CodecError("not an encoded value: larger than any that is written")
    try:
        return _unpack(_loads(text.decode("ascii")), 0)
    except CodecError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError) as exc:
        raise CodecError(f"not an encoded value: {type(exc).__name__}") from None


def _is_bloated(text: bytes) -> bool:
    """Whether the text has more parts than `encode` ever writes: small text may be large in memory."""
    limit = MAX_ITEMS + _SLICE
    if text.count(b"[") + text.count(b"{") <= limit and text.count(b",") <= 5 * limit:
        return False
    bare = _TEXTS.sub(b"", text)
    return bare.count(b"[") + bare.count(b"{") > limit or bare.count(b",") > 5 * limit


def not_colliding(items: Any) -> Any:
    """The items themselves, if a set of them is made in good time.

    Raises:
        CodecError: too many different ones have the same hash; comparing each with each would take too long.
    """
    if len(items) <= _FEW:
        return items
    hashes = list(map(hash, items))
    if len(set(hashes)) == len(hashes):
        return items
    found: dict[int, list[Any]] = {}
    for number, item in zip(hashes, items, strict=True):
        same = found.setdefault(number, [])
        if item not in same:
            same.append(item)
            if len(same) > MAX_COLLISIONS:
                raise CodecError("too many items of the same hash")
    return items


def _fraction(top: str, bottom: str) -> Fraction:
    if len(top) + len(bottom) > MAX_DIGITS:
        raise CodecError("not an encoded value: too many digits")
    return Fraction(int(top, 16), int(bottom, 16))


def _unpack(node: Any, depth: int) -> Any:
    if type(node) is not list:
        if type(node) is dict:
            raise CodecError("not an encoded value: object")
        return node
    if depth > MAX_DEPTH + 2:
        raise CodecError("not an encoded value: too deep")
    tag, items = node[0], node[1:]
    build = _BUILDERS.get(tag)
    if build is not None:
        kinds = set(map(type, items))
        if list in kinds or dict in kinds:
            items = [_unpack(item, depth + 1) for item in items]
        return build(items)
    read = _READERS.get(tag)
    if read is None:
        raise CodecError("not an encoded value: unknown tag")
    if tag == "S":
        return Typed(str(items[0]), _unpack(items[1], depth + 1))
    return read(*items)


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(not_colliding(items[::2]), items[1::2], strict=True)


_BUILDERS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "l": lambda items: items,
    "t": tuple,
    "s": lambda items: set(not_colliding(items)),
    "f": lambda items: frozenset(not_colliding(items)),
    "q": deque,
    "d": lambda items: dict(_pairs(items)),
    "od": lambda items: OrderedDict(_pairs(items)),
    "ct": lambda items: Counter(dict(_pairs(items))),
}
_READERS: Final[dict[str, Callable[..., Any]]] = {
    "i": lambda digits: int(digits, 16),
    "c": lambda real, imag: complex(float(real), float(imag)),
    "b": lambda digits: bytes.fromhex(digits),
    "B": lambda digits: bytearray.fromhex(digits),
    "r": lambda *bounds: range(*(int(bound, 16) for bound in bounds)),
    "D": lambda digits: Decimal(digits),
    "F": _fraction,
    "y": lambda name: _NAMED_TYPES[name],
    "e": lambda: Ellipsis,
    "x": lambda name: Opaque(str(name)[:80]),
    "#": lambda name, length, value: Digest(str(name)[:80], int(length), str(value)),
    "S": lambda name, value: Typed(name, value),
}
