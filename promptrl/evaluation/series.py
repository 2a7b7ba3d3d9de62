"""Which runs make one row of a comparison: one method, one configuration, any number of seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from promptrl.errors import RunError
from promptrl.evaluation.outcomes import TaskOutcome
from promptrl.evaluation.run_folders import TRAINED, BlockKey, StudyRun


@dataclass(frozen=True)
class Series:
    """The runs of one row: one method, one configuration, any number of seeds."""

    label: str
    method: str
    runs: Mapping[int, StudyRun]
    """By seed."""

    @cached_property
    def outcomes(self) -> dict[int, dict[str, TaskOutcome]]:
        """Per seed the outcomes by task id."""
        return {seed: run.outcomes(self.method) for seed, run in sorted(self.runs.items())}

    def table(self, task_ids: Sequence[str], value: Callable[[TaskOutcome], float]) -> list[list[float]]:
        """One figure of every task, shape (seeds, tasks)."""
        return [[float(value(outcomes[task_id])) for task_id in task_ids] for outcomes in self.outcomes.values()]


def series_by_block(runs: Sequence[StudyRun]) -> dict[BlockKey, list[Series]]:
    """The rows of every block, each with a label that is its own there.

    Runs of one configuration but for the seed are one row. A method that occurs with several configurations is named
    with the keys that tell them apart: `ppo (shaped)`, `ppo (ent_coef=0.02)`.

    Raises:
        RunError: when two folders hold other outcomes of one method, configuration and seed.
    """
    by_block: dict[BlockKey, list[StudyRun]] = {}
    for run in runs:
        by_block.setdefault(run.block, []).append(run)
    grouped = {key: _group(members) for key, members in by_block.items()}
    naming = _naming_keys(grouped)
    return {key: _label(groups, naming) for key, groups in grouped.items()}


def same_tasks(series: Sequence[Series]) -> tuple[str, ...]:
    """The ids of a block's tasks, in order.

    Raises:
        RunError: when two methods, or two seeds of one, were evaluated on different ones.
    """
    wanted: set[str] | None = None
    origin: Path | None = None
    for row in series:
        for seed, outcomes in row.outcomes.items():
            ids = set(outcomes)
            if wanted is None:
                wanted, origin = ids, row.runs[seed].path
            elif ids != wanted:
                example = min(ids ^ wanted)
                raise RunError(
                    f"{row.runs[seed].path} cannot be compared with {origin}: {row.label!r} was evaluated on other "
                    f"tasks, {len(ids)} there and {len(wanted)} in the latter ({example} is in one of them only)"
                )
    return tuple(sorted(wanted or ()))


@dataclass
class _Group:
    """Runs that become one row."""

    method: str
    variant: dict[str, Any]
    runs: dict[int, StudyRun]


def _group(runs: Sequence[StudyRun]) -> list[_Group]:
    """The rows of a block, trained methods last, otherwise in the order in which they come."""
    groups: list[_Group] = []
    for run in runs:
        for method in run.methods:
            variant = run.variant(method)
            group = next((g for g in groups if g.method == method and not _differing(g.variant, variant)), None)
            if group is None:
                groups.append(_Group(method, variant, {run.seed: run}))
            elif run.seed in group.runs:
                _refuse_other_outcomes(method, group.runs[run.seed], run)
            else:
                group.runs[run.seed] = run
                group.variant = {**variant, **group.variant}  # what the first, of an older release, said nothing of
    return sorted(groups, key=lambda group: group.method in TRAINED)


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> set[str]:
    """The keys in which two configurations differ; one that a release did not have yet tells nothing apart."""
    return {key for key in a.keys() & b.keys() if a[key] != b[key]}


def _refuse_other_outcomes(method: str, kept: StudyRun, other: StudyRun) -> None:
    """Two folders may hold the same run of a method, but not two different ones."""
    ours, theirs = kept.outcomes(method), other.outcomes(method)
    differing = sorted(
        task_id
        for task_id in ours.keys() | theirs.keys()
        if _essence(ours.get(task_id)) != _essence(theirs.get(task_id))
    )
    if differing:
        raise RunError(
            f"{kept.path} and {other.path} both hold {method!r} with seed {kept.seed}, and other outcomes on "
            f"{len(differing)} tasks ({differing[0]} first); compare them apart, or leave one out"
        )


def _essence(outcome: TaskOutcome | None) -> object:
    return outcome and (outcome.solved_after, outcome.soft, outcome.attempts)


def _naming_keys(grouped: Mapping[BlockKey, Sequence[_Group]]) -> dict[str, list[str]]:
    """Per method the keys in which its rows differ within some block: rows are named by them, in every block."""
    names: dict[str, set[str]] = {}
    for groups in grouped.values():
        for a, b in combinations(groups, 2):
            if a.method == b.method:
                names.setdefault(a.method, set()).update(_differing(a.variant, b.variant))
    return {method: sorted(keys) for method, keys in names.items()}


def _label(groups: Sequence[_Group], naming: Mapping[str, Sequence[str]]) -> list[Series]:
    series = []
    for group in groups:
        parts = []
        for key in naming.get(group.method, ()):
            value = group.variant.get(key)
            parts.append(str(value) if key == "environment.reward" else f"{key.rpartition('.')[2]}={value}")
        label = f"{group.method} ({', '.join(parts)})" if parts else group.method
        series.append(Series(label, group.method, group.runs))
    return series
