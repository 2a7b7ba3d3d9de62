"""Verdicts on disk: judged once, the same again, and never trusted where they may not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from promptrl.execution import Candidate, Judge, Outcome, SandboxSettings, Status, TestResult, Verdict
from promptrl.execution.kept_verdicts import KeepingJudge, suite_key
from promptrl.tasks.task import AssertTest, CallTest, TestSuite
from tests.execution.helpers import ADD, task

RIGHT, HALF = "def add(a, b): return a + b", "def add(a, b): return 3"


class CountingJudge:
    """Stands before a real judge, or gives a set verdict, and keeps what it was asked."""

    def __init__(self, judge: Judge | None, verdict: Verdict | None = None) -> None:
        self.judge_anew, self.verdict = judge, verdict
        self.settings = judge.settings if judge else SandboxSettings()
        self.asked: list[str | None] = []

    def judge(self, candidates: Sequence[Candidate]) -> list[Verdict]:
        self.asked += [candidate.code for candidate in candidates]
        if self.judge_anew is None:
            assert self.verdict is not None
            return [self.verdict] * len(candidates)
        return self.judge_anew.judge(candidates)

    def close(self) -> None:
        return None


def candidates(*codes: str | None) -> list[Candidate]:
    given = task(*ADD)
    return [Candidate(code, given, given.base) for code in codes]


def test_a_candidate_is_judged_once_and_read_the_same_by_another_process(judge: Judge, tmp_path: Path) -> None:
    first = CountingJudge(judge)
    fresh = KeepingJudge(first, tmp_path).judge(candidates(RIGHT, HALF, RIGHT, None))
    assert first.asked == [RIGHT, HALF, None]
    assert [verdict.status for verdict in fresh] == [Status.PASSED, Status.PARTIAL, Status.PASSED, Status.ERROR]
    again = CountingJudge(judge)
    keeping = KeepingJudge(again, tmp_path)
    assert keeping.judge(candidates(RIGHT, HALF, RIGHT, None)) == fresh
    assert (again.asked, keeping.hits, keeping.misses) == ([None], 3, 1)
    assert fresh[1].results[1] == TestResult(Outcome.WRONG, "returned 3")


def test_another_suite_code_or_limit_is_judged_anew(judge: Judge, tmp_path: Path) -> None:
    counting = CountingJudge(judge)
    keeping = KeepingJudge(counting, tmp_path)
    given = task(*ADD)
    other = replace(given, base=TestSuite("base", (CallTest((1, 2), 4),)))
    assert [v.status for v in keeping.judge([Candidate(RIGHT, given, given.base)])] == [Status.PASSED]
    assert [v.status for v in keeping.judge([Candidate(RIGHT, other, other.base)])] == [Status.FAILED]
    assert [v.status for v in keeping.judge([Candidate(RIGHT + "\n", given, given.base)])] == [Status.PASSED]
    assert len(counting.asked) == 3
    counting.settings = counting.settings.model_copy(update={"time_limit_floor": 0.5})
    KeepingJudge(counting, tmp_path).judge([Candidate(RIGHT, given, given.base)])
    assert len(counting.asked) == 4
    counting.settings = counting.settings.model_copy(update={"workers": 7})
    KeepingJudge(counting, tmp_path).judge([Candidate(RIGHT, given, given.base)])
    assert len(counting.asked) == 4, "how many judge at a time decides nothing"


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.NOT_RUN])
def test_what_depends_on_the_moment_is_not_kept(outcome: Outcome, tmp_path: Path) -> None:
    results = (TestResult(Outcome.PASSED), TestResult(outcome, "killed by SIGKILL"))
    counting = CountingJudge(None, Verdict(Status.PARTIAL, results))
    for _ in range(2):
        KeepingJudge(counting, tmp_path).judge(candidates(RIGHT))
    assert counting.asked == [RIGHT, RIGHT]


def test_an_altered_line_is_not_believed(judge: Judge, tmp_path: Path) -> None:
    counting = CountingJudge(judge)
    KeepingJudge(counting, tmp_path).judge(candidates(HALF))
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"pw"', b'"pp"').replace(b"partial", b"passed"))
    assert [v.status for v in KeepingJudge(counting, tmp_path).judge(candidates(HALF))] == [Status.PARTIAL]
    assert counting.asked == [HALF, HALF]


def test_long_suites_keep_the_first_details(tmp_path: Path) -> None:
    wrong = tuple(TestResult(Outcome.WRONG, f"returned {n}", 0.5) for n in range(100))
    counting = CountingJudge(None, Verdict(Status.FAILED, wrong, seconds=50.0))
    (fresh,) = KeepingJudge(counting, tmp_path).judge(candidates(RIGHT))
    assert [result.detail for result in fresh.results] == [f"returned {n}" for n in range(64)] + [""] * 36
    assert KeepingJudge(counting, tmp_path).judge(candidates(RIGHT)) == [fresh]
    assert fresh.seconds == 50.0


def test_a_suite_s_key_tells_types_and_rules_apart_and_not_times() -> None:
    def key(*tests: CallTest | AssertTest) -> str | None:
        return suite_key(TestSuite("base", tests))

    one = key(CallTest((1,), 1))
    others = [
        key(CallTest((1.0,), 1)),
        key(CallTest((True,), 1)),
        key(CallTest(([1],), 1)),
        key(CallTest((1,), 1, atol=1e-6)),
        key(CallTest((1,), 1, float_leaves=True)),
        key(CallTest((1,), 1, alternatives=(2,))),
        key(CallTest((1,), 1), CallTest((1,), 1)),
        key(AssertTest("assert f(1) == 1")),
    ]
    assert None not in others
    assert len({one, *others}) == 1 + len(others)
    assert key(CallTest((1,), 1, reference_seconds=0.5)) == one
    assert key(CallTest((object(),), 1)) is None, "what has no exact form is judged every time"
