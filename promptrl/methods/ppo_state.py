"""What a PPO run keeps on disk: the agent's zip, its normalisation, and checkpoints that training goes on from."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize, unwrap_vec_wrapper

from promptrl.atomic import write_atomically
from promptrl.envs.vector_env import PromptRefinementVectorEnv
from promptrl.errors import RunError
from promptrl.methods.task_baseline import TaskBaseline

CHECKPOINT: Final = "checkpoint"
ACTIONS: Final = "promptrl_actions"
NORMALIZATION: Final = "promptrl_normalization"

StateHook = Callable[[], dict[str, Any]]


def save_agent(agent: PPO, path: Path, *, beside: bool = True) -> None:
    """Write the agent's zip, whole or not at all.

    The zip holds the statistics of the observations, so that a copy of it acts as it was trained. With `beside` they
    also lie next to it, as `<name>.vecnormalize.pkl`, for Stable-Baselines3's own `VecNormalize.load`.
    """
    remember_normalization(agent)
    normalize = agent.get_vec_normalize_env()
    if normalize is not None and beside:
        with write_atomically(path.with_suffix(".vecnormalize.pkl")) as temporary:
            normalize.save(str(temporary))
    with write_atomically(path) as temporary:
        # Stable-Baselines3 adds ".zip" to names without it; the temporary name ends in it.
        agent.save(temporary)


def remember_normalization(agent: PPO) -> None:
    """Note the present statistics of its environment's observations in the agent; none where there are none."""
    normalize = agent.get_vec_normalize_env()
    stored = None
    if normalize is not None and normalize.norm_obs:
        assert isinstance(normalize.obs_rms, RunningMeanStd)
        stored = {
            "mean": normalize.obs_rms.mean.tolist(),
            "var": normalize.obs_rms.var.tolist(),
            "epsilon": normalize.epsilon,
            "clip_obs": normalize.clip_obs,
        }
    setattr(agent, NORMALIZATION, stored)


def normalized(agent: PPO, observations: NDArray[np.float32]) -> NDArray[np.float32]:
    """Observations as the agent was trained to see them, by the statistics that it carries."""
    stored = getattr(agent, NORMALIZATION, None)
    if not stored:
        return observations
    scaled = (observations - np.array(stored["mean"])) / np.sqrt(np.array(stored["var"]) + stored["epsilon"])
    clipped: NDArray[np.float32] = np.clip(scaled, -stored["clip_obs"], stored["clip_obs"]).astype(np.float32)
    return clipped


def save_checkpoint(
    agent: PPO,
    env: PromptRefinementVectorEnv,
    checkpoint: Path,
    records_state: StateHook | None,
    running: dict[str, dict[int, float]],
) -> None:
    """Agent, environments and random states, under one name; the JSON file, written last, makes it valid."""
    monitor = _monitor(agent.get_env())
    zip_path = checkpoint.with_name(f"{checkpoint.name}-{agent.num_timesteps}.zip")
    save_agent(agent, zip_path, beside=False)
    python_version, python_state, python_gauss = random.getstate()
    _, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        "agent": zip_path.name,
        "num_timesteps": agent.num_timesteps,
        "actions": list(env.engine.actions),
        "tasks": _task_ids(env),
        "env": env.state_dict(),
        "monitor": [monitor.episode_returns.tolist(), monitor.episode_lengths.tolist()],
        "normalize": _normalize_state(agent.get_vec_normalize_env()),
        "task_baseline": baseline.state_dict() if (baseline := _task_baseline(agent.get_env())) else None,
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


def load_checkpoint(checkpoint: Path, vec_env: VecEnv, env: PromptRefinementVectorEnv) -> tuple[PPO, dict[str, Any]]:
    """The agent of a checkpoint, with environments and random states put back to where they were.

    Raises:
        RunError: when it cannot be read, or was made with other actions or tasks.
    """
    path = checkpoint.with_suffix(".json")
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        zip_path = checkpoint.with_name(stored["agent"])
        for name, found, wanted in (
            ("action list", stored["actions"], list(env.engine.actions)),
            ("training tasks", stored["tasks"], _task_ids(env)),
        ):
            if found != wanted:
                raise RunError(f"{path} was made with another {name} than the configuration's; start a new run instead")
        agent = PPO.load(zip_path, env=vec_env, device="cpu", force_reset=False)
        _restore_normalize(agent.get_vec_normalize_env(), stored.get("normalize"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"the checkpoint {path} cannot be read ({error}); start a new run instead") from error
    agent.tensorboard_log = str(checkpoint.parent / "tensorboard")  # the folder may have been moved
    env.load_state_dict(stored["env"])
    monitor = _monitor(vec_env)
    monitor.episode_returns = np.array(stored["monitor"][0], dtype=np.float32)
    monitor.episode_lengths = np.array(stored["monitor"][1], dtype=np.int32)
    if (baseline := _task_baseline(vec_env)) and stored.get("task_baseline"):
        baseline.load_state_dict(stored["task_baseline"])
    drawn = stored["random"]
    random.setstate((drawn["python"][0], tuple(drawn["python"][1]), drawn["python"][2]))
    keys, position, has_gauss, gauss = drawn["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(torch.tensor(drawn["torch"], dtype=torch.uint8))
    return agent, stored


def _task_ids(env: PromptRefinementVectorEnv) -> list[str]:
    return sorted({task.task_id for slot in env.slots for task in slot.tasks})


def _monitor(vec_env: VecEnv | None) -> VecMonitor:
    monitor = unwrap_vec_wrapper(vec_env, VecMonitor) if vec_env is not None else None
    assert isinstance(monitor, VecMonitor)  # what train() made
    return monitor


def _task_baseline(vec_env: VecEnv | None) -> TaskBaseline | None:
    return unwrap_vec_wrapper(vec_env, TaskBaseline) if vec_env is not None else None


def _normalize_state(normalize: VecNormalize | None) -> dict[str, Any] | None:
    if normalize is None:
        return None
    parts = {"rewards": normalize.ret_rms}
    if normalize.norm_obs:
        assert isinstance(normalize.obs_rms, RunningMeanStd)
        parts["observations"] = normalize.obs_rms
    statistics = {
        name: [np.asarray(rms.mean).tolist(), np.asarray(rms.var).tolist(), rms.count] for name, rms in parts.items()
    }
    return {**statistics, "returns": normalize.returns.tolist()}


def _restore_normalize(normalize: VecNormalize | None, stored: dict[str, Any] | None) -> None:
    if normalize is None or stored is None:
        return
    normalize.returns = np.array(stored["returns"])
    for name, rms in (("rewards", normalize.ret_rms), ("observations", getattr(normalize, "obs_rms", None))):
        if isinstance(rms, RunningMeanStd):
            mean, var, count = stored[name]
            rms.mean, rms.var, rms.count = np.array(mean), np.array(var), count
