"""One place for an episode: what the single environment has once and the vector environment has n times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from promptrl.envs.task_order import TaskOrder, TaskStatistics
from promptrl.errors import ConfigError
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.episode import Episode, Proposal, Step, task_rng
from promptrl.tasks.task import Task

_RESET_OPTIONS = ("task_id", "reset_mask")


class Slot:
    """Holds the running episode of one (sub-)environment and knows which task comes next.

    The randomness of the order of the tasks, then one number per episode, comes from the generator given to `seed`, so
    that an episode's draws do not depend on how long the ones before it were. The number seeds the episode's own
    generator, or with `variants` picks one of so many that depend on the engine's seed and the task alone.
    """

    def __init__(
        self,
        engine: RefinementEngine,
        tasks: Sequence[Task],
        rng: np.random.Generator,
        statistics: TaskStatistics | None = None,
    ) -> None:
        self.engine = engine
        self.tasks = tasks
        self.statistics = statistics
        self.seed(rng)
        self.episode: Episode | None = None

    def seed(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.order = TaskOrder(self.tasks, rng, self.statistics)

    def begin(self, task_id: str | None = None) -> Episode:
        """Start the next task's episode, or that of the named task (which leaves the order as it is)."""
        task = self.order.next() if task_id is None else self.order.by_id(task_id)
        number, variants = int(self.rng.integers(2**63)), self.engine.episode_settings.variants
        own = np.random.default_rng(number)
        if variants is not None:
            own = task_rng(self.engine.seed, task.task_id, f"variant {number % variants}")
        self.episode = self.engine.start(task, own)
        return self.episode

    def stepped(self) -> None:
        """Let the task order know when the step just made has ended the episode."""
        if self.episode is not None and self.episode.done:
            self.order.ended(self.episode.task, self.episode.steps[-1].terminated)

    def current(self) -> Episode:
        """The running episode.

        Raises:
            RuntimeError: before the first reset, or after the episode's end.
        """
        if self.episode is None or self.episode.done:
            raise RuntimeError("call reset() first: there is no running episode to step")
        return self.episode

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped, in plain data; the task is named by its id."""
        if self.episode is None:
            return {"order": self.order.state_dict(), "episode": None}
        # A running episode is stored as what led to it: its task, the generator it began with, its actions.
        # Replaying them against the cache of answers gives back the same episode.
        return {
            "order": self.order.state_dict(),
            "episode": {
                "task_id": self.episode.task.task_id,
                "rng": self.episode.initial_rng_state,
                "actions": [step.action for step in self.episode.steps],
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        stored = state["episode"]
        if stored is None:
            self.episode = None
            return
        rng = np.random.default_rng()
        rng.bit_generator.state = stored["rng"]
        self.episode = self.engine.start(self.order.by_id(stored["task_id"]), rng)
        for action in stored["actions"]:
            choice: int | Proposal = self.engine.actions.index(action)
            self.engine.step([self.episode], [choice])


def task_id_option(options: dict[str, Any] | None) -> str | None:
    """The `task_id` of `reset(options=...)`.

    Raises:
        ConfigError: for an option that no environment here knows.
    """
    for name in options or {}:
        if name not in _RESET_OPTIONS:
            raise ConfigError(f"reset option {name!r} is unknown; allowed are {', '.join(_RESET_OPTIONS)}")
    return (options or {}).get("task_id")


def reset_info(episode: Episode) -> dict[str, Any]:
    """The `info` of a reset; the same keys and types as that of a step."""
    return _info(episode, None)


def step_info(episode: Episode, step: Step) -> dict[str, Any]:
    """The `info` of a step: task_id, prompt, code, action, pass_rate, status, tests, tokens, cached, note."""
    return _info(episode, step)


def _info(episode: Episode, step: Step | None) -> dict[str, Any]:
    return {
        "task_id": episode.task.task_id,
        "prompt": episode.prompt.render(),
        "code": (step.code or "") if step else "",
        "action": step.action if step else "",
        "pass_rate": step.verdict.pass_rate if step else 0.0,
        "status": step.verdict.status.value if step else "",
        "tests_passed": step.verdict.tests_passed if step else 0,
        "tests_total": len(episode.suite),
        "generation_tokens": step.generation.tokens_out if step else 0,
        "cached": step.generation.cached if step else False,
        "note": (step.note or "") if step else "",
    }
