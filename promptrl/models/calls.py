"""Answering without rounds: calls come at any time, and all that is asked is written in one batch that goes on.

A model that is called waits for its longest answer, with ever fewer rows in the batch. Where several ask independently
of each other, `answer_calls` takes up what one asks while the answers of the others are still being written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from promptrl.errors import PromptRLError
from promptrl.models.base import CodeModel, Generation, GenerationRequest


class Call(Protocol):
    """Requests of one who waits for all of their answers."""

    @property
    def requests(self) -> Sequence[GenerationRequest]: ...

    def answered(self, answers: list[Generation]) -> None:
        """Take all answers, in order."""
        ...

    def failed(self, error: PromptRLError) -> None:
        """Take note that there will be no answers, and why."""
        ...


More = Callable[[bool], "Sequence[Call] | None"]
"""Gives the calls that have come since, at least one if its argument is true; None where none will come any more."""


@runtime_checkable
class CallsModel(CodeModel, Protocol):
    """A model that can answer without rounds."""

    def answer_calls(self, more: More) -> None:
        """Answer calls until no more will come.

        Raises:
            ModelError: where the model can answer nothing any more; what is wrong with one call is told that call.
        """
        ...


@dataclass
class _Waiting:
    """A call some of whose answers are not there yet."""

    call: Call
    keys: list[str]
    own: frozenset[str]
    known: dict[str, Generation]
    missing: set[str]

    def answer(self) -> None:
        answers, first = [], set(self.own)
        for key in self.keys:
            generation = self.known[key]
            if key in self.own and key not in first:
                generation = replace(generation, cached=True, seconds=0.0)  # it cost nothing more
            first.discard(key)
            answers.append(generation)
        self.call.answered(answers)


class KeptCalls:
    """Calls less the answers that are kept, and less what another call asks already.

    Args:
        more: where calls come from.
        key: names an answer.
        get: finds those of these answers that are kept, by key.
        put: keeps answers, with their keys.
        count: told of each call how many of its requests are asked, and how many it has.
    """

    def __init__(
        self,
        more: More,
        key: Callable[[GenerationRequest], str],
        get: Callable[[set[str]], Mapping[str, Generation]],
        put: Callable[[Sequence[tuple[str, Generation]]], None],
        count: Callable[[int, int], None],
    ) -> None:
        self._more = more
        self._key = key
        self._get = get
        self._put = put
        self._count = count
        self._asked: dict[str, list[_Waiting]] = {}

    def more(self, wait: bool) -> list[Call] | None:
        """The calls that the model has to answer, for the requests that nobody has asked before."""
        while True:
            calls = self._more(wait)
            if calls is None:
                return None
            asked: list[Call] = [fresh for call in calls if (fresh := self._begin(call)) is not None]
            if asked or not wait:
                return asked

    def _begin(self, call: Call) -> _Fresh | None:
        keys = [self._key(request) for request in call.requests]
        known = dict(self._get(set(keys)))
        missing = dict.fromkeys(key for key in keys if key not in known)
        fresh = [key for key in missing if key not in self._asked]
        waiting = _Waiting(call, keys, frozenset(fresh), known, set(missing))
        self._count(len(fresh), len(keys))
        if not missing:
            waiting.answer()
            return None
        for key in missing:
            self._asked.setdefault(key, []).append(waiting)
        by_key = dict(zip(keys, call.requests, strict=True))
        return _Fresh([by_key[key] for key in fresh], fresh, self) if fresh else None

    def arrived(self, answers: Sequence[tuple[str, Generation]]) -> None:
        """Keep answers and pass them on."""
        self._put(answers)
        for key, generation in answers:
            for waiting in self._asked.pop(key, ()):
                waiting.known[key] = generation if key in waiting.own else replace(generation, cached=True)
                waiting.missing.discard(key)
                if not waiting.missing:
                    waiting.answer()

    def failed(self, keys: Sequence[str], error: PromptRLError) -> None:
        """Tell everybody who waits for one of these."""
        told = [waiting for key in keys for waiting in self._asked.get(key, ())]
        for number, waiting in enumerate(told):
            if all(waiting is not other for other in told[:number]):
                waiting.call.failed(error)
        self._asked = {
            key: kept
            for key, several in self._asked.items()
            if (kept := [waiting for waiting in several if all(waiting is not other for other in told)])
        }


@dataclass
class _Fresh:
    """What the model is asked for a call."""

    requests: Sequence[GenerationRequest]
    keys: Sequence[str]
    kept: KeptCalls = field(repr=False)

    def answered(self, answers: list[Generation]) -> None:
        self.kept.arrived(list(zip(self.keys, answers, strict=True)))

    def failed(self, error: PromptRLError) -> None:
        self.kept.failed(self.keys, error)
