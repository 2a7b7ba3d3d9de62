"""Run folders: what may be gone on with, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptrl.config import Config, load_config
from promptrl.errors import RunError
from promptrl.run_folder import RunFolder

TRAIN = {"command": "train"}


def make(path: Path, purpose: dict[str, str] = TRAIN, config: Config | None = None) -> RunFolder:
    config = config or Config()
    folder = RunFolder.check(config, path, resume=False, purpose=purpose)
    folder.make(config, purpose)
    return folder


def test_checking_makes_nothing(tmp_path: Path) -> None:
    RunFolder.check(Config(), tmp_path / "run", resume=False, purpose=TRAIN)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_only_with_the_same_configuration_and_purpose(tmp_path: Path) -> None:
    make(tmp_path / "run")
    RunFolder.check(Config(), tmp_path / "run", resume=True, purpose=TRAIN)
    with pytest.raises(RunError, match="already holds a run; use --resume"):
        RunFolder.check(Config(), tmp_path / "run", resume=False, purpose=TRAIN)
    with pytest.raises(RunError, match=r"another configuration \(seed: 0 there, 1 now\)"):
        RunFolder.check(Config(seed=1), tmp_path / "run", resume=True, purpose=TRAIN)
    # Evaluating into a training run's folder would replace its table by one with a single method.
    with pytest.raises(RunError, match="command: 'train' there, 'evaluate' now"):
        RunFolder.check(
            Config(), tmp_path / "run", resume=True, purpose={"command": "evaluate", "method": "random-hybrid"}
        )
    first = {"command": "evaluate", "method": "ppo", "policy_sha256": "a"}
    make(tmp_path / "evaluation", first)
    with pytest.raises(RunError, match="policy_sha256: 'a' there, 'b' now"):
        RunFolder.check(Config(), tmp_path / "evaluation", resume=True, purpose={**first, "policy_sha256": "b"})


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--resume needs --output"):
        RunFolder.check(Config(), None, resume=True, purpose=TRAIN)
    with pytest.raises(RunError, match="holds no run to resume"):
        RunFolder.check(Config(), tmp_path, resume=True, purpose=TRAIN)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(RunError, match="not an empty folder"):
        RunFolder.check(Config(), tmp_path, resume=False, purpose=TRAIN)
    with pytest.raises(RunError, match="cannot be written"):
        make(tmp_path / "letter.txt" / "run")


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    left_over = tmp_path / "run" / ".agent.123.partial.zip"
    left_over.write_bytes(b"half")
    folder.make(Config(), TRAIN)
    assert not left_over.exists()
    assert json.loads((tmp_path / "run" / "purpose.json").read_text()) == TRAIN


def test_methods_may_be_added_where_that_is_allowed_and_nothing_else(tmp_path: Path) -> None:
    def config(*methods: str, seed: int = 0) -> Config:
        return Config.model_validate({"seed": seed, "evaluation": {"methods": methods}})

    def check(wanted: Config, *, may_add_methods: bool = True) -> None:
        RunFolder.check(wanted, tmp_path / "run", resume=True, purpose=TRAIN, may_add_methods=may_add_methods)

    folder = make(tmp_path / "run", config=config("direct"))
    more = config("repeat-direct", "direct")
    check(more)
    folder.make(more, TRAIN)
    assert load_config(tmp_path / "run" / "config.yaml") == more
    with pytest.raises(RunError, match=r"evaluation\.methods"):
        check(config("direct"))
    with pytest.raises(RunError, match=r"evaluation\.methods"):
        check(config("direct", "repeat-direct", "ppo"), may_add_methods=False)
    with pytest.raises(RunError, match=r"another configuration \(seed: 0 there, 1 now\)"):
        check(config("direct", "repeat-direct", "ppo", seed=1))


def test_a_folder_that_was_barely_begun_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "purpose.json").write_text("{}")
    (tmp_path / ".config.7.partial.yaml").write_text("half")
    make(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "purpose.json"]
