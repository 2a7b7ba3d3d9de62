"""How much of what returns vary by is the task, and how many episodes a difference of two actions asks for.

    python benchmarks/return_variance.py runs/a runs/b              # train.jsonl of run folders

Whole episodes alone count, by the sum of their rewards. `same_task` is the correlation of the returns of two episodes
of the same task whose first actions differ; the spread within tasks is that around each task's own mean. Per folder:
mean return by first action, with its standard error. `episodes_needed` is how many of each of two arms show
`--difference` in mean return at two standard errors, by the spread of all returns and by that within tasks. The last
line is one JSON object.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import permutations
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from promptrl.evaluation.records import read_records


def main(
    folders: Annotated[list[Path], typer.Argument(help="run folders of trainings on the same tasks, same reward")],
    difference: Annotated[float, typer.Option(help="in mean return, between two arms")] = 0.35,
) -> None:
    returns: dict[str, list[tuple[str, float]]] = defaultdict(list)  # per task: first action and return
    by_folder: dict[str, dict[str, dict[str, float]]] = {}
    for folder in folders:
        own: dict[str, list[float]] = defaultdict(list)
        for task_id, first, gained in _episodes(folder / "train.jsonl"):
            returns[task_id].append((first, gained))
            own[first].append(gained)
        by_folder[folder.name] = {
            first: {
                "episodes": len(gained),
                "mean_return": round(float(np.mean(gained)), 3),
                "standard_error": round(float(np.std(gained, ddof=1) / len(gained) ** 0.5), 3),
            }
            for first, gained in sorted(own.items())
        }
    pairs = [(a[1], b[1]) for episodes in returns.values() for a, b in permutations(episodes, 2) if a[0] != b[0]]
    spread = float(np.std([gained for episodes in returns.values() for _, gained in episodes]))
    # Each task's mean takes one degree of freedom.
    around = [
        sum((gained - np.mean([g for _, g in episodes])) ** 2 for _, gained in episodes)
        for episodes in returns.values()
    ]
    within = float(np.sqrt(sum(around) / sum(len(episodes) - 1 for episodes in returns.values())))
    figures: dict[str, Any] = {
        "folders": by_folder,
        "tasks": len(returns),
        "episodes": sum(map(len, returns.values())),
        "same_task": round(float(np.corrcoef(np.array(pairs).T)[0, 1]), 3),
        "spread": round(spread, 3),
        "spread_within_tasks": round(within, 3),
        "difference": difference,
        "episodes_needed": {
            name: ceil(2 * (2 * s / difference) ** 2) for name, s in (("all", spread), ("within_tasks", within))
        },
    }
    print(json.dumps(figures))


def _episodes(path: Path) -> list[tuple[str, str, float]]:
    """Task, first action and return of each episode that was played to its end."""
    played: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in read_records(path):
        played[record["episode"]].append(record)
    return [
        (steps[0]["task_id"], steps[0]["action"], sum(step["reward"] for step in steps))
        for steps in played.values()
        if steps[-1]["terminated"] or steps[-1]["truncated"]
    ]


if __name__ == "__main__":
    typer.run(main)
