"""HumanEval and HumanEval+: 164 functions to complete from a signature and a docstring."""

from __future__ import annotations

import ast
from typing import Final

from promptrl.tasks.asserts import count_whole, statements_to_tests
from promptrl.tasks.benchmark import Row, RowError, text_of
from promptrl.tasks.docstring import split_prompt
from promptrl.tasks.plus import input_suite
from promptrl.tasks.task import Comparison, Task, Test, TestSuite

_COMPARISONS: Final = {"HumanEval/32": Comparison.POLYNOMIAL_ROOT}
"""Tasks of HumanEval+ whose answer is not unique: any root of the polynomial will do."""


def human_eval_task(row: Row) -> Task:
    """A task of HumanEval: its asserts are the base suite, and there is no plus suite.

    Raises:
        RowError: when the row lacks a key, does not parse or holds no test.
    """
    task_id, prompt, entry_point = text_of(row, "task_id"), text_of(row, "prompt"), text_of(row, "entry_point")
    tests = check_function_tests(text_of(row, "test"), entry_point=entry_point, stub=prompt)
    if not tests:
        raise RowError("no tests: check() holds no assert on the candidate")
    return _task(row, "humaneval", TestSuite("base", tests), None, task_id, prompt, entry_point)


def human_eval_plus_task(row: Row) -> Task:
    """A task of HumanEval+: base and plus inputs, whose expected values the canonical solution decides.

    Raises:
        RowError: when the row lacks a key or base inputs.
    """
    task_id, prompt, entry_point = text_of(row, "task_id"), text_of(row, "prompt"), text_of(row, "entry_point")
    comparison = _COMPARISONS.get(task_id, Comparison.EQUAL)
    base = input_suite(row, "base", comparison=comparison)
    if base is None:
        raise RowError("no tests: base_input is empty")
    plus = input_suite(row, "plus", comparison=comparison)
    return _task(row, "humaneval_plus", base, plus, task_id, prompt, entry_point)


def _task(
    row: Row, benchmark: str, base: TestSuite, plus: TestSuite | None, task_id: str, prompt: str, entry_point: str
) -> Task:
    try:
        instruction, contract = split_prompt(prompt, entry_point)
    except (SyntaxError, ValueError) as error:
        raise RowError(f"the prompt cannot be split: {error}") from error
    return Task(
        task_id=task_id,
        benchmark=benchmark,
        instruction=instruction,
        contract=contract,
        base=base,
        plus=plus,
        entry_point=entry_point,
        canonical_solution=prompt + text_of(row, "canonical_solution"),
        stub=prompt,
        metadata={
            # The docstring's examples are often, but not always, among the tests.
            "visible_tests": _visible(contract, base, entry_point),
            "whole_asserts": count_whole(base.tests),
        },
    )


def check_function_tests(test: str, *, entry_point: str, stub: str) -> tuple[Test, ...]:
    """The tests of HumanEval's `check(candidate)`, one for each assert or loop of its body.

    What is not call → value runs whole, after the test file's own helpers and the helpers that the
    prompt gives beside the function (HumanEval/32, 38 and 50 need them).

    Raises:
        RowError: when the text is not Python or has no `check`.
    """
    try:
        module, stub_module = ast.parse(test), ast.parse(stub)
    except (SyntaxError, ValueError) as error:
        raise RowError(f"the test is not Python: {error}") from error
    check = next((node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "check"), None)
    if check is None or not check.args.args:
        raise RowError("the test has no function check(candidate)")
    helpers = [node for node in stub_module.body if _is_helper(node, entry_point)]
    helpers += [node for node in module.body if node is not check and not _is_metadata(node)]
    setup = "\n".join(ast.unparse(node) for node in helpers)
    callee = check.args.args[0].arg
    return tuple(statements_to_tests(check.body, callee=callee, entry_point=entry_point, setup=setup))


def _is_helper(node: ast.stmt, entry_point: str) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name != entry_point
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _is_metadata(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id="METADATA")]):
            return True
    return False


def _visible(contract: str, base: TestSuite, entry_point: str) -> int:
    """How many base tests the prompt shows, judged by the text of their arguments."""
    shown = "".join(contract.split()).replace('"', "'")
    count = 0
    for test in base:
        args = getattr(test, "args", None)
        if args is not None:
            call = f"{entry_point}({','.join(repr(argument) for argument in args)})"
            count += "".join(call.split()).replace('"', "'") in shown
    return count
