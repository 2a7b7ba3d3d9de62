"""Reads a stub: a Python file with one function that has a signature, a docstring, and no body yet."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from sys import stdlib_module_names
from typing import Final

from promptrl.errors import TaskError
from promptrl.execution.source import is_trivial

_TAKEN: Final = frozenset(stdlib_module_names) | {
    "pytest",
    "_pytest",
    "pluggy",
    "py",
    "iniconfig",
    "packaging",
    "pygments",
}
"""Names that the tests' own process needs for itself."""


@dataclass(frozen=True, slots=True)
class Stub:
    """A stub file.

    Attributes:
        module: The file's name without its ending: what tests import from.
        entry_point: The function to be written.
        code: The file as it is.
        prompt: The same with the function last and without what stands for its body, as an answer continues it.
    """

    module: str
    entry_point: str
    code: str
    prompt: str


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        TaskError: it is missing, cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: is not UTF-8 text") from error
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_python(text: str, path: Path) -> ast.Module:
    """The tree of a file's text.

    Raises:
        TaskError: it is not Python; the message names the file and the line.
    """
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise TaskError(f"{path}, line {error.lineno}: is not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"{path}: is not Python: {error}") from error


def read_stub(path: Path, entry_point: str | None = None) -> Stub:
    """Read a stub file.

    Args:
        path: The file; imports, constants and helpers may stand beside the function.
        entry_point: The function to be written; where unset, the only one without a body.

    Raises:
        TaskError: there is no such function, it has a body already, or it has no docstring.
    """
    text = read_text(path)
    tree = parse_python(text, path)
    if not path.stem.isidentifier():
        raise TaskError(f"{path}: tests import the stub by its file's name, and {path.stem!r} is no name in Python")
    if path.stem in _TAKEN:
        raise TaskError(f"{path}: is named like a module of Python or pytest; give the stub another name")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    function = _choose(path, functions, entry_point)
    if ast.get_docstring(function) is None:
        raise TaskError(f"{path}: the function {function.name!r} has no docstring that says what it is to do")
    prompt = _with_function_last(text, function)
    parse_python(prompt, path)
    return Stub(path.stem, function.name, text, prompt)


def _choose(path: Path, functions: dict[str, ast.FunctionDef], entry_point: str | None) -> ast.FunctionDef:
    known = ", ".join(functions) or "no function at its top level"
    if entry_point is not None:
        if entry_point not in functions:
            raise TaskError(f"{path}: defines no function {entry_point!r}; it has {known}")
        if not is_trivial(functions[entry_point]):
            raise TaskError(
                f"{path}: the function {entry_point!r} has a body already; leave its docstring and `...` only"
            )
        return functions[entry_point]
    empty = [function for function in functions.values() if is_trivial(function)]
    if len(empty) == 1:
        return empty[0]
    if not empty:
        raise TaskError(
            f"{path}: needs a function with a signature, a docstring and no body (nothing more, `...`, `pass` or "
            f"`raise NotImplementedError`); it has {known}"
        )
    raise TaskError(
        f"{path}: has {len(empty)} functions without a body ({', '.join(f.name for f in empty)}); say which one with "
        "--entry-point"
    )


def _with_function_last(text: str, function: ast.FunctionDef) -> str:
    lines = text.split("\n")
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
    docstring = function.body[0]
    last = docstring.end_lineno or docstring.lineno
    # Columns count bytes.
    end = lines[last - 1].encode()[: docstring.end_col_offset].decode()
    head = "\n".join([*lines[first : last - 1], end] if last - 1 > first else [end])
    around = "\n".join(lines[:first]), "\n".join(lines[function.end_lineno or last :])
    parts = [*(part.strip("\n") for part in around if part.strip()), head]
    return "\n\n\n".join(parts) + "\n"
