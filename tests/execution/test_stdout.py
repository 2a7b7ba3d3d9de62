"""What a program prints, compared token by token."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptrl.execution.stdout import stdout_matches


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ("42", "42\n"),
        ("1 2  \n3\n\n", "1 2\n3"),
        ("1\r\n2\r\n", "1\n2\n"),
        ("0.30000000000000004", "0.3"),
        ("0.333333", "0.33333333333"),
        ("1e-3", "0.001"),
        ("3.0", "3"),
        ("3", "3.0"),
        ("", "\n"),
        ("inf nan", "inf nan"),
    ],
)
def test_equal_outputs(actual: str, expected: str) -> None:
    assert stdout_matches(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ("NO\nYES\nYES\n", "YES\nNO\nYES\n"),  # equal as sets
        ("YES\nNO\n", "YES\nNO\nYES\n"),
        ("1 1 2", "1 2"),
        ("1 2\n3", "1\n2 3"),
        ("100000000000000001", "100000000000000000"),
        ("0.31", "0.3"),
        ("0.3000", "0.30001"),
        ("yes", "YES"),
        ("", "0"),
        ("1_000", "1000"),
        ("one", "1.0"),
        ("1e99999", "1.5"),
        ("٣", "3.5"),
    ],
)
def test_different_outputs(actual: str, expected: str) -> None:
    assert not stdout_matches(actual, expected)


@given(st.text())
def test_every_output_matches_itself(text: str) -> None:
    assert stdout_matches(text, text)
    assert stdout_matches(text + " \n", text)


@given(st.lists(st.integers(), min_size=1), st.integers())
def test_one_more_token_never_matches(numbers: list[int], more: int) -> None:
    text = " ".join(map(str, numbers))
    assert not stdout_matches(f"{text} {more}", text)


def test_a_flood_of_output_costs_little() -> None:
    started = time.process_time()
    for flood in ("1 " * 8_000_000, "1\n" * 8_000_000, " \n" * 8_000_000, "\x0b" * 16_000_000):
        assert not stdout_matches(flood, "1 2\n3")
    assert time.process_time() - started < 2.0
    assert stdout_matches("1\r\x0b2 \x1c 3 \n\n \n", "\n 1\n2 3")
