"""Takes assert statements apart into call and expected value, so that the comparison can happen outside the sandbox."""

from __future__ import annotations

import ast
import copy
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Final

from promptrl.tasks.benchmark import RowError
from promptrl.tasks.dependence import Dependence, holds_tuple_assert
from promptrl.tasks.task import AssertTest, CallTest, Comparison, Test

_LARGEST: Final = 1_000_000
"""Bound on the numbers and lengths that constant arithmetic in a test may produce."""

_ARITHMETIC: Final[dict[type[ast.operator], Callable[[complex, complex], object]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
}
_CONSTRUCTORS: Final[dict[str, Callable[..., object]]] = {
    "set": set,
    "frozenset": frozenset,
    "tuple": tuple,
    "list": list,
    "dict": dict,
    "float": float,
    "complex": complex,
}
_PURE: Final = frozenset(
    {*_CONSTRUCTORS, "abs", "bool", "bytes", "enumerate", "int", "len", "max", "min", "range", "reversed", "round"}
) | {"sorted", "str", "sum", "zip"}
"""Functions that give the same again and change nothing, whatever the answer does."""


def constant_value(node: ast.expr) -> object:
    """The value of an expression made of literals, signs, simple arithmetic and plain constructors.

    Nothing is ever executed: `2.0 / 3.0`, `[0] * 5` and `set([1, 2])` are worked out here, names are refused.

    Raises:
        ValueError: when the expression is anything else, or fails.
    """
    try:
        return _constant(node)
    except (TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _constant(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=value) if value is not Ellipsis:
            return value
        case ast.List(elts=items):
            return [_constant(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_constant(item) for item in items)
        case ast.Set(elts=items):
            return {_constant(item) for item in items}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_constant(key): _constant(value) for key, value in zip(keys, values, strict=True) if key}
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not() as sign, operand=operand):
            inner = _constant(operand)
            if isinstance(sign, ast.Not):
                return not inner
            return -_number(inner) if isinstance(sign, ast.USub) else +_number(inner)
        case ast.BinOp(left=left, op=sign, right=right):
            return _arithmetic(_constant(left), sign, _constant(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CONSTRUCTORS:
            return _CONSTRUCTORS[name](*(_constant(argument) for argument in arguments))
    raise ValueError(f"{ast.unparse(node)[:80]} is not a constant")


def _number(value: object) -> complex:
    if isinstance(value, (int, float, complex)):
        return value
    raise ValueError(f"{value!r} is not a number")


def _arithmetic(left: object, sign: ast.operator, right: object) -> object:
    if isinstance(sign, ast.Mult):
        if isinstance(left, (list, tuple, str)) and isinstance(right, int):
            if len(left) * right > _LARGEST:
                raise ValueError("the value is too long")
            return left * right
        return _number(left) * _number(right)
    if isinstance(sign, ast.Add) and isinstance(left, (list, tuple, str)) and type(left) is type(right):
        return left + right  # type: ignore[operator]  # same type on both sides
    if isinstance(sign, ast.Pow):
        if isinstance(left, int) and isinstance(right, int) and abs(left) <= _LARGEST and 0 <= right <= 1000:
            return left**right
        raise ValueError("the power is too large")
    if type(sign) in _ARITHMETIC:
        return _ARITHMETIC[type(sign)](_number(left), _number(right))
    raise ValueError(f"operator {type(sign).__name__} is not worked out")


def split_assert(node: ast.stmt, callee: str) -> CallTest | None:
    """The call and the expected value of one assert, or None where it has another form.

    Understood: `f(x) == y` (either way round), `f(x) is None/True/False`, `f(x)`, `not f(x)`,
    `set(f(x)) == set(y)` and `abs(f(x) - y) < tolerance`, where arguments and expected values are constants.
    `is True` is judged like `== True`, as EvalPlus judges the same tests.

    Args:
        node: The statement.
        callee: The name that is called in it.
    """
    if not isinstance(node, ast.Assert):
        return None
    try:
        return _split(node.test, callee)
    except ValueError:
        return None


def _split(test: ast.expr, callee: str) -> CallTest | None:
    if (args := _call_args(test, callee)) is not None:
        return CallTest(args, True, Comparison.TRUTH)
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand) if (args := _call_args(operand, callee)) is not None:
            return CallTest(args, False, Comparison.TRUTH)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as sign], comparators=[right]):
            if isinstance(sign, ast.Is) and not (
                isinstance(right, ast.Constant) and (right.value is None or isinstance(right.value, bool))
            ):
                return None
            return _equality(left, right, callee) or _equality(right, left, callee)
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() as sign], comparators=[bound]):
            kind = Comparison.BELOW if isinstance(sign, ast.Lt) else Comparison.WITHIN
            return _within(left, bound, kind, callee)
    return None


def _equality(answer: ast.expr, expected: ast.expr, callee: str) -> CallTest | None:
    if (args := _call_args(answer, callee)) is not None:
        return CallTest(args, constant_value(expected), float_leaves=True)
    match answer:
        case ast.Call(func=ast.Name(id="set"), args=[inner], keywords=[]):
            value = constant_value(expected)
            # On a set the two forms ask the same; `set(f(x)) == [1]` can never hold and is left to run whole.
            if isinstance(value, set) and (args := _call_args(inner, callee)) is not None:
                return CallTest(args, value, Comparison.SET)
    return None


def _within(left: ast.expr, bound: ast.expr, kind: Comparison, callee: str) -> CallTest | None:
    match left:
        case ast.Call(
            func=ast.Name(id="abs") | ast.Attribute(value=ast.Name(id="math"), attr="fabs"),
            args=[ast.BinOp(left=answer, op=ast.Sub(), right=expected)],
            keywords=[],
        ):
            args = _call_args(answer, callee)
            if args is None:
                answer, expected = expected, answer
                args = _call_args(answer, callee)
            tolerance, value = constant_value(bound), constant_value(expected)
            if args is not None and isinstance(tolerance, (int, float)) and isinstance(value, (int, float)):
                return CallTest(args, value, kind, atol=tolerance)
    return None


def _call_args(node: ast.expr, callee: str) -> tuple[object, ...] | None:
    match node:
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name == callee:
            if any(isinstance(argument, ast.Starred) for argument in arguments):
                return None
            return tuple(constant_value(argument) for argument in arguments)
    return None


def statements_to_tests(
    statements: Sequence[ast.stmt], *, callee: str, entry_point: str | None = None, setup: str = ""
) -> list[Test]:
    """One test per assert, in order; what is not of the form call → value becomes an `AssertTest`.

    Imports, definitions and constants are put before every later `AssertTest`, as the original would have run
    them. Where anything else stands between the asserts (`push(1)`, `random.seed(5)`, an assert on what a call
    changed), the statements are one test, run whole in their order. What cannot fail because of the answer
    tests nothing: asserts on constants, on tuples, in functions that are never called, are dropped.

    Args:
        statements: The body of the test.
        callee: The name by which the statements call the answer.
        entry_point: The name of the answer where it differs from `callee`; the statements are rewritten to it.
        setup: Code to run before every `AssertTest`.
    """
    entry_point = entry_point or callee
    statements = [line for line in _without_main_guards(statements) if not _only_names(line)]
    given = parse_quietly(setup) if setup else None
    known = Dependence(statements, callee, given.body if given else ())
    failing = [line for line in statements if known.can_fail(line)]
    if not failing:
        return []
    last = statements.index(failing[-1])
    if not all(
        known.stands_alone(line) if line in failing else _is_passive(line) or _is_vain(line)
        for line in statements[: last + 1]
    ):
        whole = "\n".join(ast.unparse(_renamed(line, callee, entry_point)) for line in statements)
        return [AssertTest(whole, setup)]
    tests: list[Test] = []
    before: list[str] = [setup] if setup else []
    for statement in statements[: last + 1]:
        source = ast.unparse(_renamed(statement, callee, entry_point))
        if statement not in failing:
            before += [] if _is_vain(statement) else [source]
        else:
            tests.append(split_assert(statement, callee) or AssertTest(source, "\n".join(before)))
    return tests


def _without_main_guards(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements, with what stands under `if __name__ == "__main__":` in its place."""
    lines: list[ast.stmt] = []
    for statement in statements:
        match statement:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]), body=body):
                lines += body
            case _:
                lines.append(statement)
    return lines


def _only_names(statement: ast.stmt) -> bool:
    """Whether a statement only names something: a docstring, `print` without brackets."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.Name)


def _is_vain(statement: ast.stmt) -> bool:
    """Whether leaving a statement out changes nothing: an assert that calls nothing, a text that is printed."""
    match statement:
        case ast.Pass():
            return True
        case ast.Assert(test=expression) | ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[expression])):
            return not any(isinstance(node, ast.Call) for node in ast.walk(expression))
    return False


def _is_passive(statement: ast.stmt) -> bool:
    """Whether a statement only prepares names: running it again before each test changes nothing else."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return all(
                isinstance(node.func, ast.Name) and node.func.id in _PURE
                for node in ast.walk(value)
                if isinstance(node, ast.Call)
            )
    return False


def _renamed(statement: ast.stmt, old: str, new: str) -> ast.stmt:
    if old == new:
        return statement
    statement = copy.deepcopy(statement)
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id == old:
            node.id = new
    return statement


def parse_tests(sources: Sequence[str], *, callee: str, setup: str = "", what: str = "test") -> tuple[Test, ...]:
    """The tests of a list of assert texts; blank and comment-only texts hold none.

    Raises:
        RowError: when a text is not Python.
    """
    tests: list[Test] = []
    for number, source in enumerate(sources, start=1):
        try:
            statements = ast.parse(source.strip()).body
        except (SyntaxError, ValueError) as error:
            raise RowError(f"{what} {number} is not Python: {error}") from error
        tests.extend(statements_to_tests(statements, callee=callee, setup=setup))
    return tuple(tests)


def fault_of(source: str, *, callee: str) -> str | None:
    """Why a test's text gives full marks to any answer, or None where it can fail.

    Raises:
        RowError: when the text is not Python.
    """
    tests = parse_tests([source], callee=callee)
    if holds_tuple_assert(ast.parse(source.strip()).body):
        return "asserts a tuple, which is always true; leave out the brackets around condition and message"
    if tests:
        return None
    if not source.strip():
        return "holds no test"
    if not re.search(rf"\b{re.escape(callee)}\b", source):
        return f"never calls {callee!r}"
    return (
        f"holds no assert that could fail because of what {callee!r} does; "
        "asserts in functions and classes count only where the test calls them"
    )


def says(source: str, name: str) -> bool:
    """Whether a text has a name as a word of its own; tests that never say the function's name call another one."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", source) is not None


def parse_quietly(source: str) -> ast.Module | None:
    """The tree of a program, or None where it does not parse; a bad escape in a benchmark's code warns nobody."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def called_names(sources: Sequence[str]) -> list[str]:
    """The plain names called in the texts, outermost first, each once; texts that do not parse are skipped."""
    names: dict[str, None] = {}
    for source in sources:
        tree = parse_quietly(source.strip())
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names.setdefault(node.func.id)
    return list(names)


def count_whole(tests: Sequence[Test]) -> int:
    """How many of the tests run whole inside the sandbox."""
    return sum(isinstance(test, AssertTest) for test in tests)
