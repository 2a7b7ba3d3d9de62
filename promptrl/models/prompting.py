"""From requests to tokens and from tokens to answers, in a model's own format."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from promptrl.errors import ConfigError, ModelError
from promptrl.models.base import GenerationRequest
from promptrl.models.chat_formats import CHAT_FORMATS, ChatFormat, chat_format_of
from promptrl.models.decoding import Job
from promptrl.models.formats import Style, cut_at_stop, strip_end_marks
from promptrl.models.sampling import draw_numbers
from promptrl.models.settings import ModelSettings

logger = logging.getLogger(__name__)

_TABBED = ("codet5p", "instructcodet5p")
_MARK = "@answer@"


class Prompter:
    """Writes prompts with a model's tokenizer and template, and reads its answers.

    Args:
        tokenizer: The model's own.
        settings: For the rule about prompts that are too long.
        style: How the model is asked.
        context: Tokens of prompt and answer together, or of the prompt alone where `answer_in_context` is false.
        answer_in_context: Whether the answer shares the context (causal models) or has its own (sequence to sequence).
    """

    def __init__(
        self, tokenizer: Any, settings: ModelSettings, style: Style, context: int, *, answer_in_context: bool = True
    ) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.context = context
        self._answer_in_context = answer_in_context
        self._style = style
        self._template = (
            style == "chat" and settings.chat_format == "auto" and bool(getattr(tokenizer, "chat_template", None))
        )
        self._format: ChatFormat | None = None
        if style == "chat" and not self._template:
            name = settings.name if settings.path is None else settings.path.name
            chosen = settings.chat_format
            self._format = chat_format_of(name) if chosen == "auto" else CHAT_FORMATS[chosen]
            if self._format is None:
                logger.warning("The model %s has no chat template: requests are sent as plain text.", name)

    def prompt_text(self, request: GenerationRequest) -> str:
        """The exact text that the model reads, up to where its answer goes on."""
        if self._template:
            return self._from_template(request)
        if self._format is not None:
            gap = self._format.gap if request.prefill else ""
            return self._format.write(request.system, request.user) + gap + request.prefill
        system = "" if request.system is None else request.system + "\n\n"
        return self._as_trained(system + request.user + request.prefill)

    def _from_template(self, request: GenerationRequest) -> str:
        messages = [] if request.system is None else [{"role": "system", "content": request.system}]
        messages.append({"role": "user", "content": request.user})
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates are programs: what they raise is their own
            raise ModelError(f"The model's chat template refuses the request: {error}") from error
        return text + self._gap(messages, text) + request.prefill if request.prefill else text

    def _gap(self, messages: list[dict[str, str]], text: str) -> str:
        """The white space that a template puts between a request and its answer (CodeLLaMA: a space)."""
        try:
            whole = self.tokenizer.apply_chat_template(
                [*messages, {"role": "assistant", "content": _MARK}], tokenize=False
            )
        except Exception:  # it takes no answers: then none of them tells how one begins
            return ""
        before = whole.partition(_MARK)[0]
        gap = before[len(text) :] if before.startswith(text) else ""
        return gap if gap.isspace() else ""

    def _as_trained(self, text: str) -> str:
        """CodeT5+ has seen code indented with tabs."""
        return text.replace("    ", "\t") if self._style in _TABBED else text

    def source_tokens(self, request: GenerationRequest) -> npt.NDArray[np.int64] | None:
        """What an encoder reads where that is not the prompt: InstructCodeT5+'s holds no stub."""
        if self._style != "instructcodet5p":
            return None
        encoded = self.tokenizer(self._as_trained(request.user), truncation=True, max_length=self.context)
        return np.asarray(encoded["input_ids"], dtype=np.int64)

    def prompt_tokens(self, request: GenerationRequest) -> npt.NDArray[np.int64]:
        """Token ids of the prompt. A template writes its own begin token, so none is added after one."""
        encoded = self.tokenizer(self.prompt_text(request), add_special_tokens=not self._template)
        tokens = np.asarray(encoded["input_ids"], dtype=np.int64)
        if not len(tokens):
            raise ModelError("The request has no text: there is nothing for the model to read.")
        return tokens

    def make_jobs(self, requests: Sequence[GenerationRequest]) -> tuple[list[Job], list[int]]:
        """Jobs for the distinct answers, and for each request the index of its job."""
        jobs: list[Job] = []
        order: list[int] = []
        index: dict[GenerationRequest, int] = {}
        cut = 0
        for request in requests:
            key = request
            if request.temperature == 0:
                key = GenerationRequest(
                    request.user, request.system, request.prefill, request.stop, max_new_tokens=request.max_new_tokens
                )
            if key not in index:
                tokens, was_cut = self.fit(request)
                cut += was_cut
                index[key] = len(jobs)
                jobs.append(
                    Job(
                        tokens=tokens,
                        max_new_tokens=request.max_new_tokens,
                        temperature=request.temperature,
                        top_p=request.top_p,
                        numbers=draw_numbers(request),
                        ends=self._stop_check(request.stop),
                        source=self.source_tokens(request),
                    )
                )
            order.append(index[key])
        if cut:
            logger.warning(
                "%d of %d prompts left no room for the answer in %d tokens: the middle of their text was left out.",
                cut,
                len(jobs),
                self.context,
            )
        return jobs, order

    def fit(self, request: GenerationRequest) -> tuple[npt.NDArray[np.int64], bool]:
        """The prompt's tokens, and whether its text had to be cut to leave room for the answer."""
        tokens = self.prompt_tokens(request)
        room = self.context - (request.max_new_tokens if self._answer_in_context else 0)
        if len(tokens) <= room:
            return tokens, False
        if room < 1:
            raise ConfigError(
                f"max_new_tokens is {request.max_new_tokens}, but the model's context holds {self.context} tokens "
                "for prompt and answer together."
            )
        if self.settings.overlong == "refuse":
            raise ModelError(
                f"A prompt of {len(tokens)} tokens and an answer of {request.max_new_tokens} do not fit into the "
                f"model's context of {self.context}; shorten it or set model.overlong to cut."
            )
        words = self.tokenizer(request.user, add_special_tokens=False)["input_ids"]
        surplus = len(tokens) - room
        while surplus < len(words):
            kept = len(words) - surplus
            user = self.tokenizer.decode(words[: (kept + 1) // 2]) + self.tokenizer.decode(
                words[len(words) - kept // 2 :]
            )
            shorter = replace(request, user=user)
            tokens = self.prompt_tokens(shorter)
            if len(tokens) <= room:
                return tokens, True
            surplus += len(tokens) - room
        raise ModelError(
            f"The model's context of {self.context} tokens is too small for the frame of the request and an answer of "
            f"{request.max_new_tokens} tokens."
        )

    def _stop_check(self, stops: tuple[str, ...]) -> Callable[[list[int]], bool]:
        if not stops:
            return lambda written: False
        # A stop string of n bytes spans at most n tokens; more are decoded as a token may depend on its neighbour.
        tail = max(len(stop.encode()) for stop in stops) + 4

        def ends(written: list[int]) -> bool:
            text: str = self.tokenizer.decode(written[-tail:], skip_special_tokens=True)
            return any(stop in text for stop in stops)

        return ends

    def answer(self, job: Job, request: GenerationRequest) -> str:
        """The answer without special tokens, stop string or end marks."""
        text: str = self.tokenizer.decode(job.written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        text = text.replace("\t", "    ") if self._style in _TABBED else text
        return strip_end_marks(cut_at_stop(text, request.stop)[0])
