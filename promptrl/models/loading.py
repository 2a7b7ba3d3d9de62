"""From settings to a model that answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from promptrl.models.base import CodeModel
from promptrl.models.cache import CachedModel, GenerationCache
from promptrl.models.settings import ModelSettings


def load_model(settings: ModelSettings, *, cache_dir: Path | None, use_cache: bool = True) -> CodeModel:
    """A model that loads its weights when it is first really asked: with a warm cache, never.

    Args:
        settings: Which model.
        cache_dir: Folder for answers, converted weights and hashes; None keeps nothing.
        use_cache: False asks the model every time.

    Raises:
        AssetError: If the weights are missing.
        ConfigError: If the settings contradict each other or this machine.
    """
    # Imported here, so that settings, cache and formats can be had without the seconds that torch takes.
    model: CodeModel
    if settings.family == "server":
        from promptrl.models.server import ServerModel

        model = ServerModel(settings)
    elif _is_seq2seq(settings):
        from promptrl.models.seq2seq import Seq2SeqModel

        model = Seq2SeqModel(settings, cache_dir=cache_dir)
    else:
        from promptrl.models.causal import CausalModel

        model = CausalModel(settings, cache_dir=cache_dir)
    if cache_dir is None or not use_cache:
        return model
    return CachedModel(model, GenerationCache(cache_dir / "generations"), name=store_name(settings))


def _is_seq2seq(settings: ModelSettings) -> bool:
    """Whether `auto` means a sequence-to-sequence model: told from the folder's config or, without one, the name."""
    if settings.family != "auto":
        return settings.family == "seq2seq"
    if settings.path is not None and (settings.path / "config.json").is_file():
        try:
            config = json.loads((settings.path / "config.json").read_text(encoding="utf-8"))
        except ValueError:
            return False  # said in full when the model is loaded
        return bool(config.get("is_encoder_decoder", False))
    return "codet5" in (settings.name if settings.path is None else settings.path.name).lower()


def store_name(settings: ModelSettings) -> str:
    """The readable part of the name of a model's file of answers."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", settings.label).strip("-.") or "model"
