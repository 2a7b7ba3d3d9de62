"""How alike two tasks are by their text, for keeping copies of tested tasks out of training.

The measure is the Jaccard index of the two multisets of words in the instructions: words they share,
counted with repeats, over words in either. Words are runs of letters and digits, case folded, and the
opening that most tasks share ("Write a python function to") does not count.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from promptrl.tasks.task import Task

_OPENING: Final = re.compile(
    r"^\s*(please\s+)?write\s+(an?\s+)?(python\s+)?(function|program|code|method)?\s*(to|that|which|for)?\s+",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[^\W_]+")


def normalised_text(text: str) -> str:
    """The words of a text, folded and joined by single blanks: equal for texts that differ in layout only."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def words(task: Task) -> Counter[str]:
    """The counted words of a task's instruction, without the usual opening."""
    return Counter(normalised_text(_OPENING.sub("", task.instruction)).split())


def similarity(first: Counter[str], second: Counter[str]) -> float:
    """The multiset Jaccard index, in [0, 1]; two empty texts are not alike."""
    return _similarity(first, first.total(), second, second.total())


def _similarity(first: Counter[str], size: int, second: Counter[str], other_size: int) -> float:
    shared = sum(min(count, second[word]) for word, count in first.items() if word in second)
    either = size + other_size - shared
    return shared / either if either else 0.0


@dataclass(frozen=True, slots=True)
class Match:
    """The task of the other side that comes closest, and how close."""

    task: Task
    similarity: float


class NearCopies:
    """Looks up, for a task, the most similar of a fixed set of tasks.

    Args:
        others: The tasks to compare with.
        threshold: Similarities below it count as no match, in (0, 1].
    """

    def __init__(self, others: Sequence[Task], threshold: float) -> None:
        self._threshold = threshold
        self._others = [(task, counted, counted.total()) for task in others for counted in (words(task),)]

    def closest(self, task: Task) -> Match | None:
        """The most similar task at or above the threshold; the first of them where several are equally close."""
        own = words(task)
        size = own.total()
        best: Match | None = None
        for other, counted, total in self._others:
            # The index cannot exceed the ratio of the sizes, which is cheaper to see.
            if min(size, total) < self._threshold * max(size, total):
                continue
            value = _similarity(own, size, counted, total)
            if value >= self._threshold and (best is None or value > best.similarity):
                best = Match(other, value)
        return best
