"""Frozen causal language models from transformers: chat models, base models, GGUF files."""

from __future__ import annotations

from promptrl.models.backbone import Loaded, LocalModel, find_end_ids
from promptrl.models.decoding import CausalDecoder
from promptrl.models.prompting import Prompter


class CausalModel(LocalModel):
    """A causal language model: reads the prompt and goes on."""

    backend = "causal"

    def _load(self) -> Loaded:
        from transformers import AutoModelForCausalLM

        settings = self.settings
        config, tokenizer, model = self._load_parts(AutoModelForCausalLM, attn_implementation="sdpa")
        text_config = config.get_text_config()
        limits = [getattr(text_config, "max_position_embeddings", None), settings.max_context]
        if getattr(text_config, "use_sliding_window", True):
            # Within the window every layer sees everything, which is how rows are computed here.
            limits.append(getattr(text_config, "sliding_window", None))
        decoder = CausalDecoder(
            model,
            device=self.device,
            dtype=self.dtype,
            end_ids=find_end_ids(model, tokenizer),
            batch_size=settings.batch_size,
            memory_bytes=settings.prompt_memory_mb * 2**20,
        )
        context = min([limit for limit in limits if limit] or [4096])
        return Loaded(Prompter(tokenizer, settings, self.style, context), decoder)
