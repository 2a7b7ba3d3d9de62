"""The interface between the refinement of prompts and whatever writes text: requests in, generations out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from promptrl.errors import ModelError

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to be written.

    `user` is the text of the request; `system` goes before it and `prefill` starts the answer (an
    opened code fence, say) where the model's format has a place for them. The answer ends before the
    first of `stop`. `draw` is the index of the sample: the same request with the same draw and seed is
    the same answer, another draw is another sample. `temperature` 0 is greedy, whatever the draw.
    """

    user: str
    system: str | None = None
    prefill: str = ""
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 512
    draw: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer: `text` without prompt, prefill, stop string or special tokens.

    `tokens_in` and `tokens_out` count what the model read and wrote; `seconds` is its share of its batch's time.
    """

    text: str
    tokens_in: int
    tokens_out: int
    finish_reason: FinishReason
    seconds: float = 0.0
    cached: bool = False


class PartialModelError(ModelError):
    """Some of a call's requests failed; `answers` holds those that did not, by their place in the call."""

    def __init__(self, message: str, answers: Mapping[int, Generation]) -> None:
        super().__init__(message)
        self.answers = dict(answers)


@runtime_checkable
class CodeModel(Protocol):
    """A frozen language model. Many requests in, as many generations out, in the same order."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same request could be answered differently: weights, precision, template."""
        ...

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]: ...
