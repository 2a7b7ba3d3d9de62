"""What training several agents at once is worth, against the same agents one after the other.

    python benchmarks/side_by_side.py --config mbpp_plus.yaml,bf16_cpu --agents 3 --steps 128

Both ways train the same seeds for the same steps, with no kept answers and no validation; the seconds are those of
training alone, as `training.json` has them. The ratio is made in one run. The last line is one JSON object.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from promptrl.config import load_config
from promptrl.study import Study


def main(
    config: Annotated[str, typer.Option(help="as the programs take it")] = "mbpp_plus.yaml,bf16_cpu",
    agents: Annotated[int, typer.Option(min=2, help="how many at once")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="environment steps of each")] = 128,
    overrides: Annotated[list[str] | None, typer.Option("--set")] = None,
) -> None:
    short = [f"ppo.total_timesteps={steps}", "ppo.eval_freq=0", "split.n_test=4", "evaluation.methods=[ppo]"]
    same = ["cache=false", f"study.seeds={list(range(agents))}", "study.protocols=[paper]", "study.rewards=[shaped]"]
    alone, together = (
        _train(config, [*short, *same, "study.states=[prompt]", *(overrides or ()), f"study.at_once={at_once}"])
        for at_once in (1, agents)
    )
    one_by_one, at_once = sum(alone), max(together)
    print(f"{agents} agents of {steps} steps: {one_by_one:.0f} s one after the other, {at_once:.0f} s at once")
    figures: dict[str, Any] = {
        "config": config,
        "agents": agents,
        "steps": steps,
        "seconds_alone": alone,
        "seconds_together": together,
        "ratio": round(one_by_one / at_once, 3),
    }
    print(json.dumps(figures))


def _train(config: str, overrides: list[str]) -> list[float]:
    """Seconds of training of each agent."""
    with TemporaryDirectory() as folder:
        runs = Study(load_config(config, overrides), Path(folder) / "study").run(console=Console(stderr=True))
        return [float(json.loads((run / "training.json").read_text())["wall_seconds"]) for run in runs]


if __name__ == "__main__":
    typer.run(main)
