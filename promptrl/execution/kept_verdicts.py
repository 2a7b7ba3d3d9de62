"""Verdicts kept on disk: a candidate that was judged before is not run again.

A run replays answers from the cache of its model; with the verdicts beside them it replays in the time that reading
takes, and with the same rewards even where a candidate is near its time limit. What depends on the moment is not kept:
a verdict with a crashed test, since the machine may have run out of memory.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import re
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from promptrl.errors import SandboxError
from promptrl.execution.judge import Candidate
from promptrl.execution.sandbox import codec
from promptrl.execution.settings import SandboxSettings
from promptrl.execution.verdict import Outcome, Status, TestResult, Verdict
from promptrl.line_store import LineStore
from promptrl.tasks.task import AssertTest, CallTest, StdinTest, TestSuite

FORMAT: Final = 1
"""Changes when the judge decides differently; kept verdicts of another format are not read."""
_REMEMBERED_SUITES: Final = 4096
_DETAILS: Final = 64
"""Tests whose detail is kept: a suite may have a thousand, and people read the first."""
_UNKEPT: Final = frozenset({Outcome.CRASHED, Outcome.NOT_RUN})
_LETTERS: Final = {Outcome.PASSED: "p", Outcome.WRONG: "w", Outcome.EXCEPTION: "e", Outcome.TIMEOUT: "t"}
_OUTCOMES: Final = {letter: outcome for outcome, letter in _LETTERS.items()}


class JudgeLike(Protocol):
    """What is asked where no verdict is kept."""

    settings: SandboxSettings

    def judge(self, candidates: Sequence[Candidate]) -> list[Verdict]: ...

    def close(self) -> None: ...


class KeepingJudge:
    """A judge that looks among the kept verdicts first.

    What it gives has no seconds per test, only
    their sum, and details of the first 64 tests that have any, whether it was kept before or not.

    Args:
        judge: decides on what is not known yet.
        folder: where the verdicts lie, a file for each benchmark; made when first written to.
    """

    def __init__(self, judge: JudgeLike, folder: Path) -> None:
        self.judge_anew = judge
        self.settings = judge.settings
        self.folder = Path(folder)
        self.hits = 0
        self.misses = 0
        self._stores: dict[str, LineStore] = {}
        self._suites: OrderedDict[int, tuple[TestSuite, str | None]] = OrderedDict()
        # How many judge at a time does not change what they decide.
        settings = self.settings.model_dump(mode="json", exclude={"workers"})
        self._base = json.dumps([FORMAT, sys.version_info[:2], settings], sort_keys=True)

    def judge(self, candidates: Sequence[Candidate]) -> list[Verdict]:
        """One verdict per candidate, in order; the same candidate twice is judged once.

        Raises:
            SandboxError: from the judge, or where verdicts cannot be written.
        """
        keys = [self._key(candidate) for candidate in candidates]
        verdicts: list[Verdict | None] = [None] * len(candidates)
        for name in {candidate.task.benchmark for candidate in candidates}:
            places = [n for n, candidate in enumerate(candidates) if candidate.task.benchmark == name and keys[n]]
            found = self._store(name).get({key for n in places if (key := keys[n])})
            for n in places:
                if (payload := found.get(keys[n] or "")) is not None:
                    verdicts[n] = _read(payload)
        first: dict[str, int] = {}
        for n, key in enumerate(keys):
            if verdicts[n] is None:
                first.setdefault(key or f"#{n}", n)
        anew = [_kept_form(verdict) for verdict in self.judge_anew.judge([candidates[n] for n in first.values()])]
        fresh = dict(zip(first, anew, strict=True))
        self._keep([(candidates[n], key, fresh[key]) for key, n in first.items() if keys[n]])
        self.misses += len(first)
        self.hits += len(candidates) - len(first)
        return [verdict or fresh[keys[n] or f"#{n}"] for n, verdict in enumerate(verdicts)]

    def close(self) -> None:
        self.judge_anew.close()

    def _keep(self, judged: Sequence[tuple[Candidate, str, Verdict]]) -> None:
        for name in {candidate.task.benchmark for candidate, _, _ in judged}:
            lines = [
                (key, _write(verdict))
                for candidate, key, verdict in judged
                if candidate.task.benchmark == name and not _UNKEPT & {result.outcome for result in verdict.results}
            ]
            if not lines:
                continue
            try:
                self._store(name).append(lines)
            except OSError as error:
                raise SandboxError(f"verdicts cannot be kept in {self.folder} ({error.strerror})") from error

    def _store(self, benchmark: str) -> LineStore:
        if benchmark not in self._stores:
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", benchmark)
            self._stores[benchmark] = LineStore(self.folder / f"{name}.jsonl")
        return self._stores[benchmark]

    def _key(self, candidate: Candidate) -> str | None:
        """Everything that decides a verdict, hashed; None where it is not known to."""
        suite, task = self._suite_key(candidate.suite), candidate.task
        if suite is None or candidate.code is None:
            return None
        parts = [self._base, suite, task.entry_point, task.style, task.setup, candidate.code]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _suite_key(self, suite: TestSuite) -> str | None:
        kept = self._suites.get(id(suite))
        if kept is not None and kept[0] is suite:
            return kept[1]
        key = suite_key(suite)
        self._suites[id(suite)] = (suite, key)
        while len(self._suites) > _REMEMBERED_SUITES:
            self._suites.popitem(last=False)
        return key


def suite_key(suite: TestSuite) -> str | None:
    """A hash of all that a suite's tests say; None where a test's kind or values have no exact form as bytes.

    Reference times are left out: they were measured, and a repeated measurement is no other test.
    """
    state = hashlib.blake2b(digest_size=20)
    for test in suite:
        parts = _parts(test)
        if parts is None:
            return None
        for part in parts:
            state.update(b"%d:" % len(part) + part)
    return state.hexdigest()


def _parts(test: object) -> list[bytes] | None:
    if isinstance(test, CallTest):
        values = [_exact(value) for value in (test.args, test.expected, test.alternatives)]
        rule = f"{test.comparison} {test.atol!r} {test.float_leaves}".encode()
        return None if None in values else [b"call", rule, *(value for value in values if value is not None)]
    if isinstance(test, AssertTest | StdinTest):
        return [type(test).__name__.encode(), repr(replace(test, reference_seconds=None)).encode("utf-8", "replace")]
    return None


def _exact(value: Any) -> bytes | None:
    if codec.is_native(value):
        return marshal.dumps(value, 2)
    text = codec.encode(value)
    return None if b'["x"' in text else text


def _kept_form(verdict: Verdict) -> Verdict:
    """As it will be read again, so that a first run and its repetition see the same."""
    shown = set([n for n, result in enumerate(verdict.results) if result.detail][:_DETAILS])
    results = tuple(
        TestResult(result.outcome, result.detail if n in shown else "") for n, result in enumerate(verdict.results)
    )
    return Verdict(verdict.status, results, verdict.error, round(verdict.seconds, 6))


def _write(verdict: Verdict) -> bytes:
    letters = "".join(_LETTERS[result.outcome] for result in verdict.results)
    details = {n: result.detail for n, result in enumerate(verdict.results) if result.detail}
    value = {"status": verdict.status, "outcomes": letters, "details": details, "error": verdict.error}
    return json.dumps({**value, "seconds": verdict.seconds}).encode()


def _read(payload: bytes) -> Verdict:
    value = json.loads(payload)
    details = value["details"]
    results = tuple(
        TestResult(_OUTCOMES[letter], details.get(str(n), "")) for n, letter in enumerate(value["outcomes"])
    )
    return Verdict(Status(value["status"]), results, value["error"], value["seconds"])
