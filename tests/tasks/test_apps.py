"""APPS rows of both kinds, compared as APPS compares, but never as sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptrl.execution import Candidate, Judge, Status
from promptrl.tasks import CallTest, StdinTest, Task, load_benchmark
from promptrl.tasks.apps import apps_task
from promptrl.tasks.benchmark import RowError


def task(inputs: list[object], outputs: list[object], *, fn_name: str | None = None, **row: object) -> Task:
    cases: dict[str, object] = {"inputs": inputs, "outputs": outputs}
    if fn_name:
        cases["fn_name"] = fn_name
    return apps_task({"problem_id": 7, "question": "Do it.", "input_output": json.dumps(cases)} | row)


def status(judge: Judge, code: str, of: Task) -> Status:
    return judge.judge([Candidate(code, of, of.base)])[0].status


def test_fn_name_decides_the_style_and_what_the_prompt_says() -> None:
    called = task([[1, 2]], [3], fn_name="add", starter_code="class Solution:\n    def add(self, a, b):\n        ")
    assert called.style == "function"
    assert called.entry_point == "add"
    assert "standard input" not in called.text
    assert "def add(self, a, b)" in called.contract
    bare = task([[1, 2]], [3], fn_name="add")
    assert "`add`" in bare.contract
    program = task(["1 2\n"], ["3\n"])
    assert program.style == "stdin"
    assert program.entry_point is None
    assert "standard input" in program.contract


def test_both_kinds_of_call_pass(judge: Judge) -> None:
    called = task([[[3, 1, 2], 0], [[], 1]], [[[1, 2, 3]], [[]]], fn_name="order")
    plain = "def order(xs, n):\n    return sorted(xs)\n"
    method = "class Solution:\n    def order(self, xs: List[int], n):\n        return tuple(sorted(xs))\n"
    assert status(judge, plain, called) is Status.PASSED
    assert status(judge, method, called) is Status.PASSED
    assert status(judge, "def order(xs, n):\n    return xs\n", called) is Status.PARTIAL
    assert status(judge, "def order(xs, n):\n    return set(xs)\n", called) is not Status.PASSED


def test_outputs_come_wrapped_or_not_and_with_tuples() -> None:
    wrapped, bare = task([[1]], [[5]], fn_name="f"), task([[1]], [5], fn_name="f")
    assert wrapped.base.tests[0] == CallTest((1,), 5, alternatives=([5],))
    assert bare.base.tests[0] == CallTest((1,), 5)
    pairs = task([[1]], [[[[1, 2], [3, 4]]]], fn_name="f").base.tests[0]
    assert isinstance(pairs, CallTest)
    assert pairs.expected == [[1, 2], [3, 4]]
    assert [(1, 2), (3, 4)] in pairs.alternatives
    assert ((1, 2), (3, 4)) in pairs.alternatives


def test_one_json_value_a_line_is_one_argument() -> None:
    found = task(['[1, 2]\n"x"', "[]\nnull"], ["3", '{"1": 2}'], fn_name="f").base.tests
    assert found[0] == CallTest(([1, 2], "x"), 3)
    assert found[1] == CallTest(([], None), {1: 2})


def test_integer_keys_come_back() -> None:
    found = task([[{"1": "a", "-2": "b"}, {"x": 1}]], [[{"3": 1}]], fn_name="f").base.tests[0]
    assert isinstance(found, CallTest)
    assert found.args == ({1: "a", -2: "b"}, {"x": 1})
    assert found.expected == {3: 1}


def test_programs_are_compared_in_order(judge: Judge) -> None:
    three = task([""], ["YES\nNO\nYES\n"])
    assert status(judge, 'print("YES\\nNO \\nYES")', three) is Status.PASSED
    assert status(judge, 'print("NO\\nYES\\nYES")', three) is Status.FAILED
    half = task(["0.1 0.2"], ["0.3"])
    assert status(judge, "print(sum(map(float, input().split())))", half) is Status.PASSED
    guarded = 'def main():\n    print(int(input()) * 2)\nif __name__ == "__main__":\n    main()\n'
    assert status(judge, guarded, task(["21"], ["42"])) is Status.PASSED


def test_lines_may_come_as_a_list() -> None:
    found = task([["1", "2"]], [["3", 4]]).base.tests[0]
    assert found == StdinTest("1\n2\n", "3\n4")


def test_numbers_too_long_for_int_are_read() -> None:
    row = {
        "problem_id": 1,
        "question": "Q",
        "input_output": '{"fn_name": "f", "inputs": [[1]], "outputs": [' + "9" * 5000 + "]}",
    }
    test = apps_task(row).base.tests[0]
    assert isinstance(test, CallTest)
    assert test.expected == 10**5000 - 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "fn_name", "reason"),
    [
        (["1"], [], None, "1 inputs but 0 outputs"),
        (["1"], ["  \n"], None, "every expected output is empty"),
        ([{}], ["1"], None, "input 1 must be text"),
        ([5], [5], "f", "input 1 must be a list of arguments"),
        (["{"], ["1"], "f", "input 1 is not one JSON value a line"),
        ([[1]], [1], "not a name", "fn_name must be a Python name"),
    ],
)
def test_rows_without_usable_tests_are_refused(
    inputs: list[object], outputs: list[object], fn_name: str | None, reason: str
) -> None:
    with pytest.raises(RowError, match=reason):
        task(inputs, outputs, fn_name=fn_name)


def test_the_first_solution_in_python_3_is_the_reference() -> None:
    found = task(["1"], ["1"], solutions=json.dumps(["print 1", "print(1)", "print(2)"]))
    assert found.canonical_solution == "print(1)"
    assert task(["1"], ["1"], solutions="").canonical_solution == ""


def test_statement_and_sections_are_parted(data_dir: Path) -> None:
    benchmark = load_benchmark("apps", path=data_dir / "apps_sample.jsonl")
    for found in benchmark.tasks:
        assert "-----Input-----" in found.contract
        assert "-----Input-----" not in found.instruction
        assert "-----Output-----" in found.contract
        assert len(found.instruction) > 100


PROGRAMS = {
    "APPS/4245": "a, b = map(int, input().split())\nprint(-(-(b - 1) // (a - 1)))\n",
    "APPS/4559": (
        "n = int(input())\nxs = list(map(int, input().split()))\np = 1\nif 0 in xs:\n    p = 0\nelse:\n"
        "    for x in xs:\n        p *= x\n        if p > 10**18:\n            p = -1\n            break\nprint(p)\n"
    ),
    "APPS/4655": "for _ in range(int(input())):\n    print(sum(map(int, input().split())) // 2)\n",
}


def test_programs_pass_real_rows(data_dir: Path, judge: Judge) -> None:
    benchmark = load_benchmark("apps", path=data_dir / "apps_sample.jsonl")
    for name, code in PROGRAMS.items():
        assert status(judge, code, benchmark.by_id[name]) is Status.PASSED, name
        assert status(judge, "print(10**19)", benchmark.by_id[name]) is Status.FAILED
