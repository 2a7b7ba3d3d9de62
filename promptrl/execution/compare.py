"""Whether what came out is what was expected: the rules of EvalPlus 0.3.1."""

from __future__ import annotations

import math
import reprlib
from fractions import Fraction
from typing import Any, Final

import numpy as np

from promptrl.execution.sandbox import codec
from promptrl.execution.sandbox.codec import MAX_ITEMS, Digest, Opaque, Typed, digest
from promptrl.tasks.task import CallTest, Comparison

RTOL: Final = 1e-7
"""Relative tolerance wherever an absolute one applies."""
DEFAULT_ATOL: Final = 1e-6
"""Absolute tolerance where the test gives none and floats are expected."""


_MAX_BROADCAST: Final = 1_000_000
"""Elements that a comparison of differently shaped arrays may make of them."""


def compare(value: object, expected: object, test: CallTest, *, floats_before: bool = False) -> bool:
    """Whether `value`, as decoded from the sandbox, is right; `test` says how to compare.

    Values count as their plain type: what a subclass defines was left behind in the sandbox. Where a tolerance
    applies, the outermost type and length must be equal too. Never raises: a comparison that cannot be made is a
    wrong answer.

    Args:
        value: what came back.
        expected: what should have.
        test: its comparison, tolerance and alternatives.
        floats_before: whether an earlier test of the suite expects floats. EvalPlus keeps the default tolerance from
            there on, whatever is expected later; where this is not said, a tolerance holds for its own test alone.
    """
    try:
        return any(_matches(value, answer, test, floats_before) for answer in (expected, *test.alternatives))
    except Exception:  # comparing hostile or odd values may fail in as many ways as there are types
        return False


def equal(value: object, expected: object) -> bool:
    """Whether `value`, as decoded from the sandbox, equals `expected` exactly. Never raises."""
    try:
        return _equal(_plain(value), expected)
    except Exception:  # as in `compare`
        return False


def turns_tolerant(test: CallTest) -> bool:
    """Whether EvalPlus has the default tolerance from this test on: floats are expected, or a list without any item."""
    wanted = _plain(test.expected)
    return test.comparison is not Comparison.POLYNOMIAL_ROOT and (_is_floats(wanted) or wanted in ([], ()))


def _matches(value: object, expected: object, test: CallTest, floats_before: bool) -> bool:
    plain, wanted = _plain(value), _plain(expected)
    if test.comparison is Comparison.POLYNOMIAL_ROOT:
        return _is_root(test.args[0], plain, test.atol)
    if test.comparison in (Comparison.WITHIN, Comparison.BELOW):
        return _is_near(plain, wanted, test)
    if test.comparison is Comparison.TRUTH:
        # A value with no plain form is an object, and those are true unless their class says otherwise.
        return bool((isinstance(plain, Opaque) or _truth(plain)) == wanted)
    if test.comparison is Comparison.NOT_NONE:
        exact = _same_presence(plain, wanted)
    elif test.comparison is Comparison.SET:
        exact = _same_set(plain, wanted)
    else:
        exact = _equal(plain, wanted)
    if exact:
        return True
    if test.float_leaves:
        return _same_but_floats(plain, wanted, test.atol)
    atol = test.atol or (DEFAULT_ATOL if floats_before or _is_floats(wanted) else 0.0)
    if not atol or isinstance(plain, Opaque | Digest) or _type_name(value) != _type_name(expected):
        return False
    return _close(plain, wanted, atol)


def _truth(value: object) -> bool:
    return value.length != 0 if isinstance(value, Digest) else bool(value)


def _plain(value: object) -> Any:
    return value.value if isinstance(value, Typed) else value


def _type_name(value: object) -> str:
    return value.type_name if isinstance(value, Typed) else type(value).__name__


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(value, Digest) != isinstance(expected, Digest):
        # One side was small enough to carry and the other not: compare what can be had of both.
        big, small = (value, expected) if isinstance(value, Digest) else (expected, value)
        return not isinstance(small, Opaque) and digest(small) == big
    return bool(value == expected)


def _same_presence(value: object, expected: object) -> bool:
    # The expected value is known either as itself or as whether there is one.
    present = expected if isinstance(expected, bool) else expected is not None
    return (value if isinstance(value, bool) else value is not None) == present


def _same_set(value: Any, expected: Any) -> bool:
    if isinstance(value, range) and len(value) > MAX_ITEMS:
        return False
    return set(codec.not_colliding(value)) == set(expected)


def _is_floats(value: object) -> bool:
    if isinstance(value, float):
        return True
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, float) for item in value)


def _close(value: Any, expected: Any, atol: float) -> bool:
    if isinstance(expected, list | tuple) and len(value) != len(expected):
        return False
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            _equal(value[key], wanted) or _close(value[key], wanted, atol) for key, wanted in expected.items()
        )
    if not _is_numeric(value):
        return False  # made into an array, one long text among numbers would fill the memory
    left, right = np.asarray(value), np.asarray(expected)
    if left.shape != right.shape and math.prod(np.broadcast_shapes(left.shape, right.shape)) > _MAX_BROADCAST:
        return False
    return bool(np.allclose(left, right, rtol=RTOL, atol=atol))


def _is_numeric(value: object) -> bool:
    """Whether every leaf is a number."""
    if not isinstance(value, list | tuple):
        return isinstance(value, int | float | complex)
    kinds = set(map(type, value))
    return kinds <= {int, float, complex, bool} or (
        kinds <= {int, float, complex, bool, list, tuple} and all(map(_is_numeric, value))
    )


def _same_but_floats(value: Any, expected: Any, atol: float) -> bool:
    """Equality in which a float leaf may be off by the tolerance, and a whole number only where the test gives one."""
    value = _plain(value)
    if isinstance(expected, list | tuple):
        return (
            isinstance(value, list if isinstance(expected, list) else tuple)
            and len(value) == len(expected)
            and all(_same_but_floats(*pair, atol) for pair in zip(value, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(_same_but_floats(value[key], wanted, atol) for key, wanted in expected.items())
        )
    if _equal(value, expected):
        return True
    if not _is_number(value) or not _is_number(expected) or isinstance(expected, bool):
        return False
    if not isinstance(expected, float | complex) and not (atol and isinstance(value, float | complex)):
        return False
    # Infinity is near no number.
    near = abs(value - expected) <= (atol or DEFAULT_ATOL) + RTOL * abs(expected)
    return bool(near and abs(expected) != math.inf)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex | Fraction)


def _is_near(value: Any, expected: Any, test: CallTest) -> bool:
    if not _is_number(value):
        return False
    distance = abs(value - expected)
    return bool(distance < test.atol if test.comparison is Comparison.BELOW else distance <= test.atol)


def _is_root(coefficients: Any, x: Any, atol: float) -> bool:
    total = sum(coefficient * math.pow(x, power) for power, coefficient in enumerate(coefficients))
    return bool(abs(total) <= atol)


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 80, 80, 60

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 10_000 else f"<int of {x.bit_length()} bits>"


_short = _Short()


def shorten(value: object) -> str:
    """The value as a text of at most 200 characters; never raises."""
    try:
        return _short.repr(_plain(value))[:200]
    except Exception:
        return f"<{type(value).__name__}>"
