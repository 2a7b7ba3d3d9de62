"""Train a PPO agent and evaluate it beside the baselines: `python scripts/train_ppo.py --config mbpp_plus.yaml`."""

from promptrl.cli import run_function, train

if __name__ == "__main__":
    run_function(train)
