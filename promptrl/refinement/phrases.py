"""The phrase bank: sentences of coding guidance that the lexical operator may add to an instruction.

They say how to write the code, never what it should compute. A phrase that suits one kind of task only says
so, and one that some tasks speak against names the words by which such a task is known.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from promptrl.tasks.task import Style


class Phrase(NamedTuple):
    """A sentence of guidance; `unless` is a pattern of instructions that it does not suit."""

    text: str
    style: Style | None = None
    unless: str | None = None


PHRASES: Final = (
    Phrase("Follow the description exactly."),
    Phrase("Cover every case in the description."),
    Phrase("Work through the problem step by step."),
    Phrase("Write complete, working code."),
    Phrase("Make sure that the code runs."),
    Phrase("Keep the code simple and clear."),
    Phrase("Import every module that the code uses."),
    Phrase("Use only the standard library.", unless=r"numpy|pandas|scipy|librar|package"),
    Phrase("Watch out for off-by-one errors."),
    Phrase("Watch out for edge cases."),
    Phrase("Pay attention to the types of the values."),
    Phrase("Double-check every condition."),
    Phrase("Handle empty input if the input can be empty."),
    Phrase("Handle repeated values if they are possible."),
    Phrase(
        "Handle negative numbers and zero if they are possible.",
        unless="string|word|character|positive|natural|non-neg",
    ),
    Phrase("Make sure that the code is right for the smallest and the largest inputs."),
    Phrase("Write the whole function, not only a part of it.", "function"),
    Phrase("Give the function exactly the name that is asked for.", "function"),
    Phrase("Return the result instead of printing it.", "function", r"\b(?:print|display|show|output)"),
    Phrase("Return exactly the type that is asked for.", "function", r"\b(?:print|display)"),
    Phrase("Do not ask the user for input.", "function"),
    Phrase("Read all input from standard input.", "stdin"),
    Phrase("Read the input exactly in the given format.", "stdin"),
    Phrase("Print only what is asked for.", "stdin"),
    Phrase("Follow the output format exactly.", "stdin"),
    Phrase("Make sure that the code is fast enough for large inputs.", "stdin"),
)


def suitable(instruction: str, style: Style) -> tuple[str, ...]:
    """The phrases that say nothing against a task, in the bank's order."""
    return tuple(
        phrase.text
        for phrase in PHRASES
        if phrase.style in (None, style)
        and not (phrase.unless and re.search(phrase.unless, instruction, re.IGNORECASE))
    )
