"""Tiny random models of the architectures in use, made on the spot, and a tokenizer of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Starcoder2Config,
    T5Config,
    T5ForConditionalGeneration,
)

from promptrl.models import ModelSettings
from promptrl.models.causal import CausalModel
from promptrl.models.decoding import CausalDecoder

SPECIAL = ["<|endoftext|>", "<|begin|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(*, chat: bool = True, adds_begin: bool = False) -> PreTrainedTokenizerFast:
    """One token per byte, and the special ones; no pad token, as with many real models."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    if adds_begin:
        from tokenizers.processors import TemplateProcessing

        tokenizer.post_processor = TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", vocabulary["<|begin|>"])]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|begin|>")
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
    "bos_token_id": 1,
    "tie_word_embeddings": False,
    # Larger than usual, so that the random model's scores differ by more than rounding does.
    "initializer_range": 0.3,
}
CONFIGS = {
    "llama": lambda vocabulary: LlamaConfig(vocab_size=vocabulary, **_SIZES),
    "qwen2": lambda vocabulary: Qwen2Config(vocab_size=vocabulary, **_SIZES),
    "starcoder2": lambda vocabulary: Starcoder2Config(vocab_size=vocabulary, **_SIZES, sliding_window=256),
}


def save_causal(folder: Path, architecture: str = "llama", *, chat: bool = True, adds_begin: bool = False) -> Path:
    """A random causal model with its tokenizer in `folder`."""
    torch.manual_seed(7)
    tokenizer = make_tokenizer(chat=chat, adds_begin=adds_begin)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture](len(tokenizer)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def model(folder: Path, **settings: object) -> CausalModel:
    """A model of a folder, on the CPU in single precision."""
    return CausalModel(ModelSettings.model_validate({"path": folder, "device": "cpu", "dtype": "float32"} | settings))


def run_out_above(rows: int, decoder: CausalDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory run out in every step of more rows than these."""
    step = decoder._step

    def small_memory(cache: Any, live: list[Any], lengths: Any) -> torch.Tensor:
        if len(live) > rows:
            raise torch.OutOfMemoryError("no more")
        return step(cache, live, lengths)

    monkeypatch.setattr(decoder, "_step", small_memory)


def save_seq2seq(folder: Path) -> Path:
    """A random T5 with a tokenizer that ends each text with its end token."""
    from tokenizers.processors import TemplateProcessing

    torch.manual_seed(7)
    tokenizer = make_tokenizer(chat=False)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        eos_token_id=0,
        pad_token_id=1,
        decoder_start_token_id=1,
        tie_word_embeddings=False,
        initializer_factor=3.0,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
