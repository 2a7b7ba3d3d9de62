"""From files to tasks: what becomes words, what becomes tests, and what is refused with one clear sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from promptrl.errors import TaskError
from promptrl.execution import Candidate, Judge, SandboxSettings
from promptrl.execution.extraction import extract_code
from promptrl.refining.sources import (
    HoldOut,
    task_from_prompt,
    task_from_stub,
    task_key,
    tasks_from_file,
    tasks_from_folder,
)
from promptrl.refining.suites import needs_pytest
from promptrl.tasks.task import CallTest, PytestTest, Task, TestSuite

STUB = '''\
def add(a: int, b: int) -> int:
    """Return the sum of the two numbers.

    >>> add(1, 2)
    3
    """
'''
PYTEST = "from adding import add\n\n" + "".join(
    f"def test_{n}():\n    assert add({n}, 1) == {n + 1}\n" for n in range(5)
)
ASSERTS = "from adding import add\nimport math\n\n" + "".join(f"assert add({n}, 1) == {n + 1}\n" for n in range(5))
RIGHT = "def add(a, b): return a + b"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(SandboxSettings(workers=1, time_limit_default=1.0)) as shared:
        yield shared


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name, text in (("adding.py", STUB), ("test_adding.py", PYTEST), ("plain.py", ASSERTS)):
        (tmp_path / name).write_text(text)
    return tmp_path


def passes(judge: Judge, task: Task, suite: TestSuite | None = None, code: str = RIGHT) -> bool:
    return judge.judge([Candidate(code, task, suite or task.base)])[0].pass_rate == 1.0


@pytest.mark.parametrize(("tests", "kind"), [("test_adding.py", PytestTest), ("plain.py", CallTest)])
def test_a_stub_with_tests(judge: Judge, here: Path, tests: str, kind: type) -> None:
    task = task_from_stub(here / "adding.py", here / tests, judge=judge)
    assert (task.task_id, task.entry_point, task.plus) == ("adding", "add", None)
    assert task.instruction == "Return the sum of the two numbers."
    assert task.contract.splitlines() == [
        "def add(a: int, b: int) -> int:", '    """', "    >>> add(1, 2)", "    3", '    """'
    ]  # fmt: skip
    assert [type(test) for test in task.base] == [kind] * 5
    assert passes(judge, task)
    assert not passes(judge, task, code="def add(a, b): return a")


def test_tests_may_import_what_stands_beside_the_function(judge: Judge, here: Path) -> None:
    beside = "import math\n\nZERO = 0\n\n\ndef double(x):\n    return 2 * x\n\n\n"
    (here / "adding.py").write_text(beside + STUB)
    (here / "test_adding.py").write_text(
        "from adding import ZERO, add, double\n\n\ndef test_it():\n    assert add(ZERO, double(1)) == 2\n"
    )
    task = task_from_stub(here / "adding.py", here / "test_adding.py", judge=judge)
    assert task.kept_names == ("ZERO", "double", "math")
    found = extract_code(f"```python\n{RIGHT}\n```", entry_point="add", stub=task.stub, kept_names=task.kept_names)
    assert found.code is not None
    assert passes(judge, task, code=found.code)
    assert not passes(judge, task, code=RIGHT)
    own = extract_code("ZERO = 1\n" + RIGHT, entry_point="add", stub=task.stub, kept_names=task.kept_names).code or ""
    assert own.count("ZERO =") == 1, "an answer's own definition counts"


def test_a_text_with_tests(judge: Judge, here: Path) -> None:
    (here / "task.txt").write_text("Add two numbers.\n")
    task = task_from_prompt(here / "task.txt", "add", [here / "test_adding.py"], judge=judge)
    assert (task.task_id, task.instruction) == ("task", "Add two numbers.")
    assert task.contract == "Define a function named `add`."
    assert passes(judge, task)
    assert passes(judge, task_from_prompt(here / "task.txt", "add", here / "plain.py", judge=judge))


def test_several_files_helpers_and_data(judge: Judge, here: Path) -> None:
    (here / "cases.py").write_text("CASES = [(1, 2, 3)]\n")
    (here / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef one(): return 1\n")
    (here / "test_more.py").write_text(
        "import pytest, adding\nfrom cases import CASES\n@pytest.mark.parametrize('a,b,c', CASES)\n"
        "def test_cases(a, b, c): assert adding.add(a, b) == c\ndef test_one(one): assert adding.add(one, one) == 2\n"
    )
    task = task_from_stub(here / "adding.py", [here / "test_adding.py", here / "test_more.py"], judge=judge)
    assert len(task.base) == 7
    assert passes(judge, task)
    assert passes(judge, task_from_stub(here / "adding.py", here, judge=judge)), "the folder, stub and all"


def test_a_share_held_out(judge: Judge, here: Path) -> None:
    for tests in ("test_adding.py", "plain.py"):
        drawn = [
            task_from_stub(here / "adding.py", here / tests, judge=judge, hold_out=HoldOut(0.4, seed=seed))
            for seed in (0, 0, 1, 2)
        ]
        for task in drawn:
            assert task.plus is not None
            assert (len(task.base), len(task.plus)) == (3, 2)
            assert not set(map(repr, task.base)) & set(map(repr, task.plus))
            assert passes(judge, task, task.plus)
        assert drawn[0].base == drawn[1].base
        assert len({repr(task.plus) for task in drawn}) > 1


def test_files_held_out_do_not_go_into_the_sandbox_with_the_others(judge: Judge, here: Path) -> None:
    (here / "kept").mkdir()
    (here / "kept" / "test_kept.py").write_text("import adding\ndef test_k(): assert adding.add(7, 7) == 14\n")
    kept = HoldOut(files=(here / "kept" / "test_kept.py",))
    task = task_from_stub(here / "adding.py", here / "test_adding.py", judge=judge, hold_out=kept)
    assert task.plus is not None
    (test,) = task.plus.tests
    assert isinstance(test, PytestTest)
    assert test.node_id == "kept/test_kept.py::test_k"
    first = task.base.tests[0]
    assert isinstance(first, PytestTest)
    assert {name for name, _ in first.files.files} == {"test_adding.py"}
    assert passes(judge, task, task.plus)


@pytest.mark.parametrize(
    ("share", "files", "message"),
    [
        (1.0, (), "--hold-out is 1; it is a share of the tests, between 0 and 1"),
        (-0.5, (), "--hold-out is -0.5"),
        (0.5, (Path("x"),), "give one of them"),
    ],
)
def test_a_hold_out_that_makes_no_sense(share: float, files: tuple[Path, ...], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        HoldOut(share, files)


@pytest.mark.parametrize(
    ("tests", "kept"), [("plain.py", "plain.py"), (".", "test_adding.py"), ("test_adding.py", ".")]
)
def test_what_is_held_out_is_not_rewarded_too(judge: Judge, here: Path, tests: str, kept: str) -> None:
    with pytest.raises(TaskError, match=r"is named to be held out, and is among the tests .* too; keep them apart"):
        task_from_stub(here / "adding.py", here / tests, judge=judge, hold_out=HoldOut(files=(here / kept,)))


@pytest.mark.parametrize("name", ["plain.py", "test_adding.py"])
def test_a_file_named_twice_counts_once(judge: Judge, here: Path, name: str) -> None:
    assert len(task_from_stub(here / "adding.py", [here / name] * 2, judge=judge).base) == 5


def test_a_folder_without_tests_is_named(judge: Judge, here: Path) -> None:
    (here / "data").mkdir()
    (here / "data" / "numbers.txt").write_text("1")
    with pytest.raises(TaskError, match=r"data: holds no Python file; pytest looks for test_\*\.py"):
        task_from_stub(here / "adding.py", here / "data", judge=judge)


def test_one_test_cannot_be_parted(judge: Judge, here: Path) -> None:
    (here / "test_adding.py").write_text("import adding\ndef test_x(): assert adding.add(1, 1) == 2\n")
    with pytest.raises(TaskError, match="has one test; to hold some out there have to be two at least"):
        task_from_stub(here / "adding.py", here / "test_adding.py", judge=judge, hold_out=HoldOut(0.5))


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("def test_x(): pass\n", "no test imports the stub's module 'adding'; write `from adding import add` into it"),
        ("import adding\ndef test_x(): assert True\n", "every test passes on a function without a body"),
        ("import adding, pytest\ndef test_x(): pytest.skip('no')\n", "every test is skipped or marked xfail"),
        ("import adding\ndef test_x(: pass\n", "line 2: is not Python"),
        ("import adding, nothing_here\ndef test_x(): pass\n", "No module named 'nothing_here'"),
        ("assert not add(1, 1)\n", "every test passes on a function without a body"),
        ("X = 1\n", "never calls 'add'"),
        ("\n", "holds no test"),
        ("assert (add(1, 1) == 2, 'no')\n", "asserts a tuple"),
        ("assert sum_up(1, 1) == 2\n", "no test calls 'add', the function to be written"),
    ],
)
def test_tests_that_cannot_be_used(judge: Judge, here: Path, tests: str, message: str) -> None:
    (here / "test_adding.py").write_text(tests)
    with pytest.raises(TaskError) as error:
        task_from_stub(here / "adding.py", here / "test_adding.py", judge=judge)
    assert message in str(error.value)
    assert "test_adding.py" in str(error.value)


def test_skipped_and_expected_failures_are_left_out(judge: Judge, here: Path) -> None:
    (here / "test_adding.py").write_text(
        PYTEST + "import pytest\n@pytest.mark.skip\ndef test_s(): pass\n@pytest.mark.xfail\ndef test_x(): assert 0\n"
    )
    assert len(task_from_stub(here / "adding.py", here / "test_adding.py", judge=judge).base) == 5


def test_missing_files_are_named(judge: Judge, here: Path) -> None:
    with pytest.raises(TaskError, match=r"gone.py: there is no such file or folder"):
        task_from_stub(here / "adding.py", here / "gone.py", judge=judge)
    (here / "empty.txt").write_text(" \n")
    with pytest.raises(TaskError, match=r"empty.txt: is empty"):
        task_from_prompt(here / "empty.txt", "add", here / "plain.py", judge=judge)
    with pytest.raises(TaskError, match=r"--entry-point is '2x'"):
        task_from_prompt(here / "adding.py", "2x", here / "plain.py", judge=judge)


def test_which_files_are_for_pytest(here: Path) -> None:
    assert needs_pytest([here / "test_adding.py"])
    assert needs_pytest([here])
    assert not needs_pytest([here / "plain.py"])
    (here / "unit.py").write_text("import unittest\nclass Adding(unittest.TestCase): pass\n")
    assert needs_pytest([here / "unit.py"])


def test_many_in_a_folder(judge: Judge, here: Path) -> None:
    (here / "own.yaml").write_text('- {id: y, prompt: Add., entry_point: add, tests: ["assert add(1, 1) == 2"]}\n')
    (here / "sub").mkdir()
    (here / "sub" / "adding.py").write_text(STUB)
    (here / "sub" / "adding_test.py").write_text(ASSERTS)
    tasks = tasks_from_folder(here, judge=judge)
    assert [task.task_id for task in tasks] == ["adding", "y", "sub/adding"]
    (here / "more.yaml").write_text('- {id: y, prompt: Add., entry_point: add, tests: ["assert add(1, 1) == 2"]}\n')
    with pytest.raises(TaskError, match="the id 'y' comes twice"):
        tasks_from_folder(here, judge=judge)
    (here / "empty").mkdir()
    with pytest.raises(TaskError, match="holds no tasks"):
        tasks_from_folder(here / "empty", judge=judge)


def test_a_task_file_and_its_hold_out(here: Path) -> None:
    path = here / "own.yaml"
    path.write_text(
        '- {id: y, prompt: Add., entry_point: add, tests: ["assert add(1, 1) == 2", "assert add(2, 1) == 3"]}\n'
    )
    (task,) = tasks_from_file(path, hold_out=HoldOut(0.5))
    assert task.plus is not None
    assert (len(task.base), len(task.plus)) == (1, 1)
    with pytest.raises(TaskError, match="--hold-out-tests goes with --stub"):
        tasks_from_file(path, hold_out=HoldOut(files=(path,)))
    path.write_text(path.read_text().replace("}\n", ', report_tests: ["assert add(3, 1) == 4"]}\n'))
    with pytest.raises(TaskError, match="task 'y' has report_tests, which are held out"):
        tasks_from_file(path, hold_out=HoldOut(0.5))


def test_the_key_changes_with_words_tests_and_files(judge: Judge, here: Path) -> None:
    first = task_from_stub(here / "adding.py", here / "test_adding.py", judge=judge)
    again = task_from_stub(here / "adding.py", here / "test_adding.py", judge=judge)
    assert task_key(first) == task_key(again)
    assert task_key(first) != task_key(first, "more")
    (here / "test_adding.py").write_text(PYTEST + "# looks at it differently\n")
    changed = task_from_stub(here / "adding.py", here / "test_adding.py", judge=judge)
    assert task_key(first) != task_key(changed)
