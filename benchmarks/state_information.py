"""Whether a state tells which action to take: from the records of a training, out of fold.

    python benchmarks/state_information.py runs/mine                    # train.jsonl of a run folder
    python benchmarks/state_information.py runs/a runs/b --folds 10

Each attempt of the training is one case: what the agent saw before it, the action it took, and whether all reward tests
passed after it. Logistic regressions predict the last from more and more of the first two; tasks, not attempts, are
divided into folds, so that no task is predicted from itself. The states are compressed to their first principal
components. What counts for a schedule is the last step, from `state + action` to `state x action`: only there may one
state ask for another action than the next state does.

Then, for each way to pick actions: the share solved of the cases in which the action taken is the one that it would
have picked, on tasks that it was not fitted to, each case weighted by one over the share that its action has among the
cases of its kind (first attempt or later). The last line is one JSON object.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from promptrl.config import load_config
from promptrl.evaluation.records import read_records
from promptrl.refinement.prompt import Prompt
from promptrl.workbench import Workbench

Array = npt.NDArray[np.float64]
_COMPONENTS = 16
_INVERSE_PENALTY = 0.05


def main(
    folders: Annotated[list[Path], typer.Argument(help="run folders of one model, with train.jsonl")],
    folds: Annotated[int, typer.Option(min=2)] = 5,
) -> None:
    records = [record for folder in folders for record in read_records(folder / "train.jsonl")]
    workbench = Workbench(load_config(str(folders[0] / "config.yaml"), []))
    try:
        originals = {task.task_id: Prompt.from_task(task).render() for task in workbench.tasks("train")}
        episodes: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for record in records:
            key = (record["task_id"], record["env"], record["episode"], record["seed"])
            episodes[key].append(record)
        texts, progress, actions, solved, tasks = [], [], [], [], []
        for key, steps in episodes.items():
            before = originals[key[0]]
            for number, step in enumerate(sorted(steps, key=lambda one: int(one["step"]))):
                last = steps[number - 1] if number else None
                texts.append(before)
                progress.append([number, 0.0 if last is None else last["pass_rate"], float(number > 0)])
                actions.append(step["action"])
                solved.append(step["pass_rate"] == 1)
                tasks.append(key[0])
                before = step["prompt"]
        distinct = sorted(set(texts))
        vectors = dict(zip(distinct, workbench.encoder.encode(distinct), strict=True))
    finally:
        workbench.close()
    names = sorted(set(actions))
    cases = _Cases(
        np.array([vectors[text] for text in texts], dtype=float),
        np.array(progress, dtype=float),
        np.array([[float(action == name) for name in names] for action in actions]),
        np.array(solved, dtype=bool),
        np.array(tasks),
        folds,
    )
    predictors: dict[str, _Features] = {
        "nothing": lambda prompt, seen, action: np.zeros((len(action), 1)),
        "action": lambda prompt, seen, action: action,
        "prompt": lambda prompt, seen, action: prompt,
        "prompt + action": lambda prompt, seen, action: np.hstack([prompt, action]),
        "prompt x action": lambda prompt, seen, action: np.hstack([prompt, action, _products(prompt, action)]),
        "progress + action": lambda prompt, seen, action: np.hstack([seen, action]),
        "progress x action": lambda prompt, seen, action: np.hstack([seen, action, _products(seen, action)]),
    }
    rows = [{"predicted from": name, **cases.score(features)} for name, features in predictors.items()]
    picks: list[dict[str, Any]] = [
        {"picks": f"always {name}", **cases.value(np.full(len(cases.solved), index))}
        for index, name in enumerate(names)
    ]
    for name in ("prompt x action", "progress x action"):
        picks.append({"picks": f"best by {name}", **cases.value(cases.best(predictors[name]))})
    console = Console(width=120)
    for lines in (rows, picks):
        table = Table(*lines[0])
        for line in lines:
            table.add_row(*map(str, line.values()))
        console.print(table)
    print(
        json.dumps(
            {
                "folders": [str(folder) for folder in folders],
                "attempts": len(cases.solved),
                "tasks": len(set(tasks)),
                "folds": folds,
                "components": _COMPONENTS,
                "actions": names,
                "predictions": rows,
                "picks": picks,
            }
        )
    )


_Features = Callable[[Array, Array, Array], Array]


def _products(first: Array, second: Array) -> Array:
    """(n, a) and (n, b) to (n, a * b), every column times every other."""
    return (first[:, :, None] * second[:, None, :]).reshape(len(first), -1)


class _Cases:
    """All attempts, and predictions for each from a model that has not seen its task."""

    def __init__(
        self, prompts: Array, progress: Array, actions: Array, solved: npt.NDArray[np.bool_], tasks: Any, folds: int
    ) -> None:
        self.prompts, self.progress, self.actions, self.solved = prompts, progress, actions, solved
        self.parts = list(GroupKFold(folds, shuffle=True, random_state=0).split(prompts, solved, tasks))

    def predict(self, features: _Features, actions: Array) -> Array:
        """(n,) chance of success of each case's state with the given actions, (n, actions)."""
        result = np.zeros(len(self.solved))
        for fitted, left in self.parts:
            reduced = PCA(_COMPONENTS, random_state=0).fit(self.prompts[fitted])
            scaled = [
                StandardScaler().fit(part[fitted]).transform(part)
                for part in (reduced.transform(self.prompts), self.progress)
            ]
            model = LogisticRegression(C=_INVERSE_PENALTY, max_iter=2000)
            model.fit(features(scaled[0][fitted], scaled[1][fitted], self.actions[fitted]), self.solved[fitted])
            result[left] = model.predict_proba(features(scaled[0][left], scaled[1][left], actions[left]))[:, 1]
        return result

    def score(self, features: _Features) -> dict[str, float]:
        predicted = self.predict(features, self.actions)
        return {
            "log loss": round(float(log_loss(self.solved, predicted)), 4),
            "AUC": round(float(roc_auc_score(self.solved, predicted)), 3),
        }

    def best(self, features: _Features) -> npt.NDArray[np.int64]:
        """(n,) index of the action with the highest predicted chance."""
        count = self.actions.shape[1]
        chances = [self.predict(features, np.tile(row, (len(self.solved), 1))) for row in np.eye(count)]
        best: npt.NDArray[np.int64] = np.argmax(chances, axis=0)
        return best

    def value(self, picked: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Solved per attempt, first and later, among the cases in which the action picked was the one taken."""
        taken = self.actions.argmax(axis=1)
        result: dict[str, Any] = {}
        for name, of_kind in (("first", self.progress[:, 0] == 0), ("later", self.progress[:, 0] > 0)):
            shares = self.actions[of_kind].mean(axis=0)
            matched = of_kind & (picked == taken)
            weights = 1 / shares[taken[matched]]
            share = float(np.average(self.solved[matched], weights=weights)) if matched.any() else float("nan")
            effective = float(weights.sum() ** 2 / (weights**2).sum()) if matched.any() else 0.0
            error = (share * (1 - share) / effective) ** 0.5 if effective else float("nan")
            result |= {
                f"{name} %": round(100 * share, 2),
                f"± {name}": round(196 * error, 2),
                f"{name} n": int(matched.sum()),
            }
        return result


if __name__ == "__main__":
    typer.run(main)
