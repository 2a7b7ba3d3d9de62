"""A workbench over the scripted model: whole runs with real files, real judging and real PPO, and no weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from promptrl.config import Config, parse_config
from promptrl.execution import Judge
from promptrl.models.base import GenerationRequest
from promptrl.tasks import Splits
from promptrl.workbench import Workbench
from tests.scripted import Answer, HashingEncoder, ScriptedModel, make_task, number_of, right, wrong

REWRITE = " Add the number to `x` and return it."
# A rewrite has to keep the numbers, so the tasks get instructions without any.
TASKS = [
    replace(make_task(number, plus=True), instruction="Add something to the value `x`.") for number in range(1, 13)
]


def only_rewritten(request: GenerationRequest) -> str:
    """Right if and only if the prompt is the rewriting model's: `semantic` solves at once, nothing else ever does."""
    number = number_of(request)
    return right(number) if "Add the number to" in request.user else wrong(number)


def small_config(**values: object) -> Config:
    """A configuration of a few steps on tasks that are split 6, 3 and 3."""
    small = {"total_timesteps": 32, "n_envs": 4, "n_steps": 4, "batch_size": 8, "n_epochs": 1}
    return parse_config(
        {
            "benchmark": "mbpp_plus",
            "environment": {"horizon": 2, "protocol": "held_out"},
            "ppo": {**small, "save_freq": 16, "eval_freq": 16},
            "evaluation": {"methods": ["direct", "repeat-direct", "ppo"]},
            **values,
        }
    )


class ScriptedWorkbench(Workbench):
    """Its judge is the test session's, which stays open."""

    def close(self) -> None:
        pass


def scripted_workbench(
    judge: Judge, answer: Answer = only_rewritten, *, n_validation: int = 3
) -> Callable[[Config], Workbench]:
    """What makes a workbench of a configuration."""

    def make(config: Config) -> Workbench:
        workbench = ScriptedWorkbench(config)
        tasks = tuple(TASKS)
        validation = tasks[6 : 6 + n_validation]
        workbench.__dict__.update(
            splits=Splits(tasks[:6], validation, tasks[9:], sha256={"scripted": "0" * 64}),
            _tasks={"train": tasks[:6], "validation": validation, "test": tasks[9:]},
            coder=ScriptedModel(answer),
            rewriter=ScriptedModel(lambda request: REWRITE),
            encoder=HashingEncoder(),
            judge=judge,
        )
        return workbench

    return make
