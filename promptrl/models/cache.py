"""Answers kept on disk, so that the same run twice asks the model once: one file of lines per model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptrl.errors import ModelError, PromptRLError
from promptrl.line_store import LineStore
from promptrl.models.base import CodeModel, Generation, GenerationRequest, PartialModelError
from promptrl.models.calls import Call, CallsModel, More

FORMAT_VERSION = 1
_PRINT_CHARS = 16  # of a fingerprint, in a file's name
_LEAST_PRINT_CHARS = 6  # of a fingerprint, to name one


def request_key(fingerprint: str, request: GenerationRequest) -> str:
    """The name of an answer: everything that decides it, hashed (64 hex digits).

    A greedy answer depends on neither draw, seed nor top-p, so these count only where the temperature is above 0.
    """
    parts: dict[str, object] = {
        "format": FORMAT_VERSION,
        "model": fingerprint,
        "system": request.system,
        "user": request.user,
        "prefill": request.prefill,
        "stop": list(request.stop),
        "temperature": float(request.temperature),
        "max_new_tokens": request.max_new_tokens,
    }
    if request.temperature > 0:
        parts |= {"top_p": float(request.top_p), "draw": request.draw, "seed": request.seed}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What one model's file holds: readable entries, damaged lines, bytes."""

    name: str
    entries: int
    damaged: int
    size_bytes: int

    @property
    def model(self) -> str:
        """The name without the fingerprint that `CachedModel` adds to it."""
        return self._parts[0]

    @property
    def fingerprint(self) -> str:
        """The first 16 hex digits of the model's fingerprint; empty in a file of another origin."""
        return self._parts[1]

    @property
    def _parts(self) -> tuple[str, str]:
        match = re.fullmatch(rf"(.+)-([0-9a-f]{{{_PRINT_CHARS}}})", self.name)
        return (match[1], match[2]) if match else (self.name, "")

    def is_meant_by(self, text: str) -> bool:
        """Whether a text is the name, or the start of the fingerprint (at least 6 digits)."""
        started = len(text) >= _LEAST_PRINT_CHARS and self.fingerprint.startswith(text.lower())
        return text in (self.name, self.model) or started


def _format(generation: Generation) -> bytes:
    return json.dumps(
        {
            "text": generation.text,
            "tokens_in": generation.tokens_in,
            "tokens_out": generation.tokens_out,
            "finish_reason": generation.finish_reason,
            "seconds": generation.seconds,  # in full, so that a replay has the same records
        }
    ).encode()


class GenerationCache:
    """All models' answers in one folder, a file for each model.

    Several processes may read and write at once. What was written before a crash stays; half a line is never taken
    for an answer.

    Args:
        folder: Where the files lie; made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._files: dict[str, LineStore] = {}

    def _file(self, model: str) -> LineStore:
        if model not in self._files:
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", model)
            self._files[model] = LineStore(self.folder / f"{name}.jsonl")
        return self._files[model]

    def get(self, model: str, keys: Iterable[str]) -> dict[str, Generation]:
        """The answers there are for these keys, marked as cached."""
        found = self._file(model).get(keys)
        return {key: Generation(**json.loads(payload), cached=True) for key, payload in found.items()}

    def put(self, model: str, items: Sequence[tuple[str, Generation]]) -> None:
        """Keep answers. All of them are on disk, in the hands of the system, when this returns.

        Raises:
            ModelError: If the folder cannot be written.
        """
        if not items:
            return
        try:
            self._file(model).append([(key, _format(generation)) for key, generation in items])
        except OSError as error:
            raise ModelError(f"The generation cache {self.folder} cannot be written: {error.strerror}.") from error

    def sizes(self) -> list[CacheSize]:
        """What each model's file holds, by name."""
        sizes = []
        for path in sorted(self.folder.glob("*.jsonl")):
            file = LineStore(path)
            file.refresh()
            sizes.append(CacheSize(path.stem, len(file.index), file.damaged, path.stat().st_size))
        return sizes

    def clear(self, model: str | None = None) -> int:
        """Remove one model's answers (or, without a name, all) and return the bytes that were freed."""
        name = None if model is None else re.sub(r"[^A-Za-z0-9._-]+", "-", model)
        freed = 0
        for path in self.folder.glob("*.jsonl"):
            if name is None or path.stem == name:
                freed += path.stat().st_size
                path.unlink(missing_ok=True)
        return freed


class CachedModel:
    """A model that asks its cache first, and asks for the same answer only once.

    `hits` and `misses` count requests since the start: a request answered by another one of the same call is a hit,
    for it cost nothing.
    """

    def __init__(self, model: CodeModel, cache: GenerationCache, name: str = "model") -> None:
        self.model = model
        self.cache = cache
        self.hits = 0
        self.misses = 0
        self._name = name

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    @property
    def store(self) -> str:
        """The name of this model's file in the cache."""
        return f"{self._name}-{self.fingerprint[:_PRINT_CHARS]}"

    def kept(self, requests: Sequence[GenerationRequest]) -> list[Generation] | None:
        """The answers to all requests, in order, where the cache holds every one of them; else None."""
        keys = [request_key(self.fingerprint, request) for request in requests]
        known = self.cache.get(self.store, set(keys))
        if not all(key in known for key in keys):
            return None
        self.hits += len(keys)
        return [known[key] for key in keys]

    @property
    def takes_calls(self) -> bool:
        """Whether `answer_calls` can be used: whether the model itself can."""
        return isinstance(self.model, CallsModel)

    def answer_calls(self, more: More) -> None:
        """Answer calls until no more will come; what is kept, or asked already by another call, without the model.

        Raises:
            ModelError: From the model; what it had answered by then stays kept, an error never is.
        """
        assert isinstance(self.model, CallsModel)
        self.model.answer_calls(_UnkeptCalls(self, more).more)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer all requests, in order; those in the cache without the model.

        Raises:
            ModelError: From the model; what it had answered by then stays kept, an error never is.
        """
        keys = [request_key(self.fingerprint, request) for request in requests]
        known = self.cache.get(self.store, set(keys))
        missing: dict[str, GenerationRequest] = {}
        for key, request in zip(keys, requests, strict=True):
            if key not in known:
                missing.setdefault(key, request)
        if missing:
            try:
                fresh = self.model.generate(list(missing.values()))
            except PartialModelError as error:
                asked = list(missing)
                self.cache.put(self.store, [(asked[index], answer) for index, answer in error.answers.items()])
                raise
            answered = list(zip(missing, fresh, strict=True))
            self.cache.put(self.store, answered)
            known.update(answered)
        self.misses += len(missing)
        self.hits += len(requests) - len(missing)
        answers: list[Generation] = []
        first = set(missing)
        for key in keys:
            generation = known[key]
            if key in missing and key not in first:
                generation = replace(generation, cached=True)  # seconds in full, as a replay has them
            first.discard(key)
            answers.append(generation)
        return answers


class _UnkeptCalls:
    """Calls less those whose answers are kept, and less those that ask what another one has asked already."""

    def __init__(self, cached: CachedModel, more: More) -> None:
        self._cached = cached
        self._more = more
        self._waiting: dict[str, list[Call]] = {}

    def more(self, wait: bool) -> list[Call] | None:
        """What the model has to answer."""
        while True:
            calls = self._more(wait)
            if calls is None:
                return None
            unkept = self._unkept(calls) if calls else []
            if unkept or not wait:
                return unkept

    def _unkept(self, calls: Sequence[Call]) -> list[Call]:
        cached = self._cached
        keyed = [(request_key(cached.fingerprint, call.request), call) for call in calls]
        known = cached.cache.get(cached.store, {key for key, _ in keyed})
        unkept: list[Call] = []
        for key, call in keyed:
            if key in known:
                cached.hits += 1
                call.answered(known[key])
            elif key in self._waiting:
                self._waiting[key].append(call)
            else:
                self._waiting[key] = [call]
                unkept.append(_Unkept(call.request, key, self))
        return unkept

    def answered(self, key: str, answer: Generation) -> None:
        """Keep an answer and pass it on."""
        self._cached.cache.put(self._cached.store, [(key, answer)])
        first, *others = self._waiting.pop(key)
        self._cached.misses += 1
        self._cached.hits += len(others)
        first.answered(answer)
        for call in others:
            call.answered(replace(answer, cached=True))

    def failed(self, key: str, error: PromptRLError) -> None:
        """Tell all who wait for it."""
        for call in self._waiting.pop(key):
            call.failed(error)


@dataclass(frozen=True, slots=True)
class _Unkept:
    """The model's part of one or more equal calls."""

    request: GenerationRequest
    key: str
    calls: _UnkeptCalls

    def answered(self, answer: Generation) -> None:
        self.calls.answered(self.key, answer)

    def failed(self, error: PromptRLError) -> None:
        self.calls.failed(self.key, error)
