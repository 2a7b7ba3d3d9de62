"""MBPP and MBPP+: short Python problems, told in a sentence and one example assert."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Final

from promptrl.tasks.asserts import called_names, count_whole, parse_quietly, parse_tests
from promptrl.tasks.benchmark import Row, RowError, text_of, texts_of
from promptrl.tasks.mbpp_types import restore_arguments
from promptrl.tasks.plus import input_suite
from promptrl.tasks.task import Comparison, Task, TestSuite

FEW_SHOT_IDS: Final = range(1, 11)
TEST_IDS: Final = range(11, 511)
VALIDATION_IDS: Final = range(511, 601)
TRAIN_IDS: Final = range(601, 975)

FAULTY: Final[dict[str, str]] = {}
"""Rows whose own solution fails their own tests, with the reason; they are neither trained nor validated on.

Empty on purpose: under CPython 3.11 all 974 solutions pass. A test runs them all, so a row that fails
under another Python is found there and belongs here.
"""

_AS_SETS: Final = frozenset(
    {
        "similar_elements",
        "find_char_long",
        "common_in_nested_lists",
        "extract_singly",
        "larg_nnum",
        "intersection_array",
        "find_dissimilar",
        "Diff",
    }
)
"""Entry points of MBPP+ whose answers have no order."""

_NOT_NONE: Final = frozenset({"check_str", "text_match_three", "text_starta_endb"})
"""Entry points of MBPP+ that return match objects, of which only the presence counts."""


def mbpp_number(task_id: str) -> int:
    """The number in an id like `Mbpp/601`.

    Raises:
        ValueError: when there is none.
    """
    return int(task_id.rsplit("/", 1)[-1])


def mbpp_task(row: Row) -> Task:
    """A task of MBPP: the asserts of `test_list` are the base suite, those of `challenge_test_list` the plus suite.

    `test_setup_code` needs names that the answer defines (`Node(1)`), so it runs after the answer, before
    each assert that runs whole.

    Raises:
        RowError: when the row lacks a key or holds no test.
    """
    number = row.get("task_id")
    if isinstance(number, bool) or not isinstance(number, (int, str)):
        raise RowError("key 'task_id' must be a number or text")
    code = text_of(row, "code", default="")
    asserts, challenges = texts_of(row, "test_list"), texts_of(row, "challenge_test_list")
    setup = text_of(row, "test_setup_code", default="").strip()
    entry_point = _entry_point(row, asserts, code)
    base = parse_tests(asserts, callee=entry_point, setup=setup)
    if not base:
        raise RowError("no tests: test_list holds no assert")
    plus = parse_tests(challenges, callee=entry_point, setup=setup, what="challenge test")
    shown = next(source.strip() for source in asserts if parse_tests([source], callee=entry_point))
    return Task(
        task_id=number if isinstance(number, str) and "/" in number else f"Mbpp/{number}",
        benchmark="mbpp",
        instruction=_instruction(row),
        contract="\n".join(part for part in (setup, shown) if part),
        base=TestSuite("base", base),
        plus=TestSuite("plus", plus) if plus else None,
        entry_point=entry_point,
        canonical_solution=code,
        metadata={"visible_tests": 1, "whole_asserts": count_whole(base + plus)} | _fault(number),
    )


def _fault(number: int | str) -> dict[str, object]:
    reason = FAULTY.get(f"Mbpp/{number}")
    return {"faulty": reason} if reason else {}


def _instruction(row: Row) -> str:
    # The hand-verified file calls the same sentence `prompt`.
    text = text_of(row, "text" if "text" in row else "prompt").strip()
    if not text:
        raise RowError("the problem text is empty")
    return text


def _entry_point(row: Row, asserts: list[str], code: str) -> str:
    given = row.get("entry_point")
    if isinstance(given, str) and given.isidentifier():
        return given
    called = called_names(asserts)
    tree = parse_quietly(code)
    body = tree.body if tree else []
    defined = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    chosen = next((name for name in called if name in defined), called[0] if called else None)
    if chosen is None:
        parse_tests(asserts, callee="")  # says which of them is not Python, where that is why
        raise RowError("no tests: no assert of test_list calls a function")
    return chosen


def mbpp_plus_task(row: Row) -> Task:
    """A task of MBPP+: base and plus inputs, whose expected values the canonical solution decides.

    Raises:
        RowError: when the row lacks a key or base inputs, or an input has not the types the task needs.
    """
    task_id, entry_point = text_of(row, "task_id"), text_of(row, "entry_point")
    try:
        number = mbpp_number(task_id)
    except ValueError as error:
        raise RowError("key 'task_id' must end in a number") from error
    if entry_point in _AS_SETS:
        comparison = Comparison.SET
    elif entry_point in _NOT_NONE:
        comparison = Comparison.NOT_NONE
    else:
        comparison = Comparison.EQUAL
    suites = [
        input_suite(
            row,
            name,
            comparison=comparison,
            restore=restore_arguments(number),
            alternatives=_ALTERNATIVES.get(entry_point),
        )
        for name in ("base", "plus")
    ]
    base, plus = suites
    if base is None:
        raise RowError("no tests: base_input is empty")
    instruction, contract = _split_prompt(text_of(row, "prompt"))
    return Task(
        task_id=task_id,
        benchmark="mbpp_plus",
        instruction=instruction,
        contract=contract,
        base=base,
        plus=plus,
        entry_point=entry_point,
        canonical_solution=text_of(row, "canonical_solution").strip("\n") + "\n",
        metadata={"visible_tests": contract.count("assert "), "whole_asserts": 0},
    )


def _split_prompt(prompt: str) -> tuple[str, str]:
    lines = prompt.strip().removeprefix('"""').removesuffix('"""').strip().split("\n")
    start = next((index for index, line in enumerate(lines) if line.startswith("assert ")), len(lines))
    instruction, contract = "\n".join(lines[:start]).strip(), "\n".join(lines[start:]).strip()
    if not instruction:
        raise RowError("the problem text is empty")
    return instruction, contract


def _surface_by_height(args: tuple[object, ...]) -> tuple[object, ...]:
    """The surface of a square pyramid where the second argument is read as its height, not its slant height."""
    edge, height = args
    if not isinstance(edge, (int, float)) or not isinstance(height, (int, float)):
        raise TypeError("edge and height must be numbers")
    slant = math.sqrt((edge / 2) ** 2 + height**2)
    return (round(edge**2 + 4 * (edge * slant) / 2),)


def _distance_of_padded_digits(args: tuple[object, ...]) -> tuple[object, ...]:
    """The sum of digit differences where the shorter number is padded with zeros on the left."""
    first, second = (str(number) for number in args)
    width = max(len(first), len(second))
    pairs = zip(first.zfill(width), second.zfill(width), strict=True)
    return (sum(abs(int(a) - int(b)) for a, b in pairs),)


_ALTERNATIVES: Final[dict[str, Callable[[tuple[object, ...]], tuple[object, ...]]]] = {
    # The text leaves both readings open, so both answers are right (Mbpp/581, 558).
    "surface_Area": _surface_by_height,
    "digit_distance_nums": _distance_of_padded_digits,
    # In older releases of MBPP+ (Mbpp/164, 295).
    "are_equivalent": lambda _: (True, False),
    "sum_div": lambda _: (0,),
}
