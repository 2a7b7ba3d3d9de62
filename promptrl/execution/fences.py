"""Takes a model's answer apart into fenced blocks and prose, and undoes what typography does to code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import islice
from typing import Final

from promptrl.execution import source

_END_MARKS: Final = (
    *("<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|EOT|>", "<|end_of_text|>", "<|eom_id|>"),
    *("</s>", "<eos>", "<end_of_turn>", "<｜end▁of▁sentence｜>"),
)
_CLOSINGS_TRIED: Final = 12
"""How many closing fences are tried for a block; after `_MANY_BLOCKS` blocks only the first."""
_MANY_BLOCKS: Final = 60
_FENCE: Final = re.compile(r"^([ \t]*)(`{3,}|~{3,})(.*)$")
_TAG: Final = re.compile(r"^\{?\.?([A-Za-z][\w+#.-]*)?\}?$")
_TAGGED_CODE: Final = re.compile(r"^(python3?|py3?)\s+(?=(def|class|import|from|async|@)\b)", re.IGNORECASE)
_PYTHON_TAGS: Final = frozenset({"python", "python3", "py", "py3", "python2", "pycon", "ipython", "sage"})
_ODD_SPACES: Final = dict.fromkeys(
    map(ord, "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"), " "
) | (dict.fromkeys(map(ord, "\u2009\u200a\u202f\u205f\u3000"), " ") | dict.fromkeys(map(ord, "\u200b\u2060\ufeff")))


def clean(answer: str) -> tuple[str, bool]:
    """The answer with plain line ends, without thinking and end marks; and whether it ends inside its thinking."""
    text = answer.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    head, mark, tail = text.rpartition("</think>")
    if mark:
        text = tail
    elif text.lstrip().startswith("<think>") or "\n<think>" in head:
        return "", True
    return _without_end_marks(text), False


def _without_end_marks(text: str) -> str:
    # Not one pattern for it: patterns that end in blanks take quadratic time on long runs of blanks.
    while True:
        end = text.rstrip()
        mark = next((mark for mark in _END_MARKS if end.endswith(mark)), None)
        if mark is None:
            return text
        text = end.removesuffix(mark).rstrip()


def fenced_blocks(text: str) -> tuple[list[tuple[str, bool]], str]:
    """The texts between fences with whether they are tagged as Python, and the text outside of them.

    A fence counts at the start of a line only, and closes a block only where the text up to it parses:
    docstrings may hold fences too. Where no closing fence makes it parse, the first one closes it.
    """
    lines = text.split("\n")
    blocks: list[tuple[str, bool]] = []
    outside: list[str] = []
    index = 0
    while index < len(lines):
        opening = _FENCE.match(lines[index])
        if opening is None:
            outside.append(lines[index])
            index += 1
            continue
        indent, fence, info = opening.groups()
        if fence in info:  # opened and closed on one line
            first_line, python = _info(info[: info.index(fence)])
            blocks.append((repaired(first_line), python))
            index += 1
            continue
        first_line, python = _info(info)
        numbers = (
            number
            for number in range(index + 1, len(lines))
            if lines[number].strip().startswith(fence) and not lines[number].strip().strip(fence[0])
        )
        closings = list(islice(numbers, _CLOSINGS_TRIED if len(blocks) < _MANY_BLOCKS else 1))
        start = [first_line] if first_line else []
        end = closings[0] if closings else len(lines)
        for closing in closings if len(closings) > 1 else ():
            if source.parse(_block_text(start, lines[index + 1 : closing], indent)) is not None:
                end = closing
                break
        blocks.append((_block_text(start, lines[index + 1 : end], indent), python))
        outside.append("")
        index = end + 1
    return blocks, "\n".join(outside)


def _info(info: str) -> tuple[str, bool]:
    """Code that stands on the line of the opening fence, and whether the fence is tagged as Python."""
    info = info.strip()
    tag = _TAG.match(info)
    if tag:
        return "", (tag.group(1) or "").lower() in _PYTHON_TAGS
    tagged = _TAGGED_CODE.match(info)
    if tagged:
        return info[tagged.end() :], True
    word = info.strip().strip("{}.").split()[0].strip("{}.,").lower() if info.strip().strip("{}.") else ""
    if word in _PYTHON_TAGS:
        return "", True  # python title="..." and the like
    return info.strip(), False


def _block_text(start: list[str], lines: Sequence[str], indent: str) -> str:
    # The block of an indented fence (in a list, say) is indented as the fence is.
    return repaired("\n".join([*start, *(line.removeprefix(indent) for line in lines)]))


def repaired(text: str) -> str:
    """The text with what typography and terminals do to code undone, where only that makes it parse."""
    if source.parse(text) is not None:
        return text
    for candidate in (_plain_spaces(text), _without_prompts(text), textwrap.dedent(text), without_closing(text)):
        if candidate != text and source.parse(candidate) is not None:
            return candidate
    return text


def _plain_spaces(text: str) -> str:
    """Odd blanks made plain, but not inside string literals, where they may be meant."""
    if text.translate(_ODD_SPACES) == text:
        return text
    plain: list[str] = []
    quote = ""
    index = 0
    while index < len(text):
        char = text[index]
        if quote:
            size = 2 if char == "\\" else len(quote) if text.startswith(quote, index) else 1
            ends = char != "\\" and text.startswith(quote, index)
            plain.append(text[index : index + size])
            index += size
            if ends or (len(quote) == 1 and char == "\n"):
                quote = ""
            continue
        if char in "'\"":
            quote = char * 3 if text.startswith(char * 3, index) else char
            plain.append(quote)
            index += len(quote)
        elif char == "#":
            end = text.find("\n", index)
            end = len(text) if end < 0 else end
            plain.append(text[index:end])
            index = end
        else:
            plain.append(char.translate(_ODD_SPACES))
            index += 1
    return "".join(plain)


def _without_prompts(text: str) -> str:
    """A terminal session made a program, or doctest lines between code removed."""
    lines = text.split("\n")
    if not any(line.startswith(">>>") for line in lines):
        return text
    typed = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
    session = "\n".join(typed)
    tree = source.parse(session)
    if tree is not None and any(isinstance(node, source.Definition) for node in tree.body):
        return session
    kept: list[str] = []
    in_example = False
    for line in lines:
        if line.startswith((">>>", "...")):
            in_example = True
        elif in_example and line.strip() and not re.match(r"(def|class|import|from|async|@)\b|@", line):
            continue  # what the example prints
        else:
            in_example = False
            kept.append(line)
    return "\n".join(kept)


def without_closing(text: str) -> str:
    """Without a fence that closes at the end of a line of code."""
    end = text.rstrip()
    for mark in "`~":
        if end.endswith(mark * 3):
            return end.rstrip(mark).rstrip(" \t")
    return text
