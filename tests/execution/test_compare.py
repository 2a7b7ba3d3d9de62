"""The comparison rules of EvalPlus 0.3.1, both ways: what passes and what does not."""

from __future__ import annotations

import re

import pytest

from promptrl.execution.compare import compare, shorten, turns_tolerant
from promptrl.execution.sandbox.codec import MAX_ITEMS, Opaque, Typed, digest
from promptrl.tasks.task import CallTest, Comparison

EQUAL = [
    (3, 3, 0, True),
    (3.0, 3, 0, True),
    (True, 1, 0, True),
    ((1, 2), [1, 2], 0, False),
    ([1, 2], [2, 1], 0, False),
    ("a", "a", 0, True),
    ({1, 2}, {2, 1}, 0, True),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, 0, True),
    (0.1 + 0.2, 0.3, 0, True),
    ([0.1 + 0.2, 1.0], [0.3, 1.0], 0, True),
    ((0.1 + 0.2,), (0.3,), 0, True),
    ([0.1 + 0.2], (0.3,), 0, False),
    ([0.3, 1.0], [0.3], 0, False),
    (1, 1.0000001, 0, False),
    (1.0000001, 1, 0, False),
    (0.3001, 0.3, 0, False),
    (0.3001, 0.3, 0.001, True),
    ([[0.1 + 0.2]], [[0.3]], 0, False),
    ([[0.1 + 0.2]], [[0.3]], 1e-6, True),
    ({"a": 0.1 + 0.2}, {"a": 0.3}, 1e-6, True),
    ({"a": 0.4}, {"a": 0.3}, 1e-6, False),
    ({"b": 0.3}, {"a": 0.3}, 1e-6, False),
    ("0.3", 0.3, 1e-6, False),
    (None, 0.3, 1e-6, False),
    (float("nan"), float("nan"), 0, False),
    (float("inf"), float("inf"), 0, True),
    ([0.3, "x"], [0.3, "y"], 1e-6, False),
    ([], [], 1e-6, True),
    (10**400, 0.3, 1e-6, False),
    (Opaque("Yes"), 3, 0, False),
    (Opaque("Yes"), 0.3, 1e-6, False),
    (Typed("I", 3), 3, 0, True),
    (Typed("float64", 0.3), 0.3, 0, True),
    (Typed("float64", 0.1 + 0.2), 0.3, 0, False),
    (Typed("float64", 0.1 + 0.2), Typed("float64", 0.3), 0, True),
]


@pytest.mark.parametrize(("value", "expected", "atol", "right"), EQUAL)
def test_equal(value: object, expected: object, atol: float, right: bool) -> None:
    assert compare(value, expected, CallTest((), expected, atol=atol)) is right


def test_a_tolerance_does_not_leak_into_the_next_test() -> None:
    assert compare(0.1 + 0.2, 0.3, CallTest((), 0.3))
    assert not compare([[0.1 + 0.2]], [[0.3]], CallTest((), [[0.3]]))


@pytest.mark.parametrize(
    ("value", "expected", "right"),
    [
        ([1, 2, 2], (2, 1), True),
        ((1,), (2, 1), False),
        (None, (1,), False),
        ([[1]], ((1,),), False),
        (range(10**15), (1,), False),
    ],
)
def test_sets(value: object, expected: object, right: bool) -> None:
    assert compare(value, expected, CallTest((), expected, comparison=Comparison.SET)) is right


@pytest.mark.parametrize(
    ("value", "expected", "right"),
    [
        (Opaque("Match"), True, True),
        (None, False, True),
        (None, True, False),
        (Opaque("Match"), False, False),
        (True, True, True),
        (False, False, True),
        (False, True, False),
        ("Found", re.match("a", "a"), True),
        (None, None, True),
    ],
)
def test_not_none(value: object, expected: object, right: bool) -> None:
    assert compare(value, expected, CallTest((), expected, comparison=Comparison.NOT_NONE)) is right


@pytest.mark.parametrize(
    ("value", "right"), [(2.0, True), (2, True), (2.1, False), (None, False), ("2", False), (1j, False)]
)
def test_polynomial_root(value: object, right: bool) -> None:
    test = CallTest(([-2, 1],), comparison=Comparison.POLYNOMIAL_ROOT, atol=1e-4)
    assert compare(value, test.expected, test) is right


def test_alternatives() -> None:
    test = CallTest((), 4, alternatives=(5,))
    assert compare(4, 4, test)
    assert compare(5, 4, test)
    assert not compare(6, 4, test)


def test_digests_compare_with_values_of_either_size() -> None:
    value = list(range(MAX_ITEMS + 1))
    test = CallTest(())
    assert compare(digest(value), digest(list(value)), test)
    assert compare(value, digest(value), test)
    assert compare(digest(value), value, test)
    assert not compare(digest(value), value[:-1], test)
    assert not compare(3, digest(value), test)
    assert not compare(Opaque("x"), digest(value), test)


def test_texts_for_people_are_short() -> None:
    assert shorten(3) == "3"
    assert shorten("x" * 10**6)[0] == "'"
    assert (
        max(len(shorten(value)) for value in ("x" * 10**6, [["x" * 90] * 9] * 9, 10**10**5, {1: {2: {3: {4: 5}}}}))
        <= 200
    )


def test_a_tolerance_goes_on_where_evalplus_is_to_be_equalled() -> None:
    drift, wanted = [0.1 + 0.2, 1], [0.3, 1]
    test = CallTest((), wanted)
    assert not compare(drift, wanted, test)
    assert compare(drift, wanted, test, floats_before=True)
    assert not compare([0.4, 1], wanted, test, floats_before=True)
    assert not compare(tuple(drift), wanted, test, floats_before=True)


@pytest.mark.parametrize(
    ("expected", "tolerant"), [(0.5, True), ([0.5, 1.0], True), ((), True), ([], True), ([0.5, 1], False), (1, False)]
)
def test_what_brings_in_the_tolerance_of_later_tests(expected: object, tolerant: bool) -> None:
    assert turns_tolerant(CallTest((), expected)) is tolerant


def test_hostile_values_take_no_time_or_memory() -> None:
    colliding = [number * (2**61 - 1) for number in range(20_000)]
    as_set = CallTest((), (1,), comparison=Comparison.SET)
    assert not compare(colliding, (1,), as_set)
    assert compare([1] * 20_000 + [1.0, True], (1,), as_set)
    numbers = [0.5] * 300_000
    assert not compare([*numbers[1:], "x" * 100_000], numbers, CallTest((), numbers))
    assert not compare([[0.5]] * 300_000, numbers, CallTest((), numbers))
