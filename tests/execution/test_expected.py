"""Expected values: computed once in the sandbox, kept safely, never trusted when damaged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from promptrl.errors import TaskError
from promptrl.execution import Judge, SandboxSettings, resolve_expected
from promptrl.execution.sandbox.codec import Digest
from promptrl.tasks.task import DEFERRED, AssertTest, CallTest, Comparison, StdinTest, Task, TestSuite
from tests.execution.helpers import task, verdict

SETTINGS = SandboxSettings(workers=2)


def _solved(code: str, *tests: CallTest | AssertTest | StdinTest, number: int = 1, entry: str = "add") -> Task:
    return dataclasses.replace(task(*tests, entry=entry), canonical_solution=code, task_id=f"Own/{number}")


def _resolve(tasks: list[Task], folder: Path, done: list[str] | None = None) -> list[Task]:
    progress = None if done is None else lambda _done, _all, name: done.append(name)
    return resolve_expected(tasks, data_sha256="ab" * 32, cache_dir=folder, settings=SETTINGS, progress=progress)


CODE = "def add(a, b): return (a, {b: a})"


def test_values_and_times_are_filled_in(tmp_path: Path) -> None:
    given = _solved(CODE, CallTest((1, 2)), CallTest((1, 2), expected=5))
    plus = dataclasses.replace(given, plus=TestSuite("plus", (CallTest((3, 4)),)))
    (found,) = _resolve([plus], tmp_path)
    assert [test.expected for test in found.base] == [(1, {2: 1}), 5]  # type: ignore[union-attr]
    assert found.plus is not None
    assert found.plus.tests[0].expected == (3, {4: 3})  # type: ignore[union-attr]
    assert all(test.reference_seconds is not None and test.reference_seconds >= 0 for test in found.base)
    assert plus.base.tests[0].expected is DEFERRED  # type: ignore[union-attr]


def test_computed_once_and_only_for_the_tasks_asked_for(tmp_path: Path) -> None:
    tasks = [_solved(CODE, CallTest((n, 2)), number=n) for n in range(4)]
    done: list[str] = []
    first = _resolve(tasks[:2], tmp_path, done)
    assert sorted(done) == ["Own/0", "Own/1"]
    assert _resolve(tasks[:2], tmp_path, done) == first
    assert len(done) == 2
    _resolve(tasks, tmp_path, done)
    assert sorted(done) == ["Own/0", "Own/1", "Own/2", "Own/3"]


def test_other_inputs_or_another_solution_are_computed_anew(tmp_path: Path) -> None:
    done: list[str] = []
    for code, argument in ((CODE, 1), (CODE, 2), ("def add(a, b): return a", 2)):
        (found,) = _resolve([_solved(code, CallTest((argument, 2)))], tmp_path, done)
    assert len(done) == 3
    assert found.base.tests[0].expected == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "noise"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    given = [_solved(CODE, CallTest((1, 2)))]
    first = _resolve(given, tmp_path)
    (path,) = tmp_path.rglob("*.jsonl")
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[:-4], "changed": data.replace(b"1", b"7"), "empty": b"", "noise": b"\x80\x04."}[damage]
    )
    done: list[str] = []
    (again,) = _resolve(given, tmp_path, done)
    assert done == ["Own/1"]
    assert again.base.tests[0].expected == first[0].base.tests[0].expected  # type: ignore[union-attr]
    assert [each.name for each in tmp_path.rglob(".writing*")] == []


def test_large_values_are_kept_as_a_digest(tmp_path: Path, judge: Judge) -> None:
    code = "from itertools import product\ndef add(n): return list(product('ab', repeat=n))"
    (found,) = _resolve([_solved(code, CallTest((17,)))], tmp_path)
    test = found.base.tests[0]
    assert isinstance(test, CallTest)
    assert isinstance(test.expected, Digest)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.jsonl")) < 1000
    slow = dataclasses.replace(test, reference_seconds=2.0)
    assert str(verdict(judge, code, slow).status) == "passed"
    assert str(verdict(judge, code.replace("'ab'", "'ba'"), slow).status) == "failed"


def test_only_presence_is_kept_where_only_presence_counts(tmp_path: Path) -> None:
    tests = [CallTest((text,), comparison=Comparison.NOT_NONE) for text in ("ab", "b")]
    (found,) = _resolve([_solved("import re\ndef add(s): return re.match('a', s)", *tests)], tmp_path)
    assert [test.expected for test in found.base] == [True, False]  # type: ignore[union-attr]


def test_times_of_asserts_and_programs(tmp_path: Path) -> None:
    asserts = _solved("def add(a, b): return a + b", AssertTest("assert add(1, 2) == 3"), number=1)
    program = _solved("print(input())", StdinTest("x", "x"), number=2)
    for found in _resolve([asserts, program], tmp_path):
        assert found.base.tests[0].reference_seconds is not None


def test_a_solution_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"Own/1: the canonical solution gives no expected value: line 1: ZeroDivision"):
        _resolve([_solved("def add(a, b): return a / 0", CallTest((1, 2)))], tmp_path)
    with pytest.raises(TaskError, match="no canonical solution"):
        _resolve([task(CallTest((1, 2)))], tmp_path)
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_a_task_without_a_solution_may_bring_its_own_values(tmp_path: Path) -> None:
    given = task(CallTest((1, 2), 3))
    assert _resolve([given], tmp_path) == [given]
