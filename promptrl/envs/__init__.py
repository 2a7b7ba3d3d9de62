"""Gymnasium and Stable-Baselines3 skins over the refinement engine."""

from promptrl.envs.env import PromptRefinementEnv
from promptrl.envs.sb3 import SB3VecEnv
from promptrl.envs.vector_env import PromptRefinementVectorEnv

__all__ = ["PromptRefinementEnv", "PromptRefinementVectorEnv", "SB3VecEnv"]
