"""Suites that pytest itself runs: found once before any candidate, then judged test by test.

The files enter the sandbox and pytest runs there, in the candidate's own process; `sandbox.pytests` says what that
leaves open. Workers of their own see pytest, so that no other candidate does.
"""

from __future__ import annotations

import json
import marshal
import re
import secrets
from collections.abc import Sequence
from functools import partial
from importlib import util
from typing import Any, Final

from promptrl.errors import SandboxError, TaskError
from promptrl.execution.judge import _OUTCOMES, Candidate, _JudgeSession, _text, _without_run
from promptrl.execution.pool import Job, Session, WorkerPool
from promptrl.execution.sandbox import protocol
from promptrl.execution.settings import SandboxSettings
from promptrl.execution.verdict import Outcome, TestResult, Verdict
from promptrl.execution.worker import InnerTests, Message, build_job
from promptrl.tasks.task import PytestFiles, PytestTest, TestSuite

PACKAGES: Final = ("pytest", "_pytest", "pluggy", "py", "iniconfig", "packaging", "pygments")
"""What a sandbox has to show for pytest to run in it."""
_COLLECT_SECONDS: Final = 20.0
"""CPU time that importing the test files may take."""


class PytestJudge:
    """Judges candidates against pytest suites.

    Raises:
        TaskError: pytest is not installed.
        SandboxError: from its methods, where the sandbox cannot be set up or breaks.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        if util.find_spec("pytest") is None:
            raise TaskError("tests of pytest need the package pytest; install it beside promptrl: pip install pytest")
        packages = tuple(dict.fromkeys((*settings.packages, *PACKAGES)))
        self.settings = settings.model_copy(update={"packages": packages})
        self._pool = WorkerPool(self.settings)

    def judge(self, candidates: Sequence[Candidate]) -> list[Verdict]:
        """One verdict per candidate, in order.

        Raises:
            TaskError: a suite holds tests of another kind too, or two contents for one file.
        """
        verdicts: dict[int, Verdict] = {}
        numbers, jobs = [], []
        for number, candidate in enumerate(candidates):
            if candidate.code is None or not candidate.code.strip():
                verdicts[number] = _without_run(candidate.suite, "no code found in the answer")
                continue
            numbers.append(number)
            token = secrets.token_bytes(16)
            jobs.append(
                Job(
                    partial(self._message, candidate, token),
                    partial(_Session, candidate.suite, self.settings.stop_when_decided, token),
                    self.settings.wall_limit,
                )
            )

        def done(position: int, session: Session) -> None:
            assert isinstance(session, _Session)
            verdicts[numbers[position]] = session.verdict()

        self._pool.run(jobs, done)
        return [verdicts[number] for number in range(len(candidates))]

    def collect(self, code: str, files: PytestFiles, *, entry_point: str | None = None) -> list[str]:
        """The tests that pytest finds, by their node ids, in the order in which it would run them.

        Args:
            code: What the tests import in the candidate's place: the stub.
            files: The test files.
            entry_point: The function that `code` has to define.

        Raises:
            TaskError: a file cannot be collected, or holds no test; the message names it and says why.
        """
        found: list[_CollectSession] = []

        def done(position: int, session: Session) -> None:
            assert isinstance(session, _CollectSession)
            found.append(session)

        message = partial(self._job, code, entry_point, files, None, [_COLLECT_SECONDS], b"")
        self._pool.run([Job(message, _CollectSession, 2 * _COLLECT_SECONDS)], done)
        return found[0].nodes(files)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _message(self, candidate: Candidate, token: bytes) -> Message:
        nodes, limits = [], []
        for test in candidate.suite:
            if not isinstance(test, PytestTest):
                raise TaskError(f"{candidate.task.task_id}: a suite that pytest runs cannot hold other tests")
            nodes.append(test.node_id)
            limits.append(self.settings.time_limit(test.reference_seconds))
        files = files_of(candidate.suite)
        return self._job(
            candidate.code or "", candidate.task.entry_point, files, nodes, limits, token, candidate.task.setup
        )

    def _job(
        self,
        code: str,
        entry_point: str | None,
        files: PytestFiles,
        nodes: list[str] | None,
        limits: list[float],
        token: bytes,
        setup: str = "",
    ) -> Message:
        more: dict[str, Any] = {
            "collect_limit": _COLLECT_SECONDS,
            "pytest": {
                "module": files.module,
                "files": list(files.files),
                "targets": list(files.targets),
                "nodes": nodes,
                "token": token,
            },
        }
        tests = InnerTests(marshal.dumps([("pytest",)] * len(limits)))
        return build_job(self.settings, code, entry_point, tests, limits, setup=setup, more=more)


def files_of(suite: TestSuite) -> PytestFiles:
    """The files of all tests of a suite together.

    Raises:
        TaskError: two tests bring different contents for one file, or expect the candidate under different names.
    """
    kinds = {id(test.files): test.files for test in suite if isinstance(test, PytestTest)}
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    contents: dict[str, bytes] = {}
    for files in kinds.values():
        for name, content in files.files:
            if contents.setdefault(name, content) != content:
                raise TaskError(f"suite {suite.name!r} holds two different files {name}")
    modules = {files.module for files in kinds.values()}
    if len(modules) != 1:
        raise TaskError(f"suite {suite.name!r} imports the answer under different names: {', '.join(sorted(modules))}")
    targets = dict.fromkeys(target for files in kinds.values() for target in files.targets)
    return PytestFiles(modules.pop(), tuple(contents.items()), tuple(targets))


class _Session(_JudgeSession):
    """Takes the records of one candidate; a pass without the token was not written by the runner."""

    def __init__(self, suite: TestSuite, stop_when_decided: bool, token: bytes) -> None:
        super().__init__(suite, stop_when_decided, False)
        self._token = token

    def accept(self, index: int, status: int, seconds: float, payload: bytes) -> bool:
        if index == protocol.IMPORT:
            return super().accept(index, status, seconds, payload)
        if index != len(self._results) or index >= len(self._tests):
            raise SandboxError(f"the sandbox sent a record for test {index} out of turn")
        self._seconds += max(0.0, seconds)
        if status == protocol.VALUE or (status == protocol.HELD and payload != self._token):
            result = TestResult(Outcome.CRASHED, "the candidate wrote into the result channel", seconds)
        elif status == protocol.HELD:
            result = TestResult(Outcome.PASSED, "", seconds)
        else:
            result = TestResult(_OUTCOMES[status], _text(payload), seconds)
        self._results.append(result)
        self._stopped = self._stop and result.outcome is not Outcome.PASSED
        return self._stopped


class _CollectSession:
    """Takes what pytest found."""

    def __init__(self) -> None:
        self._failure = ""
        self._found: dict[str, Any] | None = None

    def accept(self, index: int, status: int, seconds: float, payload: bytes) -> bool:
        if status == protocol.VALUE:
            self._found = json.loads(payload)
        elif status != protocol.READY:
            self._failure = _text(payload) or "it ran out of time"
        return False

    def lost(self) -> None:
        self._failure = "it brought down its sandbox"

    def nodes(self, files: PytestFiles) -> list[str]:
        names = ", ".join(files.targets)
        if self._found is None:
            raise TaskError(f"{names}: cannot be collected by pytest: {_told(self._failure)}")
        for name, reason in self._found["errors"]:
            why = _told(reason) or "no tests were found"
            raise TaskError(f"{name or names}: cannot be collected by pytest: {why}")
        nodes: list[str] = self._found["nodes"]
        if not nodes:
            raise TaskError(f"{names}: pytest finds no tests; they are functions whose names begin with 'test'")
        return nodes


def _told(reason: str) -> str:
    """A reason, and what keeps the tests from a package that is installed."""
    missing = re.search(r"No module named '(\w+)", reason)
    if missing is not None and _is_installed(missing.group(1)):
        reason += "; it is installed, but tests can import only packages that sandbox.packages names"
    return reason


def _is_installed(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
