"""PPO by Stable-Baselines3: training on the vector environment, and acting with a trained agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

from promptrl.envs.sb3 import SB3VecEnv
from promptrl.envs.vector_env import PromptRefinementVectorEnv
from promptrl.errors import ConfigError
from promptrl.methods.base import MethodContext
from promptrl.methods.ppo_callback import EarlyStop, ProgressHook, TrainingCallback, policy_actions
from promptrl.methods.ppo_state import ACTIONS, CHECKPOINT, StateHook, load_checkpoint, save_agent
from promptrl.methods.settings import PPOSettings
from promptrl.methods.task_baseline import TaskBaseline
from promptrl.methods.validation import BEST_AGENT, ValidationHistory, Validator
from promptrl.refinement.episode import Episode

LAST_AGENT: Final = "agent.zip"


def train(
    env: PromptRefinementVectorEnv,
    settings: PPOSettings,
    folder: Path,
    *,
    seed: int,
    validator: Validator | None = None,
    resume: bool = False,
    on_progress: ProgressHook | None = None,
    records_state: StateHook | None = None,
    restore_records: Callable[[dict[str, Any]], None] | None = None,
) -> PPO:
    """Train an agent and leave `agent.zip`, TensorBoard logs and a checkpoint in `folder`.

    With a validator also `validation.jsonl`, and `best_agent.zip`: the agent with the highest validation Strict, of
    equals the one with the higher Soft, then the higher return, then the earlier.

    Args:
        env: the training environment, `SAME_STEP` autoreset.
        settings: hyperparameters; a rollout of n_steps × n_envs has to hold at least 2 steps.
        folder: the run folder, which exists.
        seed: seeds the policy, its action sampling and the environments.
        validator: validates every `eval_freq` steps, at the end of a rollout, and when training ends.
        resume: go on from the folder's checkpoint, to the same numbers as a run that was never stopped.
        on_progress: called after every vector step with (steps done, steps in all, figures to show).
        records_state: what the caller wants stored in a checkpoint (how long its files are, say).
        restore_records: given that back on resume, before training goes on.

    Returns:
        The trained agent, as it was last. On Ctrl-C the agent so far is saved before KeyboardInterrupt is raised again.

    Raises:
        RunError: when there is nothing to resume, or the checkpoint fits another environment.
    """
    vec_env: VecEnv = VecMonitor(SB3VecEnv(env))
    if settings.task_baseline:  # outside the monitor, which shows the returns as they are
        vec_env = TaskBaseline(vec_env, horizon=env.engine.episode_settings.horizon, gamma=settings.gamma)
    if settings.normalize.observations or settings.normalize.rewards:
        vec_env = VecNormalize(
            vec_env,
            norm_obs=settings.normalize.observations,
            norm_reward=settings.normalize.rewards,
            gamma=settings.gamma,
        )
    checkpoint = folder / CHECKPOINT
    running = None
    if resume and checkpoint.with_suffix(".json").exists():
        agent, stored = load_checkpoint(checkpoint, vec_env, env)
        if restore_records:
            restore_records(stored["records"])
        running = stored["running"]
    else:
        agent = make_agent(vec_env, settings, folder, seed)
        # Kept in the agent's zip, so that its numbers are never taken for those of other actions.
        setattr(agent, ACTIONS, list(env.engine.actions))
    remaining = settings.total_timesteps - agent.num_timesteps
    callback = TrainingCallback(
        env,
        folder,
        settings,
        validator=validator,
        history=ValidationHistory(folder, agent.num_timesteps),
        on_progress=on_progress,
        records_state=records_state,
        running=running,
    )
    threads = torch.get_num_threads()
    try:
        if remaining > 0 and not callback.should_stop:
            agent.learn(remaining, callback=callback, reset_num_timesteps=False, tb_log_name="ppo")
    except EarlyStop:
        callback.on_training_end()
    finally:
        torch.set_num_threads(threads)  # a stop in the middle of an update would leave it at one
        save_agent(agent, folder / LAST_AGENT)
    return agent


def make_agent(vec_env: VecEnv, settings: PPOSettings, folder: Path, seed: int) -> PPO:
    """A new agent with the settings' hyperparameters, which logs below `folder`."""
    rate = settings.learning_rate
    return PPO(
        "MlpPolicy",
        vec_env,
        learning_rate=LinearSchedule(rate, 0.0, 1.0) if settings.lr_schedule == "linear" else rate,
        n_steps=settings.n_steps,
        batch_size=settings.batch_size,
        n_epochs=settings.n_epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip_range,
        clip_range_vf=settings.clip_range_vf,
        ent_coef=settings.ent_coef,
        vf_coef=settings.vf_coef,
        max_grad_norm=settings.max_grad_norm,
        normalize_advantage=settings.normalize_advantage,
        target_kl=settings.target_kl,
        stats_window_size=settings.stats_window_size,
        policy_kwargs={
            "net_arch": {"pi": list(settings.net_arch.pi), "vf": list(settings.net_arch.vf)},
            "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[settings.activation_fn],
            "ortho_init": settings.ortho_init,
        },
        tensorboard_log=str(folder / "tensorboard"),
        seed=seed,
        device="cpu",
    )


def kept_agent(folder: Path, settings: PPOSettings) -> Path:
    """The agent of a training run that is evaluated: the best one where validation ran and `keep` says so."""
    best = folder / BEST_AGENT
    return best if settings.keep == "best" and best.exists() else folder / LAST_AGENT


class PPOMethod:
    """Acts with a trained agent; deterministic (the likeliest action) unless the context says otherwise."""

    name: str = "ppo"
    attempts: int | None = None

    def __init__(self, context: MethodContext) -> None:
        if context.policy is None:
            raise ConfigError("the method 'ppo' needs a trained agent; give its zip with --policy")
        if not context.policy.is_file():
            raise ConfigError(f"there is no trained agent at {context.policy}")
        try:
            self._agent = PPO.load(context.policy, device="cpu")
        except Exception as error:
            raise ConfigError(f"{context.policy} is not a Stable-Baselines3 PPO zip ({error})") from error
        if not isinstance(self._agent.action_space, Discrete):
            raise ConfigError(f"{context.policy} was trained on another kind of actions than this environment's")
        trained = getattr(self._agent, ACTIONS, None)
        known = trained or [f"action {number}" for number in range(int(self._agent.action_space.n))]
        if len(known) != len(context.actions) or (trained and tuple(trained) != context.actions):
            raise ConfigError(
                f"{context.policy} was trained with the actions {', '.join(known)}; "
                f"the configuration has {', '.join(context.actions)}"
            )
        self._seed = context.seed
        self._deterministic = context.deterministic

    def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> list[int]:
        if observations.shape[1:] != self._agent.observation_space.shape:
            raise ConfigError(
                f"the agent was trained on states of the shape {self._agent.observation_space.shape}; "
                f"the configuration's environment.state has {observations.shape[1:]}"
            )
        return policy_actions(self._agent, episodes, observations, seed=self._seed, deterministic=self._deterministic)
