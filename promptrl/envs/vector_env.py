"""`PromptRefinementVectorEnv`: n episodes advanced together, so that the models work in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from promptrl.envs.render import RENDER_MODES, check_render_mode, render_step
from promptrl.envs.slot import Slot, reset_info, step_info, task_id_option
from promptrl.envs.task_order import TaskOrderName, TaskStatistics
from promptrl.errors import ConfigError
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.episode import Episode, Step
from promptrl.refinement.state import StateName, observe, state_bounds
from promptrl.tasks.task import Task

Observations = NDArray[np.float32]
StepHook = Callable[[int, Episode, Step], None]


class PromptRefinementVectorEnv(VectorEnv[Observations, NDArray[np.int64], NDArray[Any]]):
    """The environment of `PromptRefinementEnv`, n times over, as one batched step.

    One step is one batched MiniLM call for the states, at most one batched rewriting call, one batched generation call
    and the judging of all candidates in parallel. Sub-environment i of a vector seeded with s behaves as a
    single environment seeded with s + i.

    Args:
        engine: what advances episodes.
        tasks: the tasks of this environment's split.
        num_envs: n.
        state: which state is observed, see `promptrl.refinement.state`.
        task_order: `"shuffled"` epochs, or a `"curriculum"` whose statistics all sub-environments share.
        autoreset_mode: `AutoresetMode.SAME_STEP` (default; the last observation and info of an ended episode
            are in `infos["final_obs"]` and `infos["final_info"]`), `NEXT_STEP` or `DISABLED`.
        render_mode: `"human"` prints each step, `"ansi"` returns it as text.
        on_step: called with (sub-environment, episode, step) after every step, before any reset.
    """

    def __init__(
        self,
        engine: RefinementEngine,
        tasks: Sequence[Task],
        *,
        num_envs: int = 1,
        state: StateName = "prompt",
        task_order: TaskOrderName = "shuffled",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        render_mode: str | None = None,
        on_step: StepHook | None = None,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; a vector environment needs at least 1")
        self.engine = engine
        self.num_envs = num_envs
        self.state: StateName = state
        self.render_mode = check_render_mode(render_mode)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": RENDER_MODES, "autoreset_mode": self.autoreset_mode}
        low, high = state_bounds(state, len(engine.actions))
        self.single_observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.single_action_space = gym.spaces.Discrete(len(engine.actions))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.on_step = on_step
        self.statistics = TaskStatistics(len(tasks)) if task_order == "curriculum" else None
        self.slots = [Slot(engine, tasks, seeding.np_random()[0], self.statistics) for _ in range(num_envs)]
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._rendered = [""] * num_envs
        self._observations = np.zeros((num_envs, low.shape[0]), dtype=np.float32)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start new episodes in all sub-environments, or in those that `options["reset_mask"]` names.

        `seed` s seeds sub-environment i with s + i; a sequence gives one seed each. `options["task_id"]` is
        one task for all, or a sequence with one each.
        """
        seeds = self._seeds(seed)
        mask = self._reset_mask(options)
        task_ids: Any = task_id_option(options)
        if isinstance(task_ids, str) or task_ids is None:
            task_ids = [task_ids] * self.num_envs
        if not isinstance(task_ids, list | tuple) or len(task_ids) != self.num_envs:
            raise ConfigError(f"reset option 'task_id' is {task_ids!r}; give one id, or a list of {self.num_envs}")
        for task_id in task_ids:
            if task_id is not None:
                self.slots[0].order.by_id(task_id)  # refuse an unknown one before anything is reset
        if seed is not None and self.statistics is not None:
            self.statistics.clear()
        infos: dict[str, Any] = {}
        chosen = [int(i) for i in np.flatnonzero(mask)]
        for i in chosen:
            if (own := seeds[i]) is not None:
                self.slots[i].seed(seeding.np_random(own)[0])
            episode = self.slots[i].begin(task_ids[i])
            self._rendered[i] = render_step(episode, None) if self.render_mode is not None else ""
            infos = self._add_info(infos, reset_info(episode), i)
        self._observations[chosen] = self._observe(chosen)
        self._ended[chosen] = False
        return self._observations.copy(), infos

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Advance every sub-environment by one attempt; see `gymnasium.vector.VectorEnv.step`."""
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,):
            raise ValueError(f"actions have the shape {actions.shape}; needed is ({self.num_envs},)")
        if not np.issubdtype(actions.dtype, np.integer):
            raise ValueError(f"actions have the dtype {actions.dtype}; needed are integers")
        resetting: list[int] = []
        if self._ended.any() and self.autoreset_mode is not AutoresetMode.SAME_STEP:
            if self.autoreset_mode is AutoresetMode.DISABLED:
                raise RuntimeError("an episode has ended; call reset(options={'reset_mask': ...}) before stepping on")
            resetting = [int(i) for i in np.flatnonzero(self._ended)]
        running = [i for i in range(self.num_envs) if i not in resetting]

        episodes = [self.slots[i].current() for i in running]
        steps = self.engine.step(episodes, [int(actions[i]) for i in running])
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminations = np.zeros(self.num_envs, dtype=np.bool_)
        truncations = np.zeros(self.num_envs, dtype=np.bool_)
        own_infos: dict[int, dict[str, Any]] = {}
        for i, episode, step in zip(running, episodes, steps, strict=True):
            rewards[i], terminations[i], truncations[i] = step.reward, step.terminated, step.truncated
            self.slots[i].stepped()
            own_infos[i] = step_info(episode, step)
            if self.on_step:
                self.on_step(i, episode, step)
            if self.render_mode is not None:
                self._rendered[i] = render_step(episode, step)
            if self.render_mode == "human":
                print(self._rendered[i])
        for i in resetting:
            own_infos[i] = reset_info(self.slots[i].begin())
        self._ended = terminations | truncations

        infos: dict[str, Any] = {}
        ended = [int(i) for i in np.flatnonzero(self._ended)]
        if self.autoreset_mode is AutoresetMode.SAME_STEP and ended:
            final = [self.slots[i].episode for i in ended]
            fresh = [self.slots[i].begin() for i in ended]
            # One encoding call for the last states of the old episodes and the states of all running ones.
            current = [slot.episode for slot in self.slots]
            states = self._states([e for e in [*current, *final] if e is not None])
            self._observations = states[: self.num_envs]
            for i, old, new in zip(ended, states[self.num_envs :], fresh, strict=True):
                infos = self._add_info(infos, {"final_obs": old, "final_info": own_infos[i]}, i)
                own_infos[i] = reset_info(new)
            self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        else:
            self._observations = self._observe(range(self.num_envs))
        for i, info in sorted(own_infos.items()):
            infos = self._add_info(infos, info, i)
        return self._observations.copy(), rewards, terminations, truncations, infos

    def render(self) -> tuple[str, ...] | None:
        """With `render_mode="ansi"`, each sub-environment's last step as text, that of an ended episode too."""
        return tuple(self._rendered) if self.render_mode == "ansi" else None

    def state_dict(self) -> dict[str, Any]:
        """Where every sub-environment stands, for a checkpoint."""
        return {
            "slots": [slot.state_dict() for slot in self.slots],
            "ended": self._ended.tolist(),
            "statistics": self.statistics.state_dict() if self.statistics else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict()` of a vector with as many sub-environments and the same tasks."""
        if len(state["slots"]) != self.num_envs:
            raise ConfigError(
                f"the checkpoint holds {len(state['slots'])} environments, the configuration {self.num_envs}"
            )
        for slot, stored in zip(self.slots, state["slots"], strict=True):
            slot.load_state_dict(stored)
        if self.statistics and state["statistics"]:
            self.statistics.load_state_dict(state["statistics"])
        self._ended = np.array(state["ended"], dtype=np.bool_)
        self._observations = self._observe(range(self.num_envs))

    def _observe(self, indices: Sequence[int]) -> Observations:
        episodes = [self.slots[i].episode for i in indices]
        return self._states([episode for episode in episodes if episode is not None])

    def _states(self, episodes: Sequence[Episode]) -> Observations:
        return observe(episodes, self.state, self.engine.actions, self.engine.encode)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds were given for {self.num_envs} environments")
        return list(seed)

    def _reset_mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        if (
            not isinstance(mask, np.ndarray)
            or mask.dtype != np.bool_
            or mask.shape != (self.num_envs,)
            or not mask.any()
        ):
            raise ValueError(
                f"options['reset_mask'] must be a bool array of shape ({self.num_envs},) with a True, got {mask!r}"
            )
        return mask
