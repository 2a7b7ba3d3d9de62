"""What leaves the sandbox: exact types there and back, and nothing that a hostile writer could gain by."""

from __future__ import annotations

import json
import marshal
import time
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptrl.execution.sandbox import codec

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
hashable = st.recursive(leaves, lambda inner: st.tuples(inner, inner) | st.frozensets(inner), max_leaves=8)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.dictionaries(hashable, inner)
        | st.sets(hashable)
        | st.frozensets(hashable)
    ),
    max_leaves=30,
)


def _shape(value: object) -> object:
    """The value with the type of every part, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return dict, [(_shape(key), _shape(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_shape(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(repr(_shape(item)) for item in value)
    return type(value), repr(value)


@given(values)
def test_plain_data_survives(value: object) -> None:
    assert _shape(codec.decode(codec.encode(value))) == _shape(value)


@pytest.mark.parametrize(
    "value",
    [
        float("inf"), 10**30, -(10**20), range(1, 10, 3), Decimal("1.50"), Fraction(1, 3), bytearray(b"x"), ..., int,
        type(None), deque([1]), OrderedDict(b=1, a=2), Counter("aab"), "\ud800\0", {1: "a", "1": "b", (1,): {2}},
    ],
)  # fmt: skip
def test_less_plain_data_survives(value: object) -> None:
    back = codec.decode(codec.encode(value))
    assert (type(back), back) == (type(value), value)


def test_nan_stays_nan_and_equals_nothing() -> None:
    back = codec.decode(codec.encode([float("nan")]))
    assert back[0] != back[0]


class _Int(int):
    def __int__(self) -> int:
        return 99

    __index__ = __int__


class _Dict(dict):  # type: ignore[type-arg]
    def items(self):  # type: ignore[no-untyped-def]
        return [(1, 1)]


def test_subclasses_are_read_by_their_base() -> None:
    assert codec.decode(codec.encode(_Int(3))) == codec.Typed("_Int", 3)
    assert codec.decode(codec.encode([_Int(3)])) == [3]
    assert codec.decode(codec.encode(_Dict(a=2))) == codec.Typed("_Dict", {"a": 2})
    assert codec.decode(codec.encode(np.float64(0.5))) == codec.Typed("float64", 0.5)
    assert codec.decode(codec.encode([np.int64(5), np.bool_(True)])) == [5, True]


def test_what_has_no_plain_form_is_opaque() -> None:
    for value in (object(), lambda: 1, print, np.array([1, 2]), iter([])):
        back = codec.decode(codec.encode(value))
        assert isinstance(back, codec.Opaque)
        assert back != 1
    assert codec.decode(codec.encode([1, object()])) != [1, object()]


def test_large_values_become_a_digest_that_is_exact() -> None:
    large = [("a", "b")] * (codec.MAX_ITEMS // 2)
    same, other = list(large), [*large[:-1], ("a", "c")]
    first = codec.decode(codec.encode(large))
    assert isinstance(first, codec.Digest)
    assert first.length == len(large)
    assert codec.decode(codec.encode(same)) == first
    assert codec.decode(codec.encode(other)) != first
    assert codec.decode(codec.encode(tuple(large))) != first
    numbers = set(range(codec.MAX_ITEMS + 1))
    assert codec.digest(numbers) == codec.digest({*range(codec.MAX_ITEMS, -1, -1)})
    assert isinstance(codec.decode(codec.encode([object()] * (codec.MAX_ITEMS + 1))), codec.Opaque)


def test_cycles_end() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert isinstance(codec.decode(codec.encode(loop)), list)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\xff", b"{}", b"[]", b'["l", {}]', b'["?"]', b'["d", 1]', b'["s", ["l"]]', b'["i", "zz"]', b'["i", 5]',
        b'["D", "x"]', b'["F", "0x1", "0x0"]', b'["b", "0"]', b'["r"]', b'["y", "os"]', b"[[]]", b"[1]", b'["#"]',
        b"9" * 5000, b"[" * 100_000, b'["l",' * 900 + b"1" + b"]" * 900, b'["S"]', b'["c", "x", 1]', b'["B", 1]',
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_harms_nothing(text: bytes) -> None:
    with pytest.raises(codec.CodecError):
        codec.decode(text)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(text: bytes) -> None:
    assert _is_value_or_refused(text)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["l", "d", "s", "i", "S", "x", "#", "r", "F", "D", "c"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_any_json_is_a_value_or_refused(value: object) -> None:
    assert _is_value_or_refused(json.dumps(value).encode())


def _is_value_or_refused(text: bytes) -> bool:
    """Whether decoding ends in a value or in its own error; any other exception comes through."""
    try:
        codec.decode(text)
    except codec.CodecError:
        return True
    return True


@given(values)
def test_plain_data_may_be_marshalled(value: object) -> None:
    assert codec.is_native(value)
    assert _shape(marshal.loads(marshal.dumps(value, 2))) == _shape(value)  # type: ignore[arg-type]


def test_other_data_may_not_be_marshalled() -> None:
    for value in (bytearray(b"x"), np.array([1]), _Int(3), Decimal(1), OrderedDict(a=1), {"a": [bytearray(b"x")]}, int):
        assert not codec.is_native((value,))


COLLIDING = [f'["i","{number * (2**61 - 1):#x}"]' for number in range(2000)]
HOSTILE = {
    "fraction of many digits": f'["F","0x{"f" * 400_000}","0x{"e" * 400_000}"]',
    "set of one hash": f'["s",{",".join(COLLIDING)}]',
    "keys of one hash": f'["d",{",0,".join(COLLIDING)},0]',
    "empty lists": f'["l"{",[]" * 900_000}]',
    "objects": f'["l"{",{}" * 900_000}]',
    "commas": f'["l"{",1" * 3_000_000}]',
    "longer than any": f'["l","{"x" * (codec.MAX_TEXT + 100_000)}"]',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_forged_values_are_refused_before_they_cost_anything(text: str) -> None:
    started = time.process_time()
    with pytest.raises(codec.CodecError):
        codec.decode(text.encode())
    assert time.process_time() - started < 1.0


def test_texts_full_of_brackets_are_no_forgery() -> None:
    value = ["[,{" * 40_000 + '"\\'] * 12
    assert codec.decode(codec.encode(value)) == value
    whole: list[list[int]] = [[]] * 399_000
    assert codec.decode(codec.encode(whole)) == whole


def test_a_fraction_of_many_digits_is_opaque() -> None:
    assert isinstance(codec.decode(codec.encode(Fraction(1, 2**400_000))), codec.Opaque)
    assert codec.decode(codec.encode(Fraction(-(3**1000), 2**1000))) == Fraction(-(3**1000), 2**1000)
