"""Loads a benchmark by its name: finds the file, makes a task of every row, counts the rows that cannot be one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from promptrl.assets import find_data
from promptrl.errors import AssetError, ConfigError, TaskError
from promptrl.tasks.apps import apps_task
from promptrl.tasks.benchmark import Benchmark, LeftOut, Row, RowError, json_lines, read_content
from promptrl.tasks.custom import read_custom
from promptrl.tasks.human_eval import human_eval_plus_task, human_eval_task
from promptrl.tasks.mbpp import mbpp_plus_task, mbpp_task
from promptrl.tasks.task import Task

BENCHMARKS: Final[dict[str, str | None]] = {
    "humaneval": "HumanEval.jsonl.gz",
    "humaneval_plus": "HumanEvalPlus-v0.1.10.jsonl.gz",
    "mbpp": "mbpp.jsonl",
    "mbpp_plus": "MbppPlus-v0.2.0.jsonl.gz",
    "apps": "apps_test.jsonl",
    "custom": None,
}
"""The file that each benchmark is read from; a custom one has no file of its own."""

_APPS_SAMPLE: Final = "apps_sample.jsonl"
"""Ten rows of APPS, used where the whole file is not on this machine but this one is."""

_MAKERS: Final[dict[str, Callable[[Row], Task]]] = {
    "humaneval": human_eval_task,
    "humaneval_plus": human_eval_plus_task,
    "mbpp": mbpp_task,
    "mbpp_plus": mbpp_plus_task,
    "apps": apps_task,
}


def load_benchmark(name: str, *, path: Path | None = None) -> Benchmark:
    """Load a benchmark.

    Args:
        name: One of `BENCHMARKS`.
        path: The file to read; needed for `custom`, otherwise found by `promptrl.assets.find_data`. A file
            given here is read as it is, whatever its bytes; `Benchmark.sha256` says which they were.

    Raises:
        ConfigError: when the name is unknown, or `custom` comes without a path.
        AssetError: when the file is nowhere to be had.
        TaskError: when the file cannot be read, a line is not JSON, or no row is usable.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {name!r}; allowed are {', '.join(BENCHMARKS)}")
    source = _source(name, path)
    text, sha256 = read_content(source)
    if name == "custom":
        return Benchmark(name, tuple(read_custom(text, source)), sha256, source)
    tasks, left_out = _tasks(name, text, source)
    if not tasks:
        reason = f"; the first was left out because: {left_out[0].reason}" if left_out else ""
        raise TaskError(f"{source}: holds no usable row of {name}{reason}")
    return Benchmark(name, tuple(tasks), sha256, source, tuple(left_out))


def _source(name: str, path: Path | None) -> Path:
    filename = BENCHMARKS[name]
    if path is not None:
        path = path.expanduser()
        return path / filename if filename and path.is_dir() else path
    if filename is None:
        raise ConfigError(
            f"benchmark {name!r} needs a YAML or JSON-lines file with your tasks: --data FILE, or data_path in a "
            "configuration"
        )
    if name == "apps":
        for candidate in (filename, _APPS_SAMPLE):
            try:
                return find_data(candidate, download=False)
            except AssetError:
                continue
    return find_data(filename)


def _tasks(name: str, text: str, source: Path) -> tuple[list[Task], list[LeftOut]]:
    tasks: dict[str, Task] = {}
    left_out: list[LeftOut] = []
    for number, row in json_lines(text, source):
        try:
            task = _MAKERS[name](row)
        except RowError as error:
            left_out.append(LeftOut(_row_name(row, number), str(error)))
            continue
        if task.task_id in tasks:
            left_out.append(LeftOut(task.task_id, f"line {number} repeats the id of an earlier row"))
            continue
        tasks[task.task_id] = task
    return list(tasks.values()), left_out


def _row_name(row: Row, number: int) -> str:
    for key in ("task_id", "problem_id", "id"):
        value = row.get(key)
        if isinstance(value, (str, int)):
            return str(value)
    return f"line {number}"
