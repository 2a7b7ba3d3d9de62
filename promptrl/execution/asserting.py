"""Which assertions can be kept outside the candidate's process, and which have to run beside its code."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from promptrl.execution.preamble import PREAMBLE
from promptrl.tasks.asserts import constant_value
from promptrl.tasks.task import AssertTest

_PLAIN_METHODS: Final = frozenset(
    name
    for kind in (int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
    for name in dir(kind)
    if not name.startswith("_")
)


def needs_objects(test: AssertTest) -> bool:
    """Whether the test handles objects of the candidate's own classes, passes it functions, or sets up a module.

    Only the test's text decides, never the candidate. Such a test runs in the candidate's process, where code written
    to deceive could report that it held; every other test runs in a process of its own and exchanges plain data.
    """
    try:
        tree = ast.parse(f"{test.setup}\n{test.source}")
    except (SyntaxError, ValueError):
        return False
    modules = _imported(ast.parse(PREAMBLE)) | _imported(tree)
    for statement in tree.body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute() as called)) if _root(called) in modules:
                return True  # `random.seed(5)` is meant for the candidate's process
    trusted = modules | set(dir(builtins))
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            return True
        if isinstance(node, ast.Name) and node.id[:1].isupper() and node.id not in trusted and node.id not in own:
            return True
        if isinstance(node, ast.Attribute) and node.attr not in _PLAIN_METHODS and _root(node) not in trusted:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Question:
    """An assertion `expression == constant`, taken apart: the expression is worked out inside, and compared outside."""

    before: str
    """Statements that come first."""
    expression: str
    expected: object
    identity: bool
    """Whether the assertion says `is`."""


Place = Literal["apart", "inside"] | Question


@lru_cache(4096)
def place_of(test: AssertTest) -> Place:
    """Where the test runs: in a process apart, or beside the candidate's code, there if possible as a question only."""
    if not needs_objects(test):
        return "apart"
    return _question(test.source) or "inside"


def _question(source: str) -> Question | None:
    try:
        *before, last = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    match last:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as sign], comparators=[right])):
            for expression, constant in ((left, right), (right, left)):
                try:
                    expected = constant_value(constant)
                except ValueError:
                    continue
                identity = isinstance(sign, ast.Is)
                if identity and not (expected is None or isinstance(expected, bool)):
                    return None
                text = "\n".join(map(ast.unparse, before))
                return Question(text, ast.unparse(expression), expected, identity)
    return None


def _imported(tree: ast.AST) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _root(node: ast.AST) -> str:
    while True:
        if isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return node.id if isinstance(node, ast.Name) else ""
