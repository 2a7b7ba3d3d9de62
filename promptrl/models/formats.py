"""How a task's prompt becomes a request: the words around it, the start of the answer, and where it ends."""

from __future__ import annotations

import math
from typing import Literal

from promptrl.errors import ConfigError
from promptrl.models.base import GenerationRequest
from promptrl.models.settings import ModelSettings

Style = Literal["chat", "completion", "codet5p", "instructcodet5p"]

INSTRUCTIONS = {
    "script": (
        "Write a complete, self-contained Python script that solves the task below. "
        "Put it in one Markdown code block.\n\n{prompt}"
    ),
    "terse": (
        "Solve the task below in Python. Reply with the function only, in one Markdown code block: "
        "no docstring, no comments, no tests, no explanation.\n\n{prompt}"
    ),
}
# InstructCodeT5+ as its authors ask it, their blank lines included; the stub follows in the decoder alone.
INSTRUCT_CODET5P = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n\n"
    "### Instruction:\nCreate a Python script for this problem:\n{prompt}\n\n### Response:"
)
FENCE = "```python\n"
CHAT_STOPS = ("\n```",)
# A base model that has finished the function goes on with more of the file; each of these starts something new.
COMPLETION_STOPS = ("\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert ", "\nprint(", "\nif __name__", "\n```")
# Without a stub the answer itself is to begin with imports and definitions.
STUBLESS_STOPS = ("\nassert ", "\nprint(", "\nif __name__", '\n"""', "\n```")

# Marks that end a text in the formats of the known families. A server, or a tokenizer that does not know its own
# marks, may hand them over as plain text.
END_MARKS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|EOT|>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
)


def resolve_style(settings: ModelSettings) -> Style:
    """The prompt style meant by `auto`, told from the configuration alone so that no weights are needed.

    Sequence-to-sequence models are asked CodeT5+'s way. A name or path that says `base`, or one of the families
    known as base models without saying `instruct` or `chat`, is completed; everything else is a chat.
    """
    if settings.prompt_style != "auto":
        return settings.prompt_style
    if settings.family == "server":
        return "chat" if settings.server.api == "chat" else "completion"
    name = f"{settings.name if settings.path is None else ''} {settings.path.name if settings.path else ''}".lower()
    if settings.family == "seq2seq" or "codet5" in name:
        return "instructcodet5p" if "instructcodet5p" in name else "codet5p"
    if any(word in name for word in ("instruct", "chat", "-it")):
        return "chat"
    if any(word in name for word in ("base", "codellama", "starcoder", "codegen", "santacoder", "qwen/qwen2.5-coder")):
        return "completion"
    return "chat"


def code_request(
    settings: ModelSettings,
    prompt_text: str,
    *,
    stub: str = "",
    draw: int = 0,
    seed: int = 0,
    temperature: float = 0.0,
    top_p: float = 1.0,
    max_new_tokens: int = 512,
) -> GenerationRequest:
    """Ask for code that solves `prompt_text`.

    In a chat the prompt stands inside the instruction and the answer starts in an opened code fence. A base model
    goes on from the `stub` (signature and docstring); where the prompt was refined, its words stand above in comment
    lines, and the stub is the contract alone. InstructCodeT5+ gets the words in its authors' frame and goes on from
    the stub too. The code is in `request.prefill + generation.text` in every style.

    Args:
        settings: The model that is asked; its style, wording, prefix and stops.
        prompt_text: The rendered prompt.
        stub: The start of the code, where the task has one.
        draw: Index of the sample.
        seed: The run's seed.
        temperature: 0 is greedy.
        top_p: Share of the probability that is sampled from, in (0, 1].
        max_new_tokens: Longest answer, in tokens.

    Raises:
        ConfigError: For a decoding setting that cannot be meant.
    """
    check_decoding(temperature, top_p, max_new_tokens)
    style = resolve_style(settings)
    if style == "chat":
        user = (settings.instruction_template or INSTRUCTIONS[settings.request]).replace("{prompt}", prompt_text)
        # Without a prefilled fence the first fence of the answer opens the code, so it must not end it.
        prefills = settings.family != "server" or settings.server.continues_prefill
        prefill = FENCE if prefills else ""
        stop: tuple[str, ...] = CHAT_STOPS if prefills else ()
    else:
        words, prefill = _words_and_stub(prompt_text, stub)
        template = settings.instruction_template
        if style == "instructcodet5p":
            user = (template or INSTRUCT_CODET5P).replace("{prompt}", words or prompt_text)
        elif prefill and not template and _all_in(words, stub):
            user = ""
        else:
            words = template.replace("{prompt}", words) if template else words
            user = "".join(f"# {line}".rstrip() + "\n" for line in words.splitlines())
            user = user + "\n" if user else ""
        stop = COMPLETION_STOPS if prefill else STUBLESS_STOPS
    return GenerationRequest(
        user=user,
        system=settings.system,
        prefill=prefill if settings.response_prefix is None or style != "chat" else settings.response_prefix,
        stop=stop if settings.stop is None else settings.stop,
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        draw=draw,
        seed=seed,
    )


def _words_and_stub(prompt_text: str, stub: str) -> tuple[str, str]:
    """A rendered prompt's words, and the code to go on from: the stub, or what the prompt keeps of it when refined."""
    if not stub.strip():
        return prompt_text, ""
    first = stub.strip().splitlines()[0].rstrip()
    lines = prompt_text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.rstrip() == first), None)
    if start is None:
        return prompt_text, stub
    words = "\n".join(lines[:start]).strip()
    return words, stub if _all_in(words, stub) else "\n".join(lines[start:]).rstrip() + "\n"


def _all_in(words: str, stub: str) -> bool:
    return all(line.strip() in stub for line in words.splitlines())


def check_decoding(temperature: float, top_p: float, max_new_tokens: int) -> None:
    """Refuse decoding settings that no answer can be written with.

    Raises:
        ConfigError: Naming the setting, its value and what is allowed.
    """
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ConfigError(f"temperature is {temperature}; it must be 0 (greedy) or above.")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p is {top_p}; it must be above 0 and at most 1.")
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")


def cut_at_stop(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one."""
    ends = [position for position in (text.find(stop) for stop in stops) if position >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def strip_end_marks(text: str) -> str:
    """Take end marks off the end of an answer; marks inside it, in a string literal say, stay."""
    stripped = text
    while True:
        bare = stripped.rstrip()
        mark = next((mark for mark in END_MARKS if bare.endswith(mark)), None)
        if mark is None:
            return stripped
        stripped = bare[: -len(mark)]
