"""The baselines that learn nothing: direct, repeat-direct and random-hybrid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from promptrl.methods.base import MethodContext
from promptrl.refinement.episode import Episode, task_rng


class Direct:
    """One greedy answer to the unchanged prompt."""

    name: str = "direct"
    attempts: int | None = 1
    reads_states = False

    def __init__(self, context: MethodContext) -> None:
        self._direct = context.action("direct")

    def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> list[int]:
        return [self._direct] * len(episodes)


class RepeatDirect(Direct):
    """The whole budget of draws from the unchanged prompt: what every learned method has to beat."""

    name: str = "repeat-direct"
    attempts: int | None = None


class RandomHybrid:
    """A uniform choice over the actions at every step."""

    name: str = "random-hybrid"
    attempts: int | None = None
    reads_states = False

    def __init__(self, context: MethodContext) -> None:
        self._seed = context.seed
        self._n_actions = len(context.actions)

    def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> list[int]:
        # The n-th choice on a task is the same whatever the other episodes of the batch are.
        return [
            int(task_rng(self._seed, e.task.task_id, f"random-hybrid {len(e.steps)}").integers(self._n_actions))
            for e in episodes
        ]
