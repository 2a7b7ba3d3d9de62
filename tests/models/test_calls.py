"""Calls that come while others are answered: what each gets, what the model is asked, and what goes wrong alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from promptrl.errors import ConfigError, ModelError, PromptRLError
from promptrl.models import Generation, GenerationRequest, ModelSettings
from promptrl.models.cache import CachedModel, GenerationCache
from promptrl.models.calls import CallsModel
from promptrl.models.causal import CausalModel
from tests.scripted import CalledModel, ScriptedModel

TEXTS = (
    "def one():",
    "def f(x):\n    # " + "a long comment " * 9,
    "x",
    "Wörter und 数字: 漢字",
    "def f(x):\n    return",
)


def requests(*texts: str, **changes: object) -> list[GenerationRequest]:
    asked = [GenerationRequest(text, temperature=0.9, top_p=0.95, max_new_tokens=24) for text in texts]
    return [replace(request, **changes) for request in asked]  # type: ignore[arg-type]


@dataclass
class Asked:
    requests: Sequence[GenerationRequest]
    answers: list[Generation] | None = None
    error: PromptRLError | None = None

    def answered(self, answers: list[Generation]) -> None:
        assert self.answers is None
        self.answers = answers

    def failed(self, error: PromptRLError) -> None:
        assert self.error is None
        self.error = error


@dataclass
class Coming:
    """Lets calls come, each after so many questions for more; when asked to wait, the next at once."""

    calls: list[tuple[int, Asked]]
    waits: list[bool] = field(default_factory=list)

    def more(self, wait: bool) -> list[Asked] | None:
        self.waits.append(wait)
        if not self.calls:
            return None
        after, call = self.calls[0]
        if not wait and len(self.waits) < after:
            return []
        self.calls.pop(0)
        return [call]


def model(folder: Path, **settings: object) -> CausalModel:
    return CausalModel(ModelSettings.model_validate({"path": folder, "device": "cpu", "dtype": "float32"} | settings))


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_are_those_of_a_model_that_is_called(tiny_folder: Path, batch_size: int, temperature: float) -> None:
    parts = [requests(*texts, temperature=temperature) for texts in (TEXTS, TEXTS[:1] * 2, (), TEXTS[2:4], TEXTS[1:])]
    expected = [model(tiny_folder).generate(part) for part in parts]
    calls = [Asked(part) for part in parts]
    coming = Coming([(after, call) for after, call in zip((0, 4, 5, 11, 400), calls, strict=True)])
    model(tiny_folder, batch_size=batch_size).answer_calls(coming.more)
    for call, answers in zip(calls, expected, strict=True):
        assert call.answers is not None
        assert call.error is None
        assert [a.text for a in call.answers] == [a.text for a in answers]
        assert [a.tokens_out for a in call.answers] == [a.tokens_out for a in answers]
        assert all(answer.seconds > 0 for answer in call.answers)
    # Nothing was waited for while there was something to write: only at the start, and with nothing left at the end.
    assert coming.waits[0] is True
    assert coming.waits.count(True) <= 3


def test_a_call_is_answered_before_a_later_one_that_came_meanwhile_holds_it_up(tiny_folder: Path) -> None:
    ended: list[str] = []

    class Named(Asked):
        def answered(self, answers: list[Generation]) -> None:
            ended.append(str(self.requests[0].max_new_tokens))

    short, long = Named(requests("x", max_new_tokens=2)), Named(requests("def one():", max_new_tokens=40))
    tiny = model(tiny_folder)
    tiny.load().decoder.end_ids = frozenset()
    tiny.answer_calls(Coming([(0, long), (3, short)]).more)
    assert ended == ["2", "40"]


def test_what_is_wrong_with_one_call_is_told_it_alone(tiny_folder: Path) -> None:
    right, wrong, long = (
        Asked(requests("x")),
        Asked(requests("x", top_p=0.0)),
        Asked(requests("word " * 400, max_new_tokens=40)),
    )
    model(tiny_folder, max_context=64, overlong="refuse").answer_calls(Coming([(0, wrong), (0, long), (0, right)]).more)
    assert isinstance(wrong.error, ConfigError)
    assert isinstance(long.error, ModelError)
    assert "64" in str(long.error)
    assert right.answers is not None
    assert right.error is None


def test_memory_that_runs_out_halves_the_batch_and_no_call_is_lost(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [answer.text for answer in model(tiny_folder).generate(requests(*TEXTS))]
    tiny = model(tiny_folder, batch_size=8)
    decoder = tiny.load().decoder
    step = decoder._step

    def narrow(cache: object, live: list[object], lengths: object) -> object:
        if len(live) > 2:
            raise torch.OutOfMemoryError("too many rows")
        return step(cache, live, lengths)

    monkeypatch.setattr(decoder, "_step", narrow)
    first, second = Asked(requests(*TEXTS[:2])), Asked(requests(*TEXTS[2:]))
    tiny.answer_calls(Coming([(0, first), (2, second)]).more)
    assert first.answers is not None
    assert second.answers is not None
    assert [answer.text for answer in (*first.answers, *second.answers)] == expected
    assert decoder.batch_size <= 2


def test_what_is_kept_or_asked_already_is_not_asked_again(tmp_path: Path) -> None:
    inner = CalledModel(lambda request: request.user.upper())
    cached = CachedModel(inner, GenerationCache(tmp_path))
    assert cached.takes_calls
    assert not CachedModel(ScriptedModel(str), GenerationCache(tmp_path)).takes_calls
    assert isinstance(inner, CallsModel)
    cached.generate(requests("kept"))
    inner.batches.clear()
    kept, one, same, both = (
        Asked(requests(*texts)) for texts in (("kept",), ("a", "b", "a"), ("b", "a"), ("kept", "b", "c"))
    )
    cached.answer_calls(Coming([(0, kept), (0, one), (0, same), (0, both)]).more)
    found = [[answer.text for answer in call.answers or ()] for call in (kept, one, same, both)]
    assert found == [["KEPT"], ["A", "B", "A"], ["B", "A"], ["KEPT", "B", "C"]]
    assert sorted(request.user for request in inner.requests) == ["a", "b", "c"]
    assert [answer.cached for answer in one.answers or ()] == [False, False, True]
    assert [answer.seconds for answer in one.answers or ()] == [0.1, 0.1, 0.0]
    assert [(answer.cached, answer.seconds) for answer in same.answers or ()] == [(True, 0.1), (True, 0.1)]
    assert [answer.cached for answer in both.answers or ()] == [True, True, False]
    assert (cached.misses, cached.hits) == (4, 6)
    again = CachedModel(CalledModel(lambda request: "never"), GenerationCache(tmp_path))
    assert [answer.text for answer in again.generate(requests("c", "a"))] == ["C", "A"]


def test_an_error_reaches_all_who_wait_for_it_once_and_is_not_kept(tmp_path: Path) -> None:
    def answer(request: GenerationRequest) -> str:
        if request.user == "bad":
            raise ModelError("It broke.")
        return request.user

    cached = CachedModel(CalledModel(answer), GenerationCache(tmp_path))
    first, second, third = (Asked(requests(*texts)) for texts in (("bad", "a"), ("a", "bad", "b"), ("b",)))
    cached.answer_calls(Coming([(0, first), (0, second), (0, third)]).more)
    assert [str(call.error) for call in (first, second)] == ["It broke.", "It broke."]
    assert [answer.text for answer in third.answers or ()] == ["b"]
    later = Asked(requests("a"))
    cached.answer_calls(Coming([(0, later)]).more)
    assert [answer.text for answer in later.answers or ()] == ["a"]
