"""Compares run folders: rows per method, paired tests for every pair, tables and pictures, all from records alone.

Runs fall into blocks by benchmark, backbone and protocol. Within a block everything that makes results comparable has
to agree, and each method is a row; runs that differ in their seed alone are one row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from promptrl.atomic import write_atomically
from promptrl.errors import RunError
from promptrl.evaluation.metrics import solved_at_step
from promptrl.evaluation.outcomes import TaskOutcome
from promptrl.evaluation.run_folders import BlockKey, read_runs
from promptrl.evaluation.series import Series, same_tasks, series_by_block
from promptrl.evaluation.statistics import (
    Interval,
    McNemar,
    bootstrap_mean,
    holm,
    interquartile_mean,
    majority,
    mcnemar_test,
    paired_bootstrap,
    stratified_bootstrap,
    wilson_interval,
)

FORMATS: Final = ("md", "csv", "tex")
REFERENCE: Final = "repeat-direct"
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True)
class Entry:
    """One row: a method's scores and costs. Costs are sums over the tasks, and means over the seeds.

    Attributes:
        label: what tables call it.
        method: its name.
        reward: what its training was paid by.
        seeds: of its runs.
        folders: of its runs.
        n: tasks.
        solved: tasks solved, per seed.
        strict: Strict Pass@1, mean over seeds.
        strict_interval: Wilson's with one seed; with several, a bootstrap over tasks of the means over seeds.
        soft: Soft Pass@1, mean over seeds.
        soft_interval: a bootstrap over tasks.
        strict_iqm: interquartile mean over seeds; None with one.
        strict_iqm_interval: a bootstrap over seeds; None with one.
        soft_iqm: as `strict_iqm`.
        soft_iqm_interval: as `strict_iqm_interval`.
        some_step_solved: share of tasks of which some step, picked or not, passes all report tests.
        misled: share of tasks whose answer passes the reward tests and fails report tests.
        capped: tasks that a cap on calls, tokens or seconds ended.
        attempts: codes judged.
        model_calls: rewriting and reflecting included, and answers from the cache.
        cached_calls: how many of them came from the cache.
        tokens_in: of all calls.
        tokens_out: of all calls.
        seconds: of model time, as first spent.
        tokens_per_solved: tokens in and out per solved task; None where none is solved.
        seconds_per_solved: the same of seconds.
        solved_at_step: share of tasks solved within 1 … horizon attempts, mean over seeds.
    """

    label: str
    method: str
    reward: str
    seeds: tuple[int, ...]
    folders: tuple[str, ...]
    n: int
    solved: tuple[int, ...]
    strict: float
    strict_interval: Interval
    soft: float
    soft_interval: Interval
    strict_iqm: float | None
    strict_iqm_interval: Interval | None
    soft_iqm: float | None
    soft_iqm_interval: Interval | None
    some_step_solved: float
    misled: float
    capped: float
    attempts: float
    model_calls: float
    cached_calls: float
    tokens_in: float
    tokens_out: float
    seconds: float
    tokens_per_solved: float | None
    seconds_per_solved: float | None
    solved_at_step: tuple[float, ...]


@dataclass(frozen=True)
class SeedTest:
    """McNemar's test of two methods' runs with the same seed; Holm over all pairs of that seed."""

    seed: int
    test: McNemar
    p_holm: float


@dataclass(frozen=True)
class Pair:
    """Two rows compared on the same tasks.

    Attributes:
        first: label of one row.
        second: label of the other.
        test: McNemar's; with several seeds a task counts as solved where `majority` of the seeds solve it.
        p_holm: its p-value, adjusted over all pairs of the block.
        strict_difference: Strict of the first less that of the second, means over seeds.
        strict_interval: paired bootstrap over tasks.
        soft_difference: the same of Soft.
        soft_interval: paired bootstrap over tasks.
        per_seed: the test once more for every seed that both have.
    """

    first: str
    second: str
    test: McNemar
    p_holm: float
    strict_difference: float
    strict_interval: Interval
    soft_difference: float
    soft_interval: Interval
    per_seed: tuple[SeedTest, ...]


@dataclass(frozen=True)
class Block:
    """Methods on the same tasks of one benchmark, with the same frozen model, under the same protocol and budget."""

    key: BlockKey
    horizon: int
    data_sha256: str
    model_fingerprint: str
    task_ids: tuple[str, ...]
    entries: tuple[Entry, ...]
    pairs: tuple[Pair, ...]
    series: tuple[Series, ...] = field(repr=False)

    @property
    def reference(self) -> str:
        """The row that the others are marked against: repeat-direct, or the first where it is not there."""
        labels = [entry.label for entry in self.entries]
        return REFERENCE if REFERENCE in labels else labels[0]

    def p_against_reference(self, label: str) -> float | None:
        """Holm-adjusted p-value of a row against the reference; None for the reference itself."""
        wanted = {label, self.reference}
        return next((pair.p_holm for pair in self.pairs if {pair.first, pair.second} == wanted), None)


@dataclass(frozen=True)
class Overall:
    """Interquartile mean over the runs of all blocks of one protocol, the runs of a block being a stratum."""

    label: str
    protocol: str
    blocks: int
    seeds: int
    strict_iqm: float
    strict_interval: Interval
    soft_iqm: float
    soft_interval: Interval


@dataclass(frozen=True)
class Comparison:
    """All numbers of a comparison."""

    blocks: tuple[Block, ...]
    overall: tuple[Overall, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; what is infinite or not a number becomes null."""
        blocks = []
        for block in self.blocks:
            values = {name: getattr(block, name) for name in block.__dataclass_fields__ if name != "series"}
            blocks.append({**_plain(values), "reference": block.reference})
        return {"schema": SCHEMA_VERSION, "blocks": blocks, "overall": _plain(self.overall)}


def compare(run_dirs: Sequence[Path], output: Path, formats: Sequence[str] = FORMATS) -> Comparison:
    """Compare run folders and leave tables, pictures and `comparison.json` in `output`.

    Args:
        run_dirs: folders made by `promptrl train` or `promptrl evaluate`.
        output: a folder for `table.*`, `pairs.*`, `actions.*`, `comparison.json` and the pictures; files of these
            names are written anew.
        formats: of the tables, among `md`, `csv` and `tex`.

    Raises:
        RunError: when runs cannot be compared, or `output` is a run folder or cannot be written.
    """
    from promptrl.evaluation.action_tables import actions_table
    from promptrl.evaluation.comparison_tables import pairs_table, table
    from promptrl.evaluation.figures import write_figures

    _check_formats(formats)
    if (output / "config.yaml").exists():
        raise RunError(f"{output} is a run folder, which a comparison must not change; give another --output")
    comparison = build_comparison(run_dirs)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for fmt in formats:
            for name, make in (("table", table), ("pairs", pairs_table), ("actions", actions_table)):
                _write(output / f"{name}.{fmt}", make(comparison, fmt))
        _write(output / "comparison.json", json.dumps(comparison.to_json(), indent=2, ensure_ascii=False) + "\n")
        write_figures(comparison, output)
    except OSError as error:
        raise RunError(f"{output} cannot be written ({error.strerror or type(error).__name__})") from error
    return comparison


def build_comparison(run_dirs: Sequence[Path]) -> Comparison:
    """The numbers of a comparison; nothing is written.

    Raises:
        RunError: when runs cannot be compared; one sentence says why, with both values.
    """
    blocks = tuple(_block(key, series) for key, series in series_by_block(read_runs(run_dirs)).items())
    return Comparison(blocks, tuple(_overall(blocks)))


def _block(key: BlockKey, series: Sequence[Series]) -> Block:
    task_ids = same_tasks(series)
    first = next(iter(series[0].runs.values()))
    horizon = first.horizon
    return Block(
        key=key,
        horizon=horizon,
        data_sha256=first.data_sha256,
        model_fingerprint=first.model_fingerprint,
        task_ids=task_ids,
        entries=tuple(_entry(row, task_ids, horizon) for row in series),
        pairs=_pairs(series, task_ids),
        series=tuple(series),
    )


def _entry(row: Series, task_ids: Sequence[str], horizon: int) -> Entry:
    solved, soft = row.table(task_ids, lambda o: o.solved), row.table(task_ids, lambda o: o.soft)
    n, several = len(task_ids), len(row.runs) > 1
    per_task, soft_per_task = _task_means(solved), _task_means(soft)
    strict_runs = [[float(np.mean(scores))] for scores in solved]
    soft_runs = [[float(np.mean(scores))] for scores in soft]
    counts = tuple(int(sum(scores)) for scores in solved)

    def total(value: Callable[[TaskOutcome], float]) -> float:
        return float(np.mean([sum(scores) for scores in row.table(task_ids, value)]))

    tokens_in, tokens_out, seconds = (
        total(lambda o: o.tokens_in),
        total(lambda o: o.tokens_out),
        total(lambda o: o.seconds),
    )
    mean_solved = float(np.mean(counts))
    curves = [
        solved_at_step([outcomes[task_id].solved_after for task_id in task_ids], horizon)
        for outcomes in row.outcomes.values()
    ]
    return Entry(
        label=row.label,
        method=row.method,
        reward=next(iter(row.runs.values())).reward,
        seeds=tuple(row.outcomes),
        folders=tuple(str(row.runs[seed].path) for seed in row.outcomes),
        n=n,
        solved=counts,
        strict=_mean(solved),
        strict_interval=bootstrap_mean(per_task) if several else wilson_interval(counts[0], n),
        soft=_mean(soft),
        soft_interval=bootstrap_mean(soft_per_task),
        strict_iqm=interquartile_mean(strict_runs) if several else None,
        strict_iqm_interval=stratified_bootstrap(strict_runs) if several else None,
        soft_iqm=interquartile_mean(soft_runs) if several else None,
        soft_iqm_interval=stratified_bootstrap(soft_runs) if several else None,
        some_step_solved=total(lambda o: o.some_step_solved) / n,
        misled=total(lambda o: o.misled) / n,
        capped=total(lambda o: o.capped),
        attempts=total(lambda o: o.attempts),
        model_calls=total(lambda o: o.model_calls),
        cached_calls=total(lambda o: o.cached_calls),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        seconds=seconds,
        tokens_per_solved=(tokens_in + tokens_out) / mean_solved if mean_solved else None,
        seconds_per_solved=seconds / mean_solved if mean_solved else None,
        solved_at_step=tuple(float(value) for value in np.mean(curves, axis=0)),
    )


def _pairs(series: Sequence[Series], task_ids: Sequence[str]) -> tuple[Pair, ...]:
    rows = list(combinations(series, 2))
    solved = {row.label: row.table(task_ids, lambda o: o.solved) for row in series}
    softs = {row.label: row.table(task_ids, lambda o: o.soft) for row in series}
    soft = {label: _task_means(runs) for label, runs in softs.items()}
    votes = {label: majority([[bool(s) for s in run] for run in runs]) for label, runs in solved.items()}
    strict = {label: _task_means(runs) for label, runs in solved.items()}
    tests = [mcnemar_test(votes[a.label], votes[b.label]) for a, b in rows]
    adjusted = holm([test.p_value for test in tests])
    per_seed = _seed_tests(rows, task_ids)
    return tuple(
        Pair(
            first=a.label,
            second=b.label,
            test=test,
            p_holm=p_holm,
            strict_difference=_mean(solved[a.label]) - _mean(solved[b.label]),
            strict_interval=paired_bootstrap(strict[a.label], strict[b.label]),
            soft_difference=_mean(softs[a.label]) - _mean(softs[b.label]),
            soft_interval=paired_bootstrap(soft[a.label], soft[b.label]),
            per_seed=tuple(per_seed[a.label, b.label]),
        )
        for (a, b), test, p_holm in zip(rows, tests, adjusted, strict=True)
    )


def _seed_tests(
    rows: Sequence[tuple[Series, Series]], task_ids: Sequence[str]
) -> dict[tuple[str, str], list[SeedTest]]:
    found: dict[tuple[str, str], list[SeedTest]] = {(a.label, b.label): [] for a, b in rows}
    for seed in sorted({seed for pair in rows for row in pair for seed in row.runs}):
        both = [(a, b) for a, b in rows if seed in a.runs and seed in b.runs]
        tests = [
            mcnemar_test(*([row.outcomes[seed][task_id].solved for task_id in task_ids] for row in pair))
            for pair in both
        ]
        for (a, b), test, p_holm in zip(both, tests, holm([test.p_value for test in tests]), strict=True):
            found[a.label, b.label].append(SeedTest(seed, test, p_holm))
    return found


def _overall(blocks: Sequence[Block]) -> list[Overall]:
    """Interquartile means over blocks, for the methods that have equally many seeds, several, in all of a protocol."""
    found = []
    for protocol in dict.fromkeys(block.key.protocol for block in blocks):
        members = [block for block in blocks if block.key.protocol == protocol]
        for label in dict.fromkeys(entry.label for block in members for entry in block.entries):
            rows = [row for block in members for row in block.series if row.label == label]
            seeds = {len(row.runs) for row in rows}
            if len(members) < 2 or len(rows) < len(members) or len(seeds) > 1 or seeds == {1}:
                continue
            strict, soft = (
                np.array(
                    [
                        [float(np.mean(scores)) for scores in row.table(block.task_ids, value)]
                        for block, row in zip(members, rows, strict=True)
                    ]
                ).T
                for value in (_solved, _soft)
            )
            found.append(
                Overall(
                    label=label,
                    protocol=protocol,
                    blocks=len(members),
                    seeds=seeds.pop(),
                    strict_iqm=interquartile_mean(strict),
                    strict_interval=stratified_bootstrap(strict),
                    soft_iqm=interquartile_mean(soft),
                    soft_interval=stratified_bootstrap(soft),
                )
            )
    return found


def _solved(outcome: TaskOutcome) -> float:
    return float(outcome.solved)


def _soft(outcome: TaskOutcome) -> float:
    return outcome.soft


def _mean(runs: Sequence[Sequence[float]]) -> float:
    """Mean over runs and tasks, rounded once: 14 of 40 is the same number from one run and from three."""
    return math.fsum(chain.from_iterable(runs)) / sum(map(len, runs))


def _task_means(runs: Sequence[Sequence[float]]) -> list[float]:
    return [float(value) for value in np.mean(runs, axis=0)]


def _check_formats(formats: Sequence[str]) -> None:
    for fmt in formats:
        if fmt not in FORMATS:
            raise RunError(f"format {fmt!r} is unknown; allowed are {', '.join(FORMATS)}")


def _write(path: Path, text: str) -> None:
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
