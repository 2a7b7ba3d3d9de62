"""Instructions made of words that matter to the operators, and an episode around one."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from promptrl.refinement.episode import Episode, Individual
from promptrl.refinement.prompt import Prompt
from promptrl.tasks.task import CallTest, Task, TestSuite

WORDS = st.sampled_from(
    [
        "write",
        "a",
        "function",
        "to",
        "find",
        "the",
        "shared",
        "`elements_1`",
        "of",
        "3",
        "given",
        "lists.",
        "return",
        "sorted",
        "values,",
        "not",
        "None.",
        "'ab'",
        "my_key",
        "carefully",
        "compute",
        "number",
        "quickly.",
        "Check",
        "whether",
        "camelCase",
        "works.",
    ]
)
INSTRUCTIONS = st.lists(WORDS, min_size=1, max_size=40).map(" ".join)


def episode_of(instruction: str, *others: tuple[str, float], seed: int = 0) -> Episode:
    prompt = Prompt(instruction, "def f(x):\n    ...")
    suite = TestSuite("base", (CallTest((1,), 2),))
    task = Task("T/1", "t", instruction, prompt.contract, suite, entry_point="f")
    episode = Episode(task, suite, 5, np.random.default_rng(seed), prompt, prompt)
    episode.population = [
        Individual(prompt.with_instruction(text), rate) for text, rate in ((instruction, 0.0), *others)
    ]
    return episode
