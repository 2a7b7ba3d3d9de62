"""Validation during training: the agent so far on tasks that it is not trained on, and which agent was the best.

Scores come from the reward tests of the protocol: what chooses an agent must not have seen the report tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from promptrl.atomic import write_atomically
from promptrl.errors import RunError
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.episode import Episode, task_rng
from promptrl.refinement.state import StateName, observe
from promptrl.tasks.task import Task

VALIDATION_FILE: Final = "validation.jsonl"
BEST_AGENT: Final = "best_agent.zip"
_SCHEMA: Final = 1

Choose = Callable[[Sequence[Episode], NDArray[np.float32]], Sequence[int]]


@dataclass(frozen=True)
class ValidationResult:
    """One validation.

    Attributes:
        steps: environment steps that the agent had been trained for.
        n: tasks, one episode each.
        strict: share of tasks whose reward tests some step's code passed.
        soft: mean over tasks of 1 − Π (1 − ρ) over the steps taken.
        mean_return: mean sum of rewards, undiscounted.
        mean_length: mean attempts per task.
        action_shares: per action its share of all attempts; they sum to 1.
        best: whether it was better than every validation before it.
    """

    steps: int
    n: int
    strict: float
    soft: float
    mean_return: float
    mean_length: float
    action_shares: dict[str, float]
    best: bool = False

    @property
    def rank(self) -> tuple[float, float, float]:
        """What agents are compared by: Strict, then Soft, then the return."""
        return self.strict, self.soft, self.mean_return


class Validator:
    """Runs one episode per task; its random numbers depend on the seed and the task alone.

    Args:
        engine: advances the episodes; not that of training, so that each has its own clock.
        tasks: the fixed tasks.
        seed: of the operators' and a sampling agent's random numbers.
        state: which observation the agent was made for.
        deterministic: whether the agent takes its likeliest action.
        batch_size: how many episodes run at once.
    """

    def __init__(
        self,
        engine: RefinementEngine,
        tasks: Sequence[Task],
        *,
        seed: int,
        state: StateName = "prompt",
        deterministic: bool = True,
        batch_size: int = 32,
    ) -> None:
        if not tasks:
            raise RunError("validation needs at least one task; set ppo.eval_freq=0 to train without")
        self.engine = engine
        self.tasks = tuple(tasks)
        self.seed = seed
        self.state: StateName = state
        self.deterministic = deterministic
        self.batch_size = batch_size

    def run(
        self, choose: Choose, steps: int, on_progress: Callable[[int, int], None] | None = None
    ) -> ValidationResult:
        """Validate an agent that was trained for `steps`; `on_progress` is told (tasks done, tasks in all)."""
        episodes: list[Episode] = []
        for first in range(0, len(self.tasks), self.batch_size):
            batch = [
                self.engine.start(task, task_rng(self.seed, task.task_id))
                for task in self.tasks[first : first + self.batch_size]
            ]
            while running := [episode for episode in batch if not episode.done]:
                observations = observe(running, self.state, self.engine.actions, self.engine.encode)
                self.engine.step(running, list(choose(running, observations)))
            episodes += batch
            if on_progress:
                on_progress(len(episodes), len(self.tasks))
        taken = [step.action for episode in episodes for step in episode.steps]
        return ValidationResult(
            steps=steps,
            n=len(episodes),
            strict=float(np.mean([episode.steps[-1].terminated for episode in episodes])),
            soft=float(np.mean([1 - np.prod([1 - s.verdict.pass_rate for s in e.steps]) for e in episodes])),
            mean_return=float(np.mean([sum(step.reward for step in episode.steps) for episode in episodes])),
            mean_length=len(taken) / len(episodes),
            action_shares={action: taken.count(action) / len(taken) for action in self.engine.actions},
        )


class ValidationHistory:
    """The validations of one run, as `validation.jsonl` holds them.

    Args:
        folder: the run folder.
        steps: how far training is; later lines, of a run that was stopped after its last checkpoint, are made again
            and removed.

    Raises:
        RunError: when the file cannot be read, or its best agent is missing.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.path = folder / VALIDATION_FILE
        found = read_validation(self.path) if self.path.exists() else []
        self.results = [result for result in found if result.steps <= steps]
        if len(self.results) < len(found):
            self._write()
        if self.results and not (folder / BEST_AGENT).exists():
            raise RunError(f"{folder} holds {VALIDATION_FILE} but no {BEST_AGENT}; start a new run instead")

    @property
    def best(self) -> ValidationResult | None:
        """The first of the highest rank."""
        return max(self.results, key=lambda result: result.rank, default=None)

    @property
    def last_steps(self) -> int:
        return self.results[-1].steps if self.results else 0

    @property
    def since_best(self) -> int:
        """Validations in a row that brought no new best."""
        best = self.best
        return 0 if best is None else len(self.results) - 1 - self.results.index(best)

    def add(self, result: ValidationResult) -> None:
        self.results.append(result)
        self._write()

    def _write(self) -> None:
        lines = [json.dumps({"schema": _SCHEMA, **asdict(result)}) + "\n" for result in self.results]
        with write_atomically(self.path) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")


def read_validation(path: Path) -> list[ValidationResult]:
    """The validations of a run, in the order they were made.

    Raises:
        RunError: when the file cannot be read as such.
    """
    results = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            stored = json.loads(line)
            if stored.pop("schema") != _SCHEMA:
                raise ValueError(f"a line is not of schema {_SCHEMA}")
            results.append(ValidationResult(**stored))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"{path} cannot be read as validations ({error})") from error
    return results


def validation_subset(tasks: Sequence[Task], size: int | None) -> list[Task]:
    """`size` of the tasks, evenly spread over their order: the same for every seed, reward and resumption."""
    if size is None or size >= len(tasks):
        return list(tasks)
    return [tasks[number * len(tasks) // size] for number in range(size)]
