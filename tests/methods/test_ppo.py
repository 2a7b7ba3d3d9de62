"""PPO: that it learns, that resuming changes nothing, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from promptrl.envs import PromptRefinementVectorEnv
from promptrl.errors import ConfigError, RunError
from promptrl.execution import Judge
from promptrl.methods import MethodContext, make_method
from promptrl.methods.ppo import PPOSettings, train
from promptrl.models.base import GenerationRequest
from tests.scripted import make_engine, make_task, number_of, right, wrong

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TASKS = [make_task(number) for number in range(1, 5)]
SMALL = PPOSettings(total_timesteps=64, n_envs=4, n_steps=4, batch_size=8, n_epochs=2, save_freq=16)


def only_rewritten(request: GenerationRequest) -> str:
    """Right if and only if the prompt is the rewriting model's: `semantic` solves at once, nothing else ever does."""
    number = number_of(request)
    return right(number) if "Add the number to" in request.user else wrong(number)


def make_env(judge: Judge, n_envs: int = 4, **settings: object) -> PromptRefinementVectorEnv:
    rewrite = " Add the number to `x` and return it."
    tasks = [
        # A rewrite has to keep the numbers, so the scripted one gets instructions without any.
        type(task)(
            **{**{f: getattr(task, f) for f in task.__slots__}, "instruction": "Add something to the value `x`."}
        )
        for task in TASKS
    ]
    engine = make_engine(only_rewritten, judge, rewrite=lambda request: rewrite, **settings)
    return PromptRefinementVectorEnv(engine, tasks, num_envs=n_envs)


def weights(agent: PPO) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in agent.policy.parameters()])


def test_ppo_learns_the_one_action_that_pays(judge: Judge, tmp_path: Path) -> None:
    settings = PPOSettings(
        total_timesteps=384, n_envs=8, n_steps=8, batch_size=32, n_epochs=8, learning_rate=5e-3, ent_coef=0.0
    )
    env = make_env(judge, 8, horizon=3, operators=None)
    agent = train(env, settings, tmp_path, seed=0)
    observations, _ = env.reset(seed=1)
    method = make_method("ppo", MethodContext(env.engine.actions, 0, tmp_path / "agent.zip"))
    episodes = [slot.current() for slot in env.slots]
    assert method.choose(episodes, observations) == [2] * 8
    assert agent.num_timesteps == 384


def test_a_resumed_run_ends_with_the_same_numbers(judge: Judge, tmp_path: Path) -> None:
    whole = train(make_env(judge), SMALL, _made(tmp_path / "whole"), seed=3)

    class Stop(KeyboardInterrupt):
        pass

    def stop(done: int, total: int, figures: dict[str, float]) -> None:
        if done >= 40:
            raise Stop

    folder = _made(tmp_path / "cut")
    with pytest.raises(Stop):
        train(make_env(judge), SMALL, folder, seed=3, on_progress=stop)
    assert PPO.load(folder / "agent.zip").num_timesteps == 40
    np.random.seed(99)
    torch.manual_seed(99)
    resumed = train(make_env(judge), SMALL, folder, seed=3, resume=True)
    assert resumed.num_timesteps == whole.num_timesteps == 64
    assert torch.equal(weights(resumed), weights(whole))
    # Nothing is left to do: resuming a finished run changes nothing.
    again = train(make_env(judge), SMALL, folder, seed=3, resume=True)
    assert torch.equal(weights(again), weights(whole))


def test_training_twice_gives_the_same_agent_and_another_seed_another(judge: Judge, tmp_path: Path) -> None:
    first, second, third = (
        weights(train(make_env(judge), SMALL, _made(tmp_path / str(i)), seed=seed)) for i, seed in enumerate((1, 1, 2))
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_what_training_leaves(judge: Judge, tmp_path: Path) -> None:
    train(make_env(judge), SMALL, tmp_path, seed=0)
    assert PPO.load(tmp_path / "agent.zip").observation_space.shape == (384,)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "ppo_0"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {
        "actions/direct_share",
        "actions/semantic_share",
        "generation/cached_share",
        "generation/tokens",
        "rollout/ep_rew_mean",
        "rollout/strict_pass_at_1",
        "rollout/soft_pass_at_1",
        "train/loss",
    } <= tags
    shares = [sum(e.value for e in events.Scalars(f"actions/{a}_share")) for a in ("direct", "lexical", "semantic")]
    assert sum(shares) == pytest.approx(len(events.Scalars("actions/direct_share")))
    state = json.loads((tmp_path / "checkpoint.json").read_text())
    assert state["num_timesteps"] == 64
    assert [path.name for path in tmp_path.glob("*.zip") if path.name != "agent.zip"] == [state["agent"]]


def test_checkpoints_that_do_not_fit_are_refused(judge: Judge, tmp_path: Path) -> None:
    train(make_env(judge), SMALL, tmp_path, seed=0)
    with pytest.raises(RunError, match="made with another action list"):
        train(make_env(judge, actions=("direct", "lexical")), SMALL, tmp_path, seed=0, resume=True)
    (tmp_path / "checkpoint.json").write_text('{"agent": ')
    with pytest.raises(RunError, match="cannot be read"):
        train(make_env(judge), SMALL, tmp_path, seed=0, resume=True)


def test_an_agent_for_other_actions_or_states_is_refused(judge: Judge, tmp_path: Path) -> None:
    train(make_env(judge), SMALL, tmp_path, seed=0)
    with pytest.raises(
        ConfigError,
        match="was trained with the actions direct, lexical, semantic; the configuration has direct, lexical",
    ):
        make_method("ppo", MethodContext(("direct", "lexical"), 0, tmp_path / "agent.zip"))
    method = make_method("ppo", MethodContext(("direct", "lexical", "semantic"), 0, tmp_path / "agent.zip"))
    with pytest.raises(ConfigError, match=r"trained on states of the shape \(384,\)"):
        method.choose([], np.zeros((1, 394), dtype=np.float32))
    (tmp_path / "broken.zip").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match="is not a Stable-Baselines3 PPO zip"):
        make_method("ppo", MethodContext(("direct",), 0, tmp_path / "broken.zip"))


def test_an_agent_of_other_kinds_of_actions_is_refused(tmp_path: Path) -> None:
    PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8).save(tmp_path / "pendulum.zip")
    with pytest.raises(ConfigError, match="another kind of actions"):
        make_method("ppo", MethodContext(("direct",), 0, tmp_path / "pendulum.zip"))


def test_sampled_actions_do_not_depend_on_the_batch(judge: Judge, tmp_path: Path) -> None:
    env = make_env(judge)
    train(env, SMALL, tmp_path, seed=0)
    with pytest.raises(ConfigError, match="with the actions direct, lexical, semantic; the configuration has semantic"):
        make_method("ppo", MethodContext(("semantic", "direct", "lexical"), 0, tmp_path / "agent.zip"))
    context = MethodContext(env.engine.actions, 5, tmp_path / "agent.zip", deterministic=False)
    method = make_method("ppo", context)
    observations, _ = env.reset(seed=1)
    episodes = [slot.current() for slot in env.slots]
    together = method.choose(episodes, observations)
    assert together == [method.choose([e], o[None])[0] for e, o in zip(episodes, observations, strict=True)]


def test_a_moved_run_logs_where_it_is_and_loses_no_scalar(judge: Judge, tmp_path: Path) -> None:
    whole = _made(tmp_path / "whole")
    train(make_env(judge), SMALL, whole, seed=3)

    def stop(done: int, total: int, figures: dict[str, float]) -> None:
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_env(judge), SMALL, _made(tmp_path / "old"), seed=3, on_progress=stop)
    moved = (tmp_path / "old").rename(tmp_path / "new")
    train(make_env(judge), SMALL, moved, seed=3, resume=True)
    assert not (tmp_path / "old").exists()
    scalars = []
    for folder in (whole, moved):
        events = EventAccumulator(str(folder / "tensorboard" / "ppo_0"))
        events.Reload()
        tags = ("train/value_loss", "rollout/soft_pass_at_1", "actions/direct_share")
        scalars.append({tag: {e.step: e.value for e in events.Scalars(tag)} for tag in tags})
    assert scalars[0] == scalars[1]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
