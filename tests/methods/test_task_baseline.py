"""What a task's earlier episodes gained: taking it off ranks no policy otherwise, and leaves what the actions did."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from promptrl.methods.task_baseline import TaskBaseline

Episodes = list[tuple[str, list[float]]]
REWARDS = st.lists(st.sampled_from([-2.0, -1.0, 0.25, 0.5]), min_size=1, max_size=3)


class Played(DummyVecEnv):
    """One environment that plays given episodes (task, rewards) one after the other."""

    def __init__(self, episodes: Episodes) -> None:
        super().__init__([lambda: gymnasium.make("CartPole-v1")])
        self.episodes = [*episodes, ("none", [0.0])]
        self.number = self.step_number = 0

    def reset(self) -> Any:
        observations = super().reset()
        self.reset_infos = [{"task_id": self.episodes[0][0]}]
        return observations

    def step_wait(self) -> VecEnvStepReturn:
        rewards = self.episodes[self.number][1]
        reward, self.step_number = rewards[self.step_number], self.step_number + 1
        ended = self.step_number == len(rewards)
        if ended:
            self.number, self.step_number = self.number + 1, 0
            self.reset_infos = [{"task_id": self.episodes[self.number][0]}]
        info: dict[str, Any] = {"terminal_observation": np.zeros(4)} if ended else {}
        return np.zeros((1, 4), dtype=np.float32), np.array([reward], dtype=np.float32), np.array([ended]), [info]


def play(
    episodes: list[tuple[str, list[float]]], gamma: float
) -> tuple[list[list[float]], list[np.ndarray], list[Any]]:
    """Per episode its shaped rewards and its potentials, and what the monitor below noted of each."""
    env = TaskBaseline(VecMonitor(Played(episodes)), horizon=3, gamma=gamma)
    env.reset()
    shaped: list[list[float]] = []
    potentials, noted = [], []
    for task, rewards in episodes:
        potentials.append(env.potentials(task))
        shaped.append([])
        for _ in rewards:
            _, reward, ended, infos = env.step(np.array([0]))
            shaped[-1].append(float(reward[0]))
        assert ended[0]
        noted.append(infos[0]["episode"]["r"])
    return shaped, potentials, noted


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["easy", "hard"]), REWARDS), min_size=1, max_size=6), st.floats(0.5, 1.0))
def test_an_episode_loses_what_was_known_at_its_start(episodes: Episodes, gamma: float) -> None:
    shaped, potentials, noted = play(episodes, gamma)
    for (_, rewards), own, known, monitored in zip(episodes, shaped, potentials, noted, strict=True):
        discounts = gamma ** np.arange(len(rewards))
        assert own @ discounts == pytest.approx(rewards @ discounts - known[0], abs=1e-5)
        assert monitored == pytest.approx(sum(rewards), abs=1e-5)
        assert known[-1] == 0


def test_potentials_are_the_task_s_mean_returns_leaning_on_all() -> None:
    env = TaskBaseline(Played([("a", [-1.0, -1.0, 1.0]), ("b", [1.0]), ("a", [-2.0, 1.0])]), horizon=3, gamma=1.0)
    env.reset()
    assert env.potentials("a").tolist() == [0, 0, 0, 0]
    for _ in range(6):
        env.step(np.array([0]))
    # From step 0 on a gained -1 and -1, b gained 1: -1/3 in the mean of the episodes, which counts for one.
    assert env.potentials("a") == pytest.approx([(-2 - 1 / 3) / 3, (0 + 1 + 0.5) / 3, (1 + 1) / 2, 0])
    assert env.potentials("b") == pytest.approx([(1 - 1 / 3) / 2, 0.5, 1, 0])
    assert env.potentials("unseen") == pytest.approx([-1 / 3, 0.5, 1, 0])


def test_what_always_comes_is_taken_off() -> None:
    episodes = [("hard", [-2.0, -2.0, -2.0]), ("easy", [1.0])] * 20
    shaped, _, _ = play(episodes, 0.99)
    before = np.std([sum(rewards) for _, rewards in episodes])
    after = np.std([sum(rewards) for rewards in shaped[20:]])
    assert before == 3.5
    assert after < 0.3


def test_its_state_goes_through_json() -> None:
    import json

    episodes = [("a", [-1.0, -1.0, 1.0]), ("b", [1.0]), ("a", [-2.0, 1.0]), ("b", [0.5, 0.5])]
    whole, cut = (TaskBaseline(Played(episodes), horizon=3, gamma=0.9) for _ in range(2))
    for env in (whole, cut):
        env.reset()
        for _ in range(5):
            env.step(np.array([0]))
    restored = TaskBaseline(cut.venv, horizon=3, gamma=0.9)
    restored.load_state_dict(json.loads(json.dumps(cut.state_dict())))
    for _ in range(3):
        assert restored.step(np.array([0]))[1].tolist() == whole.step(np.array([0]))[1].tolist()
