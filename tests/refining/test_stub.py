from __future__ import annotations

from pathlib import Path

import pytest

from promptrl.errors import TaskError
from promptrl.refining.stub import read_stub

HEAD = '''\
"""Sums."""

from __future__ import annotations

import math
'''
FUNCTION = '''\
@staticmethod
def total(xs: list[float]) -> float:
    """Return the sum.

    >>> total([1.0, 2.0])
    3.0
    """
'''


def write(tmp_path: Path, text: str, name: str = "summing.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("body", ["", "    ...\n", "    pass\n", "    raise NotImplementedError\n",
                                  '    raise NotImplementedError("later")\n'])  # fmt: skip
def test_what_stands_for_a_body_is_left_out_and_the_function_comes_last(tmp_path: Path, body: str) -> None:
    helper = "def half(x):\n    return x / 2\n"
    stub = read_stub(write(tmp_path, f"{HEAD}\n\n{FUNCTION}{body}\n\n{helper}"))
    assert (stub.module, stub.entry_point) == ("summing", "total")
    assert stub.prompt == f"{HEAD}\n\n{helper}\n\n{FUNCTION}"
    assert stub.code.endswith(helper)


def test_a_docstring_on_the_line_of_the_head(tmp_path: Path) -> None:
    stub = read_stub(write(tmp_path, 'def total(xs): "Return the sum."; ...\n'))
    assert stub.prompt == 'def total(xs): "Return the sum."\n'


@pytest.mark.parametrize(
    ("text", "entry", "message"),
    [
        ("def total(:\n", None, "summing.py, line 1: is not Python: "),
        ("X = 1\n", None, "needs a function with a signature, a docstring and no body"),
        ("def total(xs):\n    return 1\n", None, "it has total"),
        ("def total(xs): ...\n", None, "the function 'total' has no docstring"),
        (
            "def a(): ...\ndef b(): ...\n",
            None,
            "has 2 functions without a body (a, b); say which one with --entry-point",
        ),
        ("def a(): ...\n", "b", "defines no function 'b'; it has a"),
        ("def a():\n    return 1\n", "a", "the function 'a' has a body already"),
    ],
)
def test_a_stub_that_cannot_be_used(tmp_path: Path, text: str, entry: str | None, message: str) -> None:
    with pytest.raises(TaskError) as error:
        read_stub(write(tmp_path, text), entry)
    assert message in str(error.value)
    assert "summing.py" in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("statistics.py", "is named like a module of Python or pytest"),
        ("two-words.py", "'two-words' is no name in Python"),
    ],
)
def test_a_name_that_tests_could_not_import(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        read_stub(write(tmp_path, FUNCTION, name))


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"none.py: cannot be read: No such file or directory"):
        read_stub(tmp_path / "none.py")
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match=r"bad.py: is not UTF-8 text"):
        read_stub(tmp_path / "bad.py")
