"""The documentation of training names every hyperparameter, and every scalar that a training logs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from promptrl.config import load_config
from promptrl.execution import Judge
from promptrl.experiment import run_training
from promptrl.methods.settings import PPOSettings
from tests.workbench import scripted_workbench, small_config

DOCS = Path(__file__).resolve().parent.parent / "docs" / "training.md"


def rows(heading: str) -> list[str]:
    """The first cells of the table below a heading, each name in backticks."""
    section = DOCS.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


def test_every_hyperparameter_is_documented_with_its_default() -> None:
    assert sorted(rows("Hyperparameters")) == sorted(PPOSettings.model_fields)
    section = DOCS.read_text()
    for name in (
        "total_timesteps",
        "n_envs",
        "n_steps",
        "batch_size",
        "n_epochs",
        "save_freq",
        "eval_freq",
        "eval_tasks",
    ):
        assert f"| `{name}` | {getattr(PPOSettings(), name)} |" in section


@pytest.mark.usefixtures("one_torch_thread")
def test_every_scalar_is_documented(judge: Judge, tmp_path: Path) -> None:
    config = small_config(ppo={**small_config().ppo.model_dump(), "clip_range_vf": 0.2})
    folder = run_training(config, tmp_path / "run", workbench=scripted_workbench(judge)(config))
    events = EventAccumulator(str(folder / "tensorboard" / "ppo_0"))
    events.Reload()
    documented = {
        name.replace("<action>", action)
        for name in rows("TensorBoard")
        if name != "stats_window_size"
        for action in config.environment.actions
    }
    assert set(events.Tags()["scalars"]) <= documented
    # A gain is logged where an action was taken after a first attempt; all else always is.
    missing = documented - set(events.Tags()["scalars"])
    assert [name for name in missing if not name.endswith("_pass_rate_gain")] == []


def test_the_overrides_of_the_commands_are_read() -> None:
    commands = re.findall(r"--config (\S+)(.*)", DOCS.read_text())
    assert len(commands) >= 8
    for config, rest in commands:
        overrides = re.findall(r'--set ("[^"]+"|\S+)', rest.split("#")[0])
        load_config(config, [override.strip('"') for override in overrides])
