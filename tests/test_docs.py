"""What the documentation shows works."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from promptrl.config import parse_config
from promptrl.envs import PromptRefinementEnv
from promptrl.execution import Judge
from promptrl.refinement.state import state_size
from tests.scripted import make_engine, make_task, wrong

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_fourth_action_of_the_documentation(judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "operators.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    config = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert code is not None
    assert config is not None
    (tmp_path / "my_operators.py").write_text(code.group(1))
    monkeypatch.syspath_prepend(tmp_path)
    actions = parse_config(yaml.safe_load(config.group(1))).environment.actions
    engine = make_engine(lambda request: wrong(1), judge, actions=actions)
    env = PromptRefinementEnv(engine, [make_task(1)])
    env.reset(seed=0)
    *_, info = env.step(3)
    assert info["prompt"].startswith(
        "Write a function that slowly adds 1 to the given value `x`. Return the result. Annotate"
    )
    assert info["action"] == "my_operators:AskForTypes"
    sys.modules.pop("my_operators")


def test_the_sizes_of_the_states() -> None:
    text = (DOCS / "operators.md").read_text()
    assert "| `prompt` | 384 |" in text
    assert state_size("prompt", 3) == 384
    assert "| `prompt+progress` | 391 + actions |" in text
    assert state_size("prompt+progress", 3) == 391 + 3
    assert "| `prompt+feedback` | 775 + actions |" in text
    assert state_size("prompt+feedback", 3) == 775 + 3
