"""What the canonical solutions return and how long they take: computed once in the sandbox, then kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import marshal
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from promptrl.errors import SandboxError, TaskError
from promptrl.execution.judge import inner_tests
from promptrl.execution.pool import Job, Session, WorkerPool
from promptrl.execution.sandbox import codec, protocol
from promptrl.execution.settings import SandboxSettings
from promptrl.execution.worker import Message, build_job
from promptrl.tasks.task import DEFERRED, AssertTest, CallTest, Comparison, PytestTest, StdinTest, Task, Test, TestSuite

_log = logging.getLogger(__name__)

FORMAT: Final = 3
"""Part of every cache key; raised when the encoding or its limits change."""
_TEST_SECONDS: Final = 120.0
_WALL_SECONDS: Final = 900.0

Record = tuple[float | None, bytes | None]
"""CPU seconds and encoded value of one test; None where the solution gave none."""
Progress = Callable[[int, int, str], None]
"""Called with the number of tasks done, the number in all, and the id of the task just done."""


def resolve_expected(
    tasks: Sequence[Task],
    *,
    data_sha256: str,
    cache_dir: Path,
    settings: SandboxSettings | None = None,
    progress: Progress | None = None,
) -> list[Task]:
    """The tasks with every deferred expected value filled in, and every reference time that can be had.

    Each task has its own file under `cache_dir / "expected"`, named after the data's hash, so that asking for ten
    tasks computes ten. A file that does not match its own checksum, or was made from other inputs or another
    solution, is made anew. Values too large to keep are kept as a digest, which compares exactly.

    Args:
        tasks: left as they are; new ones are returned, in the same order.
        data_sha256: the hash of the benchmark file that the tasks were read from.
        cache_dir: made where it is missing.
        settings: the sandbox in which the canonical solutions run.
        progress: called after each task, from several threads.

    Raises:
        TaskError: a deferred value cannot be computed, because the task has no canonical solution or it fails.
        SandboxError: the sandbox cannot be set up or breaks.
    """
    settings = settings or SandboxSettings()
    folder = Path(cache_dir) / "expected" / f"{data_sha256[:16]}-{FORMAT}-py{sys.version_info[0]}{sys.version_info[1]}"
    known: list[list[Record] | None] = []
    paths: list[Path] = []
    keys: list[str] = []
    for task in tasks:
        keys.append(_key(task))
        paths.append(folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', task.task_id)}.jsonl")
        known.append(_load(paths[-1], keys[-1], len(_tests(task))) if task.canonical_solution else [])
    todo = [number for number, records in enumerate(known) if records is None]
    finished = len(tasks) - len(todo)
    if todo:
        folder.mkdir(parents=True, exist_ok=True)
        limits = settings.model_copy(
            update={"import_time_limit": _TEST_SECONDS, "max_timeouts": 1, "max_restarts": 0, "forgiving": True}
        )

        def done(position: int, session: Session) -> None:
            nonlocal finished
            assert isinstance(session, _ReferenceSession)
            number = todo[position]
            records = session.finish()
            _store(paths[number], keys[number], tasks[number].task_id, records)
            known[number] = records
            finished += 1
            if progress is not None:
                progress(finished, len(tasks), tasks[number].task_id)

        with WorkerPool(limits) as pool:
            jobs = [
                Job(partial(_message, limits, tasks[n]), partial(_ReferenceSession, tasks[n]), _WALL_SECONDS)
                for n in todo
            ]
            pool.run(jobs, done)
    return [_filled(task, records or []) for task, records in zip(tasks, known, strict=True)]


def _tests(task: Task) -> tuple[Test, ...]:
    return task.base.tests + (task.plus.tests if task.plus is not None else ())


def _message(settings: SandboxSettings, task: Task) -> Message:
    tests = _tests(task)
    return build_job(
        settings,
        task.canonical_solution,
        task.entry_point,
        inner_tests(tests),
        [_TEST_SECONDS] * len(tests),
        style=task.style,
        setup=task.setup,
        wall_limit=_WALL_SECONDS,
    )


class _ReferenceSession:
    """Collects what the canonical solution did."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._records: list[Record] = []
        self._failure = ""

    def accept(self, index: int, status: int, seconds: float, payload: bytes) -> bool:
        if index == protocol.IMPORT:
            if status != protocol.READY:
                self._failure = payload.decode("utf-8", "replace") or "its import ran out of time"
            return False
        if status == protocol.VALUE:
            self._records.append((seconds, payload))
        elif status in (protocol.HELD, protocol.FALSE):
            self._records.append((seconds, None))
        else:
            self._records.append((None, None))
            self._failure = self._failure or payload.decode("utf-8", "replace") or "it ran out of time"
        return False

    def lost(self) -> None:
        self._failure = "it brought down its sandbox"

    def finish(self) -> list[Record]:
        tests = _tests(self._task)
        self._records += [(None, None)] * (len(tests) - len(self._records))
        for test, (_, value) in zip(tests, self._records, strict=True):
            if _is_deferred(test) and value is None:
                raise TaskError(
                    f"{self._task.task_id}: the canonical solution gives no expected value: {self._failure}"
                )
        return [
            (seconds, value if _is_deferred(test) else None)
            for test, (seconds, value) in zip(tests, self._records, strict=True)
        ]


def _is_deferred(test: Test) -> bool:
    return isinstance(test, CallTest) and test.expected is DEFERRED


def _filled(task: Task, records: list[Record]) -> Task:
    if not records:
        if any(_is_deferred(test) for test in _tests(task)):
            raise TaskError(f"{task.task_id}: expected values are to be computed, but there is no canonical solution")
        return task
    tests = [_fill(test, *record) for test, record in zip(_tests(task), records, strict=True)]
    split = len(task.base)
    base = TestSuite(task.base.name, tuple(tests[:split]))
    plus = TestSuite(task.plus.name, tuple(tests[split:])) if task.plus is not None else None
    return replace(task, base=base, plus=plus)


def _fill(test: Test, seconds: float | None, value: bytes | None) -> Test:
    reference = seconds if test.reference_seconds is None else test.reference_seconds
    if isinstance(test, AssertTest | StdinTest | PytestTest) or value is None:
        return replace(test, reference_seconds=reference)
    expected: Any = codec.decode(value)
    if test.comparison is Comparison.NOT_NONE and not isinstance(expected, bool):
        expected = expected is not None
    return replace(test, expected=expected, reference_seconds=reference, payload=_surely_equal(test, value))


def _surely_equal(test: CallTest, value: bytes) -> bytes | None:
    """The bytes of an expected value that equals itself, under a comparison for which that is enough."""
    # Not a number and what has no plain form equal nothing; where a text has these marks, only time is lost.
    plain = test.comparison is Comparison.EQUAL and b"NaN" not in value and b'["x"' not in value
    return value if plain else None


def _key(task: Task) -> str:
    """Changes with everything that the records depend on, and costs one pass in C over the inputs."""
    state = hashlib.blake2b(digest_size=16)
    for text in (task.canonical_solution, task.setup, task.entry_point or "", task.style, str(len(task.base))):
        state.update(text.encode("utf-8", "surrogatepass") + b"\0")
    for test in _tests(task):
        if isinstance(test, CallTest):
            try:
                state.update(marshal.dumps(test.args, 2))  # type: ignore[arg-type]
            except ValueError:
                state.update(codec.encode(test.args))
            state.update(b"deferred" if test.expected is DEFERRED else b"given")
            state.update(test.comparison.encode())
        else:
            state.update(repr(test).encode("utf-8", "surrogatepass"))
    return state.hexdigest()


def _load(path: Path, key: str, number: int) -> list[Record] | None:
    """The records kept at `path`; None where there are none that can be trusted."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    try:
        header = json.loads(head)
        if header["sha256"] != hashlib.sha256(body).hexdigest():
            raise ValueError("checksum")
        if header["key"] != key:
            return None
        records: list[Record] = []
        for line in body.splitlines():
            seconds, _, value = line.partition(b" ")
            records.append((float(seconds) if seconds != b"-" else None, value or None))
        if len(records) != number:
            raise ValueError("number of records")
    except (ValueError, KeyError, TypeError):
        _log.warning("the kept expected values at %s are damaged and are computed again", path)
        return None
    return records


def _store(path: Path, key: str, task_id: str, records: list[Record]) -> None:
    lines = [
        b"%s %s" % (b"-" if seconds is None else repr(seconds).encode(), value or b"") for seconds, value in records
    ]
    body = b"\n".join(lines) + b"\n"
    header = {"task_id": task_id, "key": key, "sha256": hashlib.sha256(body).hexdigest()}
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(header).encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as exc:
        raise SandboxError(f"cannot keep expected values at {path}: {exc.strerror}") from exc
