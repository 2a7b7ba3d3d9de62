"""The command `promptrl refine`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from promptrl.errors import ConfigError, TaskError


def refine(
    stub: Annotated[Path | None, typer.Option("--stub", help="a Python file: signature and docstring, no body")] = None,
    tests: Annotated[
        list[Path] | None,
        typer.Option("--tests", help="a file for pytest or of plain asserts, or a folder; may be given several times"),
    ] = None,
    task: Annotated[Path | None, typer.Option("--task", help="a YAML file with one task (docs/tasks.md)")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", help="a text that says what the function does")
    ] = None,
    entry_point: Annotated[str | None, typer.Option("--entry-point", help="the function's name")] = None,
    tasks: Annotated[
        Path | None, typer.Option("--tasks", help="many tasks: a folder, or a YAML or JSON-lines file")
    ] = None,
    config: Annotated[
        str, typer.Option("--config", help="a configuration file, or a name in configs/")
    ] = "refine.yaml",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="override a key: model.quantization=none; several times")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="the model's name; the same as --set model.name=")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="who chooses the actions")] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="a trained agent's zip")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="most attempts for each task")] = None,
    hold_out: Annotated[
        float | None, typer.Option("--hold-out", help="share of the tests that model and reward never see")
    ] = None,
    hold_out_tests: Annotated[
        list[Path] | None, typer.Option("--hold-out-tests", help="a file of tests that model and reward never see")
    ] = None,
    max_calls: Annotated[int | None, typer.Option("--max-calls", min=1, help="most model calls in all")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="most tokens in and out in all")] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", help="no step begins later than this after the first")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="the same as --set seed=")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="the folder for the results; a new one under runs/ where unset")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="keep what --output holds of finished tasks")] = False,
    report: Annotated[bool, typer.Option("--report", help="write report.html too")] = False,
) -> None:
    """Refine the prompt for your own problem until the code passes your tests.

    Exit code 0 only where every test passes, 1 where not, 2 for bad input, 130 after Ctrl-C.
    """
    sources = {"--stub": stub, "--task": task, "--prompt-file": prompt_file, "--tasks": tasks}
    given = [name for name, path in sources.items() if path is not None]
    if len(given) != 1:
        raise ConfigError(f"refine needs one of {', '.join(sources)}; given {', '.join(given) or 'none'}")
    if (stub or prompt_file) and not tests:
        raise ConfigError(f"{given[0]} needs --tests: a file for pytest, or one of plain asserts")
    if not (stub or prompt_file) and (tests or entry_point):
        raise ConfigError(f"{given[0]} brings its own tests; leave --tests and --entry-point away")
    if prompt_file and entry_point is None:
        raise ConfigError("--prompt-file needs --entry-point, the name of the function to be written")
    if resume and output is None:
        raise ConfigError("--resume needs --output with the folder to go on with")
    if max_seconds is not None and not max_seconds > 0:
        raise ConfigError(f"--max-seconds is {max_seconds:g}; it is more than 0")
    options = [f"{key}={value}" for key, value in (("model.name", model), ("seed", seed)) if value is not None]

    from promptrl.refining.session import Session, choose_method, plain_judge, refine_config

    settings = refine_config(config, [*options, *(overrides or ())])
    choice = choose_method(method, policy)

    from promptrl.refinement.budget import Budget
    from promptrl.refining.output import check_output
    from promptrl.refining.sources import HoldOut, task_from_prompt, task_from_stub, tasks_from_file, tasks_from_folder
    from promptrl.workbench import Workbench

    kept_back = HoldOut(hold_out, tuple(hold_out_tests or ()), settings.seed)
    folder = output or Path("runs") / f"refine-{_plain(given[0], sources)}-{datetime.now():%Y%m%d-%H%M%S}"
    check_output(folder, resume=resume)
    budget = Budget(attempts=steps, calls=max_calls, tokens=max_tokens, seconds=max_seconds)
    workbench = Workbench(settings)
    try:
        judge = plain_judge(workbench)
        if stub is not None:
            found = [task_from_stub(stub, tests or [], judge=judge, entry_point=entry_point, hold_out=kept_back)]
        elif prompt_file is not None:
            found = [task_from_prompt(prompt_file, entry_point or "", tests or [], judge=judge, hold_out=kept_back)]
        elif tasks is not None and tasks.is_dir():
            found = tasks_from_folder(tasks, judge=judge, hold_out=kept_back)
        else:
            found = tasks_from_file(task or tasks or Path(), hold_out=kept_back)
        if task is not None and len(found) != 1:
            raise TaskError(f"{task}: holds {len(found)} tasks; refine them all with --tasks")
        session = Session(workbench, choice, budget)
        ended = run_command(session, session.prepared(found), folder, many=tasks is not None, report=report)
    finally:
        workbench.close()
    if ended:
        raise typer.Exit(ended)


def run_command(session: Any, tasks: Sequence[Any], folder: Path, *, many: bool, report: bool) -> int:
    """Refine tasks into a folder, say how it goes, and return the exit code."""
    from promptrl.refining.output import read_result
    from promptrl.refining.session import folders_of, write_summary
    from promptrl.refining.show import lines, print_result, print_summary, summary_row

    errors = Console(stderr=True, highlight=False)
    out = Console(highlight=False)
    folders = folders_of(tasks, folder) if many else {tasks[0].task_id: folder}
    kept = {t.task_id: found for t in tasks if (found := session.finished(t, folders[t.task_id])) is not None}
    left = [t for t in tasks if t.task_id not in kept]
    errors.print(
        f"method: {session.choice.method} ({session.choice.reason}); at most {session.steps} steps, "
        "the first after the model is loaded"
        + (f"; {len(kept)} of {len(tasks)} tasks were finished before" if kept else ""),
        soft_wrap=True,
        markup=False,
    )
    with lines(errors, many=many) as progress:
        progress.expect(len(tasks) if many else session.steps, len(kept))
        try:
            results = session.run(left, folders=folders, progress=progress) if left else []
        except KeyboardInterrupt:
            errors.print("stopped by Ctrl-C before the first step; nothing was written", markup=False)
            raise
    interrupted = any(result.stopped == "interrupted" for result in results)
    rows = [
        summary_row(found, folders[t.task_id]) for t in tasks if (found := read_result(folders[t.task_id])) is not None
    ]
    if many:
        write_summary(folder / "summary.json", rows)
        print_summary(rows, out)
        if len(rows) < len(tasks):
            out.print(
                f"{len(tasks) - len(rows)} tasks were not begun; go on with --resume --output {folder}", soft_wrap=True
            )
    elif results:
        print_result(results[0], folder, out)
    else:
        out.print(f"finished before: {folder}", soft_wrap=True, markup=False)
    if report:
        _write_report(folder, [folders[t.task_id] for t in tasks])
    if interrupted:
        errors.print(f"--resume --output {folder} goes on", soft_wrap=True, markup=False)
        return 130
    return 0 if len(rows) == len(tasks) and all(row["solved"] for row in rows) else 1


def _write_report(folder: Path, folders: Sequence[Path]) -> None:
    from promptrl.evaluation.report import write_report
    from promptrl.refining.output import read_result

    records: list[dict[str, Any]] = []
    for number, place in enumerate(folders):
        found = read_result(place)
        records += [{**record, "episode": number} for record in (found["steps"] if found else [])]
    if records:
        names = {record["task_id"] for record in records}
        title = names.pop() if len(names) == 1 else f"{len(names)} tasks"
        write_report(records, folder / "report.html", title=f"Refinement: {title}")


def _plain(name: str, sources: dict[str, Path | None]) -> str:
    path = sources[name]
    return path.stem if path is not None and path.stem.isidentifier() else "tasks"
