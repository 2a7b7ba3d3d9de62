"""APPS in the row format of `codeparrot/apps`: programs that read standard input, and functions called by name."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Final

from promptrl.tasks.asserts import parse_quietly
from promptrl.tasks.benchmark import Row, RowError, text_of
from promptrl.tasks.task import CallTest, StdinTest, Task, Test, TestSuite

_SECTION: Final = re.compile(
    r"^[-=\s*#]*(input|output|examples?|samples?|sample\s+input|constraints?|input\s+format|inputs?\s+and\s+outputs?)"
    r"(\s*\d+)?\s*:?[-=\s*]*$",
    re.IGNORECASE | re.MULTILINE,
)
_STDIN_FORMAT: Final = "Read the input from standard input and write the answer to standard output."


def apps_task(row: Row) -> Task:
    """A task of APPS; `fn_name` in `input_output` decides between a called function and a program.

    Raises:
        RowError: when the row has no usable pair of input and output.
    """
    question = text_of(row, "question").strip("\n")
    if not question.strip():
        raise RowError("the question is empty")
    starter = text_of(row, "starter_code", default="").rstrip()
    cases = _cases(row)
    fn_name = cases.get("fn_name")
    inputs, outputs = cases.get("inputs"), cases.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise RowError("no tests: input_output holds no list of inputs and outputs")
    if len(inputs) != len(outputs):
        raise RowError(f"input_output holds {len(inputs)} inputs but {len(outputs)} outputs")
    if fn_name is not None and not (isinstance(fn_name, str) and fn_name.isidentifier()):
        raise RowError(f"fn_name must be a Python name, found {fn_name!r}")
    tests = _call_tests(inputs, outputs) if fn_name else _stdin_tests(inputs, outputs)
    instruction, sections = _split_question(question)
    return Task(
        task_id=f"APPS/{_problem_id(row)}",
        benchmark="apps",
        instruction=instruction,
        contract="\n\n".join(part for part in (sections, _format(fn_name, starter)) if part),
        base=TestSuite("base", tests),
        style="function" if fn_name else "stdin",
        entry_point=fn_name,
        canonical_solution=_solution(row),
        stub=starter if fn_name else "",
        # The statement's examples are not told apart from the hidden tests in these rows.
        metadata={"visible_tests": 0, "whole_asserts": 0, "difficulty": str(row.get("difficulty", ""))},
    )


def _problem_id(row: Row) -> str:
    for key in ("problem_id", "id", "task_id"):
        value = row.get(key)
        if isinstance(value, (int, str)) and not isinstance(value, bool) and str(value):
            return str(value).removeprefix("APPS/")
    raise RowError("key 'problem_id' must be a number or text")


def _cases(row: Row) -> Row:
    value = row.get("input_output")
    if isinstance(value, str):
        if not value.strip():
            raise RowError("no tests: input_output is empty")
        try:
            value = json.loads(value, parse_int=_whole_number)
        except (ValueError, RecursionError) as error:
            raise RowError(f"no tests: input_output is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise RowError("no tests: input_output is not a JSON object")
    return value


def _whole_number(digits: str) -> int:
    # int() refuses more than 4300 digits, which some rows have; Decimal does not.
    return int(digits) if len(digits) < 4000 else int(Decimal(digits))


def _stdin_tests(inputs: list[object], outputs: list[object]) -> tuple[Test, ...]:
    tests = [
        StdinTest(_lines(stdin, number, "input"), _lines(stdout, number, "output"))
        for number, (stdin, stdout) in enumerate(zip(inputs, outputs, strict=True), start=1)
    ]
    if not any(test.expected_stdout.strip() for test in tests):
        raise RowError("no tests: every expected output is empty")
    return tuple(tests)


def _lines(value: object, number: int, what: str) -> str:
    """A text as it is, or a list of lines joined; standard input ends with a line end."""
    if isinstance(value, list) and all(isinstance(line, (str, int, float)) for line in value):
        value = "\n".join(str(line) for line in value)
    if not isinstance(value, str):
        raise RowError(f"{what} {number} must be text or a list of lines, found {type(value).__name__}")
    value = value.replace("\r\n", "\n").replace("\r", "\n")
    return value if what == "output" or value.endswith("\n") or not value else value + "\n"


def _call_tests(inputs: list[object], outputs: list[object]) -> tuple[Test, ...]:
    tests = []
    for number, (arguments, output) in enumerate(zip(inputs, outputs, strict=True), start=1):
        if isinstance(arguments, str):
            # One JSON value a line, one line an argument; the output is then written the same way.
            arguments = [_json_value(line, number, "input") for line in arguments.split("\n") if line.strip()]
            output = _json_value(output, number, "output") if isinstance(output, str) else output
            wrapped = False
        else:
            wrapped = isinstance(output, list) and len(output) == 1
            output = output[0] if isinstance(output, list) and wrapped else output
        if not isinstance(arguments, list):
            raise RowError(f"input {number} must be a list of arguments, found {type(arguments).__name__}")
        args = tuple(_integer_keys(argument) for argument in arguments)
        output = _integer_keys(output)
        tests.append(CallTest(args, output, alternatives=_other_forms(output, wrapped)))
    return tuple(tests)


def _json_value(text: str, number: int, what: str) -> object:
    try:
        return json.loads(text, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise RowError(f"{what} {number} is not one JSON value a line ({error})") from error


def _integer_keys(value: object) -> object:
    """JSON made the keys of dicts texts; where all of them are whole numbers, that is what they were."""
    if isinstance(value, dict) and value and all(re.fullmatch(r"-?\d{1,18}", str(key)) for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def _other_forms(output: object, wrapped: bool) -> tuple[object, ...]:
    """The same answer as APPS also takes it: tuples for lists, outside and one level in, and the list of one itself.

    APPS further takes the first item of any list for the whole answer; that would pass wrong code and is not done.
    """
    forms: list[object] = [[output]] if wrapped else []
    if isinstance(output, list):
        inner = [tuple(item) if isinstance(item, list) else item for item in output]
        forms.append(tuple(output))
        if any(isinstance(item, tuple) for item in inner):
            forms += [inner, tuple(inner)]
    return tuple(forms)


def _solution(row: Row) -> str:
    """The first of the row's solutions that is Python 3, or nothing."""
    value = row.get("solutions")
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ""
    for source in value if isinstance(value, list) else ():
        if isinstance(source, str) and parse_quietly(source) is not None:
            return source
    return ""


def _split_question(question: str) -> tuple[str, str]:
    """The statement, and the sections on input, output and examples that follow it."""
    section = _SECTION.search(question)
    if section is None or not question[: section.start()].strip():
        return question.strip(), ""
    return question[: section.start()].strip(), question[section.start() :].strip()


def _format(fn_name: str | None, starter: str) -> str:
    if fn_name is None:
        return _STDIN_FORMAT
    if starter:
        return starter
    return f"Define the function `{fn_name}`; it is called with the arguments and returns the answer."
