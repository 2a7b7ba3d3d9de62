"""Suites that pytest runs: what is collected, what each outcome means, and what an answer cannot fake the easy way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from promptrl.errors import TaskError
from promptrl.execution import Candidate, Judge, Verdict
from promptrl.tasks.task import CallTest, PytestFiles, PytestTest, Task, TestSuite
from tests.execution.conftest import QUICK
from tests.execution.helpers import ADD, outcomes
from tests.execution.helpers import task as plain_task

RIGHT = "def add(a, b): return a + b"
TESTS = """\
import pytest
from adding import add

@pytest.fixture
def two(base):
    return base + 1

def test_plain():
    assert add(1, 2) == 3

@pytest.mark.parametrize("a", [2, 3])
def test_with_fixture(two, a):
    assert add(a, two) == a + 2

class TestGroup:
    def test_error(self):
        with pytest.raises(TypeError):
            add(1, None)
"""
CONFTEST = "import pytest\n@pytest.fixture(scope='session')\ndef base(): return 1\n"
NODES = [
    "test_adding.py::test_plain",
    "test_adding.py::test_with_fixture[2]",
    "test_adding.py::test_with_fixture[3]",
    "test_adding.py::TestGroup::test_error",
]


def files(tests: str = TESTS, *, module: str = "adding", **more: str) -> PytestFiles:
    contents = {"test_adding.py": tests, "conftest.py": CONFTEST} | {f"{name}.py": text for name, text in more.items()}
    targets = tuple(name for name in contents if name.startswith("test_"))
    return PytestFiles(module, tuple((name, text.encode()) for name, text in contents.items()), targets)


@pytest.fixture(scope="module", params=["auto", "rlimits"])
def any_judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    with Judge(QUICK.model_copy(update={"isolation": request.param})) as judge:
        yield judge


def judged(judge: Judge, code: str | None, tests: str = TESTS, nodes: list[str] | None = None) -> Verdict:
    given = files(tests)
    names = nodes or judge.pytest.collect(RIGHT, given, entry_point="add")
    suite = TestSuite("base", tuple(PytestTest(name, given) for name in names))
    task = Task("Own/1", "own", "Add.", "", suite, entry_point="add")
    return judge.judge([Candidate(code, task, suite)])[0]


def test_what_is_collected_and_passed(any_judge: Judge) -> None:
    assert any_judge.pytest.collect("def add(a, b): ...", files(), entry_point="add") == NODES
    found = judged(any_judge, RIGHT)
    assert (outcomes(found), str(found.status)) == (["passed"] * 4, "passed")


def test_each_case_has_its_own_outcome(judge: Judge) -> None:
    tests = "from adding import add\nimport pytest\n@pytest.mark.parametrize('a', range(6))\n"
    tests += "def test_case(a):\n    assert add(a, 1) == a + 1\ndef test_last(): assert add(9, 1) == 10\n"
    code = (
        "import os\ndef add(a, b):\n    if a == 1: return 7\n    if a == 2: raise ValueError('no')\n"
        "    if a == 3:\n        while True: pass\n    if a == 4: os._exit(0)\n    return a + b"
    )
    found = judged(judge, code, tests)
    assert outcomes(found) == ["passed", "wrong", "exception", "timeout", "crashed", "passed", "passed"]
    assert found.results[1].detail == "AssertionError: assert 7 == (1 + 1) + where 7 = add(1, 1)"
    assert found.results[2].detail == "line 4: ValueError: no"
    assert str(found.status) == "partial"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def add(a, b) return a", "line 1: SyntaxError: expected ':'"),
        ("def sub(a, b): return a - b", "NameError: the code does not define 'add'"),
        ("import nothing_of_this_name", "line 1: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("import sys\ndef add(a, b): return 0\nsys.exit(0)", "line 3: SystemExit: 0"),
        (None, "no code found in the answer"),
    ],
)
def test_an_answer_that_cannot_be_imported_is_an_execution_failure(judge: Judge, code: str | None, error: str) -> None:
    found = judged(judge, code)
    assert (str(found.status), found.error, found.execution_failure) == ("error", error, True)
    assert outcomes(found) == ["exception"] * 4


def test_a_test_file_that_the_answer_breaks_costs_its_own_tests_only(judge: Judge) -> None:
    given = files("from adding import add\ndef test_one(): assert add(1, 1) == 2\n", test_more="from adding import "
        "add, OFFSET\ndef test_two(): assert add(OFFSET, 1) == 2\n")  # fmt: skip
    nodes = judge.pytest.collect(f"OFFSET = 1\n{RIGHT}", given, entry_point="add")
    suite = TestSuite("base", tuple(PytestTest(name, given) for name in nodes))
    task = Task("Own/1", "own", "Add.", "", suite, entry_point="add")
    found = judge.judge([Candidate(RIGHT, task, suite)])[0]
    assert outcomes(found) == ["passed", "exception"]
    assert found.results[1].detail == "not collected: line 1: ImportError: cannot import name 'OFFSET' from 'adding'"


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("def test_x(:\n", "test_adding.py: cannot be collected by pytest: line 1: SyntaxError: invalid syntax"),
        (
            "import adding, numpyy\ndef test_x(): pass\n",
            "test_adding.py: cannot be collected by pytest: line 1: ModuleNotFoundError: No module named 'numpyy'",
        ),
        ("from adding import ad\ndef test_x(): pass\n", "ImportError: cannot import name 'ad' from 'adding'"),
        ("import adding, pandas\ndef test_x(): pass\n", "tests can import only packages that sandbox.packages names"),
        ("from adding import add\nassert add(1, 1) == 2\ndef test_x(): pass\n", "line 2: AssertionError"),
        ("import adding\n", "test_adding.py: cannot be collected by pytest: no tests were found"),
    ],
)
def test_a_file_that_cannot_be_collected_is_named(judge: Judge, tests: str, message: str) -> None:
    with pytest.raises(TaskError) as error:
        judge.pytest.collect("def add(a, b): ...", files(tests), entry_point="add")
    assert message in str(error.value)


def test_a_broken_conftest_is_named(judge: Judge) -> None:
    broken = PytestFiles(
        "adding", (("conftest.py", b"import nothing_here"), ("test_adding.py", TESTS.encode())), (".",)
    )
    with pytest.raises(TaskError, match=r"^conftest.py: cannot be collected by pytest: .*'nothing_here'"):
        judge.pytest.collect(RIGHT, broken, entry_point="add")


CHEATS = {
    "os._exit": "import os\ndef add(a, b): os._exit(0)",
    "sys.exit": "import sys\ndef add(a, b): sys.exit(0)",
    "skip": "import pytest\ndef add(a, b): pytest.skip('not today')",
    "xfail": "import pytest\ndef add(a, b): pytest.xfail('sorry')",
    "pytest.exit": "import pytest\ndef add(a, b): pytest.exit('done', 0)",
    "interrupt": "def add(a, b): raise KeyboardInterrupt",
    "a record of its own": (
        "import os, struct\ndef add(a, b):\n    for fd in range(3, 128):\n        for n in range(4):\n            try: "
        "os.write(fd, struct.pack('<iBdI', n, 5, 0.0, 0))\n            except OSError: pass\n    return 0"
    ),
    "a conftest": (
        "open('conftest.py', 'w').write('def pytest_collection_modifyitems(items):\\n"
        "    for item in items: item.obj = lambda *a, **k: None\\n')\ndef add(a, b): return 0"
    ),
    "a variable": "import os\nos.environ['PYTEST_ADDOPTS'] = '--setup-plan'\ndef add(a, b): return 0",
    "an equal object": "class Yes:\n    def __init__(self): raise SystemExit(0)\ndef add(a, b): return Yes()",
}


@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS)
def test_the_easy_ways_to_cheat_pass_nothing(judge: Judge, code: str) -> None:
    tests = "from adding import add\n" + "".join(f"def test_{n}(): assert add({n}, 1) == {n + 1}\n" for n in range(2))
    found = judged(judge, code, tests)
    assert found.tests_passed == 0


def test_a_time_limit_that_is_swallowed_still_ends_the_test(judge: Judge) -> None:
    tests = "from adding import add\ndef test_a(): assert add(1, 1) == 2\ndef test_b(): assert add(2, 1) == 3\n"
    loop = "    while a == 1:\n        try:\n            while True: pass\n        except: pass\n"
    code = f"def add(a, b):\n{loop}    return a + b"
    assert outcomes(judged(judge, code, tests)) == ["timeout", "passed"]


def test_a_subset_runs_in_its_order_and_what_is_gone_does_not_pass(judge: Judge) -> None:
    found = judged(judge, RIGHT, nodes=[NODES[3], "test_adding.py::test_gone", NODES[0]])
    assert outcomes(found) == ["passed", "exception", "passed"]
    assert found.results[1].detail == "not collected"


def test_a_module_in_a_package(judge: Judge) -> None:
    given = files("from sums.adding import add\nimport sums.adding\ndef test_x(): assert add(1, 1) == 2\n",
        module="sums.adding")  # fmt: skip
    (node,) = judge.pytest.collect(RIGHT, given, entry_point="add")
    suite = TestSuite("base", (PytestTest(node, given),))
    task = Task("Own/1", "own", "Add.", "", suite, entry_point="add")
    assert outcomes(judge.judge([Candidate(RIGHT, task, suite)])[0]) == ["passed"]


def test_kinds_of_suites_go_side_by_side_but_not_into_one(judge: Judge) -> None:
    given = files()
    suite = TestSuite("base", tuple(PytestTest(name, given) for name in NODES))
    task = Task("Own/1", "own", "Add.", "", suite, entry_point="add")
    other = plain_task(*ADD)
    found = judge.judge(
        [Candidate(RIGHT, other, other.base), Candidate(RIGHT, task, suite), Candidate("x", other, other.base)]
    )
    assert [str(verdict.status) for verdict in found] == ["passed", "passed", "error"]
    for mixed in ((*suite.tests, CallTest((1, 2), 3)), (CallTest((1, 2), 3), *suite.tests)):
        both = TestSuite("both", mixed)
        with pytest.raises(TaskError, match="cannot hold other tests"):
            judge.judge([Candidate(RIGHT, task, both)])


def test_other_candidates_do_not_see_pytest(judge: Judge) -> None:
    code = "import pytest\ndef add(a, b): return a + b"
    other = plain_task(*ADD)
    found = judge.judge([Candidate(code, other, other.base)])[0]
    assert found.error == "line 1: ModuleNotFoundError: No module named 'pytest'"


def test_data_files_are_beside_the_tests(judge: Judge, tmp_path: Path) -> None:
    tests = "from pathlib import Path\nfrom adding import add\n"
    tests += "def test_x(tmp_path, capsys):\n    assert add(1, int(Path('data.txt').read_text())) == 3\n"
    given = PytestFiles("adding", (("test_adding.py", tests.encode()), ("data.txt", b"2")), ("test_adding.py",))
    (node,) = judge.pytest.collect(RIGHT, given, entry_point="add")
    suite = TestSuite("base", (PytestTest(node, given),))
    task = Task("Own/1", "own", "Add.", "", suite, entry_point="add")
    assert outcomes(judge.judge([Candidate(RIGHT, task, suite)])[0]) == ["passed"]
