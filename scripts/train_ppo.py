"""Train a PPO agent and evaluate it beside the baselines: `python scripts/train_ppo.py --config mbpp_plus.yaml`."""

import typer

from promptrl.cli import run, train

if __name__ == "__main__":
    run(lambda: typer.run(train))
