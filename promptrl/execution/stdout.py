"""Compares what a program printed with what it should have printed, as APPS compares."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import zip_longest
from typing import Final

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_LINE: Final = re.compile(r"\S[^\r\n]*")
_WHOLE: Final = re.compile(r"[+-]?\d+")
RELATIVE_TOLERANCE: Final = 1e-5
ABSOLUTE_TOLERANCE: Final = 1e-8
"""APPS's own, which are numpy's `allclose` defaults."""


def stdout_matches(actual: str, expected: str) -> bool:
    """Whether two outputs hold the same lines of the same tokens, in the same order.

    Empty lines and the blanks around and between tokens do not count. A token that is a fraction where one
    is expected (`0.5`, `1e-3`) may differ by the tolerances; whole numbers and words must be the same,
    though a whole number may be written as a fraction (`3.0` for `3`). Order and counts always matter.
    """
    # Line by line up to the first difference, so that a flood of output costs no more than its first line.
    return all(
        got is not None and wanted is not None and _line_matches(got, wanted.split())
        for got, wanted in zip_longest(_lines(actual), _lines(expected))
    )


def _lines(text: str) -> Iterator[str]:
    """The lines that are not blank, one at a time."""
    return (match.group() for match in _LINE.finditer(text))


def _line_matches(line: str, wanted: list[str]) -> bool:
    got = line.split(None, len(wanted))  # at most one token more than there should be
    return got == wanted or (len(got) == len(wanted) and all(map(_token_matches, got, wanted)))


def _token_matches(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    if len(got) > 400 or not _NUMBER.fullmatch(got) or not _NUMBER.fullmatch(wanted):
        return False
    if _WHOLE.fullmatch(wanted):
        # Never as floats: they cannot tell 10**17 from 10**17 + 1.
        return Decimal(got) == Decimal(wanted)
    return math.isclose(float(got), float(wanted), rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
