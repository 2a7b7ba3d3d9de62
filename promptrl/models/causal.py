"""Frozen causal language models from transformers: chat models, base models, GGUF files."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from promptrl.errors import ConfigError, ModelError
from promptrl.models.base import Generation, GenerationRequest
from promptrl.models.decoding import CausalDecoder, Job
from promptrl.models.formats import END_MARKS, Style, check_decoding, cut_at_stop, resolve_style, strip_end_marks
from promptrl.models.linear import can_pack, pack_linears
from promptrl.models.sampling import draw_numbers
from promptrl.models.settings import ModelSettings
from promptrl.models.weights import (
    Weights,
    find_weights,
    loadable_folder,
    pick_device,
    pick_dtype,
    quiet_transformers,
)

logger = logging.getLogger(__name__)

BACKEND_VERSION = 1  # part of every fingerprint: raised when the same request may be answered differently


class CausalModel:
    """A causal language model, loaded when it is first asked.

    Args:
        settings: Which model, and how it is asked.
        cache_dir: Where converted weights and remembered hashes are kept.

    Raises:
        AssetError: If the weights are missing.
        ConfigError: If device and precision do not go together.
    """

    def __init__(self, settings: ModelSettings, *, cache_dir: Path | None = None) -> None:
        self.settings = settings
        self.style: Style = resolve_style(settings)
        self.device = pick_device(settings)
        self.dtype = pick_dtype(settings, self.device)
        self._cache_dir = cache_dir
        self.weights: Weights = find_weights(settings, cache_dir)
        self._loaded: _Loaded | None = None

    @property
    def fingerprint(self) -> str:
        """sha256 over weights, precision and format."""
        settings = self.settings
        parts = {
            "backend": "causal",
            "version": BACKEND_VERSION,
            "weights": self.weights.sha256,
            "style": self.style,
            "dtype": str(self.dtype),
            "device": self.device.type,
            "quantization": settings.quantization,
            "halves": self._packs_halves(),
            "max_context": settings.max_context,
            "overlong": settings.overlong,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _packs_halves(self) -> bool:
        return self.device.type == "cpu" and self.dtype == torch.float32 and can_pack()

    def load(self) -> _Loaded:
        """The loaded model; loads it now where that has not happened yet."""
        if self._loaded is None:
            self._loaded = _Loaded(self)
        return self._loaded

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    @property
    def folder(self) -> Path:
        """The folder with config, tokenizer and safetensors."""
        return loadable_folder(self.weights, self._cache_dir)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Write all answers; equal greedy requests once.

        Raises:
            ConfigError: For a decoding setting that cannot be meant.
            ModelError: If the model cannot be loaded, memory runs out, or a prompt is too long and may not be cut.
        """
        for request in requests:
            check_decoding(request.temperature, request.top_p, request.max_new_tokens)
        if not requests:
            return []
        loaded = self.load()
        started = time.perf_counter()
        jobs, order = loaded.make_jobs(requests)
        loaded.decoder.run(jobs)
        share = (time.perf_counter() - started) / len(requests)
        answers = [
            Generation(
                text=loaded.text_of(jobs[index], request),
                tokens_in=len(jobs[index].tokens),
                tokens_out=len(jobs[index].written),
                finish_reason=jobs[index].finish_reason,
                seconds=share,
            )
            for index, request in zip(order, requests, strict=True)
        ]
        return answers


class _Loaded:
    """Tokenizer, weights and decoder."""

    def __init__(self, owner: CausalModel) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        settings = owner.settings
        self.settings, self.style = settings, owner.style
        folder = owner.folder
        packs = settings.quantization == "int8" or owner._packs_halves()
        options: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code, "local_files_only": True}
        try:
            with quiet_transformers():
                config = AutoConfig.from_pretrained(folder, **options)
                self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
                model: Any = AutoModelForCausalLM.from_pretrained(
                    folder,
                    config=config,
                    # Packing takes the weights as they are stored, which spares a float32 copy of the whole model.
                    dtype="auto" if packs else owner.dtype,
                    attn_implementation="sdpa",
                    **options,
                )
        except (ValueError, OSError, KeyError, RuntimeError, ImportError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise ModelError(f"The model in {folder} cannot be loaded: {reason}") from error
        model.eval().requires_grad_(False)
        if packs:
            packed = pack_linears(model, int8=settings.quantization == "int8")
            logger.debug("Packed %d linear layers for the CPU.", packed)
        model.to(device=owner.device, dtype=owner.dtype)
        text_config = config.get_text_config()
        limits = [getattr(text_config, "max_position_embeddings", None), settings.max_context]
        if getattr(text_config, "use_sliding_window", True):
            # Within the window every layer sees everything, which is how rows are computed here.
            limits.append(getattr(text_config, "sliding_window", None))
        self.context = min([limit for limit in limits if limit] or [4096])
        self.end_ids = self._find_end_ids(model)
        self.decoder = CausalDecoder(
            model,
            device=owner.device,
            dtype=owner.dtype,
            end_ids=self.end_ids,
            batch_size=settings.batch_size,
            memory_bytes=settings.prompt_memory_mb * 2**20,
        )
        self._is_chat = self.style == "chat"
        if self._is_chat and not getattr(self.tokenizer, "chat_template", None):
            logger.warning("The model in %s has no chat template: requests are sent as plain text.", folder)
            self._is_chat = False

    def _find_end_ids(self, model: Any) -> frozenset[int]:
        """The end tokens of generation config, config and tokenizer, and those that mark an end in its vocabulary."""
        found: set[int] = set()
        for source in (getattr(model, "generation_config", None), model.config, self.tokenizer):
            value = getattr(source, "eos_token_id", None)
            found |= {value} if isinstance(value, int) else set(value or ())
        vocabulary = self.tokenizer.get_vocab()
        found |= {vocabulary[mark] for mark in END_MARKS if mark in vocabulary}
        return frozenset(found)

    def prompt_text(self, request: GenerationRequest) -> str:
        """The exact text that the model reads."""
        if not self._is_chat:
            system = "" if request.system is None else request.system + "\n\n"
            return system + request.user + request.prefill
        messages = [] if request.system is None else [{"role": "system", "content": request.system}]
        messages.append({"role": "user", "content": request.user})
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates are programs: what they raise is their own
            raise ModelError(f"The model's chat template refuses the request: {error}") from error
        return text + request.prefill

    def prompt_tokens(self, request: GenerationRequest) -> npt.NDArray[np.int64]:
        """Token ids of the prompt. A template writes its own begin token, so none is added after one."""
        encoded = self.tokenizer(self.prompt_text(request), add_special_tokens=not self._is_chat)
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
                tokens, was_cut = self._fit(request)
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

    def _fit(self, request: GenerationRequest) -> tuple[npt.NDArray[np.int64], bool]:
        """The prompt's tokens, and whether its text had to be cut to leave room for the answer."""
        tokens = self.prompt_tokens(request)
        room = self.context - request.max_new_tokens
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
            shorter = GenerationRequest(user, request.system, request.prefill)
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

    def text_of(self, job: Job, request: GenerationRequest) -> str:
        """The answer without special tokens, stop string or end marks."""
        text: str = self.tokenizer.decode(job.written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return strip_end_marks(cut_at_stop(text, request.stop)[0])
