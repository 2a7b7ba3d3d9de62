"""What happens beside PPO's own loop: scalars, validation, early stopping, checkpoints, progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from promptrl.envs.vector_env import PromptRefinementVectorEnv
from promptrl.methods.ppo_state import (
    CHECKPOINT,
    StateHook,
    normalized,
    remember_normalization,
    save_agent,
    save_checkpoint,
)
from promptrl.methods.settings import PPOSettings
from promptrl.methods.validation import BEST_AGENT, ValidationHistory, Validator
from promptrl.refinement.episode import Episode, task_rng

ProgressHook = Callable[[int, int, dict[str, float]], None]


class EarlyStop(Exception):  # noqa: N818 - not an error
    """Ends training between an update and the next rollout; never leaves `train`."""


def policy_actions(
    agent: PPO, episodes: Sequence[Episode], observations: NDArray[np.float32], *, seed: int, deterministic: bool
) -> list[int]:
    """An agent's action per episode; `observations` is as the environment gives it, shape (episodes, state size).

    A sampled action depends on the seed, the task and the number of the step, never on what else is in the batch.
    """
    with torch.no_grad():
        states = torch.from_numpy(normalized(agent, observations))
        distribution: Any = agent.policy.get_distribution(states).distribution
    chances = distribution.probs.double().numpy()
    if deterministic:
        return [int(action) for action in chances.argmax(axis=1)]
    return [
        int(task_rng(seed, e.task.task_id, f"ppo {len(e.steps)}").choice(len(row), p=row / row.sum()))
        for e, row in zip(episodes, chances, strict=True)
    ]


class TrainingCallback(BaseCallback):
    """Progress after each step; scalars, and validation and a checkpoint where due, at the start of each rollout.

    Stable-Baselines3 calls `on_rollout_start` right after an update: the one moment at which the agent, the
    environments and the random states together describe the whole run. Validation draws from no generator that
    training uses, so that a run has the same numbers with it and without.
    """

    def __init__(
        self,
        env: PromptRefinementVectorEnv,
        folder: Path,
        settings: PPOSettings,
        *,
        validator: Validator | None,
        history: ValidationHistory,
        on_progress: ProgressHook | None,
        records_state: StateHook | None,
        running: dict[str, dict[str, float]] | None,
    ) -> None:
        super().__init__()
        self.env = env
        self.folder = folder
        self.settings = settings
        self.validator = validator
        self.history = history
        self.on_progress = on_progress
        self.records_state = records_state
        self._saved_at: int | None = None
        self._threads = torch.get_num_threads()
        self._lately: deque[float] = deque(maxlen=64)
        # Of the running episodes, per sub-environment: Π (1 − ρ) so far, and the last pass rate.
        running = running or {"missed": {}, "before": {}}
        self._missed = {int(i): value for i, value in running["missed"].items()}
        self._before = {int(i): value for i, value in running["before"].items()}
        self._reset_counts()

    @property
    def should_stop(self) -> bool:
        """Whether validation has brought nothing new for as long as the settings allow."""
        patience = self.settings.early_stop_evals
        return self.validator is not None and patience is not None and self.history.since_best >= patience

    def _reset_counts(self) -> None:
        self._actions = np.zeros(len(self.env.engine.actions), dtype=np.int64)
        self._gains: dict[str, list[float]] = {action: [] for action in self.env.engine.actions}
        self._solved: list[float] = []
        self._soft: list[float] = []
        self._cached = self._steps = self._tokens = 0

    def _on_rollout_start(self) -> None:
        torch.set_num_threads(self._threads)
        every = self.settings.eval_freq
        validated = bool(every) and self.num_timesteps - self.history.last_steps >= (every or 0) and self._validate()
        # What an update logged waits for the next rollout's end otherwise, where it is no longer the update's step.
        self.logger.dump(self.num_timesteps)
        due = self._saved_at is None or self.num_timesteps - self._saved_at >= self.settings.save_freq
        if validated or due:
            self._save()
        if self.should_stop:
            raise EarlyStop

    def _on_training_end(self) -> None:
        torch.set_num_threads(self._threads)
        if self.settings.eval_freq and self.history.last_steps < self.num_timesteps:
            self._validate()
        self.logger.dump(self.num_timesteps)
        self._save()

    def _save(self) -> None:
        running = {"missed": self._missed, "before": self._before}
        save_checkpoint(self._agent, self.env, self.folder / CHECKPOINT, self.records_state, running)
        self._saved_at = self.num_timesteps

    @property
    def _agent(self) -> PPO:
        assert isinstance(self.model, PPO)  # what train() made
        return self.model

    def _validate(self) -> bool:
        """Validate the agent and keep it if it is the best so far; False where there is nothing to validate on."""
        validator, agent = self.validator, self._agent
        if validator is None:
            return False
        remember_normalization(agent)
        choose = partial(policy_actions, agent, seed=validator.seed, deterministic=validator.deterministic)

        def show(done: int, total: int) -> None:
            if self.on_progress:
                self.on_progress(self.num_timesteps, self.settings.total_timesteps, {"validated": done / total})

        result = validator.run(choose, self.num_timesteps, show)
        best = self.history.best
        result = replace(result, best=best is None or result.rank > best.rank)
        if result.best:
            save_agent(agent, self.folder / BEST_AGENT)
        self.history.add(result)
        self.logger.record("validation/strict_pass_at_1", result.strict)
        self.logger.record("validation/soft_pass_at_1", result.soft)
        self.logger.record("validation/mean_return", result.mean_return)
        self.logger.record("validation/mean_ep_length", result.mean_length)
        for action, share in result.action_shares.items():
            self.logger.record(f"validation/{action}_share", share)
        return True

    def _on_step(self) -> bool:
        for i, (action, info) in enumerate(zip(self.locals["actions"], self.locals["infos"], strict=True)):
            rate = float(info["pass_rate"])
            self._actions[int(action)] += 1
            if i in self._before:
                self._gains[self.env.engine.actions[int(action)]].append(rate - self._before[i])
            self._before[i] = rate
            self._missed[i] = self._missed.get(i, 1.0) * (1.0 - rate)
            self._steps += 1
            self._cached += bool(info["cached"])
            self._tokens += int(info["generation_tokens"])
            if self.locals["dones"][i]:
                self._solved.append(float(rate == 1.0))
                self._lately.append(float(rate == 1.0))
                self._soft.append(1.0 - self._missed.pop(i))
                self._before.pop(i)
        if self.on_progress:
            shown = {"solved lately": float(np.mean(self._lately))} if self._lately else {}
            if self.history.results:
                shown["validation strict"] = self.history.results[-1].strict
            self.on_progress(self.num_timesteps, self.settings.total_timesteps, shown)
        return True

    def _on_rollout_end(self) -> None:
        for action, count in zip(self.env.engine.actions, self._actions, strict=True):
            self.logger.record(f"actions/{action}_share", count / max(1, self._steps))
            if self._gains[action]:
                self.logger.record(f"actions/{action}_pass_rate_gain", float(np.mean(self._gains[action])))
        if self._solved:
            self.logger.record("rollout/strict_pass_at_1", float(np.mean(self._solved)))
            self.logger.record("rollout/soft_pass_at_1", float(np.mean(self._soft)))
        self.logger.record("generation/cached_share", self._cached / max(1, self._steps))
        self.logger.record("generation/tokens", self._tokens)
        self._reset_counts()
        # The update's networks are so small that threads wait for each other longer than they compute.
        torch.set_num_threads(1)
