"""Frozen language models behind one batched interface, the cache of their answers, and the sentence encoder."""

from promptrl.models.base import CodeModel, FinishReason, Generation, GenerationRequest
from promptrl.models.cache import CachedModel, CacheSize, GenerationCache, request_key
from promptrl.models.encoder import PromptEncoder
from promptrl.models.formats import code_request, resolve_style
from promptrl.models.loading import load_model
from promptrl.models.settings import ModelSettings, ServerSettings

__all__ = [
    "CacheSize",
    "CachedModel",
    "CodeModel",
    "FinishReason",
    "Generation",
    "GenerationCache",
    "GenerationRequest",
    "ModelSettings",
    "PromptEncoder",
    "ServerSettings",
    "code_request",
    "load_model",
    "request_key",
    "resolve_style",
]
