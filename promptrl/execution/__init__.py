"""Running code that nobody vouches for, and saying what it is worth.

`Judge` turns candidates into verdicts. Each candidate runs in a process of its own inside a sandbox: namespaces without
network, host files or host processes, a read-only file system, no capabilities, a system call filter, Landlock, and
resource limits, as far as the machine offers them (`isolation_level` says). Only inputs enter, only plain data leaves,
and values are compared outside, so a forged record is worth no more than returning the value it claims.

What this does not cover:

- A candidate may know answers by heart: the tests decide only about the inputs that they hold.
- An assertion on objects of the candidate's own classes, or one that hands it functions, runs beside the candidate's
  code; if it ends in `... == constant` only the value comes from there, otherwise that code could report that it held.
  Every other assertion runs in another process (`asserting.place_of`), where results without a plain form take no part
  in comparisons and arithmetic.
- A worker serves one candidate after the other; text and answers of earlier candidates, never an expected value, may be
  found by searching the raw memory of the process.
- Memory is limited for each process: a candidate that may start processes has as many times as much.
- All candidates share the host's kernel; a fault in the kernel is a way out.
- A program finds its input under `/dev/stdin` too, but there is no `/dev/fd` and no `/proc`.
- Under `isolation: rlimits` a candidate cannot change rights or times even of its own files, other processes stay
  visible where the system shows them, and where Landlock or seccomp is missing too, files and sockets of the user are
  within reach. Use it for code that is trusted that far.
- Values beyond the limits of `sandbox.codec` are compared by a digest: without a tolerance, and 1, 1.0 and True
  differ. An assertion that runs apart cannot take such a value, and says so.
"""

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
