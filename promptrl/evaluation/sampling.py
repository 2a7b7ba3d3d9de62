"""Sampling sweeps: n answers per task and temperature from the unchanged prompt, and the unbiased pass@k of them.

A temperature above 0 takes draws 1 to n, the same that `repeat-direct` takes after its greedy first answer, so that the
cache serves both; temperature 0 takes the one greedy answer, draw 0. Base tests come first, and the plus tests are run
where these pass. `docs/sampling.md` has the schema of the records.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from promptrl.atomic import write_atomically
from promptrl.errors import ConfigError, RunError
from promptrl.evaluation.metrics import pass_at_k
from promptrl.evaluation.records import SCHEMA_VERSION, Record, RecordFile, read_records
from promptrl.evaluation.statistics import Interval, bootstrap_mean
from promptrl.execution.extraction import extract_code
from promptrl.execution.judge import Candidate
from promptrl.execution.kept_verdicts import JudgeLike
from promptrl.execution.verdict import Status, Verdict
from promptrl.models.base import Generation, GenerationRequest
from promptrl.refinement.engine import RefinementEngine
from promptrl.refinement.prompt import Prompt
from promptrl.tasks.task import Task

_USUAL_K: Final = (1, 5, 10)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How many samples of each task are drawn at which temperatures, and the k that pass@k is wanted for.

    Attributes:
        samples_per_task: n, at each temperature above 0; at temperature 0 it is 1, as all would be the same.
        temperatures: in the order of the table, each once.
        ks: ascending.
    """

    samples_per_task: int
    temperatures: tuple[float, ...]
    ks: tuple[int, ...]

    def draws(self, temperature: float) -> range:
        """The draw indices at a temperature."""
        return range(1, self.samples_per_task + 1) if temperature > 0 else range(1)

    def ks_at(self, temperature: float) -> tuple[int, ...]:
        """The k that there are enough samples for at a temperature."""
        return tuple(k for k in self.ks if k <= len(self.draws(temperature)))

    @property
    def purpose(self) -> dict[str, str]:
        """What decides the samples, besides the configuration; k only decides what is made of them."""
        return {
            "command": "evaluate",
            "samples_per_task": str(self.samples_per_task),
            "temperatures": ",".join(f"{temperature:g}" for temperature in self.temperatures),
        }


def sampling_plan(
    samples_per_task: int, temperatures: Sequence[float], ks: Sequence[int] | None = None
) -> SamplingPlan:
    """A plan that can be carried out.

    Args:
        samples_per_task: n.
        temperatures: each at least 0, and once.
        ks: at most n each; unset, those of 1, 5, 10 and n that are.

    Raises:
        ConfigError: naming the value and what is allowed.
    """
    if samples_per_task < 1:
        raise ConfigError(f"--samples-per-task is {samples_per_task}; it has to be at least 1")
    if not temperatures:
        raise ConfigError("--temperatures names none; at least one is needed")
    for temperature in temperatures:
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ConfigError(f"--temperatures has {temperature:g}; a temperature is a number of at least 0")
    temperatures = [temperature + 0.0 for temperature in temperatures]  # no −0
    if len({f"{temperature:g}" for temperature in temperatures}) < len(temperatures):
        raise ConfigError("--temperatures names one twice (six digits count); each may be there once")
    most = samples_per_task if any(temperature > 0 for temperature in temperatures) else 1
    for k in ks or ():
        if k < 1:
            raise ConfigError(f"--k has {k}; k has to be at least 1")
        if k > most:
            said = f"--samples-per-task is {most}" if most == samples_per_task else "temperature 0 has one answer"
            raise ConfigError(f"--k has {k}, but {said}: pass@k needs at least k samples of each task")
    wanted = ks or [k for k in (*_USUAL_K, most) if k <= most]
    return SamplingPlan(samples_per_task, tuple(temperatures), tuple(sorted(set(wanted))))


def sample_path(folder: Path, temperature: float) -> Path:
    """The file of a temperature's records."""
    return folder / f"t{temperature:g}.jsonl"


def draw_samples(
    engine: RefinementEngine,
    tasks: Sequence[Task],
    plan: SamplingPlan,
    temperature: float,
    path: Path,
    *,
    batch_size: int = 32,
    on_progress: Progress | None = None,
) -> None:
    """Draw and judge what `path` does not hold yet of a temperature's samples; at most a batch is lost to a kill.

    Args:
        engine: whose model, request format, seed, decoding and judge are used.
        tasks: whose unchanged prompts are answered.
        plan: how many samples of each.
        temperature: one of the plan's.
        path: a file of JSON lines, made where it is missing.
        batch_size: answers that are asked for, judged and written together.
        on_progress: called with (samples there, samples in all).
    """
    kept = list(_mended(path))
    there = {(record["task_id"], record["draw"]) for record in kept}
    wanted = [(task, draw) for task in tasks for draw in plan.draws(temperature)]
    missing = [(task, draw) for task, draw in wanted if (task.task_id, draw) not in there]
    known = {(record["task_id"], record["code"]): _judged(record) for record in kept}
    done = len(wanted) - len(missing)
    records = RecordFile(path)
    try:
        if on_progress:
            on_progress(done, len(wanted))
        for start in range(0, len(missing), batch_size):
            batch = missing[start : start + batch_size]
            requests = [_request(engine, task, draw, temperature) for task, draw in batch]
            generations = engine.coder.generate(requests)
            codes = [
                extract_code(request.prefill + generation.text, entry_point=task.entry_point, stub=task.stub).code
                for (task, _), request, generation in zip(batch, requests, generations, strict=True)
            ]
            fresh = {(task.task_id, code): task for (task, _), code in zip(batch, codes, strict=True)}
            known.update(_judge(engine.judge, {key: task for key, task in fresh.items() if key not in known}))
            records.append(
                *(
                    _record(task, request, generation, code, known[task.task_id, code])
                    for (task, _), request, generation, code in zip(batch, requests, generations, codes, strict=True)
                )
            )
            done += len(batch)
            if on_progress:
                on_progress(done, len(wanted))
    finally:
        records.close()


@dataclass(frozen=True, slots=True)
class PassAtK:
    """One pass@k: the mean over tasks, with a percentile bootstrap interval over tasks (95 %)."""

    k: int
    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class SuiteScore:
    """What the samples at one temperature are worth on one suite.

    Attributes:
        temperature: that they were drawn at.
        suite: `base`, or `base + plus`.
        tasks: how many.
        samples_per_task: n.
        passed: samples that pass, of all tasks together.
        scores: one per k, ascending.
    """

    temperature: float
    suite: str
    tasks: int
    samples_per_task: int
    passed: int
    scores: tuple[PassAtK, ...]


def score_samples(
    records: Iterable[Record], plan: SamplingPlan, temperature: float, tasks: Sequence[Task], *, seed: int = 0
) -> list[SuiteScore]:
    """Unbiased pass@k of a temperature's samples, on the base tests and, where a task has them, on both suites.

    Args:
        records: as `draw_samples` wrote them.
        plan: how many samples there are, and which k are wanted.
        temperature: which one.
        tasks: that the mean is over; those of other tasks do not count.
        seed: of the bootstrap.

    Raises:
        RunError: when a task has fewer samples than planned.
    """
    drawn: dict[str, dict[int, Record]] = defaultdict(dict)
    for record in records:
        if record["draw"] in plan.draws(temperature):
            drawn[record["task_id"]][record["draw"]] = record
    n = len(plan.draws(temperature))
    for task in tasks:
        if len(drawn[task.task_id]) < n:
            raise RunError(
                f"{task.task_id} has {len(drawn[task.task_id])} of {n} samples at temperature {temperature:g}; go on "
                "with --resume first"
            )
    suites = {"base": "base_passed"}
    if any(task.plus is not None for task in tasks):
        suites["base + plus"] = "passed"
    scores = []
    for suite, key in suites.items():
        right = [sum(bool(record[key]) for record in drawn[task.task_id].values()) for task in tasks]
        found = []
        for k in plan.ks_at(temperature):
            parts = [pass_at_k(n, c, k) for c in right]
            found.append(PassAtK(k, sum(parts) / len(parts), bootstrap_mean(parts, seed=seed)))
        scores.append(SuiteScore(temperature, suite, len(tasks), n, sum(right), tuple(found)))
    return scores


def write_samples(records: Iterable[Record], path: Path, tasks: Sequence[Task]) -> int:
    """Write samples as EvalPlus reads them, by task and draw, and return their number.

    A line has `task_id` and `solution`; an answer without code is an empty solution.
    """
    order = {task.task_id: number for number, task in enumerate(tasks)}
    chosen = sorted(
        (record for record in records if record["task_id"] in order),
        key=lambda record: (order[record["task_id"]], record["draw"]),
    )
    with write_atomically(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for record in chosen:
            line = {"task_id": record["task_id"], "solution": record["code"] or ""}
            file.write(json.dumps(line) + "\n")
    return len(chosen)


def _request(engine: RefinementEngine, task: Task, draw: int, temperature: float) -> GenerationRequest:
    settings = engine.generation_settings
    return engine.request_format(
        Prompt.from_task(task).render(),
        stub=task.stub,
        draw=draw,
        seed=engine.seed,
        temperature=temperature,
        top_p=settings.top_p,
        max_new_tokens=settings.max_new_tokens,
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """What became of one code: counts of outcomes per suite; those of plus are None where it was not run."""

    base_passed: bool
    passed: bool
    base: Mapping[str, int]
    plus: Mapping[str, int] | None
    status: str
    error: str | None


def _judge(judge: JudgeLike, codes: Mapping[tuple[str, str | None], Task]) -> dict[tuple[str, str | None], _Judged]:
    """Each code on the base tests, and on the plus tests where it passes those."""
    base = dict(
        zip(codes, judge.judge([Candidate(key[1], task, task.base) for key, task in codes.items()]), strict=True)
    )
    again = {
        key: Candidate(key[1], task, task.plus)
        for key, task in codes.items()
        if task.plus is not None and base[key].status is Status.PASSED
    }
    plus = dict(zip(again, judge.judge(list(again.values())), strict=True))
    judged = {}
    for key, task in codes.items():
        last = plus.get(key, base[key])
        base_passed = base[key].status is Status.PASSED
        judged[key] = _Judged(
            base_passed=base_passed,
            passed=base_passed and (task.plus is None or plus[key].status is Status.PASSED),
            base=_counts(base[key]),
            plus=_counts(plus[key]) if key in plus else None,
            status=str(base[key].status),
            error=last.error,
        )
    return judged


def _counts(verdict: Verdict) -> dict[str, int]:
    return dict(Counter(str(result.outcome) for result in verdict.results))


def _judged(record: Record) -> _Judged:
    """What a record says of its code."""
    return _Judged(
        base_passed=record["base_passed"],
        passed=record["passed"],
        base=record["base_tests"],
        plus=record["plus_tests"],
        status=record["status"],
        error=record["error"],
    )


def _record(
    task: Task, request: GenerationRequest, generation: Generation, code: str | None, judged: _Judged
) -> Record:
    return {
        "schema": SCHEMA_VERSION,
        "task_id": task.task_id,
        "temperature": request.temperature,
        "draw": request.draw,
        "seed": request.seed,
        "answer": generation.text,
        "code": code,
        "base_passed": judged.base_passed,
        "passed": judged.passed,
        "base_tests": dict(judged.base),
        "plus_tests": None if judged.plus is None else dict(judged.plus),
        "status": judged.status,
        "error": judged.error,
        "finish_reason": generation.finish_reason,
        "tokens_in": generation.tokens_in,
        "tokens_out": generation.tokens_out,
        "cached": generation.cached,
        "seconds": generation.seconds,
    }


def _mended(path: Path) -> Iterator[Record]:
    """The records of a file, from which a half-written last line is taken first."""
    if not path.exists() or not path.stat().st_size:
        return
    records = list(read_records(path))
    whole = path.read_bytes().endswith(b"\n") and len(records) == path.read_bytes().count(b"\n")
    if not whole:
        with write_atomically(path) as temporary:
            file = RecordFile(temporary)
            file.append(*records)
            file.close()
    yield from records
