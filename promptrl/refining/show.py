"""How a refinement goes, for people: live on a terminal, a line per step or task in a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from promptrl.refinement.episode import Step
from promptrl.refining.loop import Run
from promptrl.refining.output import diff_text
from promptrl.refining.result import Refinement, Suite
from promptrl.refining.session import Progress

WHY = {
    "solved": "all tests pass",
    "steps": "all steps were taken",
    "method": "the method gave up",
    "calls": "capped: --max-calls left no room for another step",
    "tokens": "capped: --max-tokens left no room for another step",
    "seconds": "capped: --max-seconds were over",
    "interrupted": "stopped by Ctrl-C",
}
"""Why a refinement ended, in words."""


class Lines(Progress):
    """One line per step; on a terminal also a bar."""

    def __init__(self, console: Console, bar: Bar | None, *, many: bool) -> None:
        self._console = console
        self._bar = bar
        self._many = many
        self._task = bar.add_task("", total=None, figures="") if bar is not None else None

    def expect(self, total: int, done: int = 0) -> None:
        """Say how many steps, or with many tasks how many tasks, there will be at most."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, completed=done)

    def stepped(self, run: Run, step: Step) -> None:
        episode, verdict = run.episode, step.verdict
        best = episode.best or step
        figures = f"best {best.verdict.tests_passed}/{best.verdict.tests_total} tests"
        if self._bar is not None and self._task is not None:
            if self._many:
                self._bar.update(self._task, figures=f"{episode.task.task_id}: {figures}")
            else:
                self._bar.update(self._task, completed=step.index + 1, figures=figures)
        if not self._many:
            why = f" ({shorten(verdict.error, 80, placeholder='…')})" if verdict.error else ""
            self._print(
                f"step {step.index + 1}/{episode.horizon}  {step.action:<8}  "
                f"{verdict.tests_passed}/{verdict.tests_total} tests{why}, {figures}"
                + (f"; {step.note}" if step.note else "")
            )

    def ended(self, refinement: Refinement, folder: Path | None) -> None:
        if not self._many:
            return
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1)
        self._print(f"{refinement.task_id}: {_score(refinement.tests)} tests, {why_stopped(refinement)}")

    def _print(self, text: str) -> None:
        console = self._bar.console if self._bar is not None else self._console
        console.print(Text(text), soft_wrap=True)


@contextmanager
def lines(console: Console, *, many: bool) -> Iterator[Lines]:
    """The lines on a console, with a bar while the block runs where it is a terminal."""
    if not console.is_terminal:
        yield Lines(console, None, many=many)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks" if many else "steps"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    with Bar(*columns, console=console) as bar:
        yield Lines(console, bar, many=many)


def print_result(refinement: Refinement, folder: Path, console: Console) -> None:
    """What came of one task: how far it got, the word diff of the prompt, and where the files are."""

    def say(text: str | Text) -> None:
        console.print(text if isinstance(text, Text) else Text(text), soft_wrap=True)

    if refinement.tests is None:
        say(f"no answer was asked for; {why_stopped(refinement)}")
        return
    step = (refinement.best_step or 0) + 1
    say(f"{_score(refinement.tests)} tests pass at step {step} of {len(refinement.steps)}; {why_stopped(refinement)}")
    if not refinement.tests.passed:
        say("no step passed a test: the first is kept, and its code is no better than the others'")
    for report in refinement.tests.tests:
        if report.outcome != "passed":
            say(f"  {report.name}: {report.outcome}" + (f": {report.detail}" if report.detail else ""))
    if refinement.hold_out is not None:
        say(f"{_score(refinement.hold_out)} of the tests held out pass")
    if refinement.prompt == refinement.first_prompt:
        say("the best prompt is the first one, unchanged")
    else:
        say("from the first prompt to the best:")
        say(diff_text(refinement.first_prompt, refinement.prompt, colour=console.is_terminal))
    say(
        f"{refinement.calls} model calls, {refinement.tokens_in} tokens in, {refinement.tokens_out} out, "
        f"{refinement.seconds:.0f} s of model time"
    )
    if refinement.stopped == "steps":
        say("more --steps, another --seed or a larger --model may help; docs/refine.md says what else")
    say(f"written: {folder / 'best.py' if refinement.code is not None else folder}")


def why_stopped(refinement: Refinement) -> str:
    """Why it ended, in words; after a cap with what another step might have taken."""
    if refinement.refused is None:
        return WHY[refinement.stopped]
    return f"{WHY[refinement.stopped]}, which may take {refinement.refused}"


def _score(suite: Suite | None) -> str:
    return "0 of 0" if suite is None else f"{suite.passed} of {suite.total}"


def summary_row(result: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One task's entry in `summary.json`, from its `refinement.json`."""
    tests, hold_out = result["tests"], result["hold_out"]
    return {
        "task_id": result["task_id"],
        "folder": folder.name,
        "solved": result["solved"],
        "stopped": result["stopped"],
        "steps": len(result["steps"]),
        "tests_passed": tests["passed"] if tests else 0,
        "tests_total": tests["total"] if tests else None,
        "hold_out_passed": hold_out["passed"] if hold_out else None,
        "hold_out_total": hold_out["total"] if hold_out else None,
        "calls": result["calls"],
        "tokens_in": result["tokens_in"],
        "tokens_out": result["tokens_out"],
        "seconds": result["seconds"],
    }


def print_summary(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """The table of many tasks."""
    table = Table()
    for column in ("task", "tests", "held out", "steps", "calls", "tokens", "ended"):
        table.add_column(column, justify="left" if column in ("task", "ended") else "right")
    for row in rows:
        held = "" if row["hold_out_total"] is None else f"{row['hold_out_passed']} of {row['hold_out_total']}"
        tests = "" if row["tests_total"] is None else f"{row['tests_passed']} of {row['tests_total']}"
        tokens = row["tokens_in"] + row["tokens_out"]
        table.add_row(
            Text(row["task_id"]), tests, held, str(row["steps"]), str(row["calls"]), str(tokens), row["stopped"]
        )
    console.print(table)
    solved = sum(row["solved"] for row in rows)
    console.print(Text(f"{solved} of {len(rows)} tasks solved"))
