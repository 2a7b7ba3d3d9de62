"""What the documentation shows works."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from promptrl.config import parse_config
from promptrl.envs import PromptRefinementEnv
from promptrl.evaluation.records import read_records
from promptrl.evaluation.runner import evaluate
from promptrl.execution import Judge
from promptrl.methods import MethodContext
from promptrl.methods.search_settings import EpicSettings, ReflexionSettings
from promptrl.refinement.budget import MeteredModel
from promptrl.refinement.state import state_size
from tests.scripted import ScriptedModel, make_engine, make_task, number_of, wrong

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


def test_the_own_method_of_the_documentation(judge: Judge, tmp_path: Path) -> None:
    text = (DOCS / "methods.md").read_text()
    code, config = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "yaml"))
    assert code is not None
    assert config is not None
    budget = parse_config(yaml.safe_load(config.group(1))).evaluation.budget
    assert (budget.attempts, budget.calls, budget.tokens, budget.seconds) == (5, 12, 20000, 60)
    namespace: dict[str, Any] = {}
    exec(code.group(1), namespace)
    meter = MeteredModel(ScriptedModel(lambda request: "1. Think."))
    engine = make_engine(lambda request: wrong(number_of(request)), judge, rewriter=meter)
    method = namespace["AskForAPlan"](MethodContext(engine.actions, 0, rewriter=meter))
    tasks = [make_task(1), make_task(2)]
    evaluate(method, engine, tasks, tmp_path / "r.jsonl", seed=0, budget=budget, meter=meter)
    records = list(read_records(tmp_path / "r.jsonl"))
    assert [(r["task_id"], r["action"], r["rewrite_calls"]) for r in records] == [
        (f"Scripted/{number}", action, calls) for number in (1, 2) for action, calls in (("proposal", 0), ("plan", 1))
    ]
    assert records[1]["prompt"].endswith("def add_1(x: int) -> int:\n\nA plan:\n1. Think.")


def test_the_settings_of_the_documentation_are_the_defaults() -> None:
    text = (DOCS / "methods.md").read_text()
    epic, reflexion = EpicSettings(), ReflexionSettings()
    for names, values in (
        ("`word_rate`, `candidates`", (epic.word_rate, epic.candidates)),
        ("`max_words`, `max_new_tokens`", (epic.max_words, epic.max_new_tokens)),
        (
            "`variant_temperature`, `mutation_temperature`, `top_p`",
            (epic.variant_temperature, epic.mutation_temperature, epic.top_p),
        ),
        ("`accept_first`, `accept_generation`", (epic.accept_first, epic.accept_generation)),
        (
            "`temperature`, `top_p`, `max_new_tokens`",
            (reflexion.temperature, reflexion.top_p, reflexion.max_new_tokens),
        ),
        ("`memory`", (reflexion.memory,)),
        ("`shown_tests`", (reflexion.shown_tests,)),
    ):
        assert f"| {names} | {', '.join(map(str, values))} |" in text


def test_the_sizes_of_the_states() -> None:
    text = (DOCS / "operators.md").read_text()
    assert "| `prompt` | 384 |" in text
    assert state_size("prompt", 3) == 384
    assert "| `prompt+progress` | 391 + actions |" in text
    assert state_size("prompt+progress", 3) == 391 + 3
    assert "| `prompt+feedback` | 775 + actions |" in text
    assert state_size("prompt+feedback", 3) == 775 + 3
