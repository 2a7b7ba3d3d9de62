"""Which task comes next: shuffled epochs, or a curriculum weighted to tasks neither always nor never solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from promptrl.errors import TaskError
from promptrl.tasks.task import Task

TaskOrderName = Literal["shuffled", "curriculum"]


class TaskStatistics:
    """How often each task's episodes ended solved; one object serves all sub-environments of a vector."""

    def __init__(self, n_tasks: int) -> None:
        self.episodes = np.zeros(n_tasks, dtype=np.int64)
        self.solved = np.zeros(n_tasks, dtype=np.int64)

    def clear(self) -> None:
        """Forget everything, as a fresh seed asks for."""
        self.episodes[:] = 0
        self.solved[:] = 0

    def record(self, index: int, solved: bool) -> None:
        self.episodes[index] += 1
        self.solved[index] += solved

    def weights(self) -> NDArray[np.float64]:
        """Chance of each task, proportional to p (1 − p) with p = (solved + 1) / (episodes + 2), summing to 1.

        A task not yet seen has the greatest weight, and none ever has the weight 0.
        """
        rates = (self.solved + 1) / (self.episodes + 2)
        weights = rates * (1 - rates)
        chances: NDArray[np.float64] = weights / weights.sum()
        return chances

    def state_dict(self) -> dict[str, list[int]]:
        """What a checkpoint needs."""
        return {"episodes": self.episodes.tolist(), "solved": self.solved.tolist()}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.episodes[:] = state["episodes"]
        self.solved[:] = state["solved"]


class TaskOrder:
    """Draws the tasks of one (sub-)environment; the order is fixed by the generator it is given.

    Without `statistics` tasks come in shuffled epochs without repeats, so that each is seen equally often; with them
    each is drawn by its weight.
    """

    def __init__(
        self, tasks: Sequence[Task], rng: np.random.Generator, statistics: TaskStatistics | None = None
    ) -> None:
        if not tasks:
            raise TaskError("an environment needs at least one task, and the split it was given holds none")
        self.tasks = tuple(tasks)
        self.rng = rng
        self.statistics = statistics
        self._numbers = {task.task_id: number for number, task in enumerate(self.tasks)}
        self._queue: list[int] = []

    def next(self) -> Task:
        if self.statistics is not None:
            return self.tasks[int(self.rng.choice(len(self.tasks), p=self.statistics.weights()))]
        if not self._queue:
            self._queue = [int(index) for index in self.rng.permutation(len(self.tasks))]
        return self.tasks[self._queue.pop()]

    def by_id(self, task_id: str) -> Task:
        """The task with this id.

        Raises:
            TaskError: when the environment does not hold it.
        """
        if task_id not in self._numbers:
            raise TaskError(f"task {task_id!r} is not among this environment's {len(self.tasks)} tasks")
        return self.tasks[self._numbers[task_id]]

    def ended(self, task: Task, solved: bool) -> None:
        """Learn how an episode of the task ended; shuffled epochs take no notice."""
        if self.statistics is not None:
            self.statistics.record(self._numbers[task.task_id], solved)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on with the same order."""
        return {"queue": list(self._queue), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._queue = list(state["queue"])
        self.rng.bit_generator.state = state["rng"]
