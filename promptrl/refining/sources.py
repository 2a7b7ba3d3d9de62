"""Makes tasks of what a user has: a stub with tests, a text with tests, or a file of tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from promptrl.errors import TaskError
from promptrl.execution import Candidate, Judge, Outcome, TestResult
from promptrl.execution.sandbox.pytests import EXPECTED_FAILURE, SKIPPED
from promptrl.execution.source import bound_names
from promptrl.refinement.episode import task_rng
from promptrl.refining.stub import parse_python, read_stub, read_text
from promptrl.refining.suites import needs_pytest, read_asserts, read_pytest
from promptrl.tasks import load_benchmark
from promptrl.tasks.docstring import split_prompt
from promptrl.tasks.task import PytestFiles, PytestTest, Task, Test, TestSuite

_TASK_FILES: Final = (".yaml", ".yml", ".json", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class HoldOut:
    """Tests that neither the model nor the reward sees.

    Attributes:
        share: The part of the tests that is drawn for it, in (0, 1).
        files: Test files of their own.
        seed: Of the draw.
    """

    share: float | None = None
    files: tuple[Path, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share < 1:
            raise TaskError(f"--hold-out is {self.share:g}; it is a share of the tests, between 0 and 1")
        if self.share is not None and self.files:
            raise TaskError("--hold-out draws from the tests and --hold-out-tests names a file; give one of them")


def task_from_stub(
    stub: Path | str,
    tests: Path | str | Sequence[Path | str],
    *,
    judge: Judge | None = None,
    entry_point: str | None = None,
    hold_out: HoldOut | None = None,
    task_id: str | None = None,
) -> Task:
    """The task that a stub and its tests describe.

    The docstring's prose is the instruction, which may be reworded; signature and examples are the contract, which
    may not.

    Args:
        stub: A Python file with a signature, a docstring, and no body.
        tests: Files for pytest, folders of such files, or files of plain asserts.
        judge: Runs the tests on the stub, to see that they can be run and are not passed already; one is made, and
            closed again, where none is given.
        entry_point: The function, where the stub has several without a body.
        hold_out: Tests to be kept back.
        task_id: The stub's name where unset.

    Raises:
        TaskError: a file cannot be used; one sentence that names it and says why.
    """
    path = Path(stub)
    found = read_stub(path, entry_point)
    try:
        instruction, contract = split_prompt(found.prompt, found.entry_point)
    except (SyntaxError, ValueError) as error:
        raise TaskError(f"{path}: the stub cannot be split into words and signature: {error}") from error
    beside = bound_names(parse_python(found.code, path).body) - {found.entry_point}
    words = _Words(
        task_id or found.module,
        instruction or f"Complete the function `{found.entry_point}`.",
        contract,
        found.prompt,
        kept_names=tuple(sorted(beside)),
    )
    return _with_tests(words, _paths(tests), hold_out or HoldOut(), judge, found.entry_point, found.code, path)


def task_from_prompt(
    prompt: Path | str,
    entry_point: str,
    tests: Path | str | Sequence[Path | str],
    *,
    judge: Judge | None = None,
    hold_out: HoldOut | None = None,
    task_id: str | None = None,
) -> Task:
    """The task that a text and tests describe; the text is the instruction, and the contract asks for the function.

    Args:
        prompt: A text file.
        entry_point: The function's name.
        tests: As in `task_from_stub`.
        judge: Runs the tests on a function that raises NotImplementedError, to see that they can be run.
        hold_out: Tests to be kept back.
        task_id: The text file's name without its ending where unset.

    Raises:
        TaskError: as `task_from_stub`.
    """
    path = Path(prompt)
    text = read_text(path).strip()
    if not text:
        raise TaskError(f"{path}: is empty; it is to say what the function does")
    if not entry_point.isidentifier():
        raise TaskError(f"--entry-point is {entry_point!r}; it is the name of a function")
    words = _Words(task_id or path.stem, text, f"Define a function named `{entry_point}`.", "")
    code = f"def {entry_point}(*args, **kwargs):\n    raise NotImplementedError\n"
    return _with_tests(words, _paths(tests), hold_out or HoldOut(), judge, entry_point, code, None)


def tasks_from_file(path: Path | str, *, hold_out: HoldOut | None = None) -> list[Task]:
    """The tasks of a YAML or JSON-lines file in the format of custom tasks; `report_tests` are the ones kept back.

    Raises:
        TaskError: the file cannot be used, or tests are to be kept back where some are named already.
    """
    hold_out = hold_out or HoldOut()
    if hold_out.files:
        raise TaskError("--hold-out-tests goes with --stub or --prompt-file; a task file has report_tests for it")
    tasks = list(load_benchmark("custom", path=Path(path)).tasks)
    if hold_out.share is None:
        return tasks
    for task in tasks:
        if task.plus is not None:
            raise TaskError(
                f"{path}: task {task.task_id!r} has report_tests, which are held out; leave --hold-out away"
            )
    return [_hold_back(task, hold_out) for task in tasks]


def tasks_from_folder(folder: Path, *, judge: Judge, hold_out: HoldOut | None = None) -> list[Task]:
    """All tasks of a folder and of the folders in it: task files, and each NAME.py with test_NAME.py or NAME_test.py.

    Raises:
        TaskError: a file cannot be used, a task's id comes twice, or there is none.
    """
    hold_out = hold_out or HoldOut()
    if hold_out.files:
        raise TaskError("--hold-out-tests goes with one task; use --hold-out for many")
    tasks: list[Task] = []
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        prefix = "" if place == folder else f"{place.name}/"
        for path in sorted(place.iterdir()):
            if path.suffix in _TASK_FILES:
                tasks += tasks_from_file(path, hold_out=hold_out)
            elif path.suffix == ".py" and (tests := _tests_beside(path)):
                name = f"{prefix}{path.stem}"
                tasks.append(task_from_stub(path, tests, judge=judge, hold_out=hold_out, task_id=name))
    if not tasks:
        raise TaskError(f"{folder}: holds no tasks: neither YAML or JSON-lines files nor NAME.py with test_NAME.py")
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            raise TaskError(f"{folder}: the id {task.task_id!r} comes twice")
        seen.add(task.task_id)
    return tasks


@dataclass(frozen=True, slots=True)
class _Words:
    """What of a task the model reads, and its name."""

    task_id: str
    instruction: str
    contract: str
    stub: str
    kept_names: tuple[str, ...] = ()


def _paths(tests: Path | str | Sequence[Path | str]) -> list[Path]:
    paths = [Path(tests)] if isinstance(tests, str | Path) else [Path(path) for path in tests]
    if not paths:
        raise TaskError("there are no tests; name a file with --tests")
    for path in paths:
        if not path.exists():
            raise TaskError(f"{path}: there is no such file or folder")
    return list({path.resolve(): path for path in paths}.values())  # a file named twice would count twice


def _refuse_overlap(tests: list[Path], kept_back: list[Path]) -> None:
    """Refuse files that are to be held out and are rewarded too, by themselves or in a folder."""
    for kept in kept_back:
        for path in tests:
            held, rewarded = kept.resolve(), path.resolve()
            if held == rewarded or held in rewarded.parents or rewarded in held.parents:
                raise TaskError(f"{kept}: is named to be held out, and is among the tests {path} too; keep them apart")


def _tests_beside(stub: Path) -> list[Path]:
    names = (f"test_{stub.stem}.py", f"{stub.stem}_test.py")
    return [stub.with_name(name) for name in names if stub.with_name(name).is_file()]


def _with_tests(
    words: _Words,
    tests: list[Path],
    hold_out: HoldOut,
    judge: Judge | None,
    entry_point: str,
    code: str,
    stub: Path | None,
) -> Task:
    """The task with its tests, which have been seen to run on `code`, a function without a body."""
    if judge is None:
        with Judge() as own:
            return _with_tests(words, tests, hold_out, own, entry_point, code, stub)
    kept_back = _paths(hold_out.files) if hold_out.files else []
    _refuse_overlap(tests, kept_back)
    plus: TestSuite | None = None
    if needs_pytest([*tests, *kept_back]):
        files, more = read_pytest(tests, kept_back, stub=stub, entry_point=entry_point)
        base = _collect("base", files, code, entry_point, judge)
        plus = _collect("plus", more, code, entry_point, judge) if more is not None else None
    else:
        module = stub.stem if stub else None
        base = TestSuite("base", read_asserts(tests, module=module, entry_point=entry_point))
        if kept_back:
            plus = TestSuite("plus", read_asserts(kept_back, module=module, entry_point=entry_point))
    task = Task(
        task_id=words.task_id,
        benchmark="refine",
        instruction=words.instruction,
        contract=words.contract,
        base=base,
        plus=plus,
        entry_point=entry_point,
        stub=words.stub,
        kept_names=words.kept_names,
    )
    task = _tried(task, code, judge, ", ".join(str(path) for path in tests))
    return task if hold_out.share is None else _hold_back(task, hold_out)


def _collect(name: str, files: PytestFiles, code: str, entry: str, judge: Judge) -> TestSuite:
    nodes = judge.pytest.collect(code, files, entry_point=entry)
    return TestSuite(name, tuple(PytestTest(node, files) for node in nodes))


def _tried(task: Task, code: str, judge: Judge, names: str) -> Task:
    """Leave out tests that skip themselves or are marked as failing; refuse tests that an empty body passes.

    Raises:
        TaskError: no test is left, or an empty body passes them all.
    """
    suites = [suite for suite in (task.base, task.plus) if suite is not None]
    verdicts = judge.judge([Candidate(code, task, suite) for suite in suites])
    if verdicts[0].pass_rate == 1.0:
        raise TaskError(f"{names}: every test passes on a function without a body; they test nothing of {task.task_id}")
    kept: list[TestSuite] = []
    for suite, verdict in zip(suites, verdicts, strict=True):
        tests = tuple(
            test for test, result in zip(suite, verdict.results, strict=True) if not _says_nothing(test, result)
        )
        if not tests:
            raise TaskError(f"{names}: every test is skipped or marked xfail; nothing is left to pass")
        kept.append(TestSuite(suite.name, tests))
    return replace(task, base=kept[0], plus=kept[1] if len(kept) > 1 else None)


def _says_nothing(test: Test, result: TestResult) -> bool:
    """Whether pytest would neither pass nor fail the test."""
    return (
        isinstance(test, PytestTest)
        and result.outcome is Outcome.EXCEPTION
        and result.detail.startswith((SKIPPED, EXPECTED_FAILURE))
    )


def _hold_back(task: Task, hold_out: HoldOut) -> Task:
    """Move a share of the base tests, drawn by the seed, into the plus suite; at least one stays and one goes."""
    tests = task.base.tests
    if len(tests) < 2:
        raise TaskError(f"{task.task_id}: has one test; to hold some out there have to be two at least")
    assert hold_out.share is not None
    number = min(len(tests) - 1, max(1, round(hold_out.share * len(tests))))
    rng = task_rng(hold_out.seed, task.task_id, "hold-out")
    drawn = set(rng.choice(len(tests), size=number, replace=False).tolist())
    base = TestSuite("base", tuple(test for index, test in enumerate(tests) if index not in drawn))
    plus = TestSuite("plus", tuple(test for index, test in enumerate(tests) if index in drawn))
    return replace(task, base=base, plus=plus)


def task_key(task: Task, *more: object) -> str:
    """Changes with everything that decides what comes of a task: its words, its tests, and what is named besides."""
    state = hashlib.sha256()
    for part in (task.instruction, task.contract, task.entry_point, task.style, task.setup, task.stub, task.kept_names):
        state.update(repr(part).encode())
    for suite in (task.base, task.plus):
        for test in suite or ():
            state.update(repr(test).encode())
            if isinstance(test, PytestTest):
                state.update(repr(test.files).encode())
    state.update(json.dumps(more, sort_keys=True, default=str).encode())
    return state.hexdigest()
