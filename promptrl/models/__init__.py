"""Frozen language models behind one batched interface, the cache of their answers, and the sentence encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from promptrl.models.base import CodeModel, FinishReason, Generation, GenerationRequest, PartialModelError
from promptrl.models.cache import CachedModel, CacheSize, GenerationCache, request_key
from promptrl.models.formats import code_request, resolve_style
from promptrl.models.loading import load_model
from promptrl.models.settings import ModelSettings, ServerSettings

if TYPE_CHECKING:
    from promptrl.models.encoder import PromptEncoder

__all__ = [
    "CacheSize",
    "CachedModel",
    "CodeModel",
    "FinishReason",
    "Generation",
    "GenerationCache",
    "GenerationRequest",
    "ModelSettings",
    "PartialModelError",
    "PromptEncoder",
    "ServerSettings",
    "code_request",
    "load_model",
    "request_key",
    "resolve_style",
]


def __getattr__(name: str) -> Any:
    # The encoder brings torch with it, which takes seconds that the rest of this package does not need.
    if name == "PromptEncoder":
        from promptrl.models.encoder import PromptEncoder

        return PromptEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
