"""Suites of EvalPlus: inputs without outputs, the expected values of which are computed later."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from promptrl.tasks.benchmark import Row, RowError
from promptrl.tasks.task import CallTest, Comparison, TestSuite

Restore = Callable[[list[object]], "tuple[object, ...]"]
"""Gives the arguments of one call the types that JSON lost."""

Alternatives = Callable[["tuple[object, ...]"], "tuple[object, ...]"]
"""Gives, for the arguments of one call, further answers to accept."""


def input_suite(
    row: Row,
    name: str,
    *,
    comparison: Comparison = Comparison.EQUAL,
    restore: Restore = tuple,
    alternatives: Alternatives | None = None,
) -> TestSuite | None:
    """The suite of the inputs under `<name>_input`, or None where there are none (Mbpp/793's plus inputs).

    Args:
        row: With the inputs (one list of arguments a call) and `atol`.
        name: `base` or `plus`.
        comparison: How every answer is compared.
        restore: Applied to the arguments of each call.
        alternatives: Gives, for the arguments of one call, further answers to accept.

    Raises:
        RowError: when the inputs or the tolerance have another form.
    """
    inputs = row.get(f"{name}_input") or []
    atol = row.get("atol", 0)
    if not isinstance(inputs, list) or not all(isinstance(args, list) for args in inputs):
        raise RowError(f"key '{name}_input' must be a list of argument lists")
    if isinstance(atol, bool) or not isinstance(atol, (int, float)) or atol < 0:
        raise RowError("key 'atol' must be a number of at least 0")
    tests = []
    for number, args in enumerate(inputs, start=1):
        try:
            restored = restore(cast("list[object]", args))
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise RowError(f"input {number} of '{name}_input' has not the types this task needs: {error}") from error
        others = _others(restored, alternatives)
        tests.append(CallTest(restored, comparison=comparison, atol=float(atol), alternatives=others))
    return TestSuite(name, tuple(tests)) if tests else None


def _others(args: tuple[object, ...], alternatives: Alternatives | None) -> tuple[object, ...]:
    try:
        return alternatives(args) if alternatives else ()
    except (TypeError, ValueError, ArithmeticError):
        return ()  # the second reading has no answer for these arguments; the first one stands
