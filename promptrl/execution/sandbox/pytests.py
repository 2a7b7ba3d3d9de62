"""Running a user's own pytest files beside the candidate: one record per test, under the rules of `runner`.

The candidate shares this process with its tests, so code written to deceive could fake a pass. What is easy is made
useless: a pass counts only with a token that no function of the candidate is handed, records count only in their order,
whatever ends the process or the session leaves a test without its record, and neither files that the candidate leaves
behind nor variables of the environment decide what pytest loads.
"""

# Plain system calls, as in the code around them:
# ruff: noqa: PTH103, PTH109, PTH118, PTH120, PTH123

from __future__ import annotations

import builtins
import io
import json
import os
import re
import sys
from collections.abc import Generator
from typing import Any, Final

from . import protocol, runner

globals()["__builtins__"] = dict(vars(builtins))  # a candidate's changes to builtins do not reach these functions

SKIPPED: Final = "skipped"
"""How the detail of a test begins that skipped itself."""
EXPECTED_FAILURE: Final = "marked xfail"
"""The detail of a test that is marked as failing."""
NOT_COLLECTED: Final = "not collected"
"""How the detail of a test begins that pytest did not find again."""

_OPTIONS: Final = (
    "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=sys", "--color=no", "--tb=line",
    "--continue-on-collection-errors", "-c", os.devnull,
)  # fmt: skip
_FINISHED: Final = (0, 1, 5)
"""Exit codes of pytest after a session that ran to its end: all passed, some failed, no tests."""

_cpu_time = runner._cpu_time


def preload() -> None:
    """Import pytest with its own plugins: paid once in the template, or 0.3 s in every candidate."""
    import importlib

    from _pytest.config import default_plugins

    for name in ("pytest", *(f"_pytest.{plugin}" for plugin in default_plugins)):
        importlib.import_module(name)


def run(job: dict[str, Any], out: int, start: int) -> None:
    """Import the candidate, collect the tests, and run those from `start` on."""
    plan = job["pytest"]
    SuiteRunner(job, out, plan.pop("token")).run(start)


class SuiteRunner(runner.Runner):
    """One session of pytest in this process; what it sends for a passed test begins with the token."""

    def __init__(self, job: dict[str, Any], out: int, token: bytes) -> None:
        super().__init__(job, out, job["preamble"], None)
        self.plan: dict[str, Any] = job["pytest"]
        self.nodes: list[str] | None = self.plan["nodes"]
        self.collected = False
        self.next = 0
        self.errors: list[tuple[str, str]] = []
        self.found: list[str] = []

        def passed(index: int, seconds: float) -> None:
            self.send(index, protocol.HELD, seconds, token)

        self.passed = passed

    def send(self, index: int, status: int, seconds: float, payload: bytes) -> None:
        """As in `Runner`; but the candidate counts as imported only once the tests that import it are found."""
        if index != protocol.IMPORT or status != protocol.READY or self.collected:
            super().send(index, status, seconds, payload)

    def run(self, start: int) -> None:
        self.next = start
        loaded = self.load()
        if loaded is None:
            return
        names, entry = loaded
        if self.job["entry"] is not None:
            names.setdefault(self.job["entry"], entry)  # a method that stands in for the function
        _register(self.plan["module"])
        code, said = self.session(self.write_files())
        if self.nodes is None:
            self.report_collection(said)
        elif not self.collected:
            reason = self.errors[0][1] if self.errors else _last_line(said) or "no test could be collected"
            self.send(protocol.IMPORT, protocol.EXCEPTION, 0.0, runner._text(reason))
        elif code in _FINISHED:
            self.fill(len(self.nodes))

    def write_files(self) -> str:
        """Write the test files into a new folder, where nothing of the candidate lies, and make it the current one."""
        folder = os.path.join(os.getcwd(), f"tests-{os.urandom(8).hex()}")
        for name, content in self.plan["files"]:
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        os.chdir(folder)
        return folder

    def session(self, folder: str) -> tuple[int, str]:
        """Pytest's exit code, and what it wrote to the error stream."""
        import pytest

        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            os.environ.pop(name, None)
        options = [*_OPTIONS, "--rootdir", folder, "--confcutdir", folder]
        if self.nodes is None:
            options.append("--collect-only")
        kept, sys.stderr = sys.stderr, io.StringIO()
        try:
            code = pytest.main([*options, *self.plan["targets"]], plugins=[_plugin(self)])
            return int(code), sys.stderr.getvalue()
        finally:
            sys.stderr = kept

    def report_collection(self, said: str) -> None:
        """Send what was found as one value; for the check that comes before any candidate."""
        if not self.found and not self.errors:
            conftest = re.search(r"conftest '(.+?)'", said)
            name = os.path.relpath(conftest.group(1)) if conftest is not None else ""
            self.errors.append((name, _last_line(said)))
        self.collected = True
        self.send(protocol.IMPORT, protocol.READY, 0.0, b"")
        self.send(0, protocol.VALUE, 0.0, json.dumps({"nodes": self.found, "errors": self.errors}).encode())

    def choose(self, items: list[Any]) -> None:
        """Keep the tests that are to be run, in the order of the suite."""
        if self.nodes is None:
            self.found = [item.nodeid for item in items]
            return
        places = {node: index for index, node in enumerate(self.nodes)}
        chosen = [item for item in items if places.get(item.nodeid, -1) >= self.next]
        items[:] = sorted(chosen, key=lambda item: places[item.nodeid])
        if items or self.next:
            self.collected = True
            self.send(protocol.IMPORT, protocol.READY, 0.0, b"")

    def fill(self, end: int) -> None:
        """Send a record for each test before `end` that was not found again."""
        assert self.nodes is not None
        while self.next < end:
            file = self.nodes[self.next].partition("::")[0]
            reason = next((reason for name, reason in self.errors if name == file), "")
            detail = f"{NOT_COLLECTED}: {reason}" if reason else NOT_COLLECTED
            self.send(self.next, protocol.EXCEPTION, 0.0, runner._text(detail))
            self.next += 1

    def finish(self, node: str, phases: list[Any], seconds: float) -> None:
        """Send the record of a test that has run."""
        assert self.nodes is not None
        self.fill(self.nodes.index(node))
        status, detail = _outcome(phases)
        if status == protocol.HELD:
            self.passed(self.next, seconds)
        else:
            self.send(self.next, status, seconds, runner._text(detail))
        self.next += 1


def _register(name: str) -> None:
    """Make the candidate importable under a name; the packages in a dotted one hold nothing else."""
    parts = name.split(".")
    inner = sys.modules[runner.MODULE_NAME]
    for length in range(len(parts) - 1, 0, -1):
        sys.modules[".".join(parts[: length + 1])] = inner
        package = runner.fresh_module(".".join(parts[:length]))
        package.__path__ = []
        setattr(package, parts[length], inner)
        inner = package
    sys.modules[parts[0]] = inner


def _plugin(suite: SuiteRunner) -> object:
    """The part that pytest calls."""
    import pytest

    clock = suite.clock

    class Reporter:
        def __init__(self) -> None:
            self.phases: list[Any] = []

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            suite.choose(items)

        @pytest.hookimpl(tryfirst=True)
        def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
            if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
                reason = _reason(call.excinfo.value)
                # The tests know the candidate by another name.
                reason = reason.replace(
                    f"from '{runner.MODULE_NAME}' (unknown location)", f"from '{suite.plan['module']}'"
                )
                suite.errors.append((node.nodeid, reason))

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
            self.phases = []
            clock.arm(suite.job["limits"][suite.nodes.index(item.nodeid)] if suite.nodes else 0.0)
            clock.armed = False  # it runs within the phases only: a time-out inside of pytest would end the session
            started = _cpu_time()
            result = yield
            suite.finish(item.nodeid, self.phases, _cpu_time() - started)
            return result

        def timed(self) -> Generator[None, Any, Any]:
            try:
                try:
                    clock.armed = True
                    return (yield)
                finally:
                    clock.armed = False
            finally:
                clock.armed = False  # the timer may strike on the way to the line above

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
            return (yield from self.timed())

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_call(self) -> Generator[None, Any, Any]:
            return (yield from self.timed())

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
            return (yield from self.timed())

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, call: Any) -> Generator[None, Any, Any]:
            report: Any = yield
            error = None if call.excinfo is None else call.excinfo.value
            self.phases.append((report.when, report.outcome, hasattr(report, "wasxfail"), error))
            return report

    return Reporter()


def _outcome(phases: list[Any]) -> tuple[int, str]:
    """The status of a test by its set-up, call and tear-down, and a line on what went wrong."""
    import pytest

    if any(isinstance(error, runner.OutOfTime) for *_, error in phases):
        return protocol.TIMEOUT, ""
    if any(expected_failure for _, _, expected_failure, _ in phases):
        return protocol.EXCEPTION, EXPECTED_FAILURE
    for when, outcome, _, error in phases:
        if outcome == "passed":
            continue
        if outcome == "skipped":
            return protocol.EXCEPTION, f"{SKIPPED}: {_one_line(error)}"
        detail = runner.describe(error) if error is not None else ""
        where = "" if when == "call" else f"in {when}: "
        wrong = isinstance(error, AssertionError | pytest.fail.Exception)
        return protocol.FALSE if wrong else protocol.EXCEPTION, where + " ".join(detail.split())
    if [when for when, *_ in phases] != ["setup", "call", "teardown"]:
        return protocol.CRASHED, "the test did not run to its end"
    return protocol.HELD, ""


def _reason(error: BaseException) -> str:
    """Why a file could not be collected, in a line."""
    import pytest

    inner = error.__cause__ or error
    if isinstance(inner, SyntaxError):
        return f"line {inner.lineno}: SyntaxError: {inner.msg}"
    line = 0
    trace = inner.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(os.getcwd()):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f"line {line}: " if line else ""
    if isinstance(inner, pytest.Collector.CollectError):
        return where + _one_line(inner)
    return f"{where}{type(inner).__name__}: {_one_line(inner)}"


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[: runner._DETAIL_LIMIT]


def _last_line(text: str) -> str:
    lines = [line.removeprefix("E ").strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
