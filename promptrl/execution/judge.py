"""The judge: candidates in, one verdict each out, in the same order."""

from __future__ import annotations

import marshal
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

from promptrl.errors import SandboxError, TaskError
from promptrl.execution.asserting import Question, place_of
from promptrl.execution.compare import compare, equal, shorten, turns_tolerant
from promptrl.execution.pool import Job, Session, WorkerPool
from promptrl.execution.sandbox import codec, protocol
from promptrl.execution.settings import SandboxSettings
from promptrl.execution.stdout import stdout_matches
from promptrl.execution.verdict import Outcome, Status, TestResult, Verdict
from promptrl.execution.worker import InnerTests, Message, SandboxTest, build_job
from promptrl.tasks.task import DEFERRED, AssertTest, CallTest, Comparison, PytestTest, StdinTest, Task, Test, TestSuite

if TYPE_CHECKING:
    from promptrl.execution.pytest_suite import PytestJudge

_CACHED_SUITES: Final = 1024


@dataclass(frozen=True, slots=True)
class Candidate:
    """Code to be judged against one suite of one task; `code` is None where an answer held no code."""

    code: str | None
    task: Task
    suite: TestSuite


class Judge:
    """Runs candidates in sandboxes and compares, outside of them, what they return.

    Workers start when they are first needed and stay warm; `close` ends them. Calls from several threads take turns.

    Raises:
        SandboxError: from `judge`, where the sandbox cannot be set up or breaks; never because of a candidate.
        TaskError: from `judge`, where an expected value has not been computed yet.
    """

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self._pool = WorkerPool(self.settings)
        self._suites = SuiteCache()
        self._pytest: PytestJudge | None = None

    def judge(self, candidates: Sequence[Candidate]) -> list[Verdict]:
        """One verdict per candidate, in order."""
        verdicts: list[Verdict | None] = [None] * len(candidates)
        if special := [n for n, c in enumerate(candidates) if isinstance(c.suite.tests[0], PytestTest)]:
            others = [n for n in range(len(candidates)) if n not in set(special)]
            for numbers, judge in ((special, self.pytest.judge), (others, self.judge)):
                for number, verdict in zip(numbers, judge([candidates[n] for n in numbers]), strict=True):
                    verdicts[number] = verdict
            return [verdict for verdict in verdicts if verdict is not None]
        jobs, numbers = [], []
        for number, candidate in enumerate(candidates):
            _refuse_deferred(candidate)
            if candidate.code is None or not candidate.code.strip():
                verdicts[number] = _without_run(candidate.suite, "no code found in the answer")
                continue
            numbers.append(number)
            jobs.append(
                Job(
                    partial(self._message, candidate),
                    partial(
                        _JudgeSession, candidate.suite, self.settings.stop_when_decided, not self.settings.forgiving
                    ),
                    self._wall_limit(candidate.suite),
                )
            )

        def done(position: int, session: Session) -> None:
            assert isinstance(session, _JudgeSession)
            verdicts[numbers[position]] = session.verdict()

        self._pool.run(jobs, done)
        finished = [verdict for verdict in verdicts if verdict is not None]
        if len(finished) != len(candidates):
            raise SandboxError(f"{len(candidates) - len(finished)} candidates came back without a verdict")
        return finished

    def _message(self, candidate: Candidate) -> Message:
        task = candidate.task
        tests = self._suites.get(candidate.suite)
        limits = [self.settings.time_limit(test.reference_seconds) for test in candidate.suite]
        return build_job(
            self.settings,
            candidate.code or "",
            task.entry_point,
            tests,
            limits,
            style=task.style,
            setup=task.setup,
            wall_limit=self._wall_limit(candidate.suite),
        )

    def _wall_limit(self, suite: TestSuite) -> float:
        """The limit of a candidate, in wall-clock seconds; a suite that is slow in itself (Mbpp/599) gets more."""
        references = sum(test.reference_seconds or 0.0 for test in suite)
        return max(self.settings.wall_limit, self.settings.time_limit_factor * references)

    def close(self) -> None:
        """End the workers; a later `judge` starts new ones."""
        self._pool.close()
        if self._pytest is not None:
            self._pytest.close()

    @property
    def pytest(self) -> PytestJudge:
        """The part that runs pytest suites, in workers of its own; made when it is first needed.

        Raises:
            TaskError: pytest is not installed.
        """
        from promptrl.execution.pytest_suite import PytestJudge

        if self._pytest is None:
            self._pytest = PytestJudge(self.settings)
        return self._pytest

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SuiteCache:
    """The form in which suites enter the sandbox, kept for those used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[TestSuite, InnerTests]] = OrderedDict()

    def get(self, suite: TestSuite) -> InnerTests:
        kept = self._kept.get(id(suite))
        if kept is not None and kept[0] is suite:
            return kept[1]
        message = inner_tests(suite)
        self._kept[id(suite)] = (suite, message)
        while len(self._kept) > _CACHED_SUITES:
            try:
                self._kept.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        return message


def inner_tests(tests: Iterable[Test]) -> InnerTests:
    """The tests as the sandbox reads them.

    Raises:
        TaskError: an argument is not plain data.
    """
    tests = list(tests)
    apart = [
        (test.setup, test.source) if isinstance(test, AssertTest) and place_of(test) == "apart" else None
        for test in tests
    ]
    return InnerTests(marshal.dumps([inner_test(test) for test in tests]), marshal.dumps(apart) if any(apart) else b"")


def inner_test(test: Test) -> SandboxTest:
    """What of a test a candidate may see; of a call only its arguments, never what is expected.

    Raises:
        TaskError: an argument is not plain data.
    """
    if isinstance(test, CallTest):
        lazy = test.comparison is Comparison.SET
        if codec.is_native(test.args):
            return ("call", marshal.dumps(test.args, 2), True, lazy)  # type: ignore[arg-type]
        text = codec.encode(test.args)
        if isinstance(codec.decode(text), codec.Opaque | codec.Digest) or b'["x"' in text:
            raise TaskError(f"test arguments are not plain data: {shorten(test.args)}")
        return ("call", text, False, lazy)
    if isinstance(test, AssertTest):
        place = place_of(test)
        if isinstance(place, Question):
            return ("value", test.setup, place.before, place.expression)
        return ("assert",) if place == "apart" else ("inside", test.setup, test.source)
    if isinstance(test, PytestTest):
        raise TaskError(f"{test.node_id}: a suite that pytest runs cannot hold other tests")
    try:
        return ("stdin", test.stdin.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:  # half of a surrogate pair
        return ("stdin", test.stdin.encode("utf-8", "surrogatepass"))


def _refuse_deferred(candidate: Candidate) -> None:
    for test in candidate.suite:
        if (
            isinstance(test, CallTest)
            and test.expected is DEFERRED
            and test.comparison is not Comparison.POLYNOMIAL_ROOT
        ):
            raise TaskError(
                f"{candidate.task.task_id}: suite {candidate.suite.name!r} has expected values that were never "
                "computed; pass the task through resolve_expected first"
            )
        if isinstance(test, StdinTest) != (candidate.task.style == "stdin"):
            raise TaskError(
                f"{candidate.task.task_id}: a {candidate.task.style} task cannot have a {type(test).__name__}"
            )


def _without_run(suite: TestSuite, reason: str) -> Verdict:
    result = TestResult(Outcome.EXCEPTION, reason)
    return Verdict(Status.ERROR, (result,) * len(suite), error=reason)


_OUTCOMES: Final = {
    protocol.EXCEPTION: Outcome.EXCEPTION,
    protocol.TIMEOUT: Outcome.TIMEOUT,
    protocol.CRASHED: Outcome.CRASHED,
    protocol.HELD: Outcome.PASSED,
    protocol.FALSE: Outcome.WRONG,
}


class _JudgeSession:
    """Turns the records of one candidate into its verdict."""

    def __init__(self, suite: TestSuite, stop_when_decided: bool, like_evalplus: bool) -> None:
        self._tests = suite.tests
        self._like_evalplus = like_evalplus
        self._tolerant_from: int | None = None
        self._stop = stop_when_decided
        self._results: list[TestResult] = []
        self._import_failure: TestResult | None = None
        self._seconds = 0.0
        self._stopped = False

    def accept(self, index: int, status: int, seconds: float, payload: bytes) -> bool:
        self._seconds += max(0.0, seconds)
        if index == protocol.IMPORT:
            if status != protocol.READY:
                detail = _text(payload) or ("the import ran out of time" if status == protocol.TIMEOUT else "")
                self._import_failure = TestResult(_OUTCOMES[status], detail, seconds)
            return False
        if index != len(self._results) or index >= len(self._tests):
            raise SandboxError(f"the sandbox sent a record for test {index} out of turn")
        test = self._tests[index]
        if status == protocol.VALUE and isinstance(test, CallTest) and payload == test.payload:
            result = TestResult(Outcome.PASSED, "", seconds)  # most tests of most candidates end here
        else:
            result = self._result(index, test, status, seconds, payload)
        self._results.append(result)
        self._stopped = self._stop and result.outcome is not Outcome.PASSED
        return self._stopped

    def _result(self, index: int, test: Test, status: int, seconds: float, payload: bytes) -> TestResult:
        if status != protocol.VALUE:
            # What ran beside the candidate may say that an assertion held; a call's outcome is decided by its value.
            held_elsewhere = status in (protocol.HELD, protocol.FALSE) and (
                not isinstance(test, AssertTest) or isinstance(place_of(test), Question)
            )
            return TestResult(Outcome.CRASHED if held_elsewhere else _OUTCOMES[status], _text(payload), seconds)
        if isinstance(test, StdinTest):
            printed = payload.decode("utf-8", "replace")
            if stdout_matches(printed, test.expected_stdout):
                return TestResult(Outcome.PASSED, seconds=seconds)
            return TestResult(Outcome.WRONG, f"printed {shorten(printed)}", seconds)
        place = place_of(test) if isinstance(test, AssertTest) else None
        if isinstance(test, AssertTest) and not isinstance(place, Question):
            return TestResult(Outcome.CRASHED, "the candidate wrote into the result channel", seconds)
        try:
            value = codec.decode(payload)
        except codec.CodecError:
            return TestResult(Outcome.CRASHED, "the candidate wrote into the result channel", seconds)
        if isinstance(place, Question):
            right = value is place.expected if place.identity else equal(value, place.expected)
        else:
            assert isinstance(test, CallTest)
            right = compare(value, test.expected, test, floats_before=self._tolerant_before(index))
        if right:
            return TestResult(Outcome.PASSED, seconds=seconds)
        return TestResult(Outcome.WRONG, f"returned {shorten(value)}", seconds)

    def _tolerant_before(self, index: int) -> bool:
        """Whether a test before this one turns EvalPlus tolerant, where its rule is followed."""
        if not self._like_evalplus:
            return False
        if self._tolerant_from is None:
            turning = (
                number for number, test in enumerate(self._tests) if isinstance(test, CallTest) and turns_tolerant(test)
            )
            self._tolerant_from = next(turning, len(self._tests))
        return self._tolerant_from < index

    def lost(self) -> None:
        self._import_failure = TestResult(Outcome.CRASHED, "the candidate brought down its sandbox")

    def verdict(self) -> Verdict:
        failure = self._import_failure
        total = len(self._tests)
        if failure is not None:
            status = Status.TIMEOUT if failure.outcome is Outcome.TIMEOUT else Status.ERROR
            # What a fresh process could not import again after a crash had results before it.
            results = (*self._results, *(failure,) * (total - len(self._results)))
            if self._results:
                return Verdict(overall(results), results, failure.detail, self._seconds)
            return Verdict(status, results, failure.detail, self._seconds)
        missing = total - len(self._results)
        if missing and not self._stopped:
            raise SandboxError(f"the sandbox sent {len(self._results)} records for {total} tests")
        not_run = TestResult(Outcome.NOT_RUN, "not run: the outcome of the suite was decided")
        results = (*self._results, *(not_run,) * missing)
        status = overall(results)
        error = None
        if status in (Status.ERROR, Status.TIMEOUT):
            error = next((result.detail for result in results if result.detail), str(results[0].outcome))
        return Verdict(status, results, error, self._seconds)


def overall(results: Sequence[TestResult]) -> Status:
    """The status that the outcomes of the tests add up to.

    All passed: passed. Some: partial. None, though at least one value could be judged: failed. None, all out of
    time: timeout. None, with exceptions, crashes and time-outs only: error.
    """
    ran = [result.outcome for result in results if result.outcome is not Outcome.NOT_RUN]
    passed = ran.count(Outcome.PASSED)
    if passed == len(results):
        return Status.PASSED
    if passed:
        return Status.PARTIAL
    if Outcome.WRONG in ran:
        return Status.FAILED
    return Status.TIMEOUT if all(outcome is Outcome.TIMEOUT for outcome in ran) else Status.ERROR


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")
