"""Compare the shaped and the binary reward: `python scripts/ablate_reward.py --config mbpp_plus.yaml --seeds 0,1`."""

from pathlib import Path
from typing import Annotated

import typer

from promptrl.cli import ConfigOption, ResumeOption, SetOption, numbers, run_function


def ablate(
    config: ConfigOption = "mbpp_plus.yaml",
    overrides: SetOption = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="0,1,2; those of the configuration where unset")] = None,
    thresholds: Annotated[
        str, typer.Option("--thresholds", help="shares of tasks solved, in (0, 1]")
    ] = "0.25,0.5,0.75",
    output: Annotated[
        Path | None, typer.Option("--output", help="the folder; runs/<name>-ablation where unset")
    ] = None,
    resume: ResumeOption = False,
) -> None:
    """Train with both rewards and the same seeds; draw learning curves, tell steps to thresholds and final scores."""
    from promptrl.config import load_config

    settings = load_config(config, overrides or ())  # before torch is loaded, so that a mistake is told at once
    chosen = None if seeds is None else numbers(seeds, int, "--seeds")
    shares = numbers(thresholds, float, "--thresholds")
    from promptrl.ablation import ablate_reward
    from promptrl.run_folder import RUNS_DIR

    folder = output or RUNS_DIR / f"{settings.name}-ablation"
    ablate_reward(settings, folder, seeds=chosen, thresholds=shares, resume=resume)


if __name__ == "__main__":
    run_function(ablate)
