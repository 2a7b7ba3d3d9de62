"""What a task's own earlier episodes gained, taken off the rewards that PPO learns from.

Most of what returns vary by is the task: hard ones fail whatever is done. A value function that sees a prompt can learn
little of it in a few thousand steps, and what an action adds drowns. So the reward of step k on a task is shaped by a
potential (Ng, Harada and Russell, 1999), the mean return from step k on of that task's earlier episodes:

    r'_k = r_k + γ Φ(task, k + 1) - Φ(task, k),    Φ = 0 once an episode has ended

which changes no policy's rank by what its episodes gain, and leaves about what the actions did. An episode's potentials
are those of its start. Where an episode is cut off, Stable-Baselines3 adds the value of its last state, which is not
shaped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

_WEIGHT_OF_ALL = 1.0
"""How many episodes of a task the mean over all tasks counts for."""


class TaskBaseline(VecEnvWrapper):
    """Shapes rewards by what the same task gained before; observations and infos pass as they are.

    Args:
        venv: environments whose infos, those of `reset_infos` too, have `task_id`.
        horizon: most steps of an episode.
        gamma: PPO's discount.
    """

    def __init__(self, venv: VecEnv, *, horizon: int, gamma: float) -> None:
        super().__init__(venv)
        self._horizon = horizon
        self._gamma = gamma
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, NDArray[np.float64]] = {}
        self._tasks = [""] * venv.num_envs
        self._rewards: list[list[float]] = [[] for _ in range(venv.num_envs)]
        self._potentials = np.zeros((venv.num_envs, horizon + 1))

    def potentials(self, task_id: str) -> NDArray[np.float64]:
        """Φ(task, k) for k = 0 … horizon, shape (horizon + 1,), the last 0.

        A task with few episodes leans on the mean over all of them; without any episode everything is 0.
        """
        none = np.zeros(self._horizon)
        sums, counts = self._sums.get(task_id, none), self._counts.get(task_id, none)
        all_sums, all_counts = sum(self._sums.values(), none), sum(self._counts.values(), none)
        means = all_sums / np.maximum(all_counts, 1)
        return np.append((sums + _WEIGHT_OF_ALL * means) / (counts + _WEIGHT_OF_ALL), 0.0)

    def reset(self) -> VecEnvObs:
        observations = self.venv.reset()
        for index in range(self.num_envs):
            self._start(index)
        return observations

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards, ended, infos = self.venv.step_wait()
        shaped = np.array(rewards, dtype=np.float64)
        for index, reward in enumerate(rewards):
            step, potentials = len(self._rewards[index]), self._potentials[index]
            after = 0.0 if ended[index] else potentials[step + 1]
            shaped[index] += self._gamma * after - potentials[step]
            self._rewards[index].append(float(reward))
        for index in map(int, np.flatnonzero(ended)):
            self._learn(self._tasks[index], self._rewards[index])
        for index in map(int, np.flatnonzero(ended)):  # after all of them, whatever the order of the environments
            self._start(index)
        return observations, shaped.astype(np.float32), ended, infos

    def state_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {
            "sums": {task: sums.tolist() for task, sums in self._sums.items()},
            "counts": {task: counts.tolist() for task, counts in self._counts.items()},
            "tasks": list(self._tasks),
            "rewards": [list(rewards) for rewards in self._rewards],
            "potentials": self._potentials.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._sums = {task: np.array(sums) for task, sums in state["sums"].items()}
        self._counts = {task: np.array(counts) for task, counts in state["counts"].items()}
        self._tasks = list(state["tasks"])
        self._rewards = [list(rewards) for rewards in state["rewards"]]
        self._potentials = np.array(state["potentials"])

    def _start(self, index: int) -> None:
        # The environments' own list: each wrapper has one, which nobody fills.
        task_id = str(self.venv.unwrapped.reset_infos[index]["task_id"])
        self._tasks[index], self._rewards[index] = task_id, []
        self._potentials[index] = self.potentials(task_id)

    def _learn(self, task_id: str, rewards: list[float]) -> None:
        """Add an episode that has ended: its discounted return from each of its steps on."""
        sums = self._sums.setdefault(task_id, np.zeros(self._horizon))
        counts = self._counts.setdefault(task_id, np.zeros(self._horizon))
        gained = 0.0
        for step in reversed(range(len(rewards))):
            gained = rewards[step] + self._gamma * gained
            sums[step] += gained
            counts[step] += 1
