"""Reads test files: for pytest as files that go together, or as plain asserts taken apart."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from promptrl.errors import TaskError
from promptrl.refining.stub import parse_python, read_text
from promptrl.tasks.asserts import fault_of, says, statements_to_tests
from promptrl.tasks.benchmark import RowError
from promptrl.tasks.task import PytestFiles, Test

_MOST_BYTES: Final = 8 * 2**20
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True, slots=True)
class _Files:
    """Files by their path, and those of them that pytest is given."""

    contents: dict[Path, bytes]
    targets: tuple[Path, ...]


def needs_pytest(paths: Sequence[Path]) -> bool:
    """Whether test files are for pytest: a folder, or a file with functions or classes named like tests.

    Raises:
        TaskError: a file is missing or is not Python.
    """
    return any(path.is_dir() or _has_test_functions(parse_python(read_text(path), path)) for path in paths)


def read_asserts(paths: Sequence[Path], *, module: str | None, entry_point: str) -> tuple[Test, ...]:
    """The tests of files of plain asserts, without the line that imports the answer.

    Raises:
        TaskError: a file is not Python, or holds nothing that could fail because of the answer.
    """
    tests: list[Test] = []
    for path in paths:
        tree = parse_python(read_text(path), path)
        body = [line for line in tree.body if not _imports(line, module or entry_point, entry_point)]
        source = "\n".join(ast.unparse(line) for line in body)
        try:
            if (fault := fault_of(source, callee=entry_point)) is not None:
                raise TaskError(f"{path}: {fault}")
        except RowError as error:
            raise TaskError(f"{path}: {error}") from error
        if not says(source, entry_point):
            raise TaskError(f"{path}: no test calls {entry_point!r}, the function to be written")
        tests += statements_to_tests(body, callee=entry_point)
    return tuple(tests)


def read_pytest(
    tests: Sequence[Path], hold_out: Sequence[Path], *, stub: Path | None, entry_point: str
) -> tuple[PytestFiles, PytestFiles | None]:
    """The files that pytest needs: those given, each conftest.py beside them, and modules beside them that they import.

    Args:
        tests: Files or folders; of a folder everything below it is taken, data files included.
        hold_out: Likewise, for tests that are kept back; what only they need is not among the first.
        stub: The stub's file, which is left out, and whose name the answer is imported by.
        entry_point: The function; decides the module's name where there is no stub.

    Returns:
        The files of the tests, and of those kept back.

    Raises:
        TaskError: a file is missing, not Python or too large, or no file imports the answer.
    """
    groups = [_gather(paths, stub) for paths in (tests, hold_out) if paths]
    for group, paths in zip(groups, (tests, hold_out), strict=False):
        if not any(path.suffix == ".py" for path in group.contents):
            names = ", ".join(str(path) for path in paths)
            raise TaskError(f"{names}: holds no Python file; pytest looks for test_*.py and *_test.py")
    base = Path(os.path.commonpath([path.parent for group in groups for path in group.contents]))
    module = _module_name([g.contents for g in groups], stub.stem if stub else None, entry_point, tests)
    made = [
        PytestFiles(
            module,
            tuple((path.relative_to(base).as_posix(), content) for path, content in group.contents.items()),
            tuple(path.relative_to(base).as_posix() for path in group.targets),
        )
        for group in groups
    ]
    return made[0], made[1] if len(made) > 1 else None


def _has_test_functions(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"))
        or (isinstance(node, ast.ClassDef) and _is_test_class(node))
        for node in tree.body
    )


def _is_test_class(node: ast.ClassDef) -> bool:
    return node.name.startswith("Test") or any("TestCase" in ast.unparse(base) for base in node.bases)


def _gather(paths: Sequence[Path], stub: Path | None) -> _Files:
    left_out = None if stub is None else stub.resolve()
    contents: dict[Path, bytes] = {}
    targets: list[Path] = []
    total = 0
    pending: list[Path] = []
    for path in paths:
        resolved = path.resolve()
        if resolved.is_dir():
            pending += _below(resolved)
            targets.append(resolved)
        else:
            pending.append(resolved)
            if _has_test_functions(parse_python(read_text(path), path)):
                targets.append(resolved)
    while pending:
        path = pending.pop(0)
        if path == left_out or path in contents or not path.is_file():
            continue
        content = _read(path)
        total += len(content)
        if total > _MOST_BYTES:
            raise TaskError(f"{path}: the test files are larger than {_MOST_BYTES // 2**20} MB together")
        contents[path] = content
        if path.suffix == ".py":
            tree = parse_python(content.decode("utf-8-sig", "replace"), path)
            pending += [path.with_name("conftest.py"), path.with_name("__init__.py")]
            pending += [path.with_name(f"{name}.py") for name in _imported(tree)]
    return _Files(contents, tuple(targets))


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") or part in _LEFT_OUT for part in parts):
            yield path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror or error}") from error


def _imported(tree: ast.Module) -> list[str]:
    """Modules without dots that a file imports, those beside it (`from .helpers import x`) included."""
    names: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names += [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module)):
                names.append(module)
            case ast.ImportFrom(module=None, names=aliases):
                names += [alias.name for alias in aliases]
    return [name for name in names if "." not in name]


def _imports(statement: ast.stmt, module: str, entry_point: str) -> bool:
    """Whether a line imports the answer: its module, or the function from wherever."""
    match statement:
        case ast.Import(names=aliases):
            return any(alias.name.rpartition(".")[2] == module for alias in aliases)
        case ast.ImportFrom(names=aliases):
            return any(alias.name == entry_point for alias in aliases)
    return False


def _module_name(groups: Sequence[dict[Path, bytes]], stem: str | None, entry_point: str, paths: Sequence[Path]) -> str:
    """The name by which the tests import the answer: the stub's, or that of whatever they import the function from."""
    trees = [
        ast.parse(content.decode("utf-8-sig", "replace"))
        for group in groups
        for path, content in group.items()
        if path.suffix == ".py"
    ]
    wanted = stem or entry_point
    found: list[str] = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Import(names=aliases):
                found += [alias.name for alias in aliases if alias.name.rpartition(".")[2] == wanted]
            case ast.ImportFrom(module=str(module), names=aliases):
                if module.rpartition(".")[2] == wanted or (
                    stem is None and any(alias.name == entry_point for alias in aliases)
                ):
                    found.append(module)
    if not found:
        names = ", ".join(str(path) for path in paths)
        what = f"the stub's module {stem!r}" if stem else f"the function {entry_point!r}"
        raise TaskError(f"{names}: no test imports {what}; write `from {wanted} import {entry_point}` into it")
    if len(set(found)) > 1:
        raise TaskError(f"the tests import the answer under different names: {', '.join(sorted(set(found)))}")
    return found[0]
