"""PPO in plain PyTorch on `gymnasium.make_vec`: the environment belongs to no trainer.

    python examples/plain_ppo.py --config quickstart.yaml --updates 4

One file, no framework: collect a rollout, compute generalised advantages, and take a few clipped steps. Episodes that
were cut off at the horizon are bootstrapped from their final observation.
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

import promptrl  # noqa: F401 - registers the environment

GAMMA, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01


class Agent(nn.Module):
    """A policy and a value over the state."""

    def __init__(self, state_size: int, n_actions: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(state_size, 64), nn.Tanh(), nn.Linear(64, n_actions))
        self.value = nn.Sequential(nn.Linear(state_size, 64), nn.Tanh(), nn.Linear(64, 1))

    def distribution(self, states: Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.policy(states))


def train(envs: gymnasium.vector.VectorEnv, *, updates: int, n_steps: int, seed: int) -> tuple[Agent, list[float]]:
    """Train for some updates; gives the agent, and the mean reward of each rollout."""
    torch.manual_seed(seed)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    observations, _ = envs.reset(seed=seed)
    means = []
    for _ in range(updates):
        shape = (n_steps, envs.num_envs)
        states = torch.zeros((*shape, observations.shape[1]))
        actions, log_probs = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        values, next_values, rewards, ends = (torch.zeros(shape) for _ in range(4))
        for t in range(n_steps):
            states[t] = torch.from_numpy(observations)
            with torch.no_grad():
                distribution = agent.distribution(states[t])
                actions[t] = distribution.sample()
                log_probs[t] = distribution.log_prob(actions[t])
                values[t] = agent.value(states[t]).squeeze(-1)
            observations, reward, terminations, truncations, infos = envs.step(actions[t].numpy())
            rewards[t] = torch.from_numpy(reward)
            ended = terminations | truncations
            ends[t] = torch.from_numpy(ended.astype(np.float32))
            following = observations.copy()
            for i in np.flatnonzero(ended):
                following[i] = infos["final_obs"][i]  # the new episode's first observation is not what followed
            with torch.no_grad():
                next_values[t] = agent.value(torch.from_numpy(following)).squeeze(-1)
                next_values[t] *= torch.from_numpy(~terminations)  # nothing follows a solved task
        advantages = torch.zeros(shape)
        carried = torch.zeros(envs.num_envs)
        for t in reversed(range(n_steps)):
            carried = rewards[t] + GAMMA * next_values[t] - values[t] + GAMMA * LAMBDA * (1 - ends[t]) * carried
            advantages[t] = carried
        returns = advantages + values
        normalised = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(4):
            distribution = agent.distribution(states)
            ratio = (distribution.log_prob(actions) - log_probs).exp()
            gain = torch.min(ratio * normalised, ratio.clamp(1 - CLIP, 1 + CLIP) * normalised).mean()
            error = (agent.value(states).squeeze(-1) - returns).pow(2).mean()
            loss = -gain + 0.5 * error - ENTROPY * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        means.append(float(rewards.mean()))
    return agent, means


def main() -> None:
    """Train on the registered environment and print the mean reward of each rollout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="quickstart.yaml")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--n-steps", type=int, default=8)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    envs = gymnasium.make_vec(
        "promptrl/PromptRefinement-v0",
        num_envs=options.num_envs,
        vectorization_mode="vector_entry_point",
        config=options.config,
    )
    _, means = train(envs, updates=options.updates, n_steps=options.n_steps, seed=options.seed)
    for number, mean in enumerate(means, 1):
        print(f"update {number}: mean reward {mean:+.3f}")


if __name__ == "__main__":
    main()
