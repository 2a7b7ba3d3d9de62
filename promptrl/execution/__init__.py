"""Running code that nobody vouches for, and saying what it is worth."""

from promptrl.execution.compare import compare
from promptrl.execution.expected import resolve_expected
from promptrl.execution.isolation import IsolationReport, isolation_level
from promptrl.execution.judge import Candidate, Judge
from promptrl.execution.settings import SandboxSettings
from promptrl.execution.stdout import stdout_matches
from promptrl.execution.verdict import Outcome, Status, TestResult, Verdict

__all__ = [
    "Candidate",
    "IsolationReport",
    "Judge",
    "Outcome",
    "SandboxSettings",
    "Status",
    "TestResult",
    "Verdict",
    "compare",
    "isolation_level",
    "resolve_expected",
    "stdout_matches",
]
