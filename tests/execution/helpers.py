"""Small tasks and one-line access to a verdict."""

from __future__ import annotations

from promptrl.execution import Candidate, Judge, Verdict
from promptrl.tasks.task import AssertTest, CallTest, StdinTest, Task, Test, TestSuite


def task(*tests: Test, entry: str | None = "add", setup: str = "") -> Task:
    style = "stdin" if isinstance(tests[0], StdinTest) else "function"
    return Task(
        "Own/1", "own", "Add.", "", TestSuite("base", tests), style=style, entry_point=entry, setup=setup
    )  # fmt: skip


ADD = (CallTest((1, 2), 3), CallTest((2, 2), 4))
"""Two calls of `add`, so that an answer that is always 3 is half right."""


def verdict(judge: Judge, code: str | None, *tests: Test, entry: str | None = "add", setup: str = "") -> Verdict:
    own = task(*(tests or ADD), entry=entry, setup=setup)
    return judge.judge([Candidate(code, own, own.base)])[0]


def outcomes(found: Verdict) -> list[str]:
    return [str(result.outcome) for result in found.results]


def asserting(*sources: str) -> tuple[AssertTest, ...]:
    return tuple(AssertTest(source) for source in sources)
