"""What is kept of every step: JSON lines, one per attempt, that all tables and pictures are made from.

Schema, version 1. Each line holds `schema`, `method`, `seed`, `task_id`, `episode` (number within the run),
`env` (sub-environment, training only), `step` (from 0), `action`, `instruction`, `prompt` (rendered), `draw`,
`answer`, `code`, `status`, `error`, `pass_rate`, `tests` (an outcome per reward test), `reward`, `terminated`,
`truncated`, `note`, `finish_reason`, `tokens_in`, `tokens_out`, `cached`, `model_calls`, `seconds` (of model
time), what the rewriting cost: `rewrite_calls`, `rewrite_cached` (how many of them), `rewrite_tokens_in`,
`rewrite_tokens_out`, `rewrite_seconds`, and, in evaluations, `report_pass_rate` (ρ on
base and plus tests) and, on a task's last line alone, `last` (true: without it the task is not finished) and
`capped` (the cap of the budget that stopped it early: `calls`, `tokens` or `seconds`; null otherwise).
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from promptrl.errors import RunError
from promptrl.execution.verdict import Verdict
from promptrl.refinement.episode import Episode, Step

SCHEMA_VERSION: Final = 1

Record = dict[str, Any]

_NEVER_NULL: Final = frozenset({"method", "task_id", "episode", "step", "action", "prompt", "pass_rate", "reward"})
_TEXTS: Final = (
    *("method", "task_id", "action", "instruction", "prompt", "answer", "code", "status", "error", "note"),
    *("finish_reason", "capped", "run", "benchmark"),
)
_WHOLE_NUMBERS: Final = (
    *("seed", "episode", "env", "step", "draw", "tokens_in", "tokens_out", "model_calls"),
    *("rewrite_calls", "rewrite_cached", "rewrite_tokens_in", "rewrite_tokens_out"),
)
_NUMBERS: Final = ("reward", "seconds", "rewrite_seconds", "temperature", "pass_rate", "report_pass_rate")
_TRUTHS: Final = ("terminated", "truncated", "cached", "last", "training")


def step_record(
    episode: Episode, step: Step, *, method: str, seed: int, episode_number: int, report: Verdict | None = None
) -> Record:
    """One attempt as plain data."""
    generation, verdict = step.generation, step.verdict
    return {
        "schema": SCHEMA_VERSION,
        "method": method,
        "seed": seed,
        "task_id": episode.task.task_id,
        "episode": episode_number,
        "step": step.index,
        "action": step.action,
        "instruction": step.prompt.instruction,
        "prompt": step.prompt.render(),
        "draw": step.draw,
        "answer": generation.text,
        "code": step.code,
        "status": verdict.status.value,
        "error": verdict.error,
        "pass_rate": verdict.pass_rate,
        "tests": [result.outcome.value for result in verdict.results],
        "reward": step.reward,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "note": step.note,
        "finish_reason": generation.finish_reason,
        "tokens_in": generation.tokens_in,
        "tokens_out": generation.tokens_out,
        "cached": generation.cached,
        "model_calls": 1,
        "seconds": generation.seconds,
        "rewrite_calls": len(step.rewrites),
        "rewrite_cached": sum(rewrite.cached for rewrite in step.rewrites),
        "rewrite_tokens_in": sum(rewrite.tokens_in for rewrite in step.rewrites),
        "rewrite_tokens_out": sum(rewrite.tokens_out for rewrite in step.rewrites),
        "rewrite_seconds": sum(rewrite.seconds for rewrite in step.rewrites),
        "report_pass_rate": report.pass_rate if report else None,
    }


class RecordFile:
    """An append-only file of JSON lines that survives a kill: at most the lines of one `append` are lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def append(self, *records: Record) -> None:
        """Write whole lines, and have them on disk before returning."""
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        # A lone surrogate in a model's answer is no valid UTF-8; it is written as an escape instead.
        self._file.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))
        self._file.flush()
        os.fsync(self._file.fileno())

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, size: int) -> None:
        """Forget what was written after the file had this size: steps that a resumed run makes again."""
        if size > self.size:
            raise RunError(
                f"{self.path} is shorter than its checkpoint says; records are missing, start a new run instead"
            )
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


def misfit(record: Record) -> str | None:
    """What in a record is not as docs/records.md has it, as `key is value`; None where all that is there fits."""
    for keys, fits in _FITS:
        for key in keys:
            if key in record and not fits(record[key]) and (record[key] is not None or key in _NEVER_NULL):
                return f"{key} is {reprlib.repr(record[key])}"
    return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


_FITS: Final[tuple[tuple[tuple[str, ...], Callable[[Any], bool]], ...]] = (
    (_TEXTS, lambda value: isinstance(value, str)),
    (_WHOLE_NUMBERS, _is_whole),
    (_NUMBERS, _is_number),
    (_TRUTHS, lambda value: isinstance(value, bool)),
    (("tests",), lambda value: isinstance(value, list) and all(isinstance(outcome, str) for outcome in value)),
)


def columns(records: Iterable[Record], keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Some fields of every record, shape (records, keys).

    Raises:
        RunError: when a record lacks one.
    """
    rows = []
    for record in records:
        try:
            rows.append(tuple(record[key] for key in keys))
        except KeyError as error:
            lacking = f"a record of task {record.get('task_id')!r} has no {error.args[0]}"
            raise RunError(f"{lacking}; it is no step") from error
    return rows


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file, one at a time; a half-written last line is left out.

    Raises:
        RunError: when the file cannot be read, for a broken line that is not the last, or a record of another schema
            or with a value that cannot be one of its field, with the line number.
    """
    try:
        opened = path.open("rb")
    except FileNotFoundError as error:
        raise RunError(f"there are no records at {path}") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error
    with opened as file:
        broken: int | None = None
        for number, line in enumerate(file, 1):
            if broken is not None:
                raise RunError(f"{path} line {broken} is not a JSON object")
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # cut off, even within a character, or made to break the reader
                broken = number
                continue
            if not isinstance(record, dict) or record.get("schema") != SCHEMA_VERSION:
                raise RunError(f"{path} line {number} is not a record of schema version {SCHEMA_VERSION}")
            if wrong := misfit(record):
                raise RunError(f"{path} line {number} is not as docs/records.md has it: {wrong}")
            yield record
