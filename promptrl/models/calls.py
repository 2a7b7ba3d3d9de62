"""Answering without rounds: requests come at any time, and all that is asked is written in one batch that goes on.

A model whose `generate` is called waits for the longest answer, with ever fewer rows in the batch. Where several ask
independently of each other, `answer_calls` takes up what one asks while the answers of the others are being written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from promptrl.errors import PromptRLError
from promptrl.models.base import CodeModel, Generation, GenerationRequest


class Call(Protocol):
    """A request whose answer somebody waits for; exactly one of its methods is called, once."""

    @property
    def request(self) -> GenerationRequest: ...

    def answered(self, answer: Generation) -> None:
        """Take the answer."""
        ...

    def failed(self, error: PromptRLError) -> None:
        """Take note that there will be no answer, and why."""
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
