"""Ordinary candidates: what each outcome and status means, and that verdicts do not depend on how they are made."""

# ruff: noqa: E501 - programs on one line each

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from promptrl.errors import SandboxError, TaskError
from promptrl.execution import (
    Candidate,
    Judge,
    Outcome,
    SandboxSettings,
    Status,
    TestResult,
    isolation_level,
    resolve_expected,
)
from promptrl.execution.judge import overall
from promptrl.execution.sandbox import protocol
from promptrl.tasks.task import AssertTest, CallTest, Comparison, StdinTest, Task, TestSuite
from tests.execution.conftest import QUICK
from tests.execution.helpers import ADD, asserting, outcomes, task, verdict

RIGHT = "def add(a, b): return a + b"


def test_all_some_and_none(judge: Judge) -> None:
    assert str(verdict(judge, RIGHT).status) == "passed"
    half = verdict(judge, "def add(a, b): return 3")
    assert (str(half.status), half.pass_rate, half.results[1].detail) == ("partial", 0.5, "returned 3")
    assert str(verdict(judge, "def add(a, b): return 0").status) == "failed"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (None, "no code found in the answer"),
        ("  \n", "no code found in the answer"),
        ("def add(a, b) return a", "line 1: SyntaxError: expected ':'"),
        ("\n\nimport nothing_of_this_name", "line 3: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def sub(a, b): return a - b", "NameError: the code does not define 'add'"),
        ("add = 3", "TypeError: 'int' object is not callable"),
        ("def add(a, b):\n    return a + c", "line 2: NameError: name 'c' is not defined"),
        ("x = '\0'", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_execution_failures(judge: Judge, code: str | None, error: str) -> None:
    found = verdict(judge, code)
    assert (str(found.status), found.error, found.execution_failure) == ("error", error, True)


def test_each_test_has_its_own_outcome(judge: Judge) -> None:
    code = (
        "import os\ndef add(a, b):\n    if a == 1: return 3\n    if a == 2: return 0\n    if a == 3: raise ValueError\n"
        "    if a == 4:\n        while True: pass\n    if a == 5: os._exit(0)\n    return a + b"
    )
    tests = [CallTest((n, 2), n + 2) for n in range(1, 7)]
    found = verdict(judge, code, *tests)
    assert outcomes(found) == ["passed", "wrong", "exception", "timeout", "crashed", "passed"]
    assert str(found.status) == "partial"


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "timeout"], "partial"),
        (["wrong", "timeout"], "failed"),
        (["wrong", "exception"], "failed"),
        (["exception", "exception"], "error"),
        (["exception", "timeout"], "error"),
        (["crashed", "timeout"], "error"),
        (["timeout", "timeout"], "timeout"),
        (["passed", "not_run"], "partial"),
        (["exception", "not_run"], "error"),
    ],
)
def test_statuses(names: list[str], status: str) -> None:
    assert str(overall([TestResult(Outcome(name)) for name in names])) == status


def test_looping_candidates_do_not_rule_the_time(judge: Judge) -> None:
    found = verdict(judge, "def add(a, b):\n    while True: pass", *ADD * 20)
    assert outcomes(found) == ["timeout"] * 40
    assert sum(result.seconds > 0 for result in found.results) == QUICK.max_timeouts


def test_crashing_candidates_are_restarted_a_bounded_number_of_times(judge: Judge) -> None:
    found = verdict(judge, "import os\ndef add(a, b): os._exit(1)", *ADD * 5)
    assert outcomes(found) == ["crashed"] * 10
    assert sum("exit code 1" in result.detail for result in found.results) == QUICK.max_restarts + 1


def test_stop_when_decided_leaves_the_rest_out() -> None:
    code = "def add(a, b): return 3"
    with Judge(QUICK.model_copy(update={"stop_when_decided": True})) as judge:
        first = verdict(judge, code, *ADD, *ADD * 20)
        assert outcomes(first) == ["passed", "wrong"] + ["not_run"] * 40
        assert str(verdict(judge, RIGHT, *ADD * 3).status) == "passed"
        assert str(verdict(judge, code, *ADD, *ADD).status) == "partial"


def test_state_between_inputs_persists_and_arguments_are_fresh(judge: Judge) -> None:
    counting = "seen = []\ndef add(a, b):\n    seen.append(a)\n    return len(seen)"
    assert str(verdict(judge, counting, CallTest((1, 2), 1), CallTest((1, 2), 2)).status) == "passed"
    default = "def add(a, b, x=[]):\n    x.append(1)\n    return len(x)"
    assert str(verdict(judge, default, CallTest((1, 2), 1), CallTest((1, 2), 2)).status) == "passed"
    argument = [1, 2]
    popping = "def add(a):\n    a.clear()\n    return a"
    assert outcomes(verdict(judge, popping, CallTest((argument,), []), CallTest((argument,), [1, 2]))) == [
        "passed",
        "wrong",
    ]
    assert argument == [1, 2]


@pytest.mark.parametrize(
    "name",
    ["check", "sum", "solution", "candidate", "main", "inputs", "results", "test", "solve", "call", "run", "job"],
)
def test_entry_points_with_harness_names(judge: Judge, name: str) -> None:
    code = f"def {name}(n):\n    return n + 1"
    assert (
        str(verdict(judge, code, CallTest((1,), 2), *asserting(f"assert {name}(1) == 2"), entry=name).status)
        == "passed"
    )


MODULES = {
    "recursion": "def add(a, b): return b if a == 0 else 1 + add(a - 1, b)",
    "helper after": "def add(a, b): return _add(a, b)\ndef _add(a, b): return a + b",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef add(a, b): return P(a + b).x",
    "comprehension over globals": "one = 1\ndef add(a, b): return sum([one for _ in range(a + b)])\n",
    "future import": "from __future__ import annotations\ndef add(a: Nothing, b: Nothing): return a + b",
    "main guard stays off": RIGHT + "\nif __name__ == '__main__':\n    input()\n    raise ValueError",
    "argv": "import sys\ndef add(a, b): return a + b if len(sys.argv) == 1 else 0",
    "CRLF": "def add(a, b):\r\n    return a + b\r\n",
    "not ASCII": "def add(a, b):\n    é = 'ü'\n    return a + b",
    "numpy": "import numpy as np\ndef add(a, b): return np.int64(a) + np.int64(b)",
    "pickle of own class": "import pickle\nclass C: pass\npickle.loads(pickle.dumps(C()))\n" + RIGHT,
    "threads": "import threading\ndef add(a, b):\n    r = []\n    t = threading.Thread(target=lambda: r.append(a + b))\n"
    "    t.start(); t.join()\n    return r[0]",
    "deep but ordinary recursion": "def down(n): return 0 if n == 0 else 1 + down(n - 1)\n"
    "def add(a, b): return a + b + down(900) - 900",
    "raised recursion limit": "import sys\nsys.setrecursionlimit(20_000)\ndef down(n): return 0 if n == 0 else 1 + down(n - 1)\n"
    "def add(a, b): return a + b + down(15_000) - 15_000",
    "temp file": "import tempfile\ndef add(a, b):\n    with tempfile.TemporaryFile() as f:\n        f.write(b'x')\n"
    "    return a + b",
}


@pytest.mark.parametrize("code", MODULES.values(), ids=MODULES.keys())
def test_modules_behave_as_in_ordinary_python(judge: Judge, code: str) -> None:
    found = verdict(judge, code)
    assert (str(found.status), found.error) == ("passed", None)


def test_processes_of_its_own(judge: Judge) -> None:
    code = "import subprocess\ndef add(a, b): return a + b + subprocess.run(['true']).returncode"
    refused = "no new processes" in isolation_level().active
    assert str(verdict(judge, code).status) == ("error" if refused else "passed")


def test_what_a_forgiving_judge_supplies(judge: Judge) -> None:
    wrapped = (
        "class Solution:\n    def add(self, a: int, b: Optional[int]) -> List[int]:\n        return math.floor(a + b)"
    )
    assert str(verdict(judge, wrapped).status) == "passed"
    with Judge(QUICK.model_copy(update={"forgiving": False})) as strict:
        assert verdict(strict, wrapped).error == "line 2: NameError: name 'Optional' is not defined"
        plain = "class Solution:\n    def add(self, a, b): return a + b"
        assert verdict(strict, plain).error == "NameError: the code does not define 'add'"


def test_a_strict_judge_keeps_a_tolerance_as_evalplus_does(judge: Judge) -> None:
    tests = (CallTest((0.5, 0.25), 0.75), CallTest(([0.1], [1]), [0.3, 1]))
    code = "def add(a, b): return a + b if a == 0.5 else [a[0] + 0.2, 1]"
    assert outcomes(verdict(judge, code, *tests)) == ["passed", "wrong"]
    with Judge(QUICK.model_copy(update={"forgiving": False})) as strict:
        assert outcomes(verdict(strict, code, *tests)) == ["passed", "passed"]
        assert outcomes(verdict(strict, code, *reversed(tests))) == ["wrong", "passed"]


def test_line_numbers_are_the_candidates_own(judge: Judge) -> None:
    assert verdict(judge, "def add(a, b):\n    x = 1\n    return x / 0").results[0].detail == (
        "line 3: ZeroDivisionError: division by zero"
    )


def test_setup_code_comes_first(judge: Judge) -> None:
    code = "from __future__ import annotations\ndef add(a, b): return a + b + ZERO"
    assert str(verdict(judge, code, setup="ZERO = 0").status) == "passed"


PROGRAMS = {
    "main guard": "def main():\n    print(int(input()) * 2)\nif __name__ == '__main__':\n    main()",
    "stdin": "import sys\nprint(2 * int(sys.stdin.readline()))",
    "buffer": "import sys\nsys.stdout.buffer.write(b'%d' % (2 * int(sys.stdin.buffer.read())))",
    "open(0)": "print(int(open(0).read()) * 2)",
    "exit": "print(int(input()) * 2)\nexit()",
    "sys.exit(0)": "import sys\nprint(int(input()) * 2)\nsys.exit(0)",
    "os._exit after flush": "import os\nprint(int(input()) * 2, flush=True)\nos._exit(0)",
    "thread": "import threading\ndef main(): print(int(input()) * 2)\nthreading.Thread(target=main).start()",
    "atexit": "import atexit\nn = input()\natexit.register(lambda: print(int(n) * 2))",
    "closed output": "import sys\nprint(int(input()) * 2)\nsys.stdout.close()",
    "blanks": "print(' ', int(input()) * 2, ' ')\nprint()",
}


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_programs(judge: Judge, code: str) -> None:
    found = verdict(judge, code, StdinTest("21\n", "42"), StdinTest("4", "8\n"))
    assert (str(found.status), found.error) == ("passed", None)


def test_input_by_its_name(judge: Judge) -> None:
    code = "print(sum(map(int, open('/dev/stdin'))))"
    assert str(verdict(judge, code, StdinTest("1\n2\n", "3"), StdinTest("5", "5")).status) == "passed"


def test_nothing_of_a_program_is_left_for_the_next(judge: Judge) -> None:
    code = (
        "import os\nn = input()\nbefore = os.fstat(1).st_size + len(os.read(0, 9))\nprint('x' * 5000)\n"
        "os.write(0, b'secret')\nos.lseek(0, 3, 0)\nprint(before)"
    )
    tests = [StdinTest("1\n", f"{'x' * 5000}\n0")] * 3
    assert str(verdict(judge, code, *tests).status) == "passed"
    assert str(verdict(judge, "import sys\nprint(sys.stdin.read())", StdinTest("4", "4")).status) == "passed"


def test_input_and_output_that_are_no_text(judge: Judge) -> None:
    code = "import sys\nprint(len(sys.stdin.buffer.read()))"
    assert str(verdict(judge, code, StdinTest("\ud800", "3"), StdinTest("\udcff", "1")).status) == "passed"
    assert str(verdict(judge, "print('\\ud800')", StdinTest("", "\ud800")).status) == "failed"


def test_failing_programs(judge: Judge) -> None:
    tests = (StdinTest("1 2\n", "3\n"), StdinTest("x", "3\n"))
    assert outcomes(verdict(judge, "print(sum(map(int, input().split())))", *tests)) == ["passed", "exception"]
    assert outcomes(verdict(judge, "print(3)\nraise SystemExit(1)", *tests)) == ["exception", "exception"]
    assert str(verdict(judge, "print(", *tests).status) == "error"
    swapped = verdict(judge, 'print("NO"); print("YES"); print("YES")', StdinTest("", "YES\nNO\nYES\n"))
    assert str(swapped.status) == "failed"


def test_assertions(judge: Judge) -> None:
    code = "import math\ndef add(a, b):\n    if a < 0: raise ValueError('negative')\n    return a + b\ndef sort(x): x.sort()"
    found = verdict(
        judge,
        code,
        *asserting(
            "assert add(1, 2) == 3",
            "assert add(1, 2) == 4",
            "assert math.isclose(add(0.1, 0.2), 0.3)",
            "try:\n    add(-1, 0)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
            "add(-1, 0)",
            "x = [2, 1]\nsort(x)\nassert x == [1, 2]",
            "def check(candidate):\n    assert candidate(1, 1) == 2\ncheck(add)",
        ),
        AssertTest("assert add(N, 1) == 8", setup="N = 7"),
        CallTest((1, 2), 3),
    )
    assert outcomes(found) == [
        "passed",
        "wrong",
        "passed",
        "passed",
        "exception",
        "passed",
        "passed",
        "passed",
        "passed",
    ]
    assert found.results[4].detail == "line 3: ValueError: negative"


def test_assertions_on_own_classes(judge: Judge) -> None:
    code = "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x):\n        self.items.append(x)"
    tests = asserting("s = Stack()\ns.push(1)\nassert s.items == [1]", "assert Stack().items == [1]")
    assert outcomes(verdict(judge, code, *tests, entry=None)) == ["passed", "wrong"]


def test_crashes_and_loops_under_assertions(judge: Judge) -> None:
    tests = asserting("assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(3, 2) == 5")
    code = "import os\ndef add(a, b):\n    if a == 1: os._exit(0)\n    while a == 2: pass\n    return a + b"
    assert outcomes(verdict(judge, code, *tests)) == ["crashed", "timeout", "passed"]


def test_lazy_answers_where_only_the_items_count(judge: Judge) -> None:
    test = CallTest(([1, 2], [2, 3]), (2,), comparison=Comparison.SET)
    assert str(verdict(judge, "def add(a, b): return (x for x in a if x in b)", test).status) == "passed"
    assert str(verdict(judge, "def add(a, b): return filter(b.__contains__, a)", test).status) == "passed"


def _mixed() -> list[Candidate]:
    own = task(*ADD, CallTest((["red", "blue", "green"], []), ("green", "blue", "red")))
    codes = [
        RIGHT,
        "def add(a, b): return 3",
        "def add(a, b): return tuple(set(a) | set(b))",
        "def add(a, b): return hash('x') if a == 1 else a + b",
        "exit()",
        "def add(a, b):\n    while True: pass",
        "import os\ndef add(a, b): os._exit(0)",
        "def add(a, b): return id",
    ]
    return [Candidate(code, own, own.base) for code in codes]


def test_five_runs_and_any_number_of_workers_give_the_same_verdicts() -> None:
    def seen(judge: Judge) -> list[object]:
        found = judge.judge(_mixed())
        # Not the detail: whether a loop's own timer or the supervisor stopped it depends on how busy the machine is.
        return [(v.status, [r.outcome for r in v.results]) for v in found]

    with Judge(QUICK) as two, Judge(QUICK.model_copy(update={"workers": 1})) as one:
        first = seen(two)
        assert all(seen(two) == first for _ in range(4))
        assert seen(one) == first
    with Judge(QUICK.model_copy(update={"workers": 8})) as eight:
        assert seen(eight) == first


def test_calls_from_several_threads_take_turns(judge: Judge) -> None:
    found: list[Status] = []
    threads = [threading.Thread(target=lambda: found.append(verdict(judge, RIGHT).status)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Status.PASSED] * 6


def test_a_closed_judge_starts_anew() -> None:
    judge = Judge(QUICK)
    assert str(verdict(judge, RIGHT).status) == "passed"
    judge.close()
    assert str(verdict(judge, RIGHT).status) == "passed"
    judge.close()


def test_a_lost_worker_is_no_verdict(judge: Judge) -> None:
    assert str(verdict(judge, RIGHT).status) == "passed"
    for worker in judge._pool._idle:
        worker._process.kill()
    assert str(verdict(judge, RIGHT).status) == "passed"


def test_a_broken_sandbox_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptrl.execution.worker._BOOT", "raise RuntimeError('no interpreter here')")
    with Judge(QUICK) as judge, pytest.raises(SandboxError, match="no interpreter here"):
        verdict(judge, RIGHT)


def test_namespaces_refused_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = (
        "import sys; sys.path.insert(0, sys.argv[1]); from sandbox import confine, template\n"
        "def refuse(): raise confine.ConfineError(1, 'unshare: Operation not permitted')\n"
        "confine.enter_namespaces = refuse\ntemplate.serve()"
    )
    monkeypatch.setattr("promptrl.execution.worker._BOOT", boot)
    with (
        Judge(QUICK) as judge,
        pytest.raises(SandboxError, match=r"Operation not permitted.*`sandbox\.isolation: rlimits"),
    ):
        verdict(judge, RIGHT)
    report = isolation_level()
    assert report.level == "rlimits"
    assert "Operation not permitted" in report.missing["namespaces"]
    with Judge(QUICK.model_copy(update={"isolation": "rlimits"})) as judge:
        assert str(verdict(judge, RIGHT).status) == "passed"


def test_unresolved_tasks_are_refused(judge: Judge) -> None:
    with pytest.raises(TaskError, match="resolve_expected first"):
        verdict(judge, RIGHT, CallTest((1, 2)))


def test_settings_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="workers"):
        SandboxSettings(workers=0)
    assert SandboxSettings().time_limit(0.5) == 2.0
    assert SandboxSettings().time_limit(0.001) == 1.0


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [("os._exit(0)", "crashed"), ("return (3 ** 10**7) ** 9", "timeout"), ("raise ValueError", "exception")],
)
def test_trouble_in_the_middle_is_booked_where_it_happened(judge: Judge, trouble: str, outcome: str) -> None:
    code = f"import os\ndef add(a, b):\n    if a == 30: {trouble}\n    return a + b"
    found = verdict(judge, code, *(CallTest((n, 1), n + 1) for n in range(60)))
    assert outcomes(found) == ["passed"] * 30 + [outcome] + ["passed"] * 29


def test_a_longer_limit_after_quick_tests_holds(judge: Judge) -> None:
    code = "def add(a, b):\n    if a == 30: sum(range(b))\n    return a"
    tests = [CallTest((n, 40_000_000), n, reference_seconds=5.0 if n == 30 else 0.0) for n in range(32)]
    assert str(verdict(judge, code, *tests).status) == "passed"


def test_the_same_bytes_pass_and_only_where_equal_values_do(judge: Judge, tmp_path: Path) -> None:
    tests = TestSuite("base", (CallTest((1,)), CallTest((float("nan"),))))
    same = "def same(x): return x"
    given = Task("t", "own", "Give it back.", "", tests, entry_point="same", canonical_solution=same)
    (known,) = resolve_expected([given], data_sha256="0" * 64, cache_dir=tmp_path)
    assert [test.payload for test in known.base if isinstance(test, CallTest)] == [b"1", None]
    codes = (same, "def same(x): return 1.0", "def same(x): return '1'")
    found = [outcomes(v) for v in judge.judge([Candidate(code, known, known.base) for code in codes])]
    # As in EvalPlus: 1.0 is 1, and what is not a number is not even itself.
    assert found == [["passed", "wrong"], ["passed", "wrong"], ["wrong", "wrong"]]


def test_values_pass_through_the_template_in_one_piece() -> None:
    records = [protocol.pack_record(n, protocol.VALUE, 0.0, b"%d" % n) for n in range(4)]
    reader = protocol.RecordReader()
    reader.feed(b"".join(records) + protocol.pack_record(4, protocol.EXCEPTION, 0.0, b"x"))
    assert reader.values(1, 9) == (0, b""), "out of turn"
    assert reader.values(0, 2) == (2, b"".join(records[:2])), "no further than the last test"
    assert reader.values(2, 9) == (2, b"".join(records[2:])), "up to what is no value"
    assert reader.next() == (4, protocol.EXCEPTION, 0.0, b"x")
    reader.feed(records[0][:-1])
    assert reader.values(0, 9) == (0, b""), "half a record"
