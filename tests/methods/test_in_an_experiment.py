"""The searching methods as an experiment runs them: settings, budget and meter come from the configuration."""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from promptrl.config import Config, parse_config
from promptrl.evaluation.records import read_records
from promptrl.execution import Judge
from promptrl.experiment import evaluate_methods, table_caption
from promptrl.models.base import GenerationRequest
from promptrl.tasks.task import Task
from promptrl.workbench import Workbench
from tests.scripted import HashingEncoder, ScriptedModel, make_task, number_of, wrong


class ScriptedBench(Workbench):
    """A workbench whose models are scripted: the parts between them are the real ones."""

    def __init__(self, config: Config, judge: Judge) -> None:
        super().__init__(config)
        self.__dict__["judge"] = judge

    def tasks(self, split: str) -> tuple[Task, ...]:
        return tuple(make_task(number, plus=True) for number in (1, 2, 3))

    @cached_property
    def coder(self) -> Any:
        return ScriptedModel(lambda request: wrong(number_of(request)))

    @cached_property
    def rewriter(self) -> Any:
        def rewrite(request: GenerationRequest) -> str:
            return f" Add the value {number_of(request)} to `x`, way {chr(96 + request.draw)}."

        return ScriptedModel(rewrite)

    @cached_property
    def encoder(self) -> Any:
        return HashingEncoder()


def test_settings_and_budget_reach_the_methods(judge: Judge, tmp_path: Path) -> None:
    config = parse_config(
        {
            "benchmark": "mbpp_plus",
            "environment": {"protocol": "held_out", "horizon": 3},
            "evaluation": {"methods": ["epic", "reflexion"], "budget": {"attempts": 4, "calls": 6}},
            "methods": {"epic": {"population": 2, "mutator": "model"}, "reflexion": {"temperature": 0.3}},
        }
    )
    bench = ScriptedBench(config, judge)
    console = Console(file=io.StringIO())
    epic, reflexion = evaluate_methods(tmp_path, bench, policy=None, console=console)
    # One attempt, two variants in one call each, then a mutant that would be the sixth call: it is not tried any more.
    assert (epic.n, epic.attempts, epic.model_calls) == (3, 3 * 3, 3 * 6)
    assert (reflexion.n, reflexion.attempts, reflexion.model_calls) == (3, 3 * 3, 3 * 6)
    for name in ("epic", "reflexion"):
        last = [record for record in read_records(tmp_path / f"{name}.jsonl") if record.get("last")]
        assert [record["capped"] for record in last] == ["calls"] * 3
    temperatures = {request.temperature for request in bench.rewriter.requests}
    assert temperatures == {0.9, 0.8, 0.3}
    assert "at most 4 attempts, 6 calls per task" in table_caption(config, [epic, reflexion])
