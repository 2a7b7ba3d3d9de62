"""The ablation of the reward: agents trained on the shaped and on the binary one, with the same seeds, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pandas as pd
from rich.console import Console

from promptrl.atomic import write_atomically
from promptrl.config import Config, parse_config
from promptrl.errors import ConfigError
from promptrl.evaluation.curves import Curve, plot_learning_curves, solved_curve, steps_to_reach, validation_curve
from promptrl.evaluation.records import read_records
from promptrl.methods.validation import VALIDATION_FILE, read_validation
from promptrl.study import PlannedRun, Study, print_scores, score_caption, score_table, write_scores
from promptrl.workbench import Workbench

REWARDS: Final = ("shaped", "binary")
THRESHOLDS: Final = (0.25, 0.5, 0.75)
TRAINING_LABEL: Final = "training episodes solved (%)"
VALIDATION_LABEL: Final = "validation Strict Pass@1 (%)"


def ablate_reward(
    config: Config,
    output: Path,
    *,
    seeds: Sequence[int] | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    resume: bool = False,
    console: Console | None = None,
    make_workbench: Callable[[Config], Workbench] = Workbench,
) -> Path:
    """Train with both rewards and the same seeds, and compare how fast and how far the agents come.

    Writes `learning_curves.png` and `.svg`, `steps_to_threshold.csv`, and `ablation.md` with `ablation.csv`: final
    scores on the test tasks beside those of `repeat-direct`, and the steps to each threshold.

    Args:
        config: of each run, but for the reward, the seed and the methods.
        output: a study's folder.
        seeds: those of the configuration's study where unset.
        thresholds: shares in (0, 1] of episodes or validation tasks solved.
        resume: go on with what `output` holds.
        console: where progress and tables go; standard output where unset.
        make_workbench: as in `Study`.

    Returns:
        The folder.

    Raises:
        ConfigError: for a threshold that is no share.
    """
    for threshold in thresholds:
        if not 0 < threshold <= 1:
            raise ConfigError(f"threshold {threshold:g} is no share; allowed is more than 0 and at most 1")
    console = console or Console()
    values = config.model_dump(mode="json")
    # What a method has to beat is always in the table.
    methods = [*(["repeat-direct"] if "direct" in config.environment.actions else []), "ppo"]
    study = Study(
        parse_config({**values, "evaluation": {**values["evaluation"], "methods": methods}}, "the ablation"),
        output,
        seeds=seeds,
        protocols=[config.environment.protocol],
        rewards=REWARDS,
        states=[config.environment.state],
        make_workbench=make_workbench,
    )
    study.run(resume=resume, console=console, go_on=f"--resume --output {output}")
    runs = study.runs()
    curves = learning_curves(runs)
    plot_learning_curves(
        curves, output / "learning_curves.png", title=f"{config.benchmark}, mean over seeds and 95 % t interval"
    )
    steps = threshold_table(curves, thresholds)
    with write_atomically(output / "steps_to_threshold.csv") as temporary:
        steps.to_csv(temporary, index=False)
    scores, caption = score_table(runs), score_caption(study.config)
    write_scores(scores, output / "ablation.md", f"{caption}\n\n{_steps_markdown(steps)}")
    print_scores(scores, caption, console)
    console.print(f"curves and tables: {output}", highlight=False, soft_wrap=True)
    return output


def learning_curves(runs: Sequence[PlannedRun]) -> dict[str, dict[str, list[Curve]]]:
    """Per score (training, and validation where it ran) and reward a curve per seed."""
    trained = [run for run in runs if run.reward is not None]
    panels: dict[str, dict[str, list[Curve]]] = {TRAINING_LABEL: {}, VALIDATION_LABEL: {}}
    for run in trained:
        reward = f"{run.reward} reward"
        records = read_records(run.path / "train.jsonl")
        panels[TRAINING_LABEL].setdefault(reward, []).append(solved_curve(records))
        if (run.path / VALIDATION_FILE).exists():
            results = read_validation(run.path / VALIDATION_FILE)
            panels[VALIDATION_LABEL].setdefault(reward, []).append(validation_curve(results))
    return {label: variants for label, variants in panels.items() if variants}


def threshold_table(curves: dict[str, dict[str, list[Curve]]], thresholds: Sequence[float]) -> pd.DataFrame:
    """How soon each threshold was reached: `score`, `variant`, `threshold`, `seeds`, `reached`, `median_steps`.

    `reached` counts the seeds that came so far, and `median_steps` is the median over those alone (missing for none).
    """
    rows = []
    for label, variants in curves.items():
        for variant, own in variants.items():
            for threshold in thresholds:
                found = [steps for curve in own if (steps := steps_to_reach(curve, threshold)) is not None]
                median = float(pd.Series(found).median()) if found else None
                rows.append((label.removesuffix(" (%)"), variant, threshold, len(own), len(found), median))
    return pd.DataFrame(rows, columns=["score", "variant", "threshold", "seeds", "reached", "median_steps"])


def _steps_markdown(steps: pd.DataFrame) -> str:
    lines = ["| score | reward | threshold % | seeds that reached it | median steps |", "| --- | --- |" + " ---: |" * 3]
    for row in steps.to_dict("records"):
        median = "never" if pd.isna(row["median_steps"]) else f"{row['median_steps']:.0f}"
        cells = (
            row["score"],
            row["variant"],
            f"{100 * row['threshold']:g}",
            f"{row['reached']} of {row['seeds']}",
            median,
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Environment steps until the share was first reached; the median is over the seeds that reached it,"]
    lines += ["and training shares are means over 32 episodes."]
    return "\n".join(lines)
