"""The configuration of an experiment: read, joined with its base, overridden, and checked before anything is loaded.

A name may be several, separated by commas, each laid over the ones before it, so that `mbpp_plus.yaml,codellama-7b` is
an experiment with another model; `base` in a file takes one name or a list of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from promptrl.errors import ConfigError
from promptrl.execution import SandboxSettings
from promptrl.methods.base import available_methods
from promptrl.methods.search_settings import MethodSettings
from promptrl.methods.settings import PPOSettings
from promptrl.models import ModelSettings
from promptrl.refinement.budget import Budget
from promptrl.refinement.engine import EpisodeSettings, GenerationSettings
from promptrl.refinement.operators import OPERATORS, OperatorSettings
from promptrl.refinement.state import StateName
from promptrl.settings import Settings
from promptrl.study_settings import StudySettings
from promptrl.tasks import BENCHMARKS, SplitSettings

CONFIG_DIRS: Final = tuple(
    folder / inner
    for folder in (Path("configs"), Path(__file__).resolve().parent.parent / "configs")
    for inner in ("", "backbones")
)


class EnvironmentSettings(EpisodeSettings):
    """The environment's episode, state and actions."""

    state: StateName = "prompt"
    task_order: Literal["shuffled", "curriculum"] = "shuffled"
    actions: tuple[str, ...] = ("direct", "lexical", "semantic")

    @field_validator("actions")
    @classmethod
    def _distinct(cls, actions: tuple[str, ...]) -> tuple[str, ...]:
        if not actions or len(set(actions)) != len(actions):
            raise ValueError("needs at least one action, and each once")
        for action in actions:
            if action not in OPERATORS and ":" not in action:
                raise ValueError(f"unknown action {action!r}; allowed are {', '.join(OPERATORS)} and 'module:Class'")
        return actions


class EncoderSettings(Settings):
    """Where MiniLM is; by default it is found, or fetched, by `promptrl assets`."""

    path: Path | None = None


class EvaluationSettings(Settings):
    """Which methods are run on the held-out tasks, and how."""

    methods: tuple[str, ...] = ("direct", "repeat-direct", "random-hybrid", "ppo")
    budget: Budget = Field(Budget(), description="what each method may spend per task")
    batch_size: int = Field(32, ge=1, description="episodes that run at once")
    workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="episodes in flight, in the place of batch_size, and as many requests at a server at once",
    )
    deterministic: bool = Field(True, description="whether PPO takes its likeliest action")

    @property
    def at_once(self) -> int:
        """How many episodes run at once."""
        return self.batch_size if self.workers is None else self.workers

    @field_validator("methods")
    @classmethod
    def _known(cls, methods: tuple[str, ...]) -> tuple[str, ...]:
        known = available_methods()
        for method in methods:
            if method not in known:
                raise ValueError(f"unknown method {method!r}; allowed are {', '.join(known)}")
        if not methods or len(set(methods)) != len(methods):
            raise ValueError("needs at least one method, and each once")
        return methods


class Config(Settings):
    """Everything that decides what a run does."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9._+-]+$", description="first part of the run folder's name")
    seed: int = Field(0, ge=0, lt=2**31, description="of everything that is drawn; sub-environment i uses seed + i")
    benchmark: str = "humaneval"
    data_path: Path | None = Field(None, description="the benchmark's file; found or fetched where unset")
    split: SplitSettings = SplitSettings()
    model: ModelSettings = ModelSettings()
    rewriter: ModelSettings | None = Field(None, description="the model that rewrites; the code model where unset")
    encoder: EncoderSettings = EncoderSettings()
    generation: GenerationSettings = GenerationSettings()
    sandbox: SandboxSettings = SandboxSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    operators: OperatorSettings = OperatorSettings()
    ppo: PPOSettings = PPOSettings()
    methods: MethodSettings = MethodSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    study: StudySettings = StudySettings()
    cache: bool = Field(True, description="whether answers and verdicts are kept on disk and taken from there")

    @field_validator("benchmark")
    @classmethod
    def _benchmark(cls, benchmark: str) -> str:
        if benchmark not in BENCHMARKS:
            raise ValueError(f"unknown benchmark; allowed are {', '.join(BENCHMARKS)}")
        return benchmark

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        protocols = (self.environment.protocol, *(self.study.protocols or ()))
        if "held_out" in protocols and self.benchmark in ("humaneval", "mbpp", "apps"):
            raise ValueError(
                f"protocol 'held_out' needs report tests, which {self.benchmark!r} lacks; use humaneval_plus, "
                "mbpp_plus, or protocol 'paper'"
            )
        direct = {"direct", "repeat-direct"} & set(self.evaluation.methods)
        if direct and "direct" not in self.environment.actions:
            raise ValueError(
                f"evaluation.methods has {', '.join(sorted(direct))}, which need the action 'direct'; "
                f"environment.actions has {', '.join(self.environment.actions)}"
            )
        return self

    def to_yaml(self) -> str:
        """The resolved configuration as a file that `load_config` reads back to the same."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load_config(name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a file, joined over the file that its `base` names, then overridden.

    Args:
        name: a path, or the name of a file in `configs/` or `configs/backbones/`; several separated by commas are laid
            over each other, later over earlier.
        overrides: "key.subkey=value", the value in YAML.

    Raises:
        ConfigError: naming the file, the key, the value and what is allowed.
    """
    values: dict[str, Any] = {}
    for one in _split(name):
        values = _merge(values, _read(_find(one)))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            raise ConfigError(f"--set {override!r} is not of the form key.subkey=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {override!r} has a value that is not YAML ({_one_line(error)})") from error
        _set(values, key.strip().split("."), value, override)
    try:
        return parse_config(values, str(name))
    except ConfigError as error:
        invalid = error.__cause__
        if isinstance(invalid, ValidationError) and (culprit := _culprit(invalid, overrides)):
            raise ConfigError(f"--set {culprit!r}: {_explain(invalid)}") from invalid
        raise


def parse_config(values: Mapping[str, Any], source: str = "the configuration") -> Config:
    """Check a mapping and make it a `Config`.

    Raises:
        ConfigError: one sentence on the first thing that is wrong.
    """
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from error


def _split(name: str | Path) -> list[str]:
    """The names in a name; a file whose own name holds a comma is one."""
    text = str(name)
    with suppress(OSError):
        if Path(text).is_file():
            return [text]
    return [part.strip() for part in text.split(",")]


def _find(name: str | Path) -> Path:
    candidates = [Path(name), *(folder / f"{name}{end}" for folder in CONFIG_DIRS for end in ("", ".yaml"))]
    for candidate in candidates:
        with suppress(OSError):  # a name too long for the file system is no file either
            if candidate.is_file():
                return candidate
    known = sorted({path.name for folder in CONFIG_DIRS if folder.is_dir() for path in folder.glob("*.yaml")})
    raise ConfigError(
        f"there is no configuration {str(name)!r}, neither as a path nor in configs/ ({', '.join(known) or 'empty'})"
    )


def _read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    path = path.resolve()
    if path in seen:
        raise ConfigError(f"{path}: the chain of 'base' files comes back to itself")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML ({_one_line(error)})") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}; a configuration is a mapping of keys to values")
    bases = values.pop("base", None)
    joined: dict[str, Any] = {}
    for base in bases if isinstance(bases, list) else [] if bases is None else [bases]:
        base_path = path.parent / str(base)
        joined = _merge(joined, _read(base_path if base_path.is_file() else _find(str(base)), (*seen, path)))
    return _merge(joined, values)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _set(values: dict[str, Any], keys: Sequence[str], value: Any, override: str) -> None:
    for key in keys[:-1]:
        if values.get(key) is None:
            values[key] = {}
        if not isinstance(values[key], dict):
            raise ConfigError(f"--set {override!r}: {key!r} has no keys below it")
        values = values[key]
    values[keys[-1]] = value


def _culprit(error: ValidationError, overrides: Sequence[str]) -> str | None:
    """The last override of the key that a validation's first error is about."""
    location = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
    about = [o for o in overrides if location and f"{location}.".startswith(f"{o.partition('=')[0].strip()}.")]
    return about[-1] if about else None


def _explain(error: ValidationError) -> str:
    """The first of a validation's errors as one sentence: key, value, what is allowed."""
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        allowed = _fields_at(location[:-1])
        near = difflib.get_close_matches(location[-1], allowed, n=1)
        return f"unknown key {key!r}" + (
            f", did you mean {near[0]!r}?" if near else f"; allowed are {', '.join(allowed)}"
        )
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "model_type":
        message = f"input should be a mapping of {', '.join(_fields_at(location))}"
    if not location:
        return message
    if location[-1] == "api_key_env":  # what was put there by mistake may be the key itself: it is not repeated
        return f"{key}: must be the name of an environment variable"
    return f"{key} is {first['input']!r}: {message[:1].lower()}{message[1:]}"


def _fields_at(location: Sequence[str]) -> list[str]:
    """The keys that are allowed below a location of the configuration."""
    model: type[BaseModel] = Config
    for part in location:
        field = model.model_fields.get(part)
        inner = (getattr(field.annotation, "__args__", None) or (field.annotation,)) if field else ()
        models = [t for t in inner if isinstance(t, type) and issubclass(t, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
