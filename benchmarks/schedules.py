"""What fixed schedules of actions solve on validation tasks: what a learned schedule has to beat.

    python benchmarks/schedules.py --config mbpp_plus.yaml,laptop
    python benchmarks/schedules.py --try direct --try "direct lexical" --tasks 48

A schedule is the actions of an episode from its first step on; the last one is repeated to the end. `random` picks
among all actions by chance. Scores are of the reward tests, as in the validation of a training. The last line is one
JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from promptrl.config import load_config
from promptrl.methods.base import MethodContext
from promptrl.methods.fixed import RandomHybrid
from promptrl.methods.validation import Validator
from promptrl.refinement.episode import Episode
from promptrl.workbench import Workbench

DEFAULT_SCHEDULES = (
    "direct",
    "lexical",
    "semantic",
    "direct lexical",
    "direct semantic",
    "direct direct lexical",
    "random",
)


def main(
    config: Annotated[str, typer.Option(help="as the programs take it")] = "mbpp_plus.yaml,laptop",
    schedules: Annotated[list[str] | None, typer.Option("--try", help="actions, or random")] = None,
    seeds: Annotated[int, typer.Option(help="runs of each")] = 1,
    tasks: Annotated[int | None, typer.Option(help="validation tasks, a seeded sample; all where unset")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set")] = None,
) -> None:
    common = [*(overrides or ()), *([f"split.n_validation={tasks}"] if tasks else [])]
    workbench = Workbench(load_config(config, common))
    validation = workbench.tasks("validation")
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    try:
        for name in schedules or DEFAULT_SCHEDULES:
            results = []
            for seed in range(seeds):
                shared = workbench.with_config(load_config(config, [*common, f"seed={seed}"]))
                validator = Validator(shared.engine(), validation, seed=seed, batch_size=len(validation))
                results.append(validator.run(_Schedule(name, validator.engine.actions, seed).choose, 0))
                console.print(f"{name}, seed {seed}: {results[-1].strict:.2%}", highlight=False)
            rows.append(
                {
                    "schedule": name,
                    "solved": [round(result.strict * result.n) for result in results],
                    "strict": round(100 * float(np.mean([result.strict for result in results])), 2),
                    "soft": round(100 * float(np.mean([result.soft for result in results])), 2),
                    "mean_return": round(float(np.mean([result.mean_return for result in results])), 3),
                    "attempts": round(float(np.mean([result.mean_length for result in results])), 2),
                }
            )
    finally:
        workbench.close()
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=120).print(table)
    print(json.dumps({"config": config, "tasks": len(validation), "seeds": seeds, "schedules": rows}))


class _Schedule:
    """Chooses by the step's number alone, or by chance."""

    def __init__(self, name: str, actions: Sequence[str], seed: int) -> None:
        self.order = [] if name == "random" else [list(actions).index(action) for action in name.split()]
        self.chance = RandomHybrid(MethodContext(actions=tuple(actions), seed=seed))

    def choose(self, episodes: Sequence[Episode], observations: Any) -> list[int]:
        if not self.order:
            return self.chance.choose(episodes, observations)
        return [self.order[min(len(episode.steps), len(self.order) - 1)] for episode in episodes]


if __name__ == "__main__":
    typer.run(main)
