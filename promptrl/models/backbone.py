"""What every model that runs in this process has in common: late loading, fingerprint, batching of requests."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from promptrl.errors import ModelError
from promptrl.models.base import Generation, GenerationRequest
from promptrl.models.decoding import Job
from promptrl.models.formats import END_MARKS, Style, check_decoding, resolve_style
from promptrl.models.linear import Bfloat16Linear, Form, Int8Linear, WideInt8Linear, can_pack, pack_linears
from promptrl.models.prompting import Prompter
from promptrl.models.settings import ModelSettings
from promptrl.models.weights import (
    Weights,
    cpu_multiplies_bfloat16,
    find_weights,
    loadable_folder,
    pick_device,
    pick_dtype,
    quiet_transformers,
)

_INT8_VERSIONS = {"int8": Int8Linear.version, "int8-wide": WideInt8Linear.version}
BACKEND_VERSION = 1  # part of every fingerprint: raised when the same request may be answered differently


class Decoder(Protocol):
    """Writes answers into jobs."""

    def run(self, jobs: Sequence[Job]) -> None: ...


@dataclass(slots=True)
class Loaded:
    """A model with its weights in memory."""

    prompter: Prompter
    decoder: Any


class LocalModel(ABC):
    """A frozen model of transformers, loaded when it is first asked.

    Args:
        settings: Which model, and how it is asked.
        cache_dir: Where converted weights and remembered hashes are kept.

    Raises:
        AssetError: If the weights are missing.
        ConfigError: If device and precision do not go together.
    """

    backend: str

    def __init__(self, settings: ModelSettings, *, cache_dir: Path | None = None) -> None:
        self.settings = settings
        self.style: Style = resolve_style(settings)
        self.device = pick_device(settings)
        self.dtype = pick_dtype(settings, self.device)
        self.weights: Weights = find_weights(settings, cache_dir)
        self._cache_dir = cache_dir
        self._loaded: Loaded | None = None

    @property
    def fingerprint(self) -> str:
        """sha256 over weights, precision and format."""
        settings = self.settings
        parts: dict[str, object] = {
            "backend": self.backend,
            "version": BACKEND_VERSION,
            "weights": self.weights.sha256,
            "style": self.style,
            "dtype": str(self.dtype),
            "device": self.device.type,
            "quantization": _INT8_VERSIONS.get(self._packed or "", settings.quantization),
            "halves": self._packed in ("halves", "int8"),
            "max_context": settings.max_context,
            "overlong": settings.overlong,
            "prompt_decoder": settings.prompt_decoder,
        }
        if self._packed in ("bfloat16", "int8-wide"):
            parts["bfloat16"] = Bfloat16Linear.version
        if settings.chat_format != "auto":  # left out otherwise, so that answers kept before it existed stay valid
            parts["chat_format"] = settings.chat_format
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    @property
    def folder(self) -> Path:
        """The folder with config, tokenizer and safetensors."""
        return loadable_folder(self.weights, self._cache_dir)

    def load(self) -> Loaded:
        """The loaded model; loads it now where that has not happened yet.

        Raises:
            ModelError: If it cannot be loaded.
        """
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    @abstractmethod
    def _load(self) -> Loaded: ...

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Write all answers, in order; equal greedy requests once.

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
        jobs, order = loaded.prompter.make_jobs(requests)
        loaded.decoder.run(jobs)
        share = (time.perf_counter() - started) / len(requests)
        return [
            generation(loaded.prompter, jobs[index], request, share)
            for index, request in zip(order, requests, strict=True)
        ]

    @property
    def _packed(self) -> Form | None:
        """How the linear layers are laid out; None where torch's own stay."""
        bfloat16 = self.dtype == torch.bfloat16 and cpu_multiplies_bfloat16()
        if self.settings.quantization == "int8":
            return "int8-wide" if bfloat16 and can_pack("int8-wide") else "int8"
        if self.device.type != "cpu":
            return None
        if self.dtype == torch.float32 and can_pack("halves"):
            return "halves"
        return "bfloat16" if bfloat16 and can_pack("bfloat16") else None

    def _load_parts(self, model_class: Any, **options: Any) -> tuple[Any, Any, Any]:
        """Config, tokenizer and model, in evaluation mode, in its precision, on its device."""
        from transformers import AutoConfig, AutoTokenizer

        folder, settings = self.folder, self.settings
        common: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code, "local_files_only": True}
        # Packing takes the weights as they are stored, which spares a float32 copy of the whole model.
        options["dtype"] = self.dtype if self._packed is None else "auto"
        try:
            with quiet_transformers():
                config: Any = AutoConfig.from_pretrained(folder, **common)
                tokenizer: Any = AutoTokenizer.from_pretrained(folder, **common)
                model: Any = model_class.from_pretrained(folder, config=config, **options, **common)
        except (ValueError, OSError, KeyError, RuntimeError, ImportError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise ModelError(f"The model in {folder} cannot be loaded: {reason}") from error
        model.eval().requires_grad_(False)
        if self._packed is not None:
            pack_linears(model, self._packed)
        model.to(device=self.device, dtype=self.dtype)
        return config, tokenizer, model


def generation(prompter: Prompter, job: Job, request: GenerationRequest, seconds: float) -> Generation:
    """What a finished job is to a request."""
    return Generation(
        text=prompter.answer(job, request),
        tokens_in=len(job.tokens),
        tokens_out=len(job.written),
        finish_reason=job.finish_reason,
        seconds=seconds,
    )


def find_end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The end tokens of generation config, config and tokenizer, and those that mark an end in the vocabulary."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        found |= {value} if isinstance(value, int) else set(value or ())
    vocabulary = tokenizer.get_vocab()
    return frozenset(found | {vocabulary[mark] for mark in END_MARKS if mark in vocabulary})
