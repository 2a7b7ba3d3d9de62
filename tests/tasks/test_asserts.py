"""Asserts taken apart into call and expected value, without running anything."""

from __future__ import annotations

import ast
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptrl.execution import Candidate, Judge, Status
from promptrl.execution.compare import compare
from promptrl.execution.sandbox.codec import Typed
from promptrl.tasks.asserts import constant_value, parse_tests, split_assert, statements_to_tests
from promptrl.tasks.benchmark import RowError
from promptrl.tasks.task import AssertTest, CallTest, Comparison, Task, TestSuite


def split(source: str) -> CallTest | None:
    return split_assert(ast.parse(source).body[0], "f")


def equal(args: tuple[object, ...], expected: object) -> CallTest:
    return CallTest(args, expected, float_leaves=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("assert f(1, 2) == 3", equal((1, 2), 3)),
        ("assert 3 == f(1, 2)", equal((1, 2), 3)),
        ("assert (f([1, (2, 3)])) == {'a': -1}, 'message'", equal(([1, (2, 3)],), {"a": -1})),
        ("assert f() is None", equal((), None)),
        ("assert f('x') is True", equal(("x",), True)),
        ("assert f('x')", CallTest(("x",), True, Comparison.TRUTH)),
        ("assert not f('x')", CallTest(("x",), False, Comparison.TRUTH)),
        ("assert abs(f(2.5) - 0.5) < 1e-6", CallTest((2.5,), 0.5, Comparison.BELOW, 1e-6)),
        ("assert abs(2.0 / 3.0 - f(2)) <= 1e-6", CallTest((2,), 2 / 3, Comparison.WITHIN, 1e-6)),
        ("assert math.fabs(f(2) - 1) < 0.1", CallTest((2,), 1, Comparison.BELOW, 0.1)),
        ("assert f(1.0/3) == [0] * 3 + [1]", equal((1 / 3,), [0, 0, 0, 1])),
        ("assert set(f([1])) == set((4, 5))", CallTest(([1],), {4, 5}, Comparison.SET)),
        ("assert f({1, 2}, -5) == 2**10", equal(({1, 2}, -5), 1024)),
    ],
)
def test_forms_that_split(source: str, expected: CallTest) -> None:
    assert split(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "assert g(1) == 2",
        "assert f(x) == 2",
        "assert f(1) == y",
        "assert f(1) != 2",
        "assert f(1) > 2",
        "assert f(1) == f(2)",
        "assert int(f(1)) == 2",
        "assert f(*[1]) == 2",
        "assert f(a=1) == 2",
        "assert f(1) == 2 == 2",
        "assert f(1) is x",
        "assert set(f(1)) == [1]",
        "assert abs(f(1) - x) < 1e-6",
        "assert f(9**9**9) == 1",
        "assert f([0] * 10**9) == 1",
        "assert f(1/0) == 1",
        "f(1) == 2",
    ],
)
def test_other_forms_do_not(source: str) -> None:
    assert split(source) is None


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(values, max_size=3), values)
def test_every_literal_comes_back_with_its_types(args: list[object], expected: object) -> None:
    found = split(f"assert f({', '.join(map(repr, args))}) == {expected!r}")
    assert found is not None
    assert repr((found.args, found.expected)) == repr((tuple(args), expected))


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ("def f(x): return True", True),
        ("def f(x): return [x]", True),
        ("def f(x): return object()", True),
        ("def f(x): return 0", False),
        ("def f(x): return []", False),
        ("def f(x): return None", False),
        ("class No:\n    def __bool__(self): return True\ndef f(x): raise ValueError", False),
    ],
)
def test_an_assert_on_a_call_alone_asks_for_truth(judge: Judge, code: str, passes: bool) -> None:
    test = split("assert f('x')")
    assert test is not None
    suite = TestSuite("base", (test,))
    task = Task("t", "custom", "Do it.", "", suite, entry_point="f")
    assert (judge.judge([Candidate(code, task, suite)])[0].status is Status.PASSED) is passes


def test_a_constant_is_never_a_name() -> None:
    with pytest.raises(ValueError, match="not a constant"):
        constant_value(ast.parse("__import__('os')", mode="eval").body)


def test_statements_run_before_the_asserts_that_need_them() -> None:
    body = ast.parse(
        "import math\nassert candidate(1) == 1\nxs = [1, 2]\nassert candidate(xs) == 2\n"
        "assert True, 'nothing'\nfor x in xs:\n    assert candidate(x) == x\nprint('done')\n"
    ).body
    tests = statements_to_tests(body, callee="candidate", entry_point="check", setup="def helper(): ...")
    before = "def helper(): ...\nimport math\nxs = [1, 2]"
    assert tests == [
        equal((1,), 1),
        AssertTest("assert check(xs) == 2", before),
        AssertTest("for x in xs:\n    assert check(x) == x", before),
    ]


def test_blank_and_commented_asserts_hold_no_test() -> None:
    assert parse_tests(["   ", "# nothing", "'text'", "assert True"], callee="f") == ()


def test_an_assert_that_is_not_python_is_named() -> None:
    with pytest.raises(RowError, match="test 2 is not Python"):
        parse_tests(["assert f(1) == 1", "assert f("], callee="f")


@pytest.mark.parametrize(
    "source",
    [
        *(
            "def test():\n    assert f(1) == 2",
            "def test():\n    assert f(1) == 2\ntest",
            "if 0:\n    assert f(1) == 2",
        ),
        *("class T:\n    def t(self):\n        assert f(1) == 2", "while False:\n    assert f(1) == 2"),
        *(
            "assert (f(1) == 2, 'message')",
            "assert [f(1) == 2]",
            "assert lambda: f(1) == 2",
            "assert f(1) == 2 or True",
        ),
        *("assert 1 == 1", "assert len([1]) == 1", "x = 2\nassert x == 2", "for x in [1]:\n    assert x == 1"),
        *("for x in []:\n    assert f(x) == 1", "def f(x): return 2\nassert f(1) == 2", "f(1)", "x = f(1)"),
        "try:\n    assert f(1) == 2\nexcept AssertionError:\n    pass",
        *("assert f", "assert callable(f)", "assert f is not None", "async def test():\n    assert f(1) == 2"),
    ],
)
def test_what_cannot_fail_is_no_test(source: str) -> None:
    assert parse_tests([source], callee="f") == ()


@pytest.mark.parametrize(
    "source",
    [
        *("push(1)\nassert size() == 1", "f()\nassert f() == 2", "import random\nrandom.seed(5)\nassert f() == 0.5"),
        *("xs = [2]\nassert f(xs) is None\nassert xs == [1]", "x = f(1)\nassert x == 2\nassert f(2) == 3"),
        "n = 0\nfor x in (1, 2):\n    n += f(x)\nassert n == 3",
    ],
)
def test_statements_that_belong_together_stay_one_test(source: str) -> None:
    assert parse_tests([source], callee="f") == (AssertTest(source),)


def test_what_is_printed_between_asserts_does_not_join_them() -> None:
    assert parse_tests(["print('a')\nassert f(1) == 1\nassert f(2) == 2"], callee="f") == (
        equal((1,), 1),
        equal((2,), 2),
    )


@pytest.mark.parametrize(
    ("source", "value", "right"),
    [
        ("assert abs(f(3.5) - 0.5) < 1e-6", Typed("float64", 0.5), True),
        ("assert abs(f() - 4.0000001) < 1e-3", 4, True),
        ("assert abs(f() - 1e10) < 1", 1e10 + 0.5, True),
        ("assert abs(f() - 1e10) < 1", 1e10 + 500, False),
        ("assert abs(f() - 3) < 1.0", 4.0, False),
        ("assert abs(f() - 3) <= 1.0", 4.0, True),
        ("assert abs(f() - 3) <= 0", 3.0, True),
        ("assert abs(f() - 3) <= 0", 3.0000001, False),
        ("assert abs(f() - 3) < -1", 3, False),
        ("assert abs(f() - 3) < 1", Fraction(7, 2), True),
        ("assert abs(f() - 3) < 1", "3", False),
        ("assert abs(f() - 3) < 1", None, False),
        ("assert abs(f() - 3) < 1", [3], False),
        ("assert abs(f() - 3.0) < 1", 10**400, False),
        ("assert abs(f() - 3.0) < 1", float("nan"), False),
        ("assert f() == [[0.3]]", [[0.1 + 0.2]], True),
        ("assert f() == [[0.3]]", [[0.31]], False),
        ("assert f() == [[0.3]]", ([0.1 + 0.2],), False),
        ("assert f() == {'a': 0.3, 'b': [1, 0.5]}", {"b": [1, 0.5], "a": 0.1 + 0.2}, True),
        ("assert f() == {'a': 0.3, 'b': [1, 0.5]}", {"b": [2, 0.5], "a": 0.1 + 0.2}, False),
        ("assert f() == {'a': 0.3}", {"a": 0.1 + 0.2, "b": 1}, False),
        ("assert f() == 0.3", Typed("float64", 0.1 + 0.2), True),
        ("assert f() == 1", 1.0000001, False),
        ("assert f() == [1.0, 'x']", [1.0000000001, "x"], True),
        ("assert f() == [1.0]", [True], True),
        ("assert f() == 1e999", 1e308, False),
        ("assert f() == 0.3", None, False),
    ],
)
def test_numbers_are_compared_as_the_assert_says(source: str, value: object, right: bool) -> None:
    test = split(source)
    assert test is not None
    assert compare(value, test.expected, test) is right
