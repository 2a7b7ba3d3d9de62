"""`promptrl check`: judges samples that somebody brings, line by line, as EvalPlus and HumanEval would.

A sample is one JSON object a line with `task_id` and `solution` (a whole program) or `completion` (what
follows the prompt). The base and the plus suite are judged in runs of their own, so that nothing one of
them leaves behind can change the other.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from promptrl.assets import cache_dir
from promptrl.errors import ConfigError, TaskError
from promptrl.evaluation.check_files import VerdictWriter, print_text, readable_twice, verdict_file
from promptrl.evaluation.metrics import pass_at_k
from promptrl.execution import Candidate, Judge, Outcome, SandboxSettings, Status, Verdict, resolve_expected
from promptrl.execution.extraction import extract_code
from promptrl.execution.judge import overall
from promptrl.execution.source import parse
from promptrl.tasks import AssertTest, Benchmark, LeftOut, Task, TestSuite, load_benchmark
from promptrl.tasks.benchmark import parse_json, read_lines

_CHUNK: Final = 128
"""Samples that are judged, written and forgotten together."""

_PLUS_BENCHMARKS: Final = frozenset({"humaneval_plus", "mbpp_plus"})
_PASS_AT: Final = (1, 10, 100)
_NAMED: Final = 10
"""How many of a list the summary in words names; the one in JSON names all."""

OnProgress = Callable[[str, int, int], None]
"""Called with what is going on, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a samples file: the id as it was given, the task it names, and the code to judge."""

    given_id: str
    task: Task
    code: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SampleVerdict:
    """What the output says of one sample; its fields are those of a line.

    Attributes:
        task_id: As given in the sample.
        base_status: `pass` where every base test passed, otherwise `fail`.
        plus_status: The same of the plus tests; None where the task has none. A task of HumanEval+ or MBPP+
            without plus inputs passes where its code can be loaded, as in EvalPlus.
        status: Of all tests of both suites together.
        pass_rate: Of all tests of both suites together, in [0, 1].
        tests: The outcome of every test, per suite, in order.
        error: What kept the code from being judged by its values, if anything did.
    """

    task_id: str
    base_status: str
    plus_status: str | None
    status: str
    pass_rate: float
    tests: dict[str, list[str]]
    error: str | None


@dataclass(frozen=True)
class CheckSummary:
    """The scores over all samples; a task without a sample counts as failed and is in `missing`.

    `base` and `plus` map `pass@k` to the mean over all tasks, for the k that every sampled task has
    samples for; `plus` asks for both suites, and is None where the benchmark has no plus suites.
    """

    benchmark: str
    data_sha256: str
    tasks: int
    samples: int
    samples_per_task: tuple[int, int]
    base: dict[str, float]
    plus: dict[str, float] | None
    missing: tuple[str, ...]
    statuses: dict[str, int]
    left_out: tuple[LeftOut, ...] = ()
    seconds: float = 0.0


def check_samples(
    benchmark: Benchmark,
    samples: Path,
    *,
    output: TextIO | VerdictWriter | None = None,
    settings: SandboxSettings | None = None,
    on_progress: OnProgress | None = None,
) -> CheckSummary:
    """Judge every sample of a file.

    The file is read twice: every line is checked before the first is judged, and only a chunk of it is
    ever held, so a bad line costs no waiting and a long file no memory.

    Args:
        benchmark: Whose tasks the samples answer.
        samples: JSON lines, gzipped or not.
        output: Takes one JSON line per sample, in the file's order, as they are judged.
        settings: Of the sandbox; strict (no imports supplied, no `class Solution`) where None, as EvalPlus is.
        on_progress: Told what is done.

    Raises:
        TaskError: when a line is broken or names an unknown task; the message names the file and the line.
        SandboxError: when the sandbox cannot be set up or breaks.
    """
    start = time.perf_counter()
    settings = settings or SandboxSettings(forgiving=False)
    tell = on_progress or (lambda what, done, total: None)
    with readable_twice(samples) as file:
        counts = Counter(sample.task.task_id for sample in _read(file, samples, _Ids(benchmark.tasks), benchmark))
        if not counts:
            raise TaskError(f"{samples}: holds no samples")
        resolved = resolve_expected(
            [task for task in benchmark.tasks if counts[task.task_id]],
            data_sha256=benchmark.sha256,
            settings=settings,
            cache_dir=cache_dir(),
            progress=lambda done, total, _: tell("expected values", done, total),
        )
        ids = _Ids(resolved)
        scores = _Scores()
        total = counts.total()
        with Judge(settings) as judge:
            tell("samples", 0, total)
            for chunk in _chunks(_read(file, samples, ids, benchmark)):
                for sample, verdict in zip(chunk, _verdicts(judge, chunk), strict=True):
                    scores.add(sample.task, verdict)
                    if output is not None:
                        output.write(json.dumps(asdict(verdict), ensure_ascii=False) + "\n")
                if output is not None:
                    output.flush()
                tell("samples", scores.samples, total)
    return scores.summary(benchmark, time.perf_counter() - start)


class _Ids:
    """Finds tasks by what samples call them: their ids, or their numbers alone (`601` for `Mbpp/601`)."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = {task.task_id: task for task in tasks}
        self._numbers: dict[str, list[Task]] = {}
        for task in self._tasks.values():
            head, slash, number = task.task_id.rpartition("/")
            if slash and head:
                self._numbers.setdefault(number, []).append(task)

    def named(self, given: str) -> list[Task]:
        """The task with this id, or else all tasks with this number."""
        return [self._tasks[given]] if given in self._tasks else self._numbers.get(given, [])


def _read(path: Path, name: Path, ids: _Ids, benchmark: Benchmark) -> Iterator[Sample]:
    for number, line in read_lines(path, name=name):
        where = f"{name}, line {number}"
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise TaskError(f"{where}: expected a JSON object, found {type(row).__name__}")
        yield _sample(row, where, ids, benchmark)


def _sample(row: dict[str, object], where: str, ids: _Ids, benchmark: Benchmark) -> Sample:
    given = row.get("task_id")
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    if not isinstance(given, str):
        raise TaskError(f"{where}: key 'task_id' must be text, found {type(given).__name__}")
    tasks = ids.named(given)
    if len(tasks) > 1:
        raise TaskError(f"{where}: task id {given!r} may be {' or '.join(repr(task.task_id) for task in tasks[:3])}")
    if not tasks:
        reason = next((f"; it was left out: {row.reason}" for row in benchmark.left_out if row.task_id == given), "")
        example = benchmark.tasks[0].task_id
        raise TaskError(f"{where}: unknown task id {given!r} of {benchmark.name} (ids look like {example!r}){reason}")
    keys = [key for key in ("solution", "completion") if row.get(key) is not None]
    if not keys:
        raise TaskError(f"{where}: expected key 'solution' or 'completion'")
    text = row[keys[0]]
    if not isinstance(text, str):
        raise TaskError(f"{where}: key {keys[0]!r} must be text, found {type(text).__name__}")
    task = tasks[0]
    return Sample(given, task, *_code(text, task, completes=keys[0] == "completion"))


def _code(text: str, task: Task, *, completes: bool) -> tuple[str | None, str | None]:
    """The code to judge, and why there is none.

    A sample is judged as it is. Only a whole chat answer, with fences in it and therefore no Python, is
    searched for code; anything else that does not compile is wrong, as it is for EvalPlus.
    """
    code = task.stub + text if completes else text
    if re.search(r"(?m)^[ \t]*(```|~~~)", text) and parse(code) is None:
        found = extract_code(text, entry_point=task.entry_point, stub=task.stub)
        return found.code, found.error
    return code, None


def _chunks(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    iterator = iter(samples)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _verdicts(judge: Judge, samples: Sequence[Sample]) -> list[SampleVerdict]:
    """One verdict per sample, in order; every suite is a candidate of its own."""
    candidates: list[Candidate] = []
    for sample in samples:
        candidates.append(Candidate(sample.code, sample.task, sample.task.base))
        plus = sample.task.plus or _loads(sample.task)
        if plus is not None:
            candidates.append(Candidate(sample.code, sample.task, plus))
    verdicts = iter(judge.judge(candidates))
    results = []
    for sample in samples:
        base = next(verdicts)
        plus_verdict = next(verdicts) if sample.task.plus or _loads(sample.task) else None
        results.append(_sample_verdict(sample, base, plus_verdict))
    return results


def _loads(task: Task) -> TestSuite | None:
    """Stands for the plus suite of a task of EvalPlus that has no plus inputs: passes where the code loads."""
    if task.plus is None and task.benchmark in _PLUS_BENCHMARKS and task.entry_point:
        return TestSuite("plus", (AssertTest(task.entry_point),))
    return None


def _sample_verdict(sample: Sample, base: Verdict, plus: Verdict | None) -> SampleVerdict:
    counted = [base] if plus is None or sample.task.plus is None else [base, plus]
    results = [result for verdict in counted for result in verdict.results]
    status = overall(results)
    # An error of one suite is told only where nothing of the other could be judged either.
    failed = status in (Status.ERROR, Status.TIMEOUT)
    error = next((verdict.error for verdict in counted if verdict.error), None) if failed else None
    return SampleVerdict(
        task_id=sample.given_id,
        base_status=_pass_or_fail(base),
        plus_status=None if plus is None else _pass_or_fail(plus),
        status=str(status),
        pass_rate=sum(result.outcome is Outcome.PASSED for result in results) / len(results),
        tests={
            "base": [str(result.outcome) for result in base.results],
            "plus": [str(result.outcome) for result in plus.results] if plus and sample.task.plus else [],
        },
        error=sample.error or error,
    )


def _pass_or_fail(verdict: Verdict) -> str:
    return "pass" if verdict.status is Status.PASSED else "fail"


@dataclass
class _Scores:
    """Right samples counted per task, so that nothing else of a sample need be kept."""

    samples: int = 0
    drawn: Counter[str] = field(default_factory=Counter)
    base: Counter[str] = field(default_factory=Counter)
    both: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, task: Task, verdict: SampleVerdict) -> None:
        self.samples += 1
        self.drawn[task.task_id] += 1
        self.base[task.task_id] += verdict.base_status == "pass"
        self.both[task.task_id] += verdict.base_status == "pass" and verdict.plus_status != "fail"
        self.statuses[verdict.status] += 1

    def summary(self, benchmark: Benchmark, seconds: float) -> CheckSummary:
        ids = [task.task_id for task in benchmark.tasks]
        has_plus = any(task.plus is not None for task in benchmark.tasks)
        return CheckSummary(
            benchmark=benchmark.name,
            data_sha256=benchmark.sha256,
            tasks=len(ids),
            samples=self.samples,
            samples_per_task=(min(self.drawn.values()), max(self.drawn.values())),
            base=self._pass_at(ids, self.base),
            plus=self._pass_at(ids, self.both) if has_plus else None,
            missing=tuple(name for name in ids if not self.drawn[name]),
            statuses={str(status): self.statuses[str(status)] for status in Status},
            left_out=benchmark.left_out,
            seconds=seconds,
        )

    def _pass_at(self, ids: Sequence[str], right: Counter[str]) -> dict[str, float]:
        fewest = min(self.drawn.values())
        scores = {}
        for k in _PASS_AT:
            if k <= fewest:
                parts = [pass_at_k(self.drawn[name], right[name], k) if self.drawn[name] else 0.0 for name in ids]
                scores[f"pass@{k}"] = sum(parts) / len(parts)
        return scores


def summary_lines(summary: CheckSummary) -> list[str]:
    """The summary in words, a line each."""
    fewest, most = summary.samples_per_task
    per_task = str(fewest) if fewest == most else f"{fewest} to {most}"
    lines = [
        f"{summary.benchmark}: {summary.samples} samples, {per_task} per sampled task, "
        f"{summary.tasks - len(summary.missing)} of {summary.tasks} tasks sampled, {summary.seconds:.1f} s"
    ]
    for name, scores in (("base tests", summary.base), ("base + plus tests", summary.plus)):
        for k, score in (scores or {}).items():
            lines.append(f"  {k} on {name}: {score:.4f} (n = {per_task}, {summary.tasks} tasks)")
    lines.append("  samples: " + ", ".join(f"{count} {status}" for status, count in summary.statuses.items()))
    if missing := summary.missing:
        named = ", ".join(missing[:_NAMED]) + _and_more(len(missing))
        lines.append(f"  counted as failed for want of a sample ({len(missing)}): {named}")
    if left_out := summary.left_out:
        lines.append(f"  rows of the benchmark left out ({len(left_out)}):")
        lines += [f"    {row.task_id}: {row.reason}" for row in left_out[:_NAMED]]
        if len(left_out) > _NAMED:
            lines.append(f"    {_and_more(len(left_out)).strip()}")
    return lines


def _and_more(n: int) -> str:
    return f" and {n - _NAMED} more (--json names all)" if n > _NAMED else ""


def check_settings(*, workers: int | None = None, isolation: str = "auto") -> SandboxSettings:
    """The sandbox of `promptrl check`: strict, as EvalPlus and HumanEval are.

    Raises:
        ConfigError: when a value is not allowed.
    """
    values: dict[str, object] = {"forgiving": False, "isolation": isolation}
    if workers is not None:
        values["workers"] = workers
    try:
        return SandboxSettings.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(f"--{key} {fault['input']!r} is not allowed: {fault['msg'].lower()}") from error


def run_check(
    benchmark: str,
    samples: Path,
    *,
    output: Path | None = None,
    as_json: bool = False,
    settings: SandboxSettings | None = None,
    data: Path | None = None,
) -> CheckSummary:
    """What `promptrl check` does: judge a file, write the verdicts where asked, print the summary.

    Raises:
        PromptRLError: when something a user can mend is wrong; the message says what.
    """
    loaded = load_benchmark(benchmark, path=data)
    stderr = Console(stderr=True)
    with ExitStack() as stack:
        target = None
        if output is not None:
            target = stack.enter_context(verdict_file(output, apart_from=(samples, loaded.source)))
        on_progress = None
        if stderr.is_terminal:
            on_progress = _bar(stack.enter_context(Progress(console=stderr, transient=True)))
        summary = check_samples(loaded, samples, output=target, settings=settings, on_progress=on_progress)
    print_text(json.dumps(asdict(summary), ensure_ascii=False) if as_json else "\n".join(summary_lines(summary)))
    return summary


def _bar(progress: Progress) -> OnProgress:
    bars = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in bars:
            bars[what] = progress.add_task(what, total=total)
        progress.update(bars[what], completed=done)

    return show
