"""The published chat formats of the known families, for tokenizers that ship no template of their own.

A GGUF file, or a folder that was copied without its `chat_template`, may lack one. Each format here gives the text that
the family's own template gives for one system message (or none) and one user message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_QWEN_SYSTEM: Final = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_DEEPSEEK_SYSTEM: Final = (
    "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by Deepseek Company, and you "
    "only answer questions related to computer science. For politically sensitive questions, security and privacy "
    "issues, and other non-computer science questions, you will refuse to answer"
)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Writes a request; `gap` stands between it and an answer that is begun for the model."""

    write: Callable[[str | None, str], str]
    gap: str = ""


def _qwen(system: str | None, user: str) -> str:
    system = _QWEN_SYSTEM if system is None else system
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def _codellama(system: str | None, user: str) -> str:
    before = "" if system is None else f"<<SYS>>\n{system}\n<</SYS>>\n\n"
    return f"[INST] {(before + user).strip()} [/INST]"


def _deepseek(system: str | None, user: str) -> str:
    system = _DEEPSEEK_SYSTEM if system is None else system
    return f"{system}\n### Instruction:\n{user}\n### Response:\n"


CHAT_FORMATS: Final = {
    "qwen": ChatFormat(_qwen),
    # Answers begin after a space; without a begun answer it is left to the model, whose tokens carry it.
    "codellama": ChatFormat(_codellama, gap=" "),
    "deepseek-coder": ChatFormat(_deepseek),
}


def chat_format_of(name: str) -> ChatFormat | None:
    """The format of the family that a model's name belongs to."""
    name = name.lower().replace("_", "-")
    return next((form for family, form in CHAT_FORMATS.items() if family in name), None)
