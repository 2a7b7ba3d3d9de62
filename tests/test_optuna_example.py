"""The hyperparameter search of the examples: trials on validation tasks alone, kept in a file, gone on with."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from promptrl.errors import ConfigError
from promptrl.execution import Judge
from promptrl.models.base import GenerationRequest
from tests.workbench import only_rewritten, scripted_workbench, small_config

optuna = pytest.importorskip("optuna", reason="optuna is not installed; pip install 'promptrl[examples]'")
pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture
def example() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "examples" / "optuna_search.py"
    spec = importlib.util.spec_from_file_location("optuna_search", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_search_is_gone_on_with(example: ModuleType, judge: Judge, tmp_path: Path) -> None:
    asked: list[str] = []
    tired = False

    def answer(request: GenerationRequest) -> str:
        asked.append(request.user)
        if tired:
            raise KeyboardInterrupt
        return only_rewritten(request)

    def search(trials: int) -> object:
        console = Console(file=io.StringIO())
        make = scripted_workbench(judge, answer)
        return example.search(small_config(), tmp_path / "out", trials=trials, console=console, make_workbench=make)

    first = search(2)
    assert [trial.number for trial in first.trials] == [0, 1]
    for trial in first.trials:
        lines = (tmp_path / "out" / f"trial-{trial.number}" / "validation.jsonl").read_text().splitlines()
        assert trial.value == max(json.loads(line)["strict"] for line in lines)
    assert not any(f"def add_{test}(" in text for text in asked for test in (10, 11, 12))
    tired = True
    with pytest.raises(KeyboardInterrupt):
        search(3)
    tired = False
    second = search(3)
    states = [trial.state.name for trial in second.trials]
    assert states == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    assert second.trials[3].params == second.trials[2].params
    assert second.trials[2].params != second.trials[0].params
    assert len(search(3).trials) == 4


def test_a_search_needs_validation(example: ModuleType, judge: Judge, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="split has none; set n_validation"):
        example.search(
            small_config(), tmp_path / "a", trials=1, make_workbench=scripted_workbench(judge, n_validation=0)
        )
    config = small_config(ppo={**small_config().ppo.model_dump(), "eval_freq": 0})
    with pytest.raises(ConfigError, match=r"ppo\.eval_freq is 0"):
        example.search(config, tmp_path / "b", trials=1)
