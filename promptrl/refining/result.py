"""What a refinement comes to, as plain data and as code that stands on its own."""

from __future__ import annotations

import ast
import builtins
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from promptrl.evaluation.records import Record, step_record
from promptrl.execution import Verdict
from promptrl.execution.preamble import PREAMBLE
from promptrl.refinement.episode import Episode, shown_test
from promptrl.refining.loop import Run
from promptrl.tasks.task import PytestTest, TestSuite

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class TestReport:
    """One test's outcome: its name, `passed`, `wrong`, `exception`, `timeout` or `crashed`, and a line on why."""

    __test__ = False  # not a test class of pytest

    name: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """How one piece of code does on some tests."""

    passed: int
    total: int
    tests: tuple[TestReport, ...]


@dataclass(frozen=True, slots=True)
class Refinement:
    """What came of one task.

    Attributes:
        task_id: The task.
        solved: Whether the chosen code passes all tests that were not kept back.
        code: The chosen code, ready to import: that of the first step with the most tests passed. None where no
            answer held code, or none was asked for.
        prompt: The prompt that led to it.
        first_prompt: The unrefined prompt.
        best_step: Its step, from 0; None where no step was taken.
        tests: Its outcomes on the tests that rewarded; None where no step was taken.
        hold_out: Its outcomes on the tests that were kept back; None where there were none, or no step was taken.
        stopped: Why it ended: `solved`, `steps`, `method`, a cap (`calls`, `tokens`, `seconds`) or `interrupted`.
        refused: Calls or tokens that the step might have taken for which their cap left no room, else None.
        steps: One record per step, as in a run's records, with the name and detail of each test's outcome besides.
        method: Who chose the actions.
        model: The code model's name.
        seed: Of everything drawn.
        calls: Model calls, rewriting included; likewise the tokens and the seconds of model time.
    """

    task_id: str
    solved: bool
    code: str | None
    prompt: str
    first_prompt: str
    best_step: int | None
    tests: Suite | None
    hold_out: Suite | None
    stopped: str
    refused: int | None
    steps: tuple[Record, ...]
    method: str
    model: str
    seed: int
    calls: int
    tokens_in: int
    tokens_out: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}


def refinement_of(run: Run, *, method: str, model: str, seed: int, stopped: str | None = None) -> Refinement:
    """What a run has come to so far."""
    episode, ledger = run.episode, run.ledger
    best = episode.best
    return Refinement(
        task_id=episode.task.task_id,
        solved=best is not None and best.verdict.pass_rate == 1.0,
        code=None if best is None or best.code is None else standalone(best.code, episode.task.entry_point),
        prompt=(best.prompt if best is not None else episode.original).render(),
        first_prompt=episode.original.render(),
        best_step=None if best is None else best.index,
        tests=None if best is None else _suite(episode.suite, best.verdict, episode.task.entry_point),
        hold_out=(
            None
            if run.hold_out is None or episode.task.plus is None
            else _suite(episode.task.plus, run.hold_out, episode.task.entry_point)
        ),
        stopped=stopped or run.stop or "running",
        refused=run.refused,
        steps=_records(episode, run, method, seed),
        method=method,
        model=model,
        seed=seed,
        calls=ledger.calls,
        tokens_in=ledger.tokens_in,
        tokens_out=ledger.tokens_out,
        seconds=round(ledger.seconds, 3),
    )


def _records(episode: Episode, run: Run, method: str, seed: int) -> tuple[Record, ...]:
    records = [
        step_record(episode, step, method=method, seed=seed, episode_number=0)
        | {
            "outcomes": [
                asdict(report) for report in _suite(episode.suite, step.verdict, episode.task.entry_point).tests
            ]
        }
        for step in episode.steps
    ]
    if records and run.stop is not None:
        records[-1]["last"] = True
    return tuple(records)


def _suite(suite: TestSuite, verdict: Verdict, entry_point: str | None) -> Suite:
    reports = tuple(
        TestReport(
            test.node_id if isinstance(test, PytestTest) else shown_test(test, entry_point),
            result.outcome.value,
            result.detail,
        )
        for test, result in zip(suite, verdict.results, strict=True)
    )
    return Suite(verdict.tests_passed, verdict.tests_total, reports)


def standalone(code: str, entry_point: str | None = None) -> str:
    """The code with what a forgiving judge supplies written out: common imports, and a function for a method.

    Args:
        code: A program that the judge accepts.
        entry_point: The function that has to be there.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # kept as the model wrote it; it passes nothing
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    methods: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name):
                bound.add(name)
            case ast.Import(names=aliases):
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
            case ast.ImportFrom(names=aliases):
                bound |= {alias.asname or alias.name for alias in aliases}
    supplied = _supplied()
    lines: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in supplied and node.id not in bound and node.id not in _BUILTINS:
            lines.setdefault(supplied[node.id])
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Solution":
            methods = {inner.name for inner in statement.body if isinstance(inner, ast.FunctionDef)}
    text = code.rstrip() + "\n"
    top = {name for statement in tree.body for name in _names_of(statement)}
    if entry_point in methods and entry_point not in top:
        text += f"\n\n{entry_point} = Solution().{entry_point}\n"
    return _after_future(text, tree, sorted(lines)) if lines else text


_BUILTINS = frozenset(dir(builtins))


@lru_cache(1)
def _supplied() -> dict[str, str]:
    """Per name that the judge supplies the line that imports it."""
    found: dict[str, str] = {}
    for statement in ast.parse(PREAMBLE).body:
        match statement:
            case ast.Import(names=aliases):
                found.update((alias.name, f"import {alias.name}") for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases):
                found.update((alias.name, f"from {module} import {alias.name}") for alias in aliases)
    return found


def _names_of(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
    return []


def _after_future(text: str, tree: ast.Module, lines: list[str]) -> str:
    """Put import lines at the top, but after a docstring and `from __future__` imports."""
    place = 0
    for index, statement in enumerate(tree.body):
        match statement:
            case ast.Expr(value=ast.Constant(value=str())) if index == 0:
                place = statement.end_lineno or 0
            case ast.ImportFrom(module="__future__"):
                place = statement.end_lineno or 0
            case _:
                break
    before, after = text.split("\n")[:place], text.split("\n")[place:]
    gap = [] if after[:1] and after[0].startswith(("import ", "from ")) else ["", ""]
    return "\n".join([*before, *lines, *gap, *after])
