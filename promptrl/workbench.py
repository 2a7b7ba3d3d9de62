"""From a configuration to working parts: splits, models, judge, engine and environments, each made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gymnasium.vector import AutoresetMode

from promptrl.assets import cache_dir, find_model
from promptrl.config import Config, load_config, parse_config
from promptrl.envs.env import PromptRefinementEnv
from promptrl.envs.vector_env import PromptRefinementVectorEnv, StepHook
from promptrl.errors import ConfigError
from promptrl.execution import Judge, resolve_expected
from promptrl.execution.kept_verdicts import JudgeLike, KeepingJudge
from promptrl.models import CodeModel, ModelSettings, PromptEncoder, code_request, load_model
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.operators import OperatorContext, make_operators
from promptrl.tasks import Splits, load_splits
from promptrl.tasks.task import Task


class Workbench:
    """The parts of one configuration. Everything is made when first used, and closed with `close`."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def with_config(self, config: Config) -> Workbench:
        """A workbench for another configuration, with those parts of this one that the two have in common.

        Runs that differ in seed, protocol or reward share tasks, models and judge, each made once. Close one of them.
        """
        old, new = self.config, config
        kept = {
            "splits": (old.benchmark, old.split, old.data_path) == (new.benchmark, new.split, new.data_path),
            "coder": (old.model, old.cache) == (new.model, new.cache),
            "encoder": old.encoder == new.encoder,
            "judge": (old.sandbox, old.cache) == (new.sandbox, new.cache),
        }
        kept["rewriter"] = kept["coder"] and old.rewriter == new.rewriter
        kept["_tasks"] = kept["splits"] and kept["judge"]
        other = type(self)(config)
        other.__dict__.update({name: part for name, part in self.__dict__.items() if kept.get(name)})
        return other

    def find_files(self) -> None:
        """Find, or fetch, benchmark and weights, so that a run which cannot start leaves nothing behind."""
        _ = self.splits, self.coder.fingerprint, self.rewriter.fingerprint, self.encoder

    @cached_property
    def splits(self) -> Splits:
        """The tasks; expected values are filled in by `tasks`, for the splits that are used."""
        return load_splits(self.config.benchmark, self.config.split, path=self.config.data_path)

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of `train`, `validation` or `test`, with the expected values of their tests.

        Raises:
            ConfigError: for another name.
        """
        if split not in ("train", "validation", "test"):
            raise ConfigError(f"split {split!r} is unknown; allowed are train, validation, test")
        if split not in self._tasks:
            tasks: Sequence[Task] = getattr(self.splits, split)
            benchmarks = {task.benchmark for task in tasks}
            assert len(benchmarks) <= 1, "a part of a split comes from one benchmark"
            self._tasks[split] = tuple(
                resolve_expected(
                    tasks,
                    data_sha256="".join(self.splits.sha256[name] for name in benchmarks),
                    settings=self.config.sandbox,
                    cache_dir=cache_dir(),
                )
            )
        return self._tasks[split]

    @cached_property
    def _tasks(self) -> dict[str, tuple[Task, ...]]:
        return {}

    @cached_property
    def coder(self) -> CodeModel:
        return self._model(self.config.model)

    @cached_property
    def rewriter(self) -> CodeModel:
        if self.config.rewriter is None:
            return self.coder
        return self._model(self.config.rewriter)

    def use_models(self, coder: CodeModel, rewriter: CodeModel) -> None:
        """Take these models instead of making those of the configuration."""
        self.__dict__.update(coder=coder, rewriter=rewriter)

    def _model(self, settings: ModelSettings) -> CodeModel:
        """A model; a server is asked as much at once as `evaluation.workers` says, where that is more."""
        workers = self.config.evaluation.workers or 0
        if settings.family == "server" and workers > settings.server.concurrency:
            server = settings.server.model_copy(update={"concurrency": workers})
            settings = settings.model_copy(update={"server": server})
        return load_model(settings, cache_dir=cache_dir(), use_cache=self.config.cache)

    @cached_property
    def encoder(self) -> PromptEncoder:
        return PromptEncoder(find_model("minilm", explicit=self.config.encoder.path))

    @cached_property
    def judge(self) -> JudgeLike:
        judge = Judge(self.config.sandbox)
        return KeepingJudge(judge, cache_dir() / "verdicts") if self.config.cache else judge

    def engine(self, rewriter: CodeModel | None = None) -> RefinementEngine:
        """A new engine over the shared models, with its own clock; its operators rewrite with `rewriter` if given."""
        config = self.config
        context = OperatorContext(rewriter or self.rewriter, self.encoder, config.operators, config.seed)
        return RefinementEngine(
            coder=self.coder,
            request_format=partial(code_request, config.model),
            encoder=self.encoder,
            judge=self.judge,
            operators=make_operators(config.environment.actions, context),
            episode=config.environment,
            generation=config.generation,
            seed=config.seed,
        )

    def vector_env(
        self,
        split: str = "train",
        num_envs: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        render_mode: str | None = None,
        on_step: StepHook | None = None,
    ) -> PromptRefinementVectorEnv:
        """A vector environment over a split; as many sub-environments as PPO trains on unless told."""
        return PromptRefinementVectorEnv(
            self.engine(),
            self.tasks(split),
            num_envs=self.config.ppo.n_envs if num_envs is None else num_envs,
            state=self.config.environment.state,
            task_order=self.config.environment.task_order,
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            on_step=on_step,
        )

    def close(self) -> None:
        """Stop the judge's workers; models are freed with the object."""
        if "judge" in self.__dict__:
            self.judge.close()
            del self.__dict__["judge"]


_SHARED: dict[str, Workbench] = {}


def shared_workbench(config: Config | Mapping[str, Any] | str | Path, overrides: Sequence[str] = ()) -> Workbench:
    """The process's one workbench of a configuration: environments made from the same one share its models."""
    if isinstance(config, str | Path):
        config = load_config(config, overrides)
    elif not isinstance(config, Config):
        config = parse_config(config)
    key = config.model_dump_json()
    if key not in _SHARED:
        _SHARED[key] = Workbench(config)
    return _SHARED[key]


def make_env(
    config: Config | Mapping[str, Any] | str | Path = "quickstart.yaml",
    *,
    split: str = "train",
    render_mode: str | None = None,
) -> PromptRefinementEnv:
    """What `gymnasium.make("promptrl/PromptRefinement-v0", config=...)` calls.

    Args:
        config: a configuration's name, path, mapping or object; a name or mapping keeps the spec in JSON.
        split: whose tasks: `train`, `validation` or `test`.
        render_mode: None, `"human"` or `"ansi"`.
    """
    workbench = shared_workbench(config)
    settings = workbench.config.environment
    return PromptRefinementEnv(
        workbench.engine(),
        workbench.tasks(split),
        state=settings.state,
        task_order=settings.task_order,
        render_mode=render_mode,
    )


def make_vector_env(
    config: Config | Mapping[str, Any] | str | Path = "quickstart.yaml",
    *,
    num_envs: int = 1,
    split: str = "train",
    autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    render_mode: str | None = None,
) -> PromptRefinementVectorEnv:
    """What `gymnasium.make_vec(..., vectorization_mode="vector_entry_point")` calls; arguments as in `make_env`."""
    workbench = shared_workbench(config)
    return workbench.vector_env(split, num_envs, autoreset_mode=autoreset_mode, render_mode=render_mode)
