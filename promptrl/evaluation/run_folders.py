"""Reads run folders for a comparison, and says in one sentence where two of them cannot be compared.

A folder's configuration is read as plain data, so that runs of another release stay readable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from promptrl.errors import RunError
from promptrl.evaluation.outcomes import TaskOutcome, task_outcomes
from promptrl.evaluation.records import Record, read_records

_MUST_AGREE: Final = (
    "environment.horizon",
    "evaluation.budget.*",
    "generation.*",
    *(f"model.{key}" for key in ("request", "system", "instruction_template", "response_prefix", "stop", "overlong")),
    *(f"model.{key}" for key in ("prompt_style", "chat_format", "max_context")),
    *(f"sandbox.{key}" for key in ("memory_mb", "time_limit_*", "import_time_limit", "max_timeouts", "wall_limit")),
    *(f"sandbox.{key}" for key in ("forgiving", "packages")),
)
"""Keys, as patterns, that make two runs incomparable when they differ: budget, decoding and judging."""

_NO_VARIANT: Final = (
    *("seed", "name", "cache", "data_path", "benchmark", "environment.protocol"),
    *(
        "evaluation.methods",
        "evaluation.batch_size",
        "evaluation.workers",
        "encoder.path",
        "model.*",
        "sandbox.*",
        "split.n_test",
    ),
    "study.*",
    *("ppo.save_freq", "rewriter.path", "rewriter.batch_size"),
)
"""Keys that may differ between the seeds of one method, or are what blocks are made by."""

_TRAINING: Final = (
    *("ppo.*", "environment.reward", "environment.state", "environment.task_order", "environment.variants"),
    "evaluation.deterministic",
    *("split.n_train", "split.n_validation", "split.seed", "split.near_copy_threshold"),
)
"""Keys that change nothing for a method that is not trained."""

_REWRITING: Final = ("operators.*", "rewriter", "rewriter.*", "environment.actions", "environment.population_size")
"""Keys that change nothing for a method that never changes the prompt."""

TRAINED: Final = frozenset({"ppo"})
"""Methods whose results depend on their training."""

_UNCHANGED_PROMPT: Final = frozenset({"direct", "repeat-direct"})


@dataclass(frozen=True, slots=True)
class BlockKey:
    """What a block of a table is about: only within it are methods compared."""

    benchmark: str
    backbone: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.benchmark}, {self.backbone}, protocol {self.protocol}"

    @property
    def slug(self) -> str:
        """The same in letters, digits and hyphens, for names of files and labels."""
        parts = (self.benchmark, self.backbone, self.protocol)
        return "-".join("-".join(re.findall(r"[A-Za-z0-9]+", part)) for part in parts)


class StudyRun:
    """One run folder, read when it is asked; nothing in it is changed.

    Args:
        path: the folder, with `config.yaml`, `versions.json` and `evaluation/<method>.jsonl`.

    Raises:
        RunError: when it is no run folder, or a file in it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _readable(path):
            if not (path / "config.yaml").is_file():
                raise RunError(f"{path} is no run folder (there is no config.yaml in it)")
        self.config = read_mapping(path / "config.yaml")
        self.versions = read_mapping(path / "versions.json")
        self.leaves = dict(_leaves(self.config))

    @property
    def seed(self) -> int:
        return 0 if self.leaves.get("seed") is None else self._whole("seed", 0)

    @property
    def horizon(self) -> int:
        """Most attempts per task."""
        capped = self.leaves.get("evaluation.budget.attempts")
        return self._whole("environment.horizon" if capped is None else "evaluation.budget.attempts", 1)

    @property
    def reward(self) -> str:
        return str(self.leaves.get("environment.reward", "shaped"))

    @property
    def data_sha256(self) -> str:
        """Of the benchmark's file that the test tasks come from."""
        found = self.versions.get("data_sha256")
        return str(found.get(self.block.benchmark, "unknown")) if isinstance(found, dict) else "unknown"

    @property
    def model_fingerprint(self) -> str:
        """Of the frozen code model's weights, precision and format."""
        return str(self.versions.get("model_fingerprint", "unknown"))

    @cached_property
    def block(self) -> BlockKey:
        """Benchmark, backbone (with its precision) and protocol."""
        quantization = self.leaves.get("model.quantization", "none")
        precision = self.leaves.get("model.dtype", "auto") if quantization == "none" else quantization
        return BlockKey(
            benchmark=str(self._needed("benchmark")),
            backbone=f"{self._needed('model.name')} ({precision})",
            protocol=str(self._needed("environment.protocol")),
        )

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The evaluated methods, in the configuration's order and then by name."""
        folder = self.path / "evaluation"
        with _readable(folder):
            files = record_files(folder) if folder.is_dir() else []
            found = {path.stem for path in files if path.stat().st_size}
        listed = [str(name) for name in _list(self.leaves.get("evaluation.methods"))]
        return (*(m for m in dict.fromkeys(listed) if m in found), *sorted(found - set(listed)))

    def records(self, method: str) -> Iterator[Record]:
        """The steps of a method's evaluation."""
        return read_records(self.path / "evaluation" / f"{method}.jsonl")

    def outcomes(self, method: str) -> dict[str, TaskOutcome]:
        """The finished tasks of a method's evaluation, by id.

        Raises:
            RunError: when there are none, fewer than the run has test tasks, or records that lack something.
        """
        try:
            found = task_outcomes(self.records(method))
        except (KeyError, TypeError, ValueError) as error:
            what = f"docs/records.md has it ({type(error).__name__}: {error})"
            raise RunError(f"a record of {method!r} in {self.path} is not as {what}") from error
        wanted = self._test_tasks() or len(found)
        if len(found) < max(wanted, 1):
            raise RunError(
                f"{self.path} holds {len(found)} of {wanted} finished test tasks for {method!r}; finish the run with "
                "--resume first"
            )
        return found

    @property
    def training(self) -> Path | None:
        """The steps of training, where there was one."""
        path = self.path / "train.jsonl"
        return path if path.is_file() and path.stat().st_size else None

    @property
    def validation(self) -> Path | None:
        """The validations during training, where there were any."""
        path = self.path / "validation.jsonl"
        return path if path.is_file() and path.stat().st_size else None

    def variant(self, method: str) -> dict[str, Any]:
        """The configuration's leaves by which two entries of one method are two rows of a table."""
        left_out = [*_NO_VARIANT, *_MUST_AGREE]
        if method not in TRAINED:
            left_out += _TRAINING
        if method in _UNCHANGED_PROMPT:
            left_out += _REWRITING
        own = f"methods.{method}."
        # Unset, the code model rewrites; as a leaf either way, so that the two are seen to differ.
        leaves = {**self.leaves, "rewriter": self.leaves.get("rewriter.name")}
        return {
            key: value
            for key, value in leaves.items()
            if not _matches(key, left_out) and (not key.startswith("methods.") or key.startswith(own))
        }

    def _test_tasks(self) -> int:
        path = self.path / "splits.json"
        return len(_list(read_mapping(path).get("test"))) if path.exists() else 0

    def _whole(self, key: str, least: int) -> int:
        value = self._needed(key)
        if not isinstance(value, int) or value < least:
            wanted = f"a whole number of at least {least}"
            raise RunError(f"{self.path / 'config.yaml'} says {key} is {value!r}, which is not {wanted}")
        return value

    def _needed(self, key: str) -> Any:
        if self.leaves.get(key) is None:
            raise RunError(f"{self.path / 'config.yaml'} says nothing of {key!r}, which a comparison needs")
        return self.leaves[key]


def read_runs(paths: Sequence[Path]) -> list[StudyRun]:
    """The run folders of a comparison, all of which have been found to go together where they have to.

    Raises:
        RunError: when none is given, one is given twice or cannot be read, or two of one block differ in what
            makes results comparable; the difference is named with both values.
    """
    if not paths:
        raise RunError("a comparison needs at least one run folder")
    if len({path.resolve() for path in paths}) < len(paths):
        raise RunError("a run folder is given twice; a comparison takes each once")
    runs = [StudyRun(path) for path in paths]
    earlier: dict[BlockKey, list[StudyRun]] = {}
    for run in runs:
        if not run.methods:
            raise RunError(f"{run.path} holds no evaluation (there are no records in its folder evaluation/)")
        # With each, not the first alone: where a release did not have a key yet, the first may agree with two that
        # do not agree with each other.
        for other in earlier.setdefault(run.block, []):
            _refuse_difference(other, run)
        earlier[run.block].append(run)
    return runs


def _refuse_difference(a: StudyRun, b: StudyRun) -> None:
    """Raise on the first thing that keeps two runs of one block from being compared."""
    for what, one, other in (
        ("benchmark data", a.data_sha256, b.data_sha256),
        ("model fingerprint", a.model_fingerprint, b.model_fingerprint),
    ):
        if one != other:
            raise RunError(
                f"{a.path} and {b.path} cannot be compared: {what} is {one[:12]} there and {other[:12]} here"
            )
    for key in sorted(key for key in a.leaves.keys() | b.leaves.keys() if _matches(key, _MUST_AGREE)):
        old, new = a.leaves.get(key), b.leaves.get(key)
        # A key that one release did not have yet says nothing, unless it caps something.
        missing = key not in a.leaves or key not in b.leaves
        if old != new and not (missing and not key.startswith("evaluation.budget.")):
            raise RunError(f"{a.path} and {b.path} cannot be compared: {key} is {old!r} there and {new!r} here")


def record_files(folder: Path) -> list[Path]:
    """The files of records in a folder, by name; those that a killed process left half-written are hidden ones."""
    return sorted(path for path in folder.iterdir() if path.suffix == ".jsonl" and not path.name.startswith("."))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in a sentence what of a folder cannot be read."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{error.filename or path} cannot be read ({error.strerror})") from error


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same values four times as fast, where PyYAML was built with libyaml."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a file of a run folder, JSON or YAML, holds.

    Raises:
        RunError: when it cannot be read or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_LOADER)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise RunError(f"{path} cannot be read ({type(error).__name__}), so its run cannot be compared") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is no mapping, so its run cannot be compared")
    return value


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(key, pattern) for pattern in patterns)
