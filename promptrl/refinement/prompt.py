"""The prompt: an instruction that operators may change, and a contract that nothing ever changes.

A method may add a supplement (an earlier attempt and what its tests said, say), which belongs to neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from promptrl.tasks.task import Task

# What an operator may never alter inside an instruction: fenced code, back-ticked spans, quoted
# literals, numbers, and words that are identifiers rather than English (snake_case, camelCase, calls).
_PROTECTED = re.compile(
    r"""
    ```.*?```                                   # fenced code
  | `[^`\n]+`                                   # code span
  | "[^"\n]*" | (?<![A-Za-z0-9])'[^'\n]*'(?![A-Za-z0-9])   # quoted literal, not an apostrophe
  | [A-Za-z_][A-Za-z0-9_]*(?=\()                # the name in a call
  | \b[A-Za-z]*_[A-Za-z0-9_]*\b                 # snake_case
  | \b[a-z]+[A-Z][A-Za-z0-9]*\b                 # camelCase
  | \b[A-Za-z]+\d[A-Za-z0-9]*\b                 # lst1
  | [-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?       # number
    """,
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r"\s+|[A-Za-z]+(?:['’][A-Za-z]+)*(?:-[A-Za-z]+(?:['’][A-Za-z]+)*)*|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of an instruction; the pieces joined give back the text."""

    text: str
    protected: bool = False

    @property
    def is_word(self) -> bool:
        """Whether an operator may replace or delete it: an unprotected English word."""
        return not self.protected and self.text[:1].isalpha()


def tokenize(instruction: str) -> list[Token]:
    """Split an instruction into words, spaces, signs and protected spans; joining the texts restores it."""
    tokens: list[Token] = []
    position = 0
    for match in _PROTECTED.finditer(instruction):
        tokens += [Token(piece) for piece in _PIECE.findall(instruction[position : match.start()])]
        tokens.append(Token(match.group(), protected=True))
        position = match.end()
    tokens += [Token(piece) for piece in _PIECE.findall(instruction[position:])]
    return tokens


def protected_spans(instruction: str) -> frozenset[str]:
    """The spans of an instruction that every refined version has to hold too."""
    return frozenset(match.group() for match in _PROTECTED.finditer(instruction))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request for code: `render()` is both the text that the state encodes and the one the model reads."""

    instruction: str
    contract: str
    supplement: str = ""

    @classmethod
    def from_task(cls, task: Task) -> Prompt:
        """The unrefined prompt of a task."""
        return cls(task.instruction, task.contract)

    def render(self) -> str:
        """Instruction, contract and supplement with blank lines between; each may be empty."""
        parts = (self.instruction.strip(), self.contract.strip("\n"), self.supplement.strip("\n"))
        return "\n\n".join(part for part in parts if part)

    def with_instruction(self, instruction: str) -> Prompt:
        """The same contract asked for in other words."""
        return replace(self, instruction=instruction)
