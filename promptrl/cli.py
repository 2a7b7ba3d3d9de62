"""The `promptrl` command: thin doors over the package, one function per command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from promptrl.assets.commands import assets_app
from promptrl.doctor import doctor
from promptrl.errors import ConfigError, PromptRLError
from promptrl.models.commands import cache_app
from promptrl.refine_command import refine
from promptrl.stopping import stop_once

Number = TypeVar("Number", int, float)

app = typer.Typer(
    name="promptrl",
    help="Learn to refine the prompt of a frozen code model until its code passes the tests.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(assets_app, name="assets")
app.add_typer(cache_app, name="cache")
app.command("doctor")(doctor)
app.command("refine")(refine)


ConfigOption = Annotated[str, typer.Option("--config", help="a configuration file, or a name in configs/")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="override a key: ppo.n_steps=64; may be given several times")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", help="the run folder; a new one under runs/ where unset")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="go on with the run that --output holds")]


@app.command("train")
def train(
    config: ConfigOption = "quickstart.yaml",
    overrides: SetOption = None,
    output: OutputOption = None,
    resume: ResumeOption = False,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="0,1,2: a run for each, and mean scores with their interval")
    ] = None,
) -> None:
    """Train a PPO agent, then evaluate it beside the baselines on held-out tasks."""
    from promptrl.config import load_config

    settings = load_config(config, overrides or ())  # before torch is loaded, so that a mistake is told at once
    if seeds is not None:
        chosen = numbers(seeds, int, "--seeds")
        from promptrl.study import run_seeds

        run_seeds(settings, chosen, output, resume=resume)
        return
    from promptrl.experiment import run_experiment

    run_experiment(settings, output, resume=resume)


@app.command("evaluate")
def evaluate(
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="direct, repeat-direct, random-hybrid, epic, reflexion, ppo, or one of an installed package",
        ),
    ] = None,
    config: ConfigOption = "quickstart.yaml",
    overrides: SetOption = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="a trained agent's zip, for the method ppo")] = None,
    samples_per_task: Annotated[
        int | None,
        typer.Option("--samples-per-task", help="draw so many answers to each unchanged prompt, and report pass@k"),
    ] = None,
    temperatures: Annotated[
        str | None, typer.Option("--temperatures", help="of the samples: 0.2,0.8; generation.temperature where unset")
    ] = None,
    ks: Annotated[
        str | None, typer.Option("--k", help="of pass@k: 1,5,10; where unset also the samples per task")
    ] = None,
    output: OutputOption = None,
    resume: ResumeOption = False,
) -> None:
    """Run one method on the held-out tasks, or draw samples of them and report pass@k."""
    from promptrl.config import load_config
    from promptrl.methods.base import check_method

    settings = load_config(config, overrides or ())  # before torch is loaded, so that a mistake is told at once
    if samples_per_task is not None:
        from promptrl.evaluation.sampling import sampling_plan

        if method not in (None, "direct") or policy is not None:
            given = "--policy" if policy is not None else f"--method {method}"
            raise ConfigError(f"--samples-per-task draws from the unchanged prompt and takes no {given}")
        plan = sampling_plan(
            samples_per_task,
            numbers(temperatures, float, "--temperatures")
            if temperatures is not None
            else [settings.generation.temperature],
            numbers(ks, int, "--k") if ks is not None else None,
        )
        from promptrl.sampling_run import run_sampling

        run_sampling(settings, plan, output, resume=resume)
        return
    if temperatures is not None or ks is not None:
        raise ConfigError("--temperatures and --k go with --samples-per-task, which is missing")
    if method is None:
        raise ConfigError("--method is missing: name a method, or give --samples-per-task to draw samples")
    check_method(method)
    from promptrl.experiment import run_evaluation

    run_evaluation(settings, method, output, policy=policy, resume=resume)


@app.command("check")
def check(
    benchmark: Annotated[
        str, typer.Option("--benchmark", help="humaneval, humaneval_plus, mbpp, mbpp_plus, apps, custom")
    ],
    samples: Annotated[Path, typer.Option("--samples", help="JSON lines with task_id and solution or completion")],
    output: Annotated[Path | None, typer.Option("--output", help="write one verdict per sample to this file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="processes; one per core where unset")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="the benchmark's file, or your own tasks for custom")
    ] = None,
    isolation: Annotated[str, typer.Option("--isolation", help="auto, namespaces or rlimits")] = "auto",
) -> None:
    """Judge somebody's samples and print pass@k; verdicts are those of EvalPlus."""
    from promptrl.evaluation.check import check_settings, run_check

    settings = check_settings(workers=workers, isolation=isolation)
    run_check(benchmark, samples, output=output, as_json=as_json, settings=settings, data=data)


@app.command("report")
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="run folders, or files of step records")],
    output: Annotated[
        Path | None, typer.Option("--output", help="the page; report.html in the run folder where unset")
    ] = None,
    training: Annotated[bool, typer.Option("--training", help="show the episodes of training too")] = False,
) -> None:
    """Write one HTML page with every episode: prompts and what changed in them, code, tests, rewards."""
    from promptrl.evaluation.report import report_runs

    path, episodes = report_runs(runs, output, training=training)
    typer.echo(f"report: {path} ({episodes} episodes, {path.stat().st_size / 2**20:.1f} MiB)")


def numbers(text: str, kind: Callable[[str], Number], option: str) -> list[Number]:
    """The numbers of an option's value, separated by commas.

    Raises:
        ConfigError: naming the option and the part that is no number.
    """
    found = []
    for part in text.split(","):
        try:
            found.append(kind(part.strip()))
        except ValueError as error:
            name = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{option} {text!r}: {part.strip()!r} is not {name}; give them as in 0,1,2") from error
    return found


@app.command("compare")
def compare(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="run folders of train or evaluate")],
    fmt: Annotated[str | None, typer.Option("--format", help="md, csv, tex or all; md on the terminal")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="a folder for tables, pictures and comparison.json")
    ] = None,
) -> None:
    """Compare runs on the same tasks: tables, McNemar's tests, intervals and pictures."""
    from promptrl.evaluation.commands import run_compare

    run_compare(run_dirs, fmt, output)


@app.command("export")
def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="a run folder")],
    method: Annotated[str, typer.Option("--method", help="whose answers; one of those evaluated in the run")],
    output: Annotated[Path, typer.Option("--output", help="the file of samples to write")],
) -> None:
    """Write a method's answers as samples that EvalPlus, HumanEval and promptrl check can judge."""
    from promptrl.evaluation.commands import run_export

    run_export(run_dir, method, output)


def main() -> None:
    """Run the command line."""
    run(app)


def run_function(function: Callable[..., Any]) -> None:
    """Run one command's function as a program of its own; what `scripts/` does."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command()(function)
    run(alone)


def run(command: Callable[[], Any]) -> None:
    """Run a command; an error a user can mend ends in one sentence and exit code 2.

    What a batch system stops a job with, SIGTERM, does what Ctrl-C does: what was made is kept and can be gone on with.
    """
    before = signal.signal(signal.SIGTERM, stop_once)
    try:
        command()
    except PromptRLError as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(f"promptrl: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("promptrl: stopped")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
