"""Assertions in a process apart: what they may do with what a call returns, and that it gives a candidate no say."""

from __future__ import annotations

import pytest

from promptrl.execution import Judge
from tests.execution.helpers import asserting, outcomes, verdict

RIGHT = {
    "generator": ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
    "endless generator": (
        "import itertools\ndef f(n):\n    while True: yield n",
        "g = f(3)\nassert next(g) == 3 and next(g) == 3",
    ),
    "end of an iterator": (
        "def f(n): return iter([n])",
        "g = f(1)\nnext(g)\ntry:\n    next(g)\nexcept StopIteration:\n    pass\nelse:\n    assert False",
    ),
    "long generator": ("def f(n): return (x for x in range(n))", "assert sum(f(50_000)) == 1_249_975_000"),
    "sorted expression": ("def f(n): return (x for x in [3, 1, 2])", "assert sorted(f(3)) == [1, 2, 3]"),
    "sum of a map": ("def f(n): return map(abs, [-1, n])", "assert sum(f(3)) == 4"),
    "values of a dict": ("def f(n): return {'b': 2, 'a': 1}.values()", "assert sorted(f(3)) == [1, 2]"),
    "keys in order": ("def f(n): return {'z': 2, 'a': 1, 'm': 0}.keys()", "assert list(f(3)) == ['z', 'a', 'm']"),
    "items": ("def f(n): return {'z': [2]}.items()", "assert list(f(3)) == [('z', [2])]"),
    "closure": ("def f(n): return lambda x: x + n", "assert f(1)(2) == 3"),
    "closure handed back": ("def f(n, g=None): return g(n) if g else (lambda x: x + n)", "assert f(5, f(1)) == 6"),
    "str": ("class P:\n    __str__ = lambda s: 'p'\ndef f(n): return P()", "assert str(f(1)) == 'p'"),
    "len": ("class P:\n    __len__ = lambda s: 3\ndef f(n): return P()", "assert len(f(1)) == 3"),
    "attribute": ("class P:\n    count = 3\ndef f(n): return [P()]", "assert f(1)[0].count == 3"),
    "date": (
        "import datetime\ndef f(n): return [datetime.date(2020, 1, n)]",
        "import datetime\nassert f(2) == [datetime.date(2020, 1, 2)]",
    ),
    "time difference": (
        "import datetime\ndef f(n): return datetime.timedelta(n)",
        "from datetime import timedelta\nassert f(2) == timedelta(days=2)",
    ),
    "array": ("import numpy as np\ndef f(n): return np.arange(n)", "assert list(f(3)) == [0, 1, 2]"),
    "array of rows": ("import numpy as np\ndef f(n): return np.eye(n)", "assert f(2).tolist() == [[1, 0], [0, 1]]"),
    "large argument": ("def f(x): return len(x)", "assert f(list(range(500_000))) == 500_000"),
    "named argument": ("def f(xs): xs.sort()", "x = [3, 1]\nf(xs=x)\nassert x == [1, 3]"),
    "nested argument": ("def f(x): x[0].append(2)", "x = ([1],)\nf(x)\nassert x[0] == [1, 2]"),
    "identity of inner lists": (
        "def f(x): x.append([9])",
        "a = [1]\nx = [a]\nf(x)\na.append(2)\nassert x == [[1, 2], [9]]",
    ),
    "one list twice": ("def f(a, b): a.append(1); return len(b)", "x = []\nassert f(x, x) == 1 and x == [1]"),
    "a copy is a copy": ("def f(x): return list(x)", "x = [1]\ny = f(x)\ny.append(2)\nassert x == [1]"),
    "the argument itself": ("def f(x): return x", "x = [1]\nassert f(x) is x"),
    "dict of lists": ("def f(d):\n    d['b'] = d.pop('a')", "d = {'a': [1]}\nf(d)\nassert d == {'b': [1]}"),
    "set and bytes": (
        "def f(s, b):\n    s.add(2); b.extend(b'x')",
        "s, b = {1}, bytearray(b'a')\nf(s, b)\nassert (s, b) == ({1, 2}, b'ax')",
    ),
    "numbers of other kinds": (
        "from fractions import Fraction\ndef f(n): return [Fraction(n, 2)]",
        "from fractions import Fraction\nassert f(3) == [Fraction(3, 2)]",
    ),
    "named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(n): return P(n, 2)",
        "assert f(1) == (1, 2)",
    ),
}


@pytest.mark.parametrize(("code", "test"), RIGHT.values(), ids=RIGHT.keys())
def test_right_answers_hold(judge: Judge, code: str, test: str) -> None:
    found = verdict(judge, code, *asserting(test), entry="f")
    assert outcomes(found) == ["passed"], found.results[0].detail


WRONG = {
    "its own argument": ("def f(x): return x", "x = [1]\ny = f(x)\ny.append(2)\nassert x == [1]"),
    "changed argument": ("def f(x): x.clear(); return 1", "x = [1]\nassert f(x) == 1 and x == [1]"),
    "another generator": ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1]"),
    "sum of another map": ("def f(n): return map(abs, [-1, n])", "assert sum(f(3)) == 5"),
}


@pytest.mark.parametrize(("code", "test"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answers_do_not(judge: Judge, code: str, test: str) -> None:
    assert outcomes(verdict(judge, code, *asserting(test), entry="f")) == ["wrong"]


YES = (
    "class Yes:\n    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = lambda s, o: True\n"
    "    __hash__ = None\n    __sub__ = __rsub__ = __add__ = __radd__ = __mod__ = lambda s, o: 0\n"
    "    __abs__ = __neg__ = lambda s: 0\n    __round__ = lambda s, n=0: s\n    __getattr__ = lambda s, n: s\n"
    "    __call__ = lambda s, *a: s\n    __iter__ = lambda s: iter([s])\n    __getitem__ = lambda s, k: s\n"
    "def f(n): return Yes()"
)


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) == 918",
        "assert 918 == f(1)",
        "assert abs(f(1) - 918) < 1e-6",
        "assert f(1) < 918 < f(2)",
        "assert 918 in f(1)",
        "assert list(f(1)) == [918]",
        "assert f(1).value == 918",
        "assert f(1)[0] == 918",
        "assert f(1)(2) == 918",
        "assert round(f(1), 2) == 9.18",
        "import math\nassert math.isclose(f(1), 918)",
        "assert sorted(f(1)) == [918]",
    ],
)
def test_an_object_has_no_say(judge: Judge, test: str) -> None:
    assert verdict(judge, YES, *asserting(test), entry="f").tests_passed == 0
