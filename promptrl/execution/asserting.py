"""Which assertions can be kept outside the candidate's process, and which have to run beside its code."""

from __future__ import annotations

import ast
import builtins
from typing import Final

from promptrl.execution.preamble import PREAMBLE
from promptrl.tasks.task import AssertTest

_PLAIN_METHODS: Final = frozenset(
    name
    for kind in (int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
    for name in dir(kind)
    if not name.startswith("_")
)


def needs_objects(test: AssertTest) -> bool:
    """Whether the test handles objects of the candidate's own classes, or passes it functions.

    Only the test's text decides, never the candidate. Such a test runs in the candidate's process, where code written
    to deceive could report that it held; every other test runs in a process of its own and exchanges plain data.
    """
    try:
        tree = ast.parse(f"{test.setup}\n{test.source}")
    except (SyntaxError, ValueError):
        return False
    trusted = _imported(ast.parse(PREAMBLE)) | _imported(tree) | set(dir(builtins))
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
