"""`promptrl export`: a method's answers as the field's sample files, one line per task, to be judged anywhere.

Runs are judged by a forgiving judge, which supplies common imports and lets `class Solution` stand in for a missing
function. EvalPlus, HumanEval and `promptrl check` do neither, so what was supplied is written into the solution.
"""

from __future__ import annotations

import ast
import json
import re
import symtable
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from promptrl.atomic import write_atomically
from promptrl.errors import RunError
from promptrl.evaluation.outcomes import answers
from promptrl.evaluation.run_folders import StudyRun
from promptrl.execution.preamble import PREAMBLE

_DYNAMIC: Final = re.compile(r"\b(?:eval|exec|globals|locals|vars)\s*\(")


def export_samples(run_dir: Path, method: str, output: Path) -> int:
    """Write the answers of one method of a run: JSON lines with `task_id` and `solution`, in the order of the tasks.

    A task's answer is the code that its own reward tests picked. An answer without code is an empty solution.

    Args:
        run_dir: a run folder.
        method: one of the methods evaluated in it.
        output: the file to write; it is whole or not there.

    Returns:
        The number of lines.

    Raises:
        RunError: when the folder cannot be read, holds no finished evaluation of the method, or `output` cannot be
            written, lies in the folder's records or is a file of another kind.
    """
    run = StudyRun(run_dir)
    if method not in run.methods:
        raise RunError(f"{run_dir} holds no evaluation of {method!r}; it has {', '.join(run.methods) or 'none'}")
    if output.resolve().parent == (run_dir / "evaluation").resolve():
        raise RunError(f"{output} lies among the records of the run; give another --output")
    _refuse_other_file(output)
    run.outcomes(method)  # refuses an unfinished evaluation
    found = answers(run.records(method))
    for key in ("code", "episode"):
        if lacking := [task_id for task_id, record in found.items() if key not in record]:
            raise RunError(f"a record of {method!r} in {run_dir} has no {key} ({lacking[0]}), which a sample needs")
    lines = [
        json.dumps({"task_id": task_id, "solution": self_sufficient(record["code"] or "")}) + "\n"
        for task_id, record in sorted(found.items(), key=lambda item: int(item[1]["episode"]))
    ]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(output) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{output} cannot be written ({error.strerror or type(error).__name__})") from error
    return len(lines)


def _refuse_other_file(path: Path) -> None:
    """Samples are written over samples, and over nothing else: a slip must not cost a run its configuration."""
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            line = file.readline(10**7)
        first = json.loads(line or "{}")
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        first = None
    if line and not (isinstance(first, dict) and "task_id" in first and first.keys() & {"solution", "completion"}):
        raise RunError(f"{path} exists and is no file of samples; give another --output")


def self_sufficient(code: str) -> str:
    """The code with what a forgiving judge supplied to it written down; code that lacks nothing comes back as it is.

    Imports come after those from `__future__`, before anything else runs.
    """
    try:
        tree = ast.parse(code)
        names = _global_names(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # it is judged wrong with imports, too
    if _DYNAMIC.search(code):  # names may be in strings
        names |= set(re.findall(r"\w+", code))
    names -= _imported_first(tree)
    imports = [line for name, line in _SUPPLIED.items() if name in names]
    methods = [f"{name} = Solution().{name}" for name in _methods_of_solution(tree)]
    if not imports and not methods:
        return code
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # as Python's parser counts them
    head = _end_of_head(tree)
    return "\n".join([*lines[:head], *imports, *lines[head:], *methods])


def _supplied() -> Iterator[tuple[str, str]]:
    """Every name that the forgiving judge supplies, and the import that gives it."""
    for node in ast.parse(PREAMBLE).body:
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, ast.unparse(ast.Import([alias]))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, ast.unparse(ast.ImportFrom(node.module, [alias], 0))


_SUPPLIED: Final = dict(_supplied())


def _global_names(code: str) -> set[str]:
    """The names that a module looks up in its globals, wherever in it."""
    found: set[str] = set()
    tables = [symtable.symtable(code, "<solution>", "exec")]
    while tables:
        table = tables.pop()
        module = table.get_type() == "module"
        # In a class a name that is bound there may still be looked up outside, before it is bound.
        outer = module or table.get_type() == "class"
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (outer or symbol.is_global())
        }
        tables += table.get_children()
    return found


def _imported_first(tree: ast.Module) -> set[str]:
    """The names bound by the imports that the module begins with, before anything else runs."""
    names: set[str] = set()
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif number or not _is_text(node):
            break
    return names


def _end_of_head(tree: ast.Module) -> int:
    """The number of lines up to the end of the imports from `__future__`, before which no other import may stand."""
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    return max((node.end_lineno or 0 for node in futures), default=0)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _methods_of_solution(tree: ast.Module) -> list[str]:
    """The methods of a `class Solution` for which the module has no function of the same name."""
    bound = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    bound |= {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
              if isinstance(target, ast.Name)}  # fmt: skip
    solution = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Solution"), None)
    body = solution.body if solution else []
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in bound
    ]
