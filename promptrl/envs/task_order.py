"""Which task comes next: shuffled epochs without repeats, so that every task is seen equally often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from promptrl.errors import TaskError
from promptrl.tasks.task import Task


class TaskOrder:
    """Draws tasks in shuffled epochs; the order is fixed by the generator it is given."""

    def __init__(self, tasks: Sequence[Task], rng: np.random.Generator) -> None:
        if not tasks:
            raise TaskError("an environment needs at least one task, and the split it was given holds none")
        self.tasks = tuple(tasks)
        self.rng = rng
        self._queue: list[int] = []

    def next(self) -> Task:
        if not self._queue:
            self._queue = [int(index) for index in self.rng.permutation(len(self.tasks))]
        return self.tasks[self._queue.pop()]

    def by_id(self, task_id: str) -> Task:
        """The task with this id.

        Raises:
            TaskError: when the environment does not hold it.
        """
        for task in self.tasks:
            if task.task_id == task_id:
                return task
        raise TaskError(f"task {task_id!r} is not among this environment's {len(self.tasks)} tasks")

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint needs to go on with the same order."""
        return {"queue": list(self._queue), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, object]) -> None:
        queue, rng = state["queue"], state["rng"]
        if not isinstance(queue, list) or not isinstance(rng, dict):
            raise TaskError("a task order can only be restored from its own state_dict()")
        self._queue = list(queue)
        self.rng.bit_generator.state = rng
