"""Which tasks are trained on, validated on and tested on, such that nothing is on two sides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from promptrl.errors import ConfigError, TaskError
from promptrl.settings import Settings
from promptrl.tasks.benchmark import Benchmark, LeftOut
from promptrl.tasks.loading import BENCHMARKS, load_benchmark
from promptrl.tasks.mbpp import TEST_IDS, TRAIN_IDS, VALIDATION_IDS, mbpp_number
from promptrl.tasks.similarity import NearCopies, normalised_text
from promptrl.tasks.task import Task

_TEST_SHARE: Final = 0.4
_VALIDATION_SHARE: Final = 0.1
"""Shares of a benchmark that is split within itself, where no sizes are given; the rest is trained on."""

Count = Annotated[int, Field(ge=0)] | None


class SplitSettings(Settings):
    """How many tasks each part gets.

    Attributes:
        seed: Of the shuffles; a train or validation part cut short is a seeded sample, in the order of ids.
        n_train: At most so many training tasks; None for all.
        n_validation: At most so many validation tasks; None for all.
        n_test: At most so many test tasks, the first in the order of ids; None for all. Where a benchmark is
            split within itself, None means two fifths for test and a tenth for validation.
        near_copy_threshold: A training task whose text is at least so similar to a test or validation task is
            left out, in (0, 1]; the measure is that of `promptrl.tasks.similarity`.
    """

    seed: int = 0
    n_train: Count = None
    n_validation: Count = None
    n_test: Count = None
    near_copy_threshold: Annotated[float, Field(gt=0, le=1)] = 0.75


@dataclass(frozen=True, slots=True)
class Splits:
    """Three parts without a common task, and every task that was kept out of them for a reason."""

    train: tuple[Task, ...]
    validation: tuple[Task, ...]
    test: tuple[Task, ...]
    left_out: tuple[LeftOut, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)
    """The hash of the file that each of the benchmarks in the parts was read from."""


def load_splits(
    name: str,
    settings: SplitSettings | None = None,
    *,
    path: Path | None = None,
    training_path: Path | None = None,
) -> Splits:
    """Load a benchmark and split it.

    `mbpp` and `mbpp_plus` follow MBPP's ids: train on MBPP 601-974, validate on MBPP 511-600, test on
    11-510 (of MBPP+: the 224 it has of them). `humaneval_plus` is tested whole, and trained and
    validated on MBPP. `humaneval`, `apps` and `custom` are split within themselves by a seeded shuffle:
    the first of it are the test tasks, the next the validation tasks, the rest is trained on.

    Rows of MBPP that its own solution fails are neither trained nor validated on. Near copies of test
    tasks are kept out of validation, near copies of test or validation tasks out of training.

    Args:
        name: One of `BENCHMARKS`.
        settings: The sizes; the defaults where None.
        path: The benchmark's own file, where it is not to be looked up.
        training_path: MBPP's file for `mbpp_plus` and `humaneval_plus`, where it is not to be looked up.

    Raises:
        ConfigError: when the name is unknown or the sizes cannot be had.
        AssetError: when a file is nowhere to be had.
        TaskError: when a file cannot be used, or a part that was not asked to be empty would be.
    """
    settings = settings or SplitSettings()
    if name not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {name!r}; allowed are {', '.join(BENCHMARKS)}")
    benchmark = load_benchmark(name, path=path)
    left_out = list(benchmark.left_out)
    sha256 = {benchmark.name: benchmark.sha256}
    if name in ("mbpp", "mbpp_plus", "humaneval_plus"):
        source = benchmark if name == "mbpp" else load_benchmark("mbpp", path=training_path)
        if source is not benchmark:
            left_out += source.left_out
            sha256[source.name] = source.sha256
        train, validation = _with_ids(source, TRAIN_IDS), _with_ids(source, VALIDATION_IDS)
        test = list(benchmark.tasks) if name == "humaneval_plus" else _with_ids(benchmark, TEST_IDS)
    else:
        train, validation, test = _within(benchmark, settings)
    splits = replace(_without_copies(train, validation, test, left_out, settings), sha256=sha256)
    assert_disjoint(splits)
    for part, tasks, asked in (
        ("train", splits.train, settings.n_train),
        ("validation", splits.validation, settings.n_validation),
        ("test", splits.test, settings.n_test),
    ):
        if not tasks and asked != 0 and part != "validation":
            raise TaskError(f"{benchmark.source}: the {part} part of {name} would hold no task")
    return splits


def assert_disjoint(splits: Splits) -> None:
    """Check that no id and no normalised task text is in two parts.

    Raises:
        TaskError: when one is; the message names both tasks and their parts.
    """
    ids: dict[str, str] = {}
    texts: dict[str, tuple[str, str]] = {}
    for part, tasks in (("train", splits.train), ("validation", splits.validation), ("test", splits.test)):
        for task in tasks:
            other = ids.setdefault(task.task_id, part)
            if other != part:
                raise TaskError(f"task {task.task_id} is in the {other} part and in the {part} part")
            text = normalised_text(task.instruction)
            other, other_id = texts.setdefault(text, (part, task.task_id))
            if other != part:
                raise TaskError(
                    f"task {task.task_id} of the {part} part has the text of {other_id} of the {other} part"
                )


def _with_ids(benchmark: Benchmark, ids: range) -> list[Task]:
    return sorted(
        (task for task in benchmark.tasks if mbpp_number(task.task_id) in ids),
        key=lambda task: mbpp_number(task.task_id),
    )


def _within(benchmark: Benchmark, settings: SplitSettings) -> tuple[list[Task], list[Task], list[Task]]:
    """The parts of a benchmark without an official split, each in the file's order."""
    total = len(benchmark.tasks)
    n_test = round(total * _TEST_SHARE) if settings.n_test is None else settings.n_test
    n_validation = round(total * _VALIDATION_SHARE) if settings.n_validation is None else settings.n_validation
    needed = n_test + n_validation + (settings.n_train or 0)
    if needed > total:
        raise ConfigError(
            f"{benchmark.name} holds {total} tasks, but n_train, n_validation and n_test ask for {needed} together"
        )
    order = list(range(total))
    random.Random(settings.seed).shuffle(order)
    cuts = (order[n_test + n_validation :], order[n_test : n_test + n_validation], order[:n_test])
    train, validation, test = ([benchmark.tasks[index] for index in sorted(cut)] for cut in cuts)
    return train, validation, test


def _without_copies(
    train: Sequence[Task],
    validation: Sequence[Task],
    test: Sequence[Task],
    left_out: list[LeftOut],
    settings: SplitSettings,
) -> Splits:
    """Drop faulty rows and near copies, then cut the parts to their sizes.

    Copies are sought before anything is cut, so that a smaller test part does not change the training part.
    """
    threshold = settings.near_copy_threshold
    tested = NearCopies(test, threshold)
    validation = _filtered(validation, left_out, lambda task: _copy_of(task, tested, "test"))
    validated = NearCopies(validation, threshold)
    train = _filtered(
        train, left_out, lambda task: _copy_of(task, tested, "test") or _copy_of(task, validated, "validation")
    )
    return Splits(
        train=tuple(_sample(train, settings.n_train, settings.seed)),
        validation=tuple(_sample(validation, settings.n_validation, settings.seed)),
        test=tuple(test[: settings.n_test]),
        left_out=tuple(left_out),
    )


def _filtered(tasks: Iterable[Task], left_out: list[LeftOut], fault: Callable[[Task], str | None]) -> list[Task]:
    kept: list[Task] = []
    for task in tasks:
        own = task.metadata.get("faulty")
        reason = f"its own solution fails its tests: {own}" if own else fault(task)
        if reason is None:
            kept.append(task)
        else:
            left_out.append(LeftOut(task.task_id, reason))
    return kept


def _copy_of(task: Task, others: NearCopies, part: str) -> str | None:
    match = others.closest(task)
    if match is None:
        return None
    return f"near copy of {part} task {match.task.task_id} (similarity {match.similarity:.2f})"


def _sample(tasks: list[Task], size: int | None, seed: int) -> list[Task]:
    if size is None or size >= len(tasks):
        return tasks
    chosen = random.Random(seed).sample(range(len(tasks)), size)
    return [tasks[index] for index in sorted(chosen)]
