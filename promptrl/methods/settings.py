"""PPO's settings, apart from PPO itself, so that a configuration is checked without loading torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from promptrl.settings import Settings


class PPOSettings(Settings):
    """PPO's hyperparameters under Stable-Baselines3's names, with its meaning; steps are environment steps."""

    total_timesteps: int = Field(4096, ge=1, description="environment steps, counted over all environments")
    n_envs: int = Field(8, ge=1)
    n_steps: int = Field(32, ge=1, description="steps per environment and rollout")
    batch_size: int = Field(64, ge=2)
    n_epochs: int = Field(4, ge=1)
    learning_rate: float = Field(3e-4, gt=0)
    gamma: float = Field(0.99, ge=0, le=1)
    gae_lambda: float = Field(0.95, ge=0, le=1)
    clip_range: float = Field(0.2, gt=0)
    ent_coef: float = Field(0.01, ge=0)
    vf_coef: float = Field(0.5, ge=0)
    max_grad_norm: float = Field(0.5, gt=0)
    normalize_advantage: bool = True
    target_kl: float | None = Field(None, gt=0)
    net_arch: tuple[Annotated[int, Field(ge=1)], ...] = (64, 64)
    activation_fn: Literal["tanh", "relu"] = "tanh"
    save_freq: int = Field(
        256, ge=1, description="environment steps between checkpoints, taken at the end of a rollout"
    )

    @model_validator(mode="after")
    def _rollout_fits(self) -> PPOSettings:
        rollout = self.n_steps * self.n_envs
        if rollout < 2:
            raise ValueError("n_steps × n_envs is 1; the advantages of a single step cannot be normalised")
        if self.batch_size > rollout:
            raise ValueError(f"batch_size is {self.batch_size}; at most n_steps × n_envs = {rollout} is possible")
        return self
