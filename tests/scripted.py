"""A scripted model and a hashing encoder: for unit tests of the machinery alone, never for a result."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from promptrl.errors import ModelError
from promptrl.execution import Judge, SandboxSettings
from promptrl.models.base import CodeModel, Generation, GenerationRequest
from promptrl.models.calls import Call, More
from promptrl.refinement.engine import EpisodeSettings, GenerationSettings, RefinementEngine
from promptrl.refinement.operators import OperatorContext, OperatorSettings, make_operators
from promptrl.tasks.task import CallTest, Task, TestSuite

Answer = Callable[[GenerationRequest], str]


class ScriptedModel:
    """Answers by a function of the request, and keeps the requests that it was given, batch by batch."""

    fingerprint = "scripted"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.batches: list[list[GenerationRequest]] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.batches.append(list(requests))
        return [Generation(self.answer(request), 10, 5, "stop", 0.1) for request in requests]

    @property
    def requests(self) -> list[GenerationRequest]:
        return [request for batch in self.batches for request in batch]


class CalledModel(ScriptedModel):
    """Takes up calls until none comes at once, and answers the last of them first."""

    def answer_calls(self, more: More) -> None:
        waiting: list[Call] = []
        while True:
            calls = more(not waiting)
            if calls is None and not waiting:
                return
            if calls:
                waiting += calls
                continue
            call = waiting.pop()
            try:
                call.answered(self.generate([call.request])[0])
            except ModelError as error:
                call.failed(error)


class HashingEncoder:
    """Unit vectors that depend on the text alone; similar texts share words and thus directions."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(len(texts))
        rows = np.zeros((len(texts), 384), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            row += 1e-3
            for word in text.split():
                row[zlib.crc32(word.encode()) % 384] += 1.0
        norms: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / norms

    def nearest_words(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        return [(f"{word[:-1]}{letter}{word[-1]}", 0.9) for letter in "xyz"][:k] if len(word) > 3 else []

    def similarity(self, a: str, b: str) -> float:
        first, second = self.encode([a, b])
        return float(first @ second)


def request_format(
    prompt_text: str, *, stub: str, draw: int, seed: int, temperature: float, top_p: float, max_new_tokens: int
) -> GenerationRequest:
    return GenerationRequest(
        prompt_text, draw=draw, seed=seed, temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens
    )


def make_task(number: int, *, plus: bool = False) -> Task:
    """ "Add `number` to x", with four reward tests and, if asked for, one more report test."""
    name = f"add_{number}"
    return Task(
        task_id=f"Scripted/{number}",
        benchmark="scripted",
        instruction=f"Write a function that slowly adds {number} to the given value `x`. Return the result.",
        contract=f"def {name}(x: int) -> int:",
        base=TestSuite("base", tuple(CallTest((x,), x + number) for x in (0, 1, 2, 3))),
        plus=TestSuite("plus", (CallTest((100,), 100 + number),)) if plus else None,
        entry_point=name,
        canonical_solution=f"def {name}(x):\n    return x + {number}\n",
    )


def right(number: int) -> str:
    return f"def add_{number}(x):\n    return x + {number}"


def half_right(number: int) -> str:
    """Right for x = 0 and 1 only."""
    return f"def add_{number}(x):\n    return x + {number} if x < 2 else -99"


def wrong(number: int) -> str:
    return f"def add_{number}(x):\n    return -99"


def number_of(request: GenerationRequest) -> int:
    """The number of the task that a request is about."""
    return int(request.user.split("def add_")[1].split("(")[0])


def make_engine(
    answer: Answer,
    judge: Judge,
    *,
    rewrite: Answer = lambda request: " Add the number to `x` and return it.",
    rewriter: CodeModel | None = None,
    actions: Sequence[str] = ("direct", "lexical", "semantic"),
    operators: OperatorSettings | None = None,
    seed: int = 0,
    **episode: object,
) -> RefinementEngine:
    encoder = HashingEncoder()
    context = OperatorContext(rewriter or ScriptedModel(rewrite), encoder, operators or OperatorSettings(), seed)
    return RefinementEngine(
        coder=ScriptedModel(answer),
        request_format=request_format,
        encoder=encoder,
        judge=judge,
        operators=make_operators(actions, context),
        episode=EpisodeSettings.model_validate(episode),
        generation=GenerationSettings(),
        seed=seed,
    )


def make_judge() -> Judge:
    return Judge(SandboxSettings(workers=2, import_time_limit=1.0))
