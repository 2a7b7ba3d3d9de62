"""PPO's settings, apart from PPO itself, so that a configuration is checked without loading torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from promptrl.settings import Settings

Width = Annotated[int, Field(ge=1)]


class NetArch(Settings):
    """Widths of the hidden layers of the policy (`pi`) and of the value function (`vf`); one list means both."""

    pi: tuple[Width, ...] = (64, 64)
    vf: tuple[Width, ...] = (64, 64)

    @model_validator(mode="before")
    @classmethod
    def _one_list_for_both(cls, value: Any) -> Any:
        return {"pi": value, "vf": value} if isinstance(value, list | tuple) else value


class NormalizeSettings(Settings):
    """What Stable-Baselines3's `VecNormalize` brings to running mean 0 and variance 1 (rewards: variance alone)."""

    observations: bool = False
    rewards: bool = False


class PPOSettings(Settings):
    """PPO's hyperparameters under Stable-Baselines3's names, with its meaning; steps are environment steps."""

    total_timesteps: int = Field(4096, ge=1, description="environment steps, counted over all environments")
    n_envs: int = Field(8, ge=1)
    n_steps: int = Field(32, ge=1, description="steps per environment and rollout")
    batch_size: int = Field(64, ge=2)
    n_epochs: int = Field(4, ge=1)
    learning_rate: float = Field(3e-4, gt=0)
    lr_schedule: Literal["constant", "linear"] = Field("constant", description="linear falls to 0 at total_timesteps")
    gamma: float = Field(0.99, ge=0, le=1)
    gae_lambda: float = Field(0.95, ge=0, le=1)
    clip_range: float = Field(0.2, gt=0)
    clip_range_vf: float | None = Field(None, gt=0, description="no clipping of the value function where unset")
    ent_coef: float = Field(0.01, ge=0)
    vf_coef: float = Field(0.5, ge=0)
    max_grad_norm: float = Field(0.5, gt=0)
    normalize_advantage: bool = True
    target_kl: float | None = Field(None, gt=0)
    stats_window_size: int = Field(100, ge=1, description="episodes that the rollout/ep_* scalars are means of")
    net_arch: NetArch = NetArch()
    activation_fn: Literal["tanh", "relu"] = "tanh"
    ortho_init: bool = True
    normalize: NormalizeSettings = NormalizeSettings()
    task_baseline: bool = Field(
        False, description="take off the rewards what the same task's earlier episodes gained; no policy's rank changes"
    )
    save_freq: int = Field(
        256, ge=1, description="environment steps between checkpoints, taken at the end of a rollout"
    )
    eval_freq: int | None = Field(
        512, ge=0, description="environment steps between validations, at the end of a rollout; 0 or null: never"
    )
    eval_tasks: int | None = Field(32, ge=1, description="validation tasks used, evenly spread; all where unset")
    early_stop_evals: int | None = Field(
        None, ge=1, description="stop after so many validations in a row without a new best"
    )
    keep: Literal["best", "last"] = Field(
        "best", description="the agent that is evaluated; best means last where no validation ran"
    )

    @model_validator(mode="after")
    def _rollout_fits(self) -> PPOSettings:
        rollout = self.n_steps * self.n_envs
        if rollout < 2:
            raise ValueError("n_steps × n_envs is 1; the advantages of a single step cannot be normalised")
        if self.batch_size > rollout:
            raise ValueError(f"batch_size is {self.batch_size}; at most n_steps × n_envs = {rollout} is possible")
        if self.early_stop_evals is not None and not self.eval_freq:
            raise ValueError("early_stop_evals needs validation; set eval_freq, or leave early_stop_evals unset")
        return self
