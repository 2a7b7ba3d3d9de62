"""What one attempt after a failed first answer brings, action by action, on tasks that are trained on.

    python benchmarks/operators.py --config mbpp_plus.yaml,laptop
    python benchmarks/operators.py --config mbpp_plus.yaml,laptop --try lexical --try lexical:generation.greedy=every

The greedy answer to each task's own prompt is judged first. On the tasks that it fails, every trial takes one more
attempt from that same state, once per seed. A trial is an action of the configuration, with settings of its own after a
colon, separated by commas. No test or validation task is touched. `not_by_direct` counts tasks that a trial solved and
`direct`, with as many attempts, did not. The last line is one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from statsmodels.stats.proportion import proportion_confint

from promptrl.config import load_config
from promptrl.refinement.episode import task_rng
from promptrl.tasks.task import Task
from promptrl.workbench import Workbench

DEFAULT_TRIALS = (
    "direct",
    "lexical",
    "lexical:generation.greedy=every",
    "semantic",
    "semantic:operators.semantic.place=instead",
)


@dataclass
class Trial:
    """What came of a trial's attempts, all seeds together."""

    name: str
    attempts: int = 0
    rates: list[float] = field(default_factory=list)
    solved: set[str] = field(default_factory=set)
    repeated: int = 0
    refused: int = 0
    failures: int = 0
    tokens: int = 0

    def row(self, direct: set[str]) -> dict[str, float | int | str]:
        wins = sum(rate == 1 for rate in self.rates)
        low, high = proportion_confint(wins, self.attempts, method="wilson")
        return {
            "trial": self.name,
            "attempts": self.attempts,
            "solved": wins,
            "solved_percent": round(100 * wins / self.attempts, 2),
            "low": round(100 * low, 2),
            "high": round(100 * high, 2),
            "pass_rate": round(float(np.mean(self.rates)), 4),
            "tasks_solved": len(self.solved),
            "not_by_direct": len(self.solved - direct),
            "same_code_percent": round(100 * self.repeated / self.attempts, 1),
            "refused_percent": round(100 * self.refused / self.attempts, 1),
            "execution_failure_percent": round(100 * self.failures / self.attempts, 1),
            "tokens": self.tokens,
        }


def main(
    config: Annotated[str, typer.Option(help="as the programs take it")] = "mbpp_plus.yaml,laptop",
    trials: Annotated[list[str] | None, typer.Option("--try", help="action[:setting=value,…]")] = None,
    seeds: Annotated[int, typer.Option(help="attempts per trial and task")] = 2,
    tasks: Annotated[int | None, typer.Option(help="training tasks, a seeded sample; all where unset")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set")] = None,
) -> None:
    common = [*(overrides or ()), *([f"split.n_train={tasks}"] if tasks else [])]
    workbench = Workbench(load_config(config, common))
    train = workbench.tasks("train")
    console = Console(stderr=True)
    found = []
    try:
        for name in trials or DEFAULT_TRIALS:
            found.append(_run(name, config, common, workbench, train, seeds))
            console.print(f"{name}: {sum(r == 1 for r in found[-1].rates)} of {found[-1].attempts}", highlight=False)
    finally:
        workbench.close()
    direct = next((trial.solved for trial in found if trial.name == "direct"), set())
    rows = [trial.row(direct) for trial in found]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=220).print(table)
    print(json.dumps({"config": config, "tasks": len(train), "seeds": seeds, "trials": rows}))


def _run(
    name: str, config: str, common: Sequence[str], workbench: Workbench, tasks: Sequence[Task], seeds: int
) -> Trial:
    action, _, settings = name.partition(":")
    own = [setting for setting in settings.split(",") if setting]
    trial = Trial(name)
    for seed in range(seeds):
        shared = workbench.with_config(load_config(config, [*common, *own, f"seed={seed}"]))
        engine = shared.engine()
        episodes = [engine.start(task, task_rng(seed, task.task_id, "trial")) for task in tasks]
        engine.step(episodes, [engine.actions.index("direct")] * len(episodes))
        failed = [episode for episode in episodes if not episode.done]
        steps = engine.step(failed, [engine.actions.index(action)] * len(failed))
        for episode, step in zip(failed, steps, strict=True):
            trial.attempts += 1
            trial.rates.append(step.verdict.pass_rate)
            trial.repeated += step.code == episode.steps[0].code
            trial.refused += step.note is not None
            trial.failures += step.verdict.execution_failure
            trial.tokens += step.generation.tokens_in + step.generation.tokens_out
            trial.tokens += sum(call.tokens_in + call.tokens_out for call in step.rewrites)
            if step.terminated:
                trial.solved.add(episode.task.task_id)
    return trial


if __name__ == "__main__":
    typer.run(main)
