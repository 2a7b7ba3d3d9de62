"""Code from answers: long and deeply nested ones, what stays beside the function, and which block is the program."""

from __future__ import annotations

import ast

import pytest

from promptrl.execution.extraction import extract_code
from tests.execution.test_extraction import ADD, PROGRAM, F, returns

LONG = 200_000
"""Long enough that whatever takes quadratic time would not end."""


@pytest.mark.parametrize(
    "answer",
    [
        *(f"{ADD}{' ' * LONG}x y", f"{ADD}{chr(10) * LONG}x y", ADD + "\n " * LONG + "x y", "`" * LONG + "x"),
        *(
            f"{ADD}{'~' * LONG}x",
            f"{F}{' ' * LONG}x y\n{ADD}",
            f"{F}\n" * 50_000,
            ADD + "</s>          " * 20_000 + "x",
        ),
        *("def " * 50_000, "def" + " " * LONG, "async" + "\n" * LONG + "x y (", f"{F}python\nx = (\n{F}\n" * 5000),
    ],
    ids=[
        *("blanks", "lines", "indented lines", "backticks", "tildes", "blanks after a fence", "fences", "end marks"),
        *("heads", "blanks after a head", "lines after async", "broken blocks"),
    ],
)
@pytest.mark.parametrize("entry_point", ["add", None])
def test_long_answers_take_linear_time(answer: str, entry_point: str | None) -> None:
    found = extract_code(answer, entry_point=entry_point)
    assert (found.code is None) != (found.error is None)


@pytest.mark.parametrize(
    "rest",
    [
        f"def long(x):\n    return {'+'.join(['x'] * 900)}\nfor i in range(3): print(long(i))\n",
        "if add:\n    y = 1\n" + "".join(f"elif add == {i}:\n    y = 1\n" for i in range(1500)),
        f"g = {'lambda: ' * 700}1\nfor i in range(3): print(add(i, i))\n",
        f"for i in range(3): print(add(i, i){'.real' * 900})\n",
    ],
    ids=["sum", "elif", "lambdas", "attributes"],
)
def test_deep_nesting_is_no_crash(rest: str) -> None:
    found = extract_code(ADD + rest, entry_point="add")
    assert returns(found.code, "add") == "a + b"


def kept(answer: str, entry_point: str = "add") -> list[str]:
    """The statements of what was found, one line each."""
    found = extract_code(answer, entry_point=entry_point)
    assert found.code is not None
    return [ast.unparse(node).partition("\n")[0] for node in ast.parse(found.code).body]


TABLE = "def add(a, b):\n    return P[a] + P[b]\n"


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        (f"P = []\ndef init():\n    P.extend(range(5))\ninit()\n{TABLE}", "init()"),
        (f"P = None\ndef init():\n    global P\n    P = [1, 2]\ninit()\n{TABLE}", "init()"),
        (f"P = [0] * 9\ndef put(n):\n    P[n] = n\nfor n in range(9):\n    put(n)\n{TABLE}", "for n in range(9):"),
        (f"P = []\ndef one():\n    P.append(1)\ndef init():\n    one()\ninit()\n{TABLE}", "init()"),
    ],
    ids=["method", "global", "loop", "through another function"],
)
def test_calls_that_fill_what_the_function_reads_stay(answer: str, call: str) -> None:
    assert call in kept(answer)


@pytest.mark.parametrize(
    "demo",
    [
        "def show():\n    print(add(1, 2))\nshow()",
        "def show():\n    P.append(add(1, 2))\nshow()",
        "def read():\n    P.append(input())\nread()",
        "def note(xs):\n    xs.append(1)\nnote([])",
        "def note():\n    xs = []\n    xs.append(1)\nnote()",
        "add(0, 1)",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        assert add(0, 1)\nunittest.main()",
        "import doctest\ndoctest.testmod()",
    ],
)
def test_calls_that_fill_nothing_are_dropped(demo: str) -> None:
    lines = kept(f"P = [1, 2]\n{TABLE}{demo}\n")
    assert "P = [1, 2]" in lines
    assert not any(line.endswith(")") for line in lines)


def test_a_function_that_reads_input_when_it_is_defined_is_dropped() -> None:
    answer = f"def main(x=input()):\n    pass\nclass Shell:\n    line = input()\n{ADD}"
    assert kept(answer) == ["def add(a, b):"]


def test_a_block_that_imports_everything_comes_along() -> None:
    answer = f"{F}python\nfrom math import *\n{F}\n{F}python\ndef f(x):\n    return floor(x)\n{F}"
    assert kept(answer, "f") == ["from math import *", "def f(x):"]
    assert kept(f"{F}python\nfrom math import *\n{F}\n{F}python\n{ADD}{F}") == ["def add(a, b):"]


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    y = x\n    if y > 1:\n\treturn 1\n    return y\n",
        "def f(x):\n    y = x\n    return y\n\tz = 3\n    return z\n",
    ],
)
@pytest.mark.parametrize("fenced", [True, False])
def test_mixed_tabs_are_no_shorter_function(code: str, fenced: bool) -> None:
    found = extract_code(f"{F}python\n{code}{F}" if fenced else code, entry_point="f")
    assert found.code is None
    assert found.error == "syntax error: inconsistent use of tabs and spaces in indentation (line 4)"


@pytest.mark.parametrize(
    "demo",
    [
        "import subprocess, sys\nprint(subprocess.run([sys.executable, 'a.py'], input=b'3').stdout)",
        "import sys\nprint(sys.version)",
        "import subprocess\np = subprocess.Popen(['python', 'a.py'], stdin=-1)\np.stdin.write(b'3')",
        "import io, sys\nsys.stdin = io.StringIO('3')\nmain()",
        "with open('a.txt') as file:\n    print(file.read())",
    ],
)
def test_a_demonstration_after_a_program_is_not_the_program(demo: str) -> None:
    found = extract_code(f"{F}python\n{PROGRAM}{F}\nRun it:\n{F}python\n{demo}\n{F}")
    assert found.code is not None
    assert found.code.strip() == PROGRAM.strip()


@pytest.mark.parametrize("line", ["import sys\nn = int(sys.stdin.read())", "n = int(open(0).read())"])
def test_a_later_program_that_reads_otherwise_is_the_program(line: str) -> None:
    found = extract_code(f"{F}python\n{PROGRAM}{F}\nBetter:\n{F}python\n{line}\nprint(n * 2)\n{F}")
    assert found.code is not None
    assert found.code.startswith(line)
