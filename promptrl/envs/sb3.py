"""The vector environment in Stable-Baselines3's own interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from promptrl.envs.vector_env import PromptRefinementVectorEnv
from promptrl.errors import ConfigError


class SB3VecEnv(VecEnv):
    """A `PromptRefinementVectorEnv` as a `VecEnv`.

    An ended episode's last observation is in `infos[i]["terminal_observation"]`, and
    `infos[i]["TimeLimit.truncated"]` says whether it was cut off, so that SB3 bootstraps its value.
    """

    def __init__(self, env: PromptRefinementVectorEnv) -> None:
        if env.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"Stable-Baselines3 needs the autoreset mode SAME_STEP, the environment has {env.autoreset_mode.value}"
            )
        self.env = env
        self.actions: NDArray[np.int64] = np.zeros(env.num_envs, dtype=np.int64)
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> VecEnvObs:
        seeds = list(self._seeds) if any(seed is not None for seed in self._seeds) else None
        task_ids = [options.get("task_id") for options in self._options]
        options = {"task_id": task_ids} if any(task_ids) else None
        observations, infos = self.env.reset(seed=seeds, options=options)
        self.reset_infos = _split(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        self.actions = np.asarray(actions, dtype=np.int64)

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards, terminations, truncations, infos = self.env.step(self.actions)
        ended = terminations | truncations
        own = _split(infos, self.num_envs)
        for i, info in enumerate(own):
            if ended[i]:
                # The step's own info is the ended episode's; the new one's is kept as Stable-Baselines3 does.
                self.reset_infos[i] = {key: value for key, value in info.items() if not key.startswith("final_")}
                own[i] = {**info["final_info"], "terminal_observation": info["final_obs"]}
            own[i]["TimeLimit.truncated"] = bool(truncations[i] and not terminations[i])
        return observations, rewards.astype(np.float32), ended, own

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        setattr(self.env, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        return [getattr(self.env, method_name)(*args, **kwargs) for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """There is nothing to see but text."""
        return [None] * self.num_envs


def _split(infos: dict[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Gymnasium's dictionary of arrays as one dictionary per sub-environment, with Python's own types."""
    own: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if key.startswith("_") or f"_{key}" not in infos:
            continue
        if isinstance(values, dict):
            parts = _split(values, num_envs)
            for i in np.flatnonzero(infos[f"_{key}"]):
                own[i][key] = parts[i]
            continue
        for i in np.flatnonzero(infos[f"_{key}"]):
            value = values[i]
            own[i][key] = value.item() if isinstance(value, np.generic) else value
    return own
