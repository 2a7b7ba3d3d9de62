"""PPO: that it learns, that resuming changes nothing, and what it leaves behind."""

from __future__ import annotations

import inspect
import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from promptrl.envs import PromptRefinementVectorEnv
from promptrl.envs.sb3 import SB3VecEnv
from promptrl.errors import ConfigError, RunError
from promptrl.execution import Judge
from promptrl.methods import MethodContext, make_method
from promptrl.methods.ppo import PPOSettings, train
from promptrl.methods.ppo_state import normalized
from promptrl.methods.validation import Validator
from promptrl.models.base import GenerationRequest
from promptrl.refinement.episode import Episode, Proposal, Step
from tests.scripted import make_engine, make_task, number_of, right, wrong

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TASKS = [make_task(number) for number in range(1, 5)]
SMALL = PPOSettings(total_timesteps=64, n_envs=4, n_steps=4, batch_size=8, n_epochs=2, save_freq=16)


def only_rewritten(request: GenerationRequest) -> str:
    """Right if and only if the prompt is the rewriting model's: `semantic` solves at once, nothing else ever does."""
    number = number_of(request)
    return right(number) if "add the number to" in request.user.lower() else wrong(number)


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


class Way:
    """An operator whose prompt says which of several ways was chosen."""

    def __init__(self, number: int) -> None:
        self.number = number

    def propose(self, episodes: Sequence[Episode]) -> list[Proposal]:
        return [Proposal(e.original.with_instruction(f"Add something in way {self.number}.")) for e in episodes]


@pytest.mark.parametrize("paying", range(3))
def test_ppo_learns_whichever_action_pays(judge: Judge, tmp_path: Path, paying: int) -> None:
    """The identity test: what the agent has to learn is one number."""

    def answer(request: GenerationRequest) -> str:
        number = number_of(request)
        return right(number) if f"way {paying}" in request.user else wrong(number)

    engine = make_engine(answer, judge, horizon=2)
    engine.operators = {action: Way(number) for number, action in enumerate(engine.actions)}
    env = PromptRefinementVectorEnv(engine, TASKS, num_envs=16)
    settings = PPOSettings(
        total_timesteps=512, n_envs=16, n_steps=8, batch_size=64, n_epochs=8, learning_rate=5e-3, ent_coef=0.0
    )
    train(env, settings, tmp_path, seed=0)
    observations, _ = env.reset(seed=1)
    method = make_method("ppo", MethodContext(engine.actions, 0, tmp_path / "agent.zip"))
    assert method.choose([slot.current() for slot in env.slots], observations) == [paying] * 16


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


def test_every_scalar_is_what_its_name_says(judge: Judge, tmp_path: Path) -> None:
    """Read from the event file, and computed anew from the steps."""
    rows: list[tuple[int, Episode, Step]] = []
    env = make_env(judge)
    env.on_step = lambda index, episode, step: rows.append((index, episode, step))
    coder = env.engine.coder
    env.engine.coder = SimpleNamespace(  # every first draw from a cache
        generate=lambda asked: [
            replace(g, cached=r.draw == 0) for r, g in zip(asked, coder.generate(asked), strict=True)
        ]
    )
    validator = Validator(make_engine(only_rewritten, judge), TASKS[:2], seed=0)
    train(env, SMALL.model_copy(update={"eval_freq": 16}), tmp_path, seed=0, validator=validator)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "ppo_0"))
    events.Reload()
    logged: dict[int, dict[str, float]] = defaultdict(dict)
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            logged[event.step][tag] = event.value
    assert sorted(logged) == [16, 32, 48, 64]

    returns: dict[int, float] = defaultdict(float)
    ended: list[tuple[float, int]] = []  # of all episodes so far: return and length
    for rollout in range(4):
        found = logged[16 * (rollout + 1)]
        own = rows[16 * rollout : 16 * (rollout + 1)]
        actions = [step.action for _, _, step in own]
        for action in env.engine.actions:
            assert found[f"actions/{action}_share"] == pytest.approx(actions.count(action) / 16)
            gains = [
                step.verdict.pass_rate - episode.steps[step.index - 1].verdict.pass_rate
                for _, episode, step in own
                if step.action == action and step.index
            ]
            assert (f"actions/{action}_pass_rate_gain" in found) == bool(gains)
            if gains:
                assert found[f"actions/{action}_pass_rate_gain"] == pytest.approx(np.mean(gains))
        finished = []
        for index, episode, step in own:
            returns[index] += step.reward
            if step.terminated or step.truncated:
                ended.append((returns.pop(index), len(episode.steps)))
                finished.append([past.verdict.pass_rate for past in episode.steps])
        if finished:
            assert found["rollout/strict_pass_at_1"] == pytest.approx(np.mean([rates[-1] == 1 for rates in finished]))
            soft = [1 - np.prod([1 - rate for rate in rates]) for rates in finished]
            assert found["rollout/soft_pass_at_1"] == pytest.approx(np.mean(soft))
        if ended:
            assert found["rollout/ep_rew_mean"] == pytest.approx(np.mean([r for r, _ in ended]))
            assert found["rollout/ep_len_mean"] == pytest.approx(np.mean([length for _, length in ended]))
        assert found["generation/cached_share"] == pytest.approx(np.mean([step.generation.cached for *_, step in own]))
        assert 0 < found["generation/cached_share"] < 1
        assert found["generation/tokens"] == sum(step.generation.tokens_out for *_, step in own) == 16 * 5
        assert {"train/loss", "train/approx_kl", "train/entropy_loss", "train/explained_variance"} <= set(found)
        assert sum(found[f"validation/{action}_share"] for action in env.engine.actions) == pytest.approx(1)
    stored = [json.loads(line) for line in (tmp_path / "validation.jsonl").read_text().splitlines()]
    for line in stored:
        found = logged[line["steps"]]
        assert found["validation/strict_pass_at_1"] == pytest.approx(line["strict"])
        assert found["validation/soft_pass_at_1"] == pytest.approx(line["soft"])
        assert found["validation/mean_return"] == pytest.approx(line["mean_return"])
        assert found["validation/mean_ep_length"] == pytest.approx(line["mean_length"])


def test_every_hyperparameter_has_its_name_and_arrives(judge: Judge, tmp_path: Path) -> None:
    elsewhere = {
        *("self", "policy", "env", "policy_kwargs", "tensorboard_log", "verbose", "seed", "device"),
        *("_init_setup_model", "use_sde", "sde_sample_freq", "rollout_buffer_class", "rollout_buffer_kwargs"),
    }
    names = set(inspect.signature(PPO.__init__).parameters) - elsewhere
    assert names <= set(PPOSettings.model_fields)
    values = {
        **{"n_steps": 6, "batch_size": 12, "n_epochs": 3, "learning_rate": 2e-3, "gamma": 0.9, "gae_lambda": 0.8},
        **{"clip_range": 0.3, "clip_range_vf": 0.4, "normalize_advantage": False, "ent_coef": 0.02, "vf_coef": 0.6},
        **{"max_grad_norm": 0.7, "target_kl": 0.1, "stats_window_size": 7},
    }
    assert set(values) == names
    settings = PPOSettings.model_validate(
        {
            **values,
            "total_timesteps": 24,
            "n_envs": 4,
            "net_arch": {"pi": [16], "vf": [8, 8]},
            "activation_fn": "relu",
            "ortho_init": False,
        }
    )
    agent = train(make_env(judge), settings, tmp_path, seed=0)
    for name, value in values.items():
        held = agent._stats_window_size if name == "stats_window_size" else getattr(agent, name)
        assert (held(1.0) if callable(held) else held) == value
    layers = agent.policy.mlp_extractor
    assert [layer.out_features for layer in layers.policy_net if hasattr(layer, "out_features")] == [16]
    assert [layer.out_features for layer in layers.value_net if hasattr(layer, "out_features")] == [8, 8]
    assert isinstance(layers.policy_net[1], torch.nn.ReLU)
    assert agent.policy.ortho_init is False


@pytest.mark.parametrize(
    "changed",
    [{"lr_schedule": "linear"}, {"normalize": {"observations": True, "rewards": True}}, {"task_baseline": True}],
    ids=str,
)
def test_schedules_and_normalisation_go_on_where_they_were(
    judge: Judge, tmp_path: Path, changed: dict[str, object]
) -> None:
    settings = PPOSettings.model_validate({**SMALL.model_dump(), **changed})
    whole = train(make_env(judge), settings, _made(tmp_path / "whole"), seed=3)
    cut = _made(tmp_path / "cut")

    def stop(done: int, total: int, figures: dict[str, float]) -> None:
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_env(judge), settings, cut, seed=3, on_progress=stop)
    resumed = train(make_env(judge), settings, cut, seed=3, resume=True)
    assert torch.equal(weights(resumed), weights(whole))
    if "lr_schedule" in changed:
        events = EventAccumulator(str(tmp_path / "whole" / "tensorboard" / "ppo_0"))
        events.Reload()
        rates = [event.value for event in events.Scalars("train/learning_rate")]
        assert rates == pytest.approx([3e-4 * share for share in (0.75, 0.5, 0.25, 0.0)])


def test_a_normalised_agent_acts_on_what_it_was_trained_on(judge: Judge, tmp_path: Path) -> None:
    settings = PPOSettings.model_validate({**SMALL.model_dump(), "normalize": {"observations": True}})
    env = make_env(judge)
    agent = train(env, settings, tmp_path, seed=3)
    observations, _ = env.reset(seed=1)
    stored = VecNormalize.load(str(tmp_path / "agent.vecnormalize.pkl"), SB3VecEnv(env))
    seen = stored.normalize_obs(observations)
    assert not np.allclose(seen, observations)
    # The zip alone is enough: a copy of it acts the same.
    shutil.copy(tmp_path / "agent.zip", tmp_path / "copy of it.zip")
    assert np.array_equal(normalized(PPO.load(tmp_path / "copy of it.zip"), observations), seen)
    method = make_method("ppo", MethodContext(env.engine.actions, 0, tmp_path / "copy of it.zip"))
    chosen, _ = agent.predict(seen, deterministic=True)
    assert method.choose([slot.current() for slot in env.slots], observations) == chosen.tolist()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
