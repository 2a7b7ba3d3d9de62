"""A refinement from its configuration to its results: models, method, tasks, folders."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from promptrl.assets import cache_dir
from promptrl.atomic import write_atomically
from promptrl.config import Config, load_config
from promptrl.errors import ConfigError, RunError
from promptrl.execution import Judge, resolve_expected
from promptrl.execution.kept_verdicts import KeepingJudge
from promptrl.methods.base import MethodContext, check_method, make_method
from promptrl.refinement.budget import Budget, MeteredModel
from promptrl.refinement.episode import Step
from promptrl.refining.loop import Run, refine_tasks
from promptrl.refining.output import read_result, write_folder
from promptrl.refining.result import Refinement, refinement_of
from promptrl.refining.sources import task_key
from promptrl.tasks.task import Task
from promptrl.workbench import Workbench

DEFAULT_CONFIG: Final = "refine.yaml"
SHIPPED_POLICY: Final = Path(__file__).resolve().parent.parent / "policies" / "refine.zip"
"""The trained agent that comes with the package, where one does."""
_FINISHED: Final = frozenset({"solved", "steps", "method"})
"""Ends after which a task is not taken up again; one that a cap or Ctrl-C ended is."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Who chooses the actions, and why it is this one."""

    method: str
    policy: Path | None
    reason: str


def choose_method(method: str | None, policy: Path | None) -> Choice:
    """The method asked for; without a wish the agent that is shipped, else random-hybrid.

    Raises:
        ConfigError: the method is unknown, or there is no such file.
    """
    if policy is not None and not policy.is_file():
        raise ConfigError(f"there is no trained agent at {policy}")
    if method is not None:
        check_method(method)
        return Choice(method, policy, "--method")
    if policy is not None:
        return Choice("ppo", policy, f"the agent {policy}")
    if SHIPPED_POLICY.is_file():
        return Choice("ppo", SHIPPED_POLICY, "the agent that comes with promptrl")
    return Choice("random-hybrid", None, "no --method or --policy was given, and no trained agent comes with promptrl")


def refine_config(config: Config | Path | str, overrides: Sequence[str] = ()) -> Config:
    """The configuration, made fit for refining: rewarded by the base tests alone, the others being kept back.

    Raises:
        ConfigError: naming the key, the value and what is allowed.
    """
    found = config if isinstance(config, Config) else load_config(config, overrides)
    environment = found.environment.model_copy(update={"protocol": "held_out"})
    return found.model_copy(update={"environment": environment})


def plain_judge(workbench: Workbench) -> Judge:
    """The workbench's judge itself, without the verdicts that are kept on disk."""
    judge = workbench.judge
    if isinstance(judge, KeepingJudge):
        judge = judge.judge_anew
    assert isinstance(judge, Judge)
    return judge


class Progress:
    """Is told how a refinement goes; this one says nothing."""

    def stepped(self, run: Run, step: Step) -> None:
        """A step was taken."""

    def ended(self, refinement: Refinement, folder: Path | None) -> None:
        """A task has ended, and its results are in the folder."""


class Session:
    """Refines tasks under one configuration and keeps every result, after every step.

    Args:
        workbench: The configuration with its models and judge; closed by whoever made it.
        choice: Who chooses the actions.
        budget: Attempts for each task, and caps on everything together.
    """

    def __init__(self, workbench: Workbench, choice: Choice, budget: Budget | None = None) -> None:
        self.workbench = workbench
        self.config = workbench.config
        self.choice = choice
        self.budget = budget or Budget()
        self._facts: dict[str, dict[str, Any]] = {}

    @property
    def steps(self) -> int:
        """Most steps for a task."""
        return self.budget.attempts or self.config.environment.horizon

    def key(self, task: Task) -> str:
        """Changes with everything that decides what comes of the task, but not with the caps."""
        policy = self.choice.policy
        settings = self.config.model_dump(mode="json", include=_DECIDING)
        return task_key(
            task,
            self.choice.method,
            hashlib.sha256(policy.read_bytes()).hexdigest() if policy is not None and policy.is_file() else None,
            self.workbench.coder.fingerprint,
            self.workbench.rewriter.fingerprint,
            self.steps,
            settings,
        )

    def finished(self, task: Task, folder: Path) -> dict[str, Any] | None:
        """The kept result of the task, None where there is none, it was made otherwise, or it was cut short."""
        found = read_result(folder)
        if found is None or found.get("stopped") not in _FINISHED or found.get("key") != self.key(task):
            return None
        return found

    def prepared(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks with the time limits that their own solutions set, where they have one.

        Raises:
            TaskError: such a solution fails.
        """
        with_solution = hashlib.sha256("".join(map(task_key, tasks)).encode()).hexdigest()
        return resolve_expected(tasks, data_sha256=with_solution, settings=self.config.sandbox, cache_dir=cache_dir())

    def run(
        self, tasks: Sequence[Task], *, folders: dict[str, Path] | None = None, progress: Progress | None = None
    ) -> list[Refinement]:
        """Refine tasks, and write what came of each into its folder after every step.

        Args:
            tasks: With ids of their own.
            folders: A folder per task id; nothing is written where unset.
            progress: Is told how it goes.

        Returns:
            The tasks that were begun, in order.

        Raises:
            PromptRLError: from models, sandbox and method.
        """
        bench, config = self.workbench, self.config
        meter = MeteredModel(bench.rewriter)
        engine = bench.engine(meter)
        context = MethodContext(
            engine.actions,
            config.seed,
            self.choice.policy,
            config.evaluation.deterministic,
            rewriter=meter,
            vectors=bench.encoder,
            settings=config.methods,
            attempts=self.steps,
            protocol="held_out",
        )
        method = make_method(self.choice.method, context)
        keeper = _Keeper(self, folders or {}, progress or Progress())
        refine_tasks(
            method,
            engine,
            tasks,
            seed=config.seed,
            listener=keeper,
            budget=self.budget.model_copy(update={"attempts": self.steps}),
            meter=meter,
            state=config.environment.state,
            batch_size=config.evaluation.batch_size,
        )
        return [keeper.results[task.task_id] for task in tasks if task.task_id in keeper.results]

    def facts(self, task: Task) -> dict[str, Any]:
        """What `refinement.json` says besides the results."""
        if task.task_id not in self._facts:
            model = self.config.model
            self._facts[task.task_id] = {
                "key": self.key(task),
                "entry_point": task.entry_point,
                "model_settings": model.model_dump(mode="json"),
                "model_fingerprint": self.workbench.coder.fingerprint,
                "method_reason": self.choice.reason,
                "policy": None if self.choice.policy is None else str(self.choice.policy),
                "caps": self.budget.model_copy(update={"attempts": self.steps}).model_dump(mode="json"),
            }
        return self._facts[task.task_id]

    def result(self, run: Run) -> Refinement:
        """What a run has come to so far."""
        model = self.config.model
        name = model.server.model if model.family == "server" else str(model.path or model.name)
        return refinement_of(run, method=self.choice.method, model=name, seed=self.config.seed)


_DECIDING: Final = {"seed", "generation", "environment", "operators", "methods", "sandbox", "evaluation"}
"""The groups of the configuration that decide a result, besides the models, whose fingerprints count."""


class _Keeper:
    """Writes each task's folder whenever there is something new in it."""

    def __init__(self, session: Session, folders: dict[str, Path], progress: Progress) -> None:
        self._session = session
        self._folders = folders
        self._progress = progress
        self.results: dict[str, Refinement] = {}

    def stepped(self, run: Run, step: Step) -> None:
        self._keep(run)
        self._progress.stepped(run, step)

    def ended(self, run: Run) -> None:
        self._progress.ended(self._keep(run), self._folders.get(run.episode.task.task_id))

    def _keep(self, run: Run) -> Refinement:
        task = run.episode.task
        result = self.results[task.task_id] = self._session.result(run)
        if (folder := self._folders.get(task.task_id)) is not None:
            write_folder(folder, result, self._session.facts(task))
        return result


def folders_of(tasks: Sequence[Task], output: Path) -> dict[str, Path]:
    """A folder per task below `output`, named after its id; ids that differ in signs only get a number."""
    folders: dict[str, Path] = {}
    taken: set[str] = set()
    for task in tasks:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", task.task_id).strip(".-") or "task"
        name, number = plain, 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.lower())
        folders[task.task_id] = output / name
    return folders


def write_summary(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write `summary.json`: one entry per task.

    Raises:
        RunError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as temporary:
            temporary.write_text(
                json.dumps({"tasks": list(rows)}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror or error})") from error
