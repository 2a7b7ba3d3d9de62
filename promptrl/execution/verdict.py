"""What the judge says of one candidate: an outcome per test, and the status that they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What became of one test."""

    PASSED = "passed"
    WRONG = "wrong"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """The process ended, or stopped answering, without a record for this test."""
    NOT_RUN = "not_run"
    """Left out because the suite was decided; only under `SandboxSettings.stop_when_decided`."""


class Status(StrEnum):
    """What became of the candidate as a whole."""

    PASSED = "passed"
    PARTIAL = "partial"
    FAILED = "failed"
    """The code ran, and no test passed."""
    ERROR = "error"
    """Execution failure: no code, a syntax error, an import-time exception, no entry point, or every test raised."""
    TIMEOUT = "timeout"
    """Execution failure by time: the import, or every test, ran out of time."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """The record of one test; `detail` is short text for people (the value that came out, or the exception)."""

    __test__ = False  # not a test class of pytest

    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One result per test of the suite, in the suite's order; `error` names an execution failure."""

    status: Status
    results: tuple[TestResult, ...]
    error: str | None = None
    seconds: float = 0.0

    @property
    def tests_passed(self) -> int:
        return sum(result.outcome is Outcome.PASSED for result in self.results)

    @property
    def tests_total(self) -> int:
        return len(self.results)

    @property
    def pass_rate(self) -> float:
        """ρ, tests passed / tests of the suite, in [0, 1]."""
        return self.tests_passed / self.tests_total if self.results else 0.0

    @property
    def execution_failure(self) -> bool:
        """Whether the shaped reward is -2: nothing of the code could be judged by its values."""
        return self.status in (Status.ERROR, Status.TIMEOUT)
