"""PPO by Stable-Baselines3: training on the vector environment, and acting with a trained agent."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor

from promptrl.atomic import write_atomically
from promptrl.envs.sb3 import SB3VecEnv
from promptrl.envs.vector_env import PromptRefinementVectorEnv
from promptrl.errors import ConfigError, RunError
from promptrl.methods.base import MethodContext, task_rng
from promptrl.methods.settings import PPOSettings
from promptrl.refinement.episode import Episode

CHECKPOINT: Final = "checkpoint"
_ACTIONS: Final = "promptrl_actions"


ProgressHook = Callable[[int, int, dict[str, float]], None]
StateHook = Callable[[], dict[str, Any]]


def train(
    env: PromptRefinementVectorEnv,
    settings: PPOSettings,
    folder: Path,
    *,
    seed: int,
    resume: bool = False,
    on_progress: ProgressHook | None = None,
    records_state: StateHook | None = None,
    restore_records: Callable[[dict[str, Any]], None] | None = None,
) -> PPO:
    """Train an agent and leave `agent.zip`, TensorBoard logs and a checkpoint in `folder`.

    Args:
        env: the training environment, `SAME_STEP` autoreset.
        settings: hyperparameters; a rollout of n_steps × n_envs has to hold at least 2 steps.
        folder: the run folder, which exists.
        seed: seeds the policy, its action sampling and the environments.
        resume: go on from the folder's checkpoint, to the same numbers as a run that was never stopped.
        on_progress: called after every vector step with (steps done, steps in all, figures to show).
        records_state: what the caller wants stored in a checkpoint (how long its files are, say).
        restore_records: given that back on resume, before training goes on.

    Returns:
        The trained agent. On Ctrl-C the agent so far is saved before KeyboardInterrupt is raised again.

    Raises:
        RunError: when there is nothing to resume, or the checkpoint fits another environment.
    """
    vec_env = VecMonitor(SB3VecEnv(env))
    checkpoint = folder / CHECKPOINT
    if resume and checkpoint.with_suffix(".json").exists():
        agent, stored = _load_checkpoint(checkpoint, vec_env, env)
        if restore_records:
            restore_records(stored["records"])
        running = stored["running"]
    else:
        running = None
        agent = PPO(
            "MlpPolicy",
            vec_env,
            learning_rate=settings.learning_rate,
            n_steps=settings.n_steps,
            batch_size=settings.batch_size,
            n_epochs=settings.n_epochs,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            clip_range=settings.clip_range,
            ent_coef=settings.ent_coef,
            vf_coef=settings.vf_coef,
            max_grad_norm=settings.max_grad_norm,
            normalize_advantage=settings.normalize_advantage,
            target_kl=settings.target_kl,
            policy_kwargs={
                "net_arch": list(settings.net_arch),
                "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[settings.activation_fn],
            },
            tensorboard_log=str(folder / "tensorboard"),
            seed=seed,
            device="cpu",
        )
        # Kept in the agent's zip, so that its numbers are never taken for those of other actions.
        setattr(agent, _ACTIONS, list(env.engine.actions))
    remaining = settings.total_timesteps - agent.num_timesteps
    callback = _TrainingCallback(env, checkpoint, settings, on_progress, records_state, running)
    threads = torch.get_num_threads()
    try:
        if remaining > 0:
            agent.learn(remaining, callback=callback, reset_num_timesteps=False, tb_log_name="ppo")
    finally:
        torch.set_num_threads(threads)  # a stop in the middle of an update would leave it at one
        _save_agent(agent, folder / "agent.zip")
    return agent


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
        trained = getattr(self._agent, _ACTIONS, None)
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
        with torch.no_grad():
            distribution: Any = self._agent.policy.get_distribution(torch.from_numpy(observations)).distribution
        chances = distribution.probs.double().numpy()
        if self._deterministic:
            return [int(action) for action in chances.argmax(axis=1)]
        # Each draw has its own generator, so that it does not depend on what else is in the batch.
        return [
            int(task_rng(self._seed, e.task.task_id, f"ppo {len(e.steps)}").choice(len(row), p=row / row.sum()))
            for e, row in zip(episodes, chances, strict=True)
        ]


class _TrainingCallback(BaseCallback):
    """Progress after each step; scalars, and a checkpoint where one is due, at the start of each rollout.

    Stable-Baselines3 calls `on_rollout_start` right after an update: the one moment at which the agent, the
    environments and the random states together describe the whole run.
    """

    def __init__(
        self,
        env: PromptRefinementVectorEnv,
        checkpoint: Path,
        settings: PPOSettings,
        on_progress: ProgressHook | None,
        records_state: StateHook | None,
        running: dict[str, dict[str, float]] | None,
    ) -> None:
        super().__init__()
        self.env = env
        self.checkpoint = checkpoint
        self.settings = settings
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

    def _reset_counts(self) -> None:
        self._actions = np.zeros(len(self.env.engine.actions), dtype=np.int64)
        self._gains: dict[str, list[float]] = {action: [] for action in self.env.engine.actions}
        self._solved: list[float] = []
        self._soft: list[float] = []
        self._cached = self._steps = self._tokens = 0

    def _on_rollout_start(self) -> None:
        torch.set_num_threads(self._threads)
        if self._saved_at is None or self.num_timesteps - self._saved_at >= self.settings.save_freq:
            self._save()

    def _on_training_end(self) -> None:
        torch.set_num_threads(self._threads)
        self._save()

    def _save(self) -> None:
        # What the update logged waits for the next rollout's end, which a resumed run would no longer know of.
        self.logger.dump(self.num_timesteps)
        running = {"missed": self._missed, "before": self._before}
        assert isinstance(self.model, PPO)  # what train() made
        _save_checkpoint(self.model, self.env, self.checkpoint, self.records_state, running)
        self._saved_at = self.num_timesteps

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


def _save_agent(agent: PPO, path: Path) -> None:
    with write_atomically(path) as temporary:
        # Stable-Baselines3 adds ".zip" to names without it; the temporary name ends in it.
        agent.save(temporary)


def _save_checkpoint(
    agent: PPO,
    env: PromptRefinementVectorEnv,
    checkpoint: Path,
    records_state: StateHook | None,
    running: dict[str, dict[int, float]],
) -> None:
    """Agent, environments and random states, under one name; the JSON file, written last, makes it valid."""
    monitor = agent.get_env()
    assert isinstance(monitor, VecMonitor)  # what train() made
    zip_path = checkpoint.with_name(f"{checkpoint.name}-{agent.num_timesteps}.zip")
    _save_agent(agent, zip_path)
    python_version, python_state, python_gauss = random.getstate()
    _, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        "agent": zip_path.name,
        "num_timesteps": agent.num_timesteps,
        "actions": list(env.engine.actions),
        "tasks": sorted({task.task_id for slot in env.slots for task in slot.tasks}),
        "env": env.state_dict(),
        "monitor": [monitor.episode_returns.tolist(), monitor.episode_lengths.tolist()],
        "random": {
            "python": [python_version, list(python_state), python_gauss],
            "numpy": [np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
            "torch": torch.get_rng_state().tolist(),
        },
        "running": running,
        "records": records_state() if records_state else {},
    }
    with write_atomically(checkpoint.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(state))
    for old in checkpoint.parent.glob(f"{checkpoint.name}-*.zip"):
        if old != zip_path:
            old.unlink()


def _load_checkpoint(
    checkpoint: Path, vec_env: VecMonitor, env: PromptRefinementVectorEnv
) -> tuple[PPO, dict[str, Any]]:
    path = checkpoint.with_suffix(".json")
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        zip_path = checkpoint.with_name(stored["agent"])
        tasks = sorted({task.task_id for slot in env.slots for task in slot.tasks})
        for name, found, wanted in (
            ("action list", stored["actions"], list(env.engine.actions)),
            ("training tasks", stored["tasks"], tasks),
        ):
            if found != wanted:
                raise RunError(f"{path} was made with another {name} than the configuration's; start a new run instead")
        agent = PPO.load(zip_path, env=vec_env, device="cpu", force_reset=False)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"the checkpoint {path} cannot be read ({error}); start a new run instead") from error
    agent.tensorboard_log = str(checkpoint.parent / "tensorboard")  # the folder may have been moved
    env.load_state_dict(stored["env"])
    vec_env.episode_returns = np.array(stored["monitor"][0], dtype=np.float32)
    vec_env.episode_lengths = np.array(stored["monitor"][1], dtype=np.int32)
    drawn = stored["random"]
    random.setstate((drawn["python"][0], tuple(drawn["python"][1]), drawn["python"][2]))
    keys, position, has_gauss, gauss = drawn["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(torch.tensor(drawn["torch"], dtype=torch.uint8))
    return agent, stored
