"""A user's own tasks from a YAML or JSON-lines file, checked key by key."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, StringConstraints, ValidationError, model_validator
from pydantic_core import ErrorDetails

from promptrl.errors import TaskError
from promptrl.settings import Settings
from promptrl.tasks.asserts import count_whole, fault_of, parse_tests, says
from promptrl.tasks.benchmark import RowError, json_lines
from promptrl.tasks.task import AssertTest, CallTest, Comparison, PytestTest, StdinTest, Style, Task, Test, TestSuite

_Name = Annotated[str, StringConstraints(pattern=r"^[^\W\d]\w*$")]
_Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class CallCase(Settings):
    """One call of the entry point: its arguments, what must come back, and the tolerance for floats."""

    args: list[Any]
    expected: Any
    atol: Annotated[float, Field(ge=0)] | None = None


class StdinCase(Settings):
    """One run of the program: what it reads and what it must print."""

    stdin: str = ""
    stdout: str


Case = str | CallCase | StdinCase


class CustomTask(Settings):
    """One row of a custom file.

    Attributes:
        id: Names the task; unique in the file.
        prompt: What is asked, in words; operators may change it.
        contract: Signature, examples or format that no operator changes. Where it is missing, the first
            `show_tests` of the tests stand for it.
        entry_point: The function to define; leave it out for a program that reads standard input.
        style: `function` or `stdin`; follows from `entry_point` where it is missing.
        tests: The reward tests: asserts as text, `{args, expected, atol}`, or `{stdin, stdout}`.
        report_tests: Further tests that only a report may use, in the same forms.
        canonical_solution: A complete program that passes; bounds the time a candidate may take.
        setup: Code put before every candidate.
        atol: Tolerance for floats, where a test names none.
        show_tests: How many tests the model may see where there is no `contract`.
    """

    id: _Text
    prompt: _Text
    contract: str = ""
    entry_point: _Name | None = None
    style: Style | None = None
    tests: Annotated[list[Case], Field(min_length=1)]
    report_tests: list[Case] = Field(default_factory=list)
    canonical_solution: str = ""
    setup: str = ""
    atol: Annotated[float, Field(ge=0)] = 0.0
    show_tests: Annotated[int, Field(ge=0)] = 1

    @model_validator(mode="after")
    def _one_style(self) -> CustomTask:
        if self.resolved_style == "function" and self.entry_point is None:
            raise ValueError("style 'function' needs entry_point, the name of the function to call")
        if self.resolved_style == "stdin" and self.entry_point is not None:
            raise ValueError("style 'stdin' runs the whole program; leave entry_point out")
        for key, cases in (("tests", self.tests), ("report_tests", self.report_tests)):
            for number, case in enumerate(cases, start=1):
                if (self.resolved_style == "stdin") != isinstance(case, StdinCase):
                    wanted = "{stdin, stdout}" if self.resolved_style == "stdin" else "an assert or {args, expected}"
                    raise ValueError(f"{key} {number} must be {wanted} for a task of style {self.resolved_style!r}")
        return self

    @property
    def resolved_style(self) -> Style:
        """The style given, or the one that `entry_point` implies."""
        return self.style or ("stdin" if self.entry_point is None else "function")

    def to_task(self) -> Task:
        """The task that the environment and the judge use.

        Raises:
            RowError: when an assert is not Python, or a suite holds nothing to check.
        """
        base = self._suite("base", "tests", self.tests)
        if base is None:
            raise RowError("no tests: 'tests' holds no assert")
        texts = [case for case in self.tests if isinstance(case, str)]
        if self.entry_point and texts and not any(says(text, self.entry_point) for text in [*texts, self.setup]):
            raise RowError(f"key 'tests': no test calls {self.entry_point!r}, the entry_point")
        plus = self._suite("plus", "report_tests", self.report_tests)
        shown = base.tests[: self.show_tests]
        contract = self.contract.strip("\n") or "\n".join(_shown(test, self.entry_point) for test in shown)
        return Task(
            task_id=self.id,
            benchmark="custom",
            instruction=self.prompt,
            contract=contract,
            base=base,
            plus=plus,
            style=self.resolved_style,
            entry_point=self.entry_point,
            canonical_solution=self.canonical_solution,
            setup=self.setup,
            metadata={
                "visible_tests": 0 if self.contract.strip() else len(shown),
                "whole_asserts": count_whole(base.tests + (plus.tests if plus else ())),
            },
        )

    def _suite(self, name: Literal["base", "plus"], key: str, cases: list[Case]) -> TestSuite | None:
        tests: list[Test] = []
        for number, case in enumerate(cases, start=1):
            match case:
                case StdinCase():
                    tests.append(StdinTest(case.stdin, case.stdout))
                case CallCase():
                    atol = self.atol if case.atol is None else case.atol
                    tests.append(CallTest(tuple(case.args), case.expected, atol=atol, float_leaves=True))
                case str():
                    try:
                        split = parse_tests([case], callee=self.entry_point or "", what="assert")
                    except RowError as error:
                        raise RowError(f"key '{key}', item {number}: {error}") from error
                    if (fault := fault_of(case, callee=self.entry_point or "")) is not None:
                        raise RowError(f"key '{key}', item {number}: {fault}")
                    tests.extend(self._tolerant(test) for test in split)
        return TestSuite(name, tuple(tests)) if tests else None

    def _tolerant(self, test: Test) -> Test:
        if isinstance(test, CallTest) and test.comparison in (Comparison.EQUAL, Comparison.SET):
            return replace(test, atol=self.atol)
        return test


def _shown(test: Test, entry_point: str | None) -> str:
    match test:
        case CallTest():
            call = f"{entry_point}({', '.join(repr(argument) for argument in test.args)})"
            match test.comparison:
                case Comparison.TRUTH:
                    return f"assert {call}" if test.expected else f"assert not {call}"
                case Comparison.SET:
                    return f"assert set({call}) == {test.expected!r}"
                case Comparison.WITHIN | Comparison.BELOW as kind:
                    sign = "<" if kind is Comparison.BELOW else "<="
                    return f"assert abs({call} - {test.expected!r}) {sign} {test.atol!r}"
            return f"assert {call} == {test.expected!r}"
        case AssertTest():
            return "\n".join(part for part in (test.setup, test.source) if part)
        case StdinTest():
            return f"Input\n{test.stdin}\nOutput\n{test.expected_stdout}"
        case PytestTest():
            return test.node_id


def read_custom(text: str, path: Path) -> list[Task]:
    """The tasks of a custom file: JSON lines where the name ends in .jsonl, otherwise YAML.

    Raises:
        TaskError: when a row is wrong; the message names the file, the row and the key.
    """
    tasks: list[Task] = []
    seen: dict[str, str] = {}
    for place, row in _rows(text, path):
        try:
            task = CustomTask.model_validate(row).to_task()
        except ValidationError as error:
            keys, fault = _first_fault(error)
            where = f"{path}, {place}{_named(row)}{_line(text, path, place, keys)}"
            raise TaskError(f"{where}: {fault}") from error
        except RowError as error:
            raise TaskError(f"{path}, {place}{_named(row)}{_line(text, path, place)}: {error}") from error
        if task.task_id in seen:
            raise TaskError(f"{path}, {place}: key 'id': {task.task_id!r} is already the id of {seen[task.task_id]}")
        seen[task.task_id] = place
        tasks.append(task)
    if not tasks:
        raise TaskError(f"{path}: holds no tasks")
    return tasks


def _rows(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix in (".jsonl", ".ndjson") or path.name.endswith(".jsonl.gz"):
        yield from ((f"line {number}", row) for number, row in json_lines(text, path))
        return
    try:
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        hint = "; a text that holds ': ' needs quotes around it" if "mapping values" in str(error) else ""
        raise TaskError(
            f"{path}: not valid {'JSON' if path.suffix == '.json' else 'YAML'} ({_one_line(error)}){hint}"
        ) from error
    if isinstance(content, dict) and set(content) == {"tasks"}:
        content = content["tasks"]
    elif isinstance(content, dict) and "prompt" in content:
        content = [content]
    if not isinstance(content, list):
        raise TaskError(f"{path}: expected a list of tasks, or a key 'tasks' that holds one")
    yield from ((f"task {number}", row) for number, row in enumerate(content, start=1))


def _named(row: object) -> str:
    name = row.get("id") if isinstance(row, dict) else None
    return f" (id {name!r})" if isinstance(name, str) else ""


def _line(text: str, path: Path, place: str, keys: Sequence[str | int] = ()) -> str:
    """Where in a YAML file a task, or what it has under some keys, begins: ", line 7"; lines count from 1."""
    if path.suffix == ".json" or not place.startswith("task "):
        return ""
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(node, yaml.MappingNode):
        node = next((value for key, value in node.value if key.value == "tasks"), node)
    if isinstance(node, yaml.SequenceNode):
        node = node.value[int(place.removeprefix("task ")) - 1]
    assert node is not None, "the file has been read before"
    line = node.start_mark.line
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            found = next(((name, value) for name, value in node.value if name.value == key), None)
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node = node.value[key]
            line = node.start_mark.line
    return f", line {line + 1}"


def _first_fault(error: ValidationError) -> tuple[list[str | int], str]:
    """The first fault: the keys and indices that lead to it, and in words the key, what is wrong, and the value.

    A misspelt key comes before the key that is missing for it. A test may have one of three forms; it is held
    against the one that it comes closest to.
    """
    faults = sorted(error.errors(), key=lambda fault: len(fault["loc"]) != 1 or fault["type"] != "extra_forbidden")
    fault = faults[0]
    form: type[Settings] = CustomTask
    keys: list[str | int] = list(fault["loc"])
    if len(keys) > 2:
        forms: dict[object, list[ErrorDetails]] = {}
        for other in faults:
            if other["loc"][:2] == fault["loc"][:2]:
                forms.setdefault(other["loc"][2], []).append(other)
        if isinstance(forms["str"][0]["input"], dict):
            del forms["str"]
        name, closest = min(forms.items(), key=lambda item: len(item[1]))
        fault = min(closest, key=lambda other: other["type"] != "extra_forbidden")
        form = StdinCase if name == "StdinCase" else CallCase
        keys = [*fault["loc"][:2], *fault["loc"][3:]]
    message = fault["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(keys[-1]), form.model_fields, n=1)
        allowed = f", did you mean {near[0]!r}?" if near else f"; allowed are {', '.join(form.model_fields)}"
        message = f"unknown key{allowed}"
    elif len(keys) == 2 and isinstance(keys[1], int):
        message = "must be an assert as text, {args, expected} or {stdin, stdout}"
    words = [f"item {key + 1}" if isinstance(key, int) else f"key {key!r}" for key in keys]
    if keys and fault["type"] not in ("missing", "extra_forbidden"):
        message += f", given {str(fault['input'])[:60]!r}"
    return keys, ": ".join([*([", ".join(words)] if words else []), message])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
