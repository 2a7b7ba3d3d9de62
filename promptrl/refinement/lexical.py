"""`lexical`: genetic edits of the instruction's words, with parents picked by what their code passed.

An instruction is seen as the task's own text and, kept apart from it, guidance: sentences of the phrase bank,
recognised exactly. An offspring comes from one parent, or from two by one-point crossover, and then from
replacement, deletion and insertion. None of them may change what the task asks for:

* A replacement comes from the word's nearest neighbours in MiniLM's own word-piece embeddings, the closer the likelier,
  but only where a rule of `wording` says that the neighbour has the same form and meaning in that place.
* A deletion drops a word that a rule of `wording` calls empty in that place, or else a sentence of guidance.
* An insertion adds a sentence of guidance after the task's text, or a word in a place that a rule names.
* Crossover cuts between two sentences: the child has each sentence of the original once, in one parent's words,
  and the guidance of both up to a maximum. Where a rewrite moved the sentences, guidance alone is exchanged.

Code spans, numbers, quoted literals and identifiers are never touched, and an edit budget (a floor on the
similarity to the original prompt) stops drift.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from promptrl.refinement import wording
from promptrl.refinement.episode import Episode, Individual, Proposal
from promptrl.refinement.phrases import PHRASES, suitable
from promptrl.refinement.prompt import Prompt, protected_spans
from promptrl.settings import Settings

# Two sentences say the same in other words when they share at least this part of their words.
_ALIKE: Final = 0.5


class LexicalSettings(Settings):
    """How strong the genetic edits are. Rates are probabilities per offspring unless said otherwise."""

    crossover_rate: float = Field(0.3, ge=0, le=1)
    insertion_rate: float = Field(0.6, ge=0, le=1)
    deletion_rate: float = Field(0.3, ge=0, le=1)
    replacement_rate: float = Field(0.6, ge=0, le=1)
    word_rate: float = Field(0.3, ge=0, le=1, description="share of the replaceable words that a replacement exchanges")
    word_insertion: float = Field(0.3, ge=0, le=1, description="share of the insertions that add a word, no sentence")
    max_guidance: int = Field(3, ge=1, description="most sentences of guidance in an offspring")
    neighbours: int = Field(40, ge=1, le=400, description="how many nearest words a replacement is looked for in")
    neighbour_similarity: float = Field(0.2, ge=-1, le=1, description="cosine below which a neighbour is no synonym")
    selection: Literal["tournament", "proportional"] = "tournament"
    tournament_size: int = Field(2, ge=1)
    similarity_floor: float = Field(0.7, ge=-1, le=1, description="least cosine of offspring and original prompt")
    attempts: int = Field(8, ge=1, description="offspring bred before the least edit is taken instead")


class WordVectors(Protocol):
    """What the operators need of the encoder."""

    def nearest_words(self, word: str, k: int = 10) -> list[tuple[str, float]]: ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]: ...

    def similarity(self, a: str, b: str) -> float: ...


@dataclass(frozen=True, slots=True)
class Genome:
    """An instruction in its two parts."""

    task: str
    guidance: tuple[str, ...] = ()

    @classmethod
    def read(cls, instruction: str, original: str) -> Genome:
        """Take the guidance out of an instruction; phrases that the original itself says belong to the task."""
        task, found = instruction, []
        for phrase in PHRASES:
            if phrase.text in original:
                continue
            pattern = rf"(?:\A|\s+){re.escape(phrase.text)}(?=\s|\Z)"
            if match := re.search(pattern, task):
                found.append((instruction.index(phrase.text), phrase.text))
                rest = task[match.end() :]
                task = task[: match.start()] + rest if match.start() else rest.lstrip()
        return cls(task, tuple(text for _, text in sorted(found)))

    def write(self) -> str:
        """The instruction: guidance after the task's text, but before a last sentence such as "For example:"."""
        if not self.guidance:
            return self.task
        text = self.task.rstrip()
        *before, last = wording.sentences(text) or [""]
        head = "".join(before).rstrip() if last.endswith(":") else text
        tail = text[len(head) :]
        # Where the whole text is one such sentence, guidance comes first.
        return f"{head}{wording.joint(head)}{' '.join(self.guidance)}{tail if head or not tail else ' ' + tail}"


class Lexical:
    """The genetic operator over the episode's population."""

    def __init__(self, vectors: WordVectors, settings: LexicalSettings | None = None) -> None:
        self.vectors = vectors
        self.settings = settings or LexicalSettings()

    def propose(self, episodes: Sequence[Episode]) -> list[Proposal]:
        proposals: dict[int, Proposal] = {}
        for _ in range(self.settings.attempts):
            # One more offspring for every episode still without one, and one batched encoding for all of them.
            bred = {}
            for index, episode in enumerate(episodes):
                if index not in proposals and (prompt := self._offspring(episode)) is not None:
                    bred[index] = prompt
            if bred:
                near = self._similarities([(prompt, episodes[index].original) for index, prompt in bred.items()])
                for (index, prompt), similarity in zip(bred.items(), near, strict=True):
                    if similarity >= self.settings.similarity_floor:
                        proposals[index] = Proposal(prompt)
            if len(proposals) == len(episodes):
                break
        return [proposals.get(index) or _least_edit(episode) for index, episode in enumerate(episodes)]

    def _offspring(self, episode: Episode) -> Prompt | None:
        """One offspring, unless it is a prompt of the episode already or lost a protected span."""
        child = self._breed(episode)
        kept = protected_spans(child) >= protected_spans(episode.original.instruction)
        return episode.prompt.with_instruction(child) if kept and child not in _known(episode) else None

    def _similarities(self, pairs: Sequence[tuple[Prompt, Prompt]]) -> list[float]:
        """Cosine of each pair of prompts."""
        vectors = self.vectors.encode([prompt.render() for pair in pairs for prompt in pair])
        return [float(vectors[2 * i] @ vectors[2 * i + 1]) for i in range(len(pairs))]

    def _breed(self, episode: Episode) -> str:
        rng, original = episode.rng, episode.original.instruction
        population = episode.population or [Individual(episode.prompt, 0.0)]
        mother = self._select(population, rng)
        child = Genome.read(mother.instruction, original)
        others = [individual for individual in population if individual.prompt != mother]
        if others and rng.random() < self.settings.crossover_rate:
            father = Genome.read(self._select(others, rng).instruction, original)
            child = crossover(child, father, rng, self.settings.max_guidance)
        phrases = suitable(original, episode.task.style)
        if rng.random() < self.settings.replacement_rate:
            child = replace(child, task=self._replace(child.task, rng))
        if rng.random() < self.settings.deletion_rate:
            child = delete(child, rng)
        if rng.random() < self.settings.insertion_rate or child.write() == mother.instruction:
            child = self._insert(child, phrases, rng)
        return child.write()

    def _select(self, population: Sequence[Individual], rng: np.random.Generator) -> Prompt:
        """A parent by pass rate; ties, and a population in which nothing passes, are drawn uniformly."""
        rates = np.array([individual.pass_rate for individual in population])
        if self.settings.selection == "tournament":
            rivals = rng.choice(
                len(population), size=min(self.settings.tournament_size, len(population)), replace=False
            )
            return population[int(max(rivals, key=lambda rival: rates[rival]))].prompt
        weights = rates / rates.sum() if rates.sum() > 0 else np.full(len(rates), 1 / len(rates))
        return population[rng.choice(len(population), p=weights)].prompt

    def _replace(self, text: str, rng: np.random.Generator) -> str:
        """Exchange a share of the replaceable words, at least one, for near neighbours."""
        options = []
        for place in wording.places(text, wording.EXCHANGES):
            old, least = text[place.start : place.end].lower(), self.settings.neighbour_similarity
            near = dict(self.vectors.nearest_words(old, self.settings.neighbours))
            words = {w: near[w] for w in place.instead if w != old and near.get(w, -2) >= least}
            if words:
                options.append((place, words))
        if not options:
            return text
        count = max(1, round(self.settings.word_rate * len(options)))
        # From the last place to the first, so that the places still to come do not move.
        for choice in sorted(rng.choice(len(options), size=count, replace=False), reverse=True):
            place, words = options[int(choice)]
            weights = np.maximum(list(words.values()), 1e-3)
            word = list(words)[rng.choice(len(words), p=weights / weights.sum())]
            text = wording.exchange(text, place, word) or text
        return text

    def _insert(self, genome: Genome, phrases: Sequence[str], rng: np.random.Generator) -> Genome:
        """Add a word, or a sentence of guidance; one of those already there makes room for it where they are many."""
        places = wording.places(genome.task, wording.INSERTIONS)
        if places and rng.random() < self.settings.word_insertion:
            place = places[rng.integers(len(places))]
            word = place.instead[rng.integers(len(place.instead))]
            return replace(genome, task=wording.insert(genome.task, place, word) or genome.task)
        fresh = [phrase for phrase in phrases if phrase not in genome.write()]
        if not fresh:
            return genome
        guidance = list(genome.guidance)
        while len(guidance) >= self.settings.max_guidance:
            guidance.pop(int(rng.integers(len(guidance))))
        return replace(genome, guidance=(*guidance, fresh[rng.integers(len(fresh))]))


def crossover(mother: Genome, father: Genome, rng: np.random.Generator, most: int) -> Genome:
    """One-point crossover between sentences, and the guidance of both, at most `most` sentences of it."""
    guidance = list(dict.fromkeys((*mother.guidance, *father.guidance)))
    while len(guidance) > max(most, 1):
        guidance.pop(int(rng.integers(len(guidance))))
    task = mother.task
    first, second = wording.sentences(mother.task), wording.sentences(father.task)
    # Only where each sentence of one says what the other's says can halves be joined without losing a requirement.
    if len(first) == len(second) > 1 and all(_alike(a, b) for a, b in zip(first, second, strict=True)):
        cut = int(rng.integers(1, len(first)))
        task = "".join((*first[:cut], *second[cut:]))
    return Genome(task, tuple(guidance))


def delete(genome: Genome, rng: np.random.Generator) -> Genome:
    """Drop one word that says little, or where there is none, one sentence of guidance."""
    shorter = [wording.drop(genome.task, place) for place in wording.places(genome.task, wording.DELETIONS)]
    if texts := [text for text in shorter if text]:
        return replace(genome, task=texts[rng.integers(len(texts))])
    if genome.guidance:
        gone = int(rng.integers(len(genome.guidance)))
        return replace(genome, guidance=(*genome.guidance[:gone], *genome.guidance[gone + 1 :]))
    return genome


def _known(episode: Episode) -> set[str]:
    """The instructions that the episode has tried or holds."""
    prompts: Iterable[Prompt] = (
        episode.prompt,
        episode.original,
        *(individual.prompt for individual in episode.population),
        *(step.prompt for step in episode.steps),
    )
    return {prompt.instruction for prompt in prompts}


def _least_edit(episode: Episode) -> Proposal:
    """Where every offspring was a copy or drifted too far: the original with as little new guidance as possible."""
    known, original = _known(episode), episode.original.instruction
    phrases = [phrase for phrase in suitable(original, episode.task.style) if phrase not in original]
    phrases = [phrases[index] for index in episode.rng.permutation(len(phrases))]
    for guidance in (*combinations(phrases, 1), *combinations(phrases, 2)):
        child = Genome(original, guidance).write()
        if child not in known:
            return Proposal(episode.prompt.with_instruction(child), note="edit budget spent; least edit taken")
    return Proposal(episode.prompt, note="no new offspring found; prompt kept")


def _alike(first: str, second: str) -> bool:
    """Whether two sentences share most of their words."""
    a, b = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    return len(a & b) >= _ALIKE * max(len(a | b), 1)
