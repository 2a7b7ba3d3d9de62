"""`PromptRefinementEnv`: the Markov decision process of prompt refinement as a Gymnasium environment."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, ClassVar, SupportsIndex

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from promptrl.envs.render import RENDER_MODES, check_render_mode, render_step
from promptrl.envs.slot import Slot, reset_info, step_info, task_id_option
from promptrl.envs.task_order import TaskOrderName, TaskStatistics
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.state import StateName, observe, state_bounds
from promptrl.tasks.task import Task

Observation = NDArray[np.float32]


class PromptRefinementEnv(gym.Env[Observation, SupportsIndex]):
    """Refine the prompt of a frozen code model until the code passes its tests (arXiv 2605.19102).

    ## Actions, `Discrete(3)`

    | number | action | what it does |
    | --- | --- | --- |
    | 0 | `direct` | keeps the prompt and draws another answer (the first is greedy) |
    | 1 | `lexical` | one genetic offspring of the episode's prompts: insertion, deletion, replacement, crossover |
    | 2 | `semantic` | an instruct model reflects on the last outcome and rewrites the instruction |

    Further actions follow in the order of the configuration's `environment.actions`.

    ## Observation, `Box(384,)`, float32

    MiniLM's embedding of the rendered prompt, unit length, each number in [-1, 1]. Richer states are chosen
    with `environment.state`; `promptrl.refinement.state` lists their numbers. The number of steps left is
    part of the richer states only.

    ## Reward

    Shaped: 1 if all reward tests pass; the share ρ that passes if some do; −1 if none does though the code
    ran; −2 on execution failure. Binary: 1 if all pass, else 0.

    ## Episode

    One task. `terminated` when all reward tests pass; `truncated` at the horizon; never both. `reset` draws
    tasks in shuffled epochs without repeats, or (`task_order="curriculum"`) weighted to those neither always nor
    never solved; `options={"task_id": ...}` picks one.

    ## Info

    `task_id`, `prompt`, `code`, `action`, `pass_rate`, `status`, `tests_passed`, `tests_total`,
    `generation_tokens`, `cached`, `note`.

    ## Versions

    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": RENDER_MODES}  # type: ignore[misc]

    def __init__(
        self,
        engine: RefinementEngine,
        tasks: Sequence[Task],
        *,
        state: StateName = "prompt",
        task_order: TaskOrderName = "shuffled",
        render_mode: str | None = None,
    ) -> None:
        self.engine = engine
        self.state: StateName = state
        self.render_mode = check_render_mode(render_mode)
        low, high = state_bounds(state, len(engine.actions))
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gym.spaces.Discrete(len(engine.actions))
        statistics = TaskStatistics(len(tasks)) if task_order == "curriculum" else None
        self.slot = Slot(engine, tasks, self.np_random, statistics)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the next task's episode, or that of `options["task_id"]`; `seed` fixes all that is drawn."""
        super().reset(seed=seed)
        if seed is not None:
            if self.slot.statistics is not None:
                self.slot.statistics.clear()
            self.slot.seed(self.np_random)
        episode = self.slot.begin(task_id_option(options))
        return self._observation(), reset_info(episode)

    def step(self, action: SupportsIndex) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One attempt: refine the prompt by `action`, have it answered, run the reward tests."""
        episode = self.slot.current()
        (step,) = self.engine.step([episode], [operator.index(action)])
        self.slot.stepped()
        if self.render_mode == "human":
            print(render_step(episode, step))
        return self._observation(), step.reward, step.terminated, step.truncated, step_info(episode, step)

    def render(self) -> str | None:
        """With `render_mode="ansi"`, the last step as text: prompt diff, verdict and reward."""
        if self.render_mode != "ansi" or self.slot.episode is None:
            return None
        return render_step(self.slot.episode, self.slot.episode.last)

    def _observation(self) -> Observation:
        assert self.slot.episode is not None  # reset() and step() have one
        row: Observation = observe([self.slot.episode], self.state, self.engine.actions, self.engine.encode)[0]
        return row
