"""`reflexion`: act, read the tests' feedback, reflect in words, act again (after Shinn et al., arXiv 2303.11366).

Feedback comes from the episode's own suite, the reward tests, and from nothing else. docs/methods.md lists where
this departs from the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from promptrl.methods.base import MethodContext
from promptrl.methods.rewriting import whole_sentences
from promptrl.models.base import Generation, GenerationRequest
from promptrl.refinement.episode import Episode, Proposal, Step, feedback
from promptrl.refinement.semantic import clean_rewrite

_SYSTEM: Final = "You are a careful Python programmer who finds out why code is wrong."
_REFLECT: Final = """The code below was written for the task and fails some of its tests. In one to three sentences, \
say why the code is wrong as the test results show, and what has to be done differently. Do not write code.

Task: {task}

Code:
{code}

Test results:
{results}"""
_PREFILL: Final = "The code is wrong because"
_ACT: Final = """An earlier attempt at this task was wrong:
{code}

Test results of that attempt:
{results}

What went wrong:
{reflections}"""


class Reflexion:
    """Keeps nothing of its own: what was tried and reflected on is read from the episode's steps."""

    name: str = "reflexion"
    attempts: int | None = None
    reads_states = False

    def __init__(self, context: MethodContext) -> None:
        self._rewriter = context.rewriter
        self._settings = context.settings.reflexion
        self._seed = context.seed

    def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> list[Proposal]:
        proposals = [Proposal(episode.original, action="original") for episode in episodes]
        failed = [(index, step) for index, episode in enumerate(episodes) if (step := episode.last)]
        if not failed:
            return proposals
        answers = self._rewriter.generate([self._request(episodes[index], step) for index, step in failed])
        for (index, step), answer in zip(failed, answers, strict=True):
            proposals[index] = self._act(episodes[index], step, answer)
        return proposals

    def _request(self, episode: Episode, step: Step) -> GenerationRequest:
        settings = self._settings
        return GenerationRequest(
            user=_REFLECT.format(
                task=episode.original.render(), code=_fenced(step), results=self._results(episode, step)
            ),
            system=_SYSTEM,
            prefill=_PREFILL,
            stop=("```", "\n\n"),
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_new_tokens=settings.max_new_tokens,
            draw=len(episode.steps),
            seed=self._seed,
        )

    def _act(self, episode: Episode, step: Step, answer: Generation) -> Proposal:
        """The next attempt's prompt: the task, the last code, its results and the latest reflections."""
        earlier = [past.rewrites[0] for past in episode.steps if past.rewrites]
        reflections = [text for generation in (*earlier, answer) if (text := _reflection(generation))]
        supplement = _ACT.format(
            code=_fenced(step),
            results=self._results(episode, step),
            reflections="\n".join(reflections[-self._settings.memory :]) or "See the test results.",
        )
        note = None if _reflection(answer) else "reflection empty"
        prompt = replace(episode.original, supplement=supplement)
        return Proposal(prompt, note=note, rewrites=(answer,), action="reflect")

    def _results(self, episode: Episode, step: Step) -> str:
        entry_point = episode.task.entry_point
        return feedback(step, episode.suite, most=self._settings.shown_tests, entry_point=entry_point)


def _reflection(answer: Generation) -> str:
    """The reflection as one line, without code and without a last sentence that was cut off."""
    text = " ".join(clean_rewrite(whole_sentences(answer)).split())
    return f"{_PREFILL} {text}" if text else ""


def _fenced(step: Step) -> str:
    return f"```python\n{(step.code or step.generation.text).strip()}\n```"
