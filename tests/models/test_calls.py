"""Calls that come while others are answered: what each gets, what the model is asked, and what goes wrong alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from promptrl.errors import ConfigError, ModelError, PromptRLError
from promptrl.models import Generation, GenerationRequest
from promptrl.models.attention_cache import SlotCache
from promptrl.models.cache import CachedModel, GenerationCache
from promptrl.models.calls import CallsModel
from promptrl.models.decoding import LoopOptions
from tests.models.tiny import model, run_out_above
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


class Asked:
    """What somebody asks at once, and what came of each request."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self.calls = [OneCall(request) for request in requests]

    @property
    def answers(self) -> list[Generation]:
        found = [call.answer for call in self.calls]
        assert all(answer is not None for answer in found)
        return [answer for answer in found if answer is not None]

    @property
    def texts(self) -> list[str]:
        return [answer.text for answer in self.answers]


@dataclass
class OneCall:
    request: GenerationRequest
    answer: Generation | None = None
    error: PromptRLError | None = None

    def answered(self, answer: Generation) -> None:
        assert (self.answer, self.error) == (None, None)
        self.answer = answer

    def failed(self, error: PromptRLError) -> None:
        assert (self.answer, self.error) == (None, None)
        self.error = error


@dataclass
class Coming:
    """Lets calls come, each part after so many questions for more; when asked to wait, the next at once."""

    parts: list[tuple[int, Asked]]
    waits: list[bool] = field(default_factory=list)

    def more(self, wait: bool) -> list[OneCall] | None:
        self.waits.append(wait)
        if not self.parts:
            return None
        if not wait and len(self.waits) < self.parts[0][0]:
            return []
        return self.parts.pop(0)[1].calls


def at_once(*asked: Asked) -> Coming:
    whole = Asked([])
    whole.calls = [call for one in asked for call in one.calls]
    return Coming([(0, whole)])


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_are_those_of_a_model_that_is_called(tiny_folder: Path, batch_size: int, temperature: float) -> None:
    parts = [requests(*texts, temperature=temperature) for texts in (TEXTS, TEXTS[:1] * 2, TEXTS[2:4], TEXTS[1:])]
    expected = [model(tiny_folder).generate(part) for part in parts]
    asked = [Asked(part) for part in parts]
    coming = Coming(list(zip((0, 4, 11, 400), asked, strict=True)))
    model(tiny_folder, batch_size=batch_size).answer_calls(coming.more)
    for one, answers in zip(asked, expected, strict=True):
        assert one.texts == [answer.text for answer in answers]
        assert [answer.tokens_out for answer in one.answers] == [answer.tokens_out for answer in answers]
        assert all(answer.seconds > 0 for answer in one.answers)
    # Nothing was waited for while there was something to write: only at the start, and with nothing left at the end.
    assert coming.waits[0] is True
    assert coming.waits.count(True) <= 3


def test_who_is_done_first_is_answered_first(tiny_folder: Path) -> None:
    ended: list[int] = []

    class Noted(OneCall):
        def answered(self, answer: Generation) -> None:
            ended.append(self.request.max_new_tokens)

    short, long = Asked([]), Asked([])
    short.calls = [Noted(request) for request in requests("x", max_new_tokens=2)]
    long.calls = [Noted(request) for request in requests("def one():", max_new_tokens=40)]
    tiny = model(tiny_folder)
    tiny.load().decoder.end_ids = frozenset()
    tiny.answer_calls(Coming([(0, long), (3, short)]).more)
    assert ended == [2, 40]


def test_a_model_that_is_asked_nothing_is_not_loaded(tiny_folder: Path) -> None:
    tiny = model(tiny_folder)
    tiny.answer_calls(lambda wait: None)
    assert not tiny.is_loaded


def test_what_is_wrong_with_one_request_is_told_it_alone(tiny_folder: Path, tmp_path: Path) -> None:
    tiny = CachedModel(model(tiny_folder, max_context=64, overlong="refuse"), GenerationCache(tmp_path))
    too_long = "word " * 400
    first, second, third = (
        Asked(requests("x", too_long)),
        Asked(requests("x", top_p=0.0)),
        Asked(requests(too_long, "x")),
    )
    tiny.answer_calls(at_once(first, second, third).more)
    assert [type(call.error) for call in first.calls] == [type(None), ModelError]
    assert "64" in str(first.calls[1].error)
    assert isinstance(second.calls[0].error, ConfigError)
    assert str(third.calls[0].error) == str(first.calls[1].error)
    assert third.calls[1].answer == replace(first.calls[0].answer, cached=True)  # type: ignore[type-var]
    assert (tiny.misses, tiny.hits) == (1, 1)


def test_equal_requests_share_their_seconds_and_reading_counts(tiny_folder: Path) -> None:
    asked = Asked(requests(*TEXTS[:1] * 20, temperature=0.0))
    tiny = model(tiny_folder)
    tiny.load()
    started = time.perf_counter()
    tiny.answer_calls(at_once(asked).more)
    spent = time.perf_counter() - started
    assert 0 < sum(answer.seconds for answer in asked.answers) <= spent
    assert len({answer.seconds for answer in asked.answers}) == 1


def test_what_all_prompts_begin_with_counts_as_time_of_those_that_came(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    decoder = (tiny := model(tiny_folder)).load().decoder
    monkeypatch.setattr("promptrl.models.decoding.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(decoder, "_read_shared_start", lambda jobs: clock.__setitem__(0, clock[0] + 6.0))
    asked = Asked(requests("a", "b", "c", max_new_tokens=2))
    tiny.answer_calls(at_once(asked).more)
    assert [answer.seconds for answer in asked.answers] == [2.0, 2.0, 2.0]


def test_memory_that_runs_out_halves_the_batch_and_no_call_is_lost(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [answer.text for answer in model(tiny_folder).generate(requests(*TEXTS))]
    tiny = model(tiny_folder, batch_size=8)
    run_out_above(2, tiny.load().decoder, monkeypatch)
    first, second = Asked(requests(*TEXTS[:2])), Asked(requests(*TEXTS[2:]))
    tiny.answer_calls(Coming([(0, first), (2, second)]).more)
    assert first.texts + second.texts == expected
    assert tiny.load().decoder.batch_size <= 2


def test_a_call_is_answered_though_memory_ran_out_before_it_was_told(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = model(tiny_folder, batch_size=8)
    tiny.load().decoder.end_ids = frozenset()
    place = SlotCache.place
    failed: list[bool] = []

    def fail_once(self: SlotCache, keys: torch.Tensor, values: torch.Tensor, room: int) -> int:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("no room to grow")
        return place(self, keys, values, room)

    monkeypatch.setattr(SlotCache, "place", fail_once)
    # Read first, as it is longer, and finished with its first token, when the other one finds no place.
    one, other = Asked(requests("def a long one():", max_new_tokens=1)), Asked(requests("x", max_new_tokens=5))
    tiny.answer_calls(at_once(one, other).more)
    assert failed
    assert [asked.answers[0].tokens_out for asked in (one, other)] == [1, 5]


def test_rows_that_stay_in_the_batch_are_told_once(tiny_folder: Path) -> None:
    tiny = model(tiny_folder)
    tiny.load().decoder.end_ids = frozenset()
    tiny.load().decoder.options = LoopOptions(leave=False)
    one, other = Asked(requests("def a long one():", max_new_tokens=2)), Asked(requests("x", max_new_tokens=5))
    tiny.answer_calls(at_once(one, other).more)
    assert [asked.answers[0].tokens_out for asked in (one, other)] == [2, 5]


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
    assert [asked.texts for asked in (kept, one, same, both)] == [
        ["KEPT"], ["A", "B", "A"], ["B", "A"], ["KEPT", "B", "C"]
    ]  # fmt: skip
    assert sorted(request.user for request in inner.requests) == ["a", "b", "c"]
    assert [answer.cached for answer in one.answers] == [False, False, True]
    assert [answer.cached for answer in (*same.answers, *both.answers)] == [True, True, True, True, False]
    # A replay from the cache counts the same seconds.
    assert {answer.seconds for asked in (kept, one, same, both) for answer in asked.answers} == {0.1}
    assert (cached.misses, cached.hits) == (4, 6)


def test_an_error_reaches_all_who_wait_for_it_and_is_not_kept(tmp_path: Path) -> None:
    def answer(request: GenerationRequest) -> str:
        if request.user == "bad":
            raise ModelError("It broke.")
        return request.user

    cached = CachedModel(CalledModel(answer), GenerationCache(tmp_path))
    first, second = Asked(requests("bad", "a")), Asked(requests("a", "bad", "b"))
    cached.answer_calls(Coming([(0, first), (0, second)]).more)
    assert [str(call.error) for call in (first.calls[0], second.calls[1])] == ["It broke.", "It broke."]
    assert [call.answer.text for call in (first.calls[1], second.calls[0], second.calls[2]) if call.answer] == [
        "a", "a", "b"
    ]  # fmt: skip
    assert (cached.misses, cached.hits) == (2, 1)
    assert cached.kept(requests("bad")) is None


def test_what_was_answered_before_a_stop_is_kept(tiny_folder: Path, tmp_path: Path) -> None:
    tiny = model(tiny_folder, batch_size=2)
    tiny.load().decoder.end_ids = frozenset()
    cached = CachedModel(tiny, GenerationCache(tmp_path))
    asked, count = Asked(requests(*(f"text {number}" for number in range(8)))), 0

    def more(wait: bool) -> list[OneCall]:
        nonlocal count
        count += 1
        if count == 60:
            raise KeyboardInterrupt
        return asked.calls if count == 1 else []

    with pytest.raises(KeyboardInterrupt):
        cached.answer_calls(more)
    answered = [call.request for call in asked.calls if call.answer is not None]
    assert 0 < len(answered) < 8
    assert cached.kept(answered) is not None
