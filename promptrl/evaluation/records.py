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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from promptrl.errors import RunError
from promptrl.execution.verdict import Verdict
from promptrl.refinement.episode import Episode, Step

SCHEMA_VERSION: Final = 1

Record = dict[str, Any]


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


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file, one at a time; a half-written last line is left out.

    Raises:
        RunError: for a broken line that is not the last, or records of another schema, with the line number.
    """
    if not path.exists():
        raise RunError(f"there are no records at {path}")
    with path.open("rb") as file:
        broken: int | None = None
        for number, line in enumerate(file, 1):
            if broken is not None:
                raise RunError(f"{path} line {broken} is not a JSON object")
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError):  # cut off, even within a character
                broken = number
                continue
            if not isinstance(record, dict) or record.get("schema") != SCHEMA_VERSION:
                raise RunError(f"{path} line {number} is not a record of schema version {SCHEMA_VERSION}")
            yield record
