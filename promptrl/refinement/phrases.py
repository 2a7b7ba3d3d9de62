"""The phrase bank: short pieces of coding guidance that the lexical operator may insert into an instruction.

They say how to write the code, never what it should compute, so that no phrase can contradict a task.
"""

from __future__ import annotations

from typing import Final

SENTENCES: Final[tuple[str, ...]] = (
    "Handle empty input.",
    "Handle the smallest and the largest inputs.",
    "Return the result, do not print it.",
    "Return exactly the type that the examples show.",
    "Check the result against the examples.",
    "Keep the order of the arguments.",
    "Import every module that is used.",
    "Think about duplicates.",
    "Think about negative numbers and zero.",
    "Do not change the arguments.",
    "Use a simple loop where it is clearer.",
    "Work step by step.",
    "Mind off-by-one errors.",
    "Write complete code.",
    "Cover all cases named above.",
    "Use only the standard library.",
    "Keep the function's name.",
    "Be careful with the types of the elements.",
)

WORDS: Final[tuple[str, ...]] = (
    "carefully",
    "correctly",
    "exactly",
    "precisely",
    "efficiently",
    "clearly",
    "always",
    "directly",
)
