"""Refining the prompt for one's own problem, from the command line (`promptrl refine`) and from Python."""

from __future__ import annotations

from pathlib import Path

from promptrl.config import Config
from promptrl.errors import TaskError
from promptrl.models import ModelSettings
from promptrl.refinement.budget import Budget
from promptrl.refining.result import Refinement, Suite, TestReport
from promptrl.refining.session import DEFAULT_CONFIG, Progress, Session, choose_method, refine_config
from promptrl.refining.sources import HoldOut, task_from_prompt, task_from_stub, tasks_from_file
from promptrl.tasks.task import Task
from promptrl.workbench import Workbench

__all__ = [
    "Budget",
    "HoldOut",
    "Progress",
    "Refinement",
    "Suite",
    "TestReport",
    "refine",
    "task_from_prompt",
    "task_from_stub",
    "tasks_from_file",
]


def refine(
    task: Task | Path | str,
    *,
    model: ModelSettings | str | None = None,
    method: str | None = None,
    policy: Path | str | None = None,
    budget: Budget | None = None,
    config: Config | Path | str = DEFAULT_CONFIG,
    seed: int | None = None,
    output: Path | str | None = None,
    progress: Progress | None = None,
) -> Refinement:
    """Refine the prompt of one task until the code passes its base tests, and judge the best code on the plus tests.

    Ctrl-C ends it with the best so far (`stopped` is then "interrupted").

    Args:
        task: A task, for example of `task_from_stub`; or a YAML file with one.
        model: The code model: its name or its settings; the configuration's where unset.
        method: Who chooses the actions; without it and without `policy` the agent that comes with promptrl, if one
            does, else `random-hybrid`.
        policy: A trained agent's zip.
        budget: Attempts, model calls, tokens (in and out together) and seconds on the clock that may be spent; as many
            attempts as the configuration's horizon where unset.
        config: A configuration, its file, or its name in `configs/`.
        seed: Of everything drawn; the configuration's where unset.
        output: A folder for `best.py`, `best_prompt.txt` and `refinement.json`; nothing is written where unset.
        progress: Is told of every step.

    Returns:
        What came of it; `solved` says whether all base tests pass.

    Raises:
        ConfigError: a name or value that is not allowed.
        TaskError: a task that cannot be used.
        PromptRLError: from models and sandbox.
    """
    choice = choose_method(method, Path(policy) if policy is not None else None)
    settings = refine_config(config)
    if isinstance(model, ModelSettings):
        settings = settings.model_copy(update={"model": model})
    elif model is not None:
        settings = settings.model_copy(update={"model": settings.model.model_copy(update={"name": model})})
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    workbench = Workbench(settings)
    try:
        session = Session(workbench, choice, budget)
        if not isinstance(task, Task):
            found = tasks_from_file(task)
            if len(found) != 1:
                raise TaskError(f"{task}: holds {len(found)} tasks; refine takes one")
            task = session.prepared(found)[0]
        folders = {task.task_id: Path(output)} if output is not None else None
        return session.run([task], folders=folders, progress=progress)[0]
    finally:
        workbench.close()
