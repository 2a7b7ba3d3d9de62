"""A sampling sweep from end to end, in a run folder like any other.

Besides `config.yaml`, `purpose.json`, `versions.json` and `splits.json` it holds `sampling/t<temperature>.jsonl` (a
line per sample), `samples_t<temperature>.jsonl` (as EvalPlus reads them), `summary.json` and `table.md`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from promptrl.config import Config
from promptrl.evaluation.records import read_records
from promptrl.evaluation.sampling import (
    SamplingPlan,
    SuiteScore,
    draw_samples,
    sample_path,
    score_samples,
    write_samples,
)
from promptrl.evaluation.sampling_tables import markdown_sampling_table, print_sampling_table
from promptrl.experiment import run_workbench, versions
from promptrl.progress import progress_bar
from promptrl.run_folder import RunFolder
from promptrl.workbench import Workbench


def run_sampling(
    config: Config,
    plan: SamplingPlan,
    output: Path | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
    workbench: Workbench | None = None,
) -> Path:
    """Draw the plan's samples of every test task, judge them, and leave records, samples files and table.

    Args:
        config: its model, benchmark, seed, `generation` (but for the temperature) and `sandbox` count.
        plan: what is drawn.
        output: the run folder; a new one under `runs/` where unset.
        resume: go on with the sweep that `output` holds.
        console: where progress and the table go; standard output where unset.
        workbench: the run's parts, where they are shared; whoever made them closes them.

    Returns:
        The run folder.

    Raises:
        RunError: when the folder holds something else, or the same with another configuration or plan.
    """
    console = console or Console()
    folder = RunFolder.check(config, output, resume=resume, purpose=plan.purpose)
    with run_workbench(folder, config, plan.purpose, console, workbench) as parts:
        engine, tasks = parts.engine(), parts.tasks("test")
        scores: list[SuiteScore] = []
        for temperature in plan.temperatures:
            path = sample_path(folder.path / "sampling", temperature)
            total = len(tasks) * len(plan.draws(temperature))
            with progress_bar(f"sample at temperature {temperature:g}", total, console, unit="samples") as advance:
                draw_samples(
                    engine,
                    tasks,
                    plan,
                    temperature,
                    path,
                    batch_size=config.evaluation.at_once,
                    on_progress=lambda done, _, advance=advance: advance(done, {}),  # type: ignore[misc]
                )
            write_samples(read_records(path), folder.path / f"samples_t{temperature:g}.jsonl", tasks)
            scores += score_samples(read_records(path), plan, temperature, tasks, seed=config.seed)
        caption = sampling_caption(config, len(tasks))
        folder.write("table.md", markdown_sampling_table(scores, caption))
        folder.write_json(
            "summary.json",
            {
                "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                "config": config.model_dump(mode="json"),
                "versions": versions(parts),
                "sampling": [asdict(score) for score in scores],
                "spent": [_spent(folder.path, temperature) for temperature in plan.temperatures],
            },
        )
        print_sampling_table(scores, caption, console)
    return folder.path


def sampling_caption(config: Config, tasks: int) -> str:
    """What a reader has to know to read the table."""
    model = config.model
    precision = model.dtype if model.quantization == "none" else model.quantization
    return (
        f"{config.benchmark}, {tasks} held-out tasks, unchanged prompt, top-p {config.generation.top_p:g}, at most "
        f"{config.generation.max_new_tokens} tokens, model {model.label} ({precision}), seed {config.seed}; unbiased "
        "pass@k, in brackets 95 % bootstrap intervals over tasks"
    )


def _spent(folder: Path, temperature: float) -> dict[str, float | int]:
    """Calls, tokens and model time of a temperature's samples; seconds are those first spent."""
    records: Sequence[dict[str, float]] = list(read_records(sample_path(folder / "sampling", temperature)))
    return {
        "temperature": temperature,
        "model_calls": len(records),
        "cached_calls": sum(bool(record["cached"]) for record in records),
        **{key: sum(record[key] for record in records) for key in ("tokens_in", "tokens_out", "seconds")},
    }
