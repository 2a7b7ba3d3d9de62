"""The whole path with the real frozen model on real tasks: train, evaluate, resume, and what a run folder holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from rich.console import Console
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import promptrl  # noqa: F401 - registers the environment
from promptrl.config import Config, load_config
from promptrl.errors import RunError
from promptrl.evaluation.records import read_records
from promptrl.experiment import run_experiment

ROOT = Path(__file__).resolve().parent.parent
SMALL = (
    "split.n_train=4",
    "split.n_test=2",
    "environment.horizon=2",
    "generation.max_new_tokens=64",
    "operators.semantic.max_new_tokens=32",
    "ppo.total_timesteps=16",
    "ppo.n_envs=8",
    "ppo.n_steps=1",
    "ppo.batch_size=8",
    "ppo.n_epochs=2",
    "ppo.save_freq=8",
)
pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config("quickstart.yaml", SMALL)


@pytest.fixture(scope="module")
def run_folder(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(config, tmp_path_factory.mktemp("run") / "first", console=Console(file=sys.stderr))


def test_the_run_folder_holds_everything(run_folder: Path, config: Config) -> None:
    names = {path.name for path in run_folder.iterdir()}
    assert {
        "agent.zip",
        "checkpoint.json",
        "config.yaml",
        "evaluation",
        "learning_curve.png",
        "splits.json",
        "summary.json",
        "table.md",
        "tensorboard",
        "train.jsonl",
        "versions.json",
    } <= names
    assert load_config(run_folder / "config.yaml") == config
    assert PPO.load(run_folder / "agent.zip").num_timesteps == 16
    assert (run_folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run_folder / "tensorboard").rglob("events.out.tfevents.*"))
    assert json.loads((run_folder / "versions.json").read_text())["packages"]["torch"]
    table = (run_folder / "table.md").read_text()
    assert all(f"| {method} | 2 |" in table for method in config.evaluation.methods)


def test_each_step_of_training_is_a_line(run_folder: Path) -> None:
    records = list(read_records(run_folder / "train.jsonl"))
    assert len(records) == 16
    assert {record["env"] for record in records} == set(range(8))
    splits = json.loads((run_folder / "splits.json").read_text())
    assert {record["task_id"] for record in records} <= set(splits["train"])
    assert not set(splits["train"]) & set(splits["test"])
    for record in records:
        assert record["terminated"] == (record["pass_rate"] == 1.0)
        assert not (record["terminated"] and record["truncated"])
        assert record["tokens_in"] > 0
        assert len(record["tests"]) > 0


def test_scores_are_made_from_the_records(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    assert [result["method"] for result in summary["evaluation"]] == ["direct", "repeat-direct", "random-hybrid", "ppo"]
    for result in summary["evaluation"]:
        records = list(read_records(run_folder / "evaluation" / f"{result['method']}.jsonl"))
        solved = {record["task_id"] for record in records if record["report_pass_rate"] == 1.0}
        assert (result["n"], result["solved"]) == (2, len(solved))
        assert result["soft"] >= result["strict"] == len(solved) / 2
        assert result["attempts"] == len(records)
    assert set(summary["training"]["share"]) >= {"generation", "judging", "encoding", "ppo_and_rest"}


def test_a_second_run_makes_no_model_call_and_has_the_same_numbers(
    run_folder: Path, config: Config, tmp_path: Path
) -> None:
    again = run_experiment(config, tmp_path / "again", console=Console(file=sys.stderr))
    assert all(record["cached"] for record in read_records(again / "train.jsonl"))
    assert [(r["action"], r["reward"]) for r in read_records(again / "train.jsonl")] == [
        (r["action"], r["reward"]) for r in read_records(run_folder / "train.jsonl")
    ]
    first, second = (
        [
            (e["strict"], e["soft"], e["tokens_out"])
            for e in json.loads((folder / "summary.json").read_text())["evaluation"]
        ]
        for folder in (run_folder, again)
    )
    assert first == second


def test_an_old_run_is_never_overwritten(run_folder: Path, config: Config) -> None:
    before = (run_folder / "train.jsonl").read_bytes()
    with pytest.raises(RunError, match="already holds a run; use --resume to go on with it, or another --output"):
        run_experiment(config, run_folder)
    other = load_config("quickstart.yaml", (*SMALL, "ppo.gamma=0.5"))
    with pytest.raises(RunError, match=r"another configuration \(ppo.gamma: 0.99 there, 0.5 now\)"):
        run_experiment(other, run_folder, resume=True)
    assert (run_folder / "train.jsonl").read_bytes() == before


def test_ctrl_c_keeps_what_was_made_and_resume_goes_on(run_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "stopped"
    command = [sys.executable, str(ROOT / "scripts" / "train_ppo.py"), "--config", "quickstart.yaml"]
    command += [part for override in (*SMALL, "ppo.total_timesteps=4096") for part in ("--set", override)]
    command += ["--output", str(output)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        # A suite started in the background has inherited an ignored SIGINT, and would hand it on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        # Until the first steps are on disk there is nothing to interrupt.
        while not (output / "train.jsonl").exists() or not (output / "train.jsonl").read_bytes().count(b"\n") >= 8:
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
    assert "--resume" in err
    assert PPO.load(output / "agent.zip").num_timesteps < 4096
    kept = len(list(read_records(output / "train.jsonl")))
    assert kept >= 8
    # The same run, now with an end that is near: only the rest is done.
    text = (output / "config.yaml").read_text()
    (output / "config.yaml").write_text(text.replace("total_timesteps: 4096", "total_timesteps: 16"))
    run_experiment(load_config("quickstart.yaml", SMALL), output, resume=True, console=Console(file=sys.stderr))
    records = list(read_records(output / "train.jsonl"))
    assert [(r["action"], r["reward"]) for r in records[:16]] == [
        (r["action"], r["reward"]) for r in read_records(run_folder / "train.jsonl")
    ]


def test_the_registered_environment_passes_both_checkers(config: Config) -> None:
    settings = config.model_dump(mode="json")
    env = gym.make("promptrl/PromptRefinement-v0", config=settings)
    assert env.observation_space.shape == (384,)
    assert env.observation_space.dtype == np.float32
    assert env.action_space == gym.spaces.Discrete(3)
    assert env.spec is not None
    assert env.spec.to_json()
    gymnasium_check_env(env.unwrapped, skip_render_check=True)
    sb3_check_env(env.unwrapped)
    envs = gym.make_vec(
        "promptrl/PromptRefinement-v0", num_envs=2, vectorization_mode="vector_entry_point", config=settings
    )
    observations, infos = envs.reset(seed=0)
    assert observations.shape == (2, 384)
    assert set(infos) >= {"task_id", "prompt", "code", "action", "pass_rate", "status", "tests_passed", "tests_total"}
    assert set(infos) >= {"generation_tokens", "cached"}
