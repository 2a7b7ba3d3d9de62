"""`epic`: an evolutionary search over prompts (after EPiC, Taherkhani et al., arXiv 2408.11198).

The unchanged prompt first; then a population of variants that a language model writes; then, until the tests pass or
the budget ends, generations of one prompt carried over and mutants of parents drawn by fitness, the share of reward
tests that a prompt's greedy code passes. docs/methods.md lists where this departs from the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from promptrl.errors import ConfigError
from promptrl.methods.base import MethodContext
from promptrl.methods.rewriting import rewritten
from promptrl.models.base import Generation, GenerationRequest
from promptrl.refinement import wording
from promptrl.refinement.episode import Episode, Proposal, task_rng
from promptrl.refinement.lexical import WordVectors
from promptrl.refinement.prompt import Prompt, protected_spans

_SYSTEM: Final = "You improve descriptions of programming tasks. You never write code."
_VARIANT: Final = """Rewrite the description of the Python task below for a language model that will write the code. \
Say which types the inputs and the result have, explain in full what has to be done, and name the edge cases. Keep the \
meaning. Plain sentences, no code, at most {words} words.

Description: {instruction}

These lines belong to the task and stay as they are, do not repeat them:
{contract}{kept}"""
_MUTATE: Final = """Rewrite the description of the Python task below so that it is clearer and easier to understand. \
Keep the meaning. Plain sentences, no code, at most {words} words.

Description: {instruction}

These lines belong to the task and stay as they are, do not repeat them:
{contract}{kept}"""
_PREFILL: Final = "Description:"
_ENOUGH_FOR_FIVE: Final = 10  # the unchanged prompt, five variants, four mutants: one whole round of evolution
_NEIGHBOURS: Final = 400
_TRIES: Final = 8


@dataclass(slots=True)
class _Search:
    """One task's evolution; fitness is read from the episode's steps."""

    generation: int = 0
    members: list[Prompt] = field(default_factory=list)
    waiting: list[Proposal] = field(default_factory=list)
    asked: int = 0


@dataclass(slots=True)
class _Generation:
    """A generation in the making: prompts that are there already, and the parents that the model is to rewrite."""

    carried: list[Prompt]
    children: list[Proposal]
    parents: list[Prompt]
    requests: list[GenerationRequest]


class Epic:
    """The search, over many tasks at once: all rewrites that a round needs are one call."""

    name: str = "epic"
    attempts: int | None = None
    reads_states = False

    def __init__(self, context: MethodContext) -> None:
        self._settings = context.settings.epic
        self._size = self._settings.population or (5 if context.attempts >= _ENOUGH_FOR_FIVE else 3)
        self._rewriter = context.rewriter
        self._vectors = context.vectors
        self._seed = context.seed
        self._searches: dict[str, _Search] = {}

    def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> list[Proposal | None]:
        made = {index: self._next_generation(e) for index, e in enumerate(episodes) if self._generation_is_over(e)}
        requests = [request for generation in made.values() for request in generation.requests]
        answers = iter(self._rewriter.generate(requests) if requests else ())
        for index, generation in made.items():
            self._fill(episodes[index], generation, [next(answers) for _ in generation.requests])
        return [self._try_next(episode) for episode in episodes]

    def _try_next(self, episode: Episode) -> Proposal | None:
        if not episode.steps:
            self._searches[episode.task.task_id] = _Search(members=[episode.original])
            return Proposal(episode.original, action="original")
        waiting = self._searches[episode.task.task_id].waiting
        return waiting.pop(0) if waiting else None

    def _generation_is_over(self, episode: Episode) -> bool:
        """Whether the next generation has to be made; not where the present one is good enough."""
        if not episode.steps:
            return False
        search, settings = self._searches[episode.task.task_id], self._settings
        if search.waiting:
            return False
        fitness = _fitness(episode)
        enough = settings.accept_generation if search.generation else settings.accept_first
        return max(fitness[prompt] for prompt in search.members) < enough

    def _next_generation(self, episode: Episode) -> _Generation:
        """What the next generation consists of, cut to the attempts that are left."""
        search = self._searches[episode.task.task_id]
        search.generation += 1
        left = episode.horizon - len(episode.steps)
        if search.generation == 1:
            parents = [episode.original] * min(self._size, left)
            requests = [self._request(episode, search, p, _VARIANT) for p in parents]
            return _Generation([episode.original], [], parents, requests)
        rng = task_rng(self._seed, episode.task.task_id, f"epic {search.generation}")
        carried = self._select(episode, search.members, rng)
        parents = [self._select(episode, search.members, rng) for _ in range(min(self._size - 1, left))]
        children: list[Proposal] = []
        if self._settings.mutator == "words":
            known = {*_fitness(episode)}
            for parent in list(parents):
                if child := self._mutate_words(parent, known, rng):
                    known.add(child)
                    children.append(Proposal(child, action="mutant"))
                    parents.remove(parent)
        requests = [self._request(episode, search, parent, _MUTATE) for parent in parents]
        return _Generation([carried], children, parents, requests)

    def _fill(self, episode: Episode, generation: _Generation, answers: Sequence[Generation]) -> None:
        """Make the generation of what the model answered; the first prompt tried pays for all answers."""
        search = self._searches[episode.task.task_id]
        known = {*_fitness(episode), *(child.prompt for child in generation.children)}
        children = list(generation.children)
        action = "variant" if search.generation == 1 else "mutant"
        for answer in answers:
            prompt, note = rewritten(episode.original, answer)
            if prompt is not None and prompt not in known:
                known.add(prompt)
                children.append(Proposal(prompt, note=note, action=action))
        if not children:
            # A carried-over prompt's greedy answer is known; a further draw of it is the least that can be tried.
            children = [Proposal(generation.carried[0], note="no new prompt found; drawn again", action="redraw")]
        first = children[0]
        children[0] = Proposal(first.prompt, first.note, tuple(answers), first.action)
        search.members = list(dict.fromkeys([*generation.carried, *(child.prompt for child in children)]))
        search.waiting = children

    def _select(self, episode: Episode, members: Sequence[Prompt], rng: np.random.Generator) -> Prompt:
        """A parent drawn by fitness, with replacement; uniformly where nothing passes."""
        fitness = _fitness(episode)
        weights = np.array([fitness[prompt] for prompt in members])
        shares = weights / weights.sum() if weights.sum() > 0 else np.full(len(members), 1 / len(members))
        return members[int(rng.choice(len(members), p=shares))]

    def _mutate_words(self, parent: Prompt, known: set[Prompt], rng: np.random.Generator) -> Prompt | None:
        """A prompt not tried yet with some words exchanged; None where no rule or no neighbour gives one."""
        if self._vectors is None:
            raise ConfigError("the method 'epic' exchanges similar words and needs word vectors in its context")
        for _ in range(_TRIES):
            text = exchange_words(
                parent.instruction, self._vectors, rng, rate=self._settings.word_rate, most=self._settings.candidates
            )
            if text == parent.instruction:
                continue
            if (child := parent.with_instruction(text)) not in known:
                return child
        return None

    def _request(self, episode: Episode, search: _Search, parent: Prompt, template: str) -> GenerationRequest:
        spans = sorted(protected_spans(episode.original.instruction))
        settings = self._settings
        search.asked += 1
        return GenerationRequest(
            user=template.format(
                words=settings.max_words,
                instruction=parent.instruction.strip(),
                contract=parent.contract.strip("\n"),
                kept=f"\n\nKeep exactly as here: {', '.join(spans)}." if spans else "",
            ),
            system=_SYSTEM,
            prefill=_PREFILL,
            stop=("```", "\n\n"),
            temperature=settings.variant_temperature if template is _VARIANT else settings.mutation_temperature,
            top_p=settings.top_p,
            max_new_tokens=settings.max_new_tokens,
            draw=search.asked,
            seed=self._seed,
        )


def exchange_words(text: str, vectors: WordVectors, rng: np.random.Generator, *, rate: float, most: int) -> str:
    """Exchange words for similar ones, each with probability `rate`.

    A word's candidates are those that a rule of `wording` allows in its place, at most `most` of them, the most
    similar by the word vectors first; one is drawn uniformly.
    """
    for place in reversed(wording.places(text, wording.EXCHANGES)):
        old = text[place.start : place.end].lower()
        near = dict(vectors.nearest_words(old, _NEIGHBOURS))
        words = sorted((word for word in place.instead if word in near and word != old), key=lambda w: -near[w])[:most]
        if words and rng.random() < rate:
            text = wording.exchange(text, place, words[int(rng.integers(len(words)))]) or text
    return text


def _fitness(episode: Episode) -> dict[Prompt, float]:
    """The best share of reward tests that each tried prompt's code passed."""
    fitness: dict[Prompt, float] = {}
    for step in episode.steps:
        fitness[step.prompt] = max(fitness.get(step.prompt, 0.0), step.verdict.pass_rate)
    return fitness
