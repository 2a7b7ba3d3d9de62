"""`lexical`: genetic edits of the instruction's words, with parents picked by what their code passed.

An offspring comes from one parent, or from two by one-point crossover, and then from insertion, deletion
and replacement of tokens. Replacements are a word's nearest neighbours in MiniLM's own word-piece
embeddings; insertions come from the phrase bank. Code spans, numbers, quoted literals and identifiers are
never touched, and an edit budget (a floor on the similarity to the original prompt) stops drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from promptrl.refinement.episode import Episode, Individual, Proposal
from promptrl.refinement.phrases import SENTENCES, WORDS
from promptrl.refinement.prompt import Prompt, Token, protected_spans, tokenize
from promptrl.settings import Settings

# Words whose loss or exchange turns a specification into another one.
_KEEP = frozenset(
    [
        "a",
        "an",
        "the",
        "no",
        "not",
        "non",
        "never",
        "none",
        "nor",
        "without",
        "except",
        "unless",
        "all",
        "any",
        "each",
        "every",
        "both",
        "either",
        "neither",
        "only",
        "more",
        "less",
        "most",
        "least",
        "than",
        "greater",
        "larger",
        "smaller",
        "fewer",
        "at",
        "before",
        "after",
        "between",
        "first",
        "last",
        "if",
        "else",
        "when",
        "while",
        "until",
        "and",
        "or",
        "xor",
        "but",
        "is",
        "are",
        "was",
        "be",
        "has",
        "have",
        "of",
        "in",
        "on",
        "to",
        "from",
        "by",
        "with",
        "for",
        "as",
        "into",
        "out",
        "up",
        "down",
        "over",
        "under",
        "odd",
        "even",
        "true",
        "false",
        "minimum",
        "maximum",
        "ascending",
        "descending",
        "increasing",
        "decreasing",
        "positive",
        "negative",
        "left",
        "right",
        "top",
        "bottom",
        "inclusive",
        "exclusive",
        "sum",
        "product",
        "difference",
        "length",
        "count",
        "index",
        "sorted",
        "reverse",
        "reversed",
        "same",
        "different",
        "equal",
        "unique",
        "function",
        "python",
        "write",
        "return",
        "returns",
    ]
)
_SUFFIXES = ("ing", "ed", "ly", "es", "s", "er", "est", "tion", "ment", "able")


class LexicalSettings(Settings):
    """How strong the genetic edits are. Rates are probabilities per offspring unless said otherwise."""

    crossover_rate: float = Field(0.3, ge=0, le=1)
    insertion_rate: float = Field(0.6, ge=0, le=1)
    deletion_rate: float = Field(0.3, ge=0, le=1)
    replacement_rate: float = Field(0.6, ge=0, le=1)
    word_rate: float = Field(0.1, ge=0, le=1, description="share of the replaceable words that a replacement exchanges")
    neighbours: int = Field(5, ge=1, le=50, description="how many nearest words a replacement chooses from")
    neighbour_similarity: float = Field(0.45, ge=-1, le=1, description="cosine below which a neighbour is no synonym")
    selection: Literal["tournament", "proportional"] = "tournament"
    tournament_size: int = Field(2, ge=1)
    similarity_floor: float = Field(0.7, ge=-1, le=1, description="least cosine of offspring and original prompt")
    attempts: int = Field(8, ge=1, description="offspring bred before the least edit is taken instead")


class WordVectors(Protocol):
    """What the operator needs of the encoder."""

    def nearest_words(self, word: str, k: int = 10) -> list[tuple[str, float]]: ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]: ...

    def similarity(self, a: str, b: str) -> float: ...


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
            if not bred:
                continue
            near = self._similarities([(prompt, episodes[index].original) for index, prompt in bred.items()])
            for (index, prompt), similarity in zip(bred.items(), near, strict=True):
                if similarity >= self.settings.similarity_floor:
                    proposals[index] = Proposal(prompt)
            if len(proposals) == len(episodes):
                break
        return [proposals.get(index) or _least_edit(episode) for index, episode in enumerate(episodes)]

    def _offspring(self, episode: Episode) -> Prompt | None:
        """One offspring, unless it is a prompt of the episode already or lost a protected span."""
        child = self._breed(episode.population or [Individual(episode.prompt, 0.0)], episode.rng)
        kept = protected_spans(child) >= protected_spans(episode.original.instruction)
        return episode.prompt.with_instruction(child) if kept and child not in _known(episode) else None

    def _similarities(self, pairs: Sequence[tuple[Prompt, Prompt]]) -> list[float]:
        """Cosine of each pair of prompts."""
        vectors = self.vectors.encode([prompt.render() for pair in pairs for prompt in pair])
        return [float(vectors[2 * i] @ vectors[2 * i + 1]) for i in range(len(pairs))]

    def _breed(self, population: Sequence[Individual], rng: np.random.Generator) -> str:
        mother = self._select(population, rng)
        tokens = tokenize(mother.instruction)
        others = [individual for individual in population if individual.prompt != mother]
        if others and rng.random() < self.settings.crossover_rate:
            father = self._select(others, rng)
            tokens = crossover(tokens, tokenize(father.instruction), rng)
        edits = [
            (self.settings.replacement_rate, self._replace),
            (self.settings.deletion_rate, delete_word),
            (self.settings.insertion_rate, insert_phrase),
        ]
        chosen = [edit for rate, edit in edits if rng.random() < rate]
        for edit in chosen or [insert_phrase]:
            tokens = edit(tokens, rng)
        return "".join(token.text for token in tokens)

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

    def _replace(self, tokens: list[Token], rng: np.random.Generator) -> list[Token]:
        """Exchange a share of the words, at least one, for near neighbours of the same form."""
        options = {i: words for i in _editable(tokens) if (words := self._synonyms(tokens[i].text))}
        if not options:
            return tokens
        places = list(options)
        count = max(1, round(self.settings.word_rate * len(places)))
        edited = list(tokens)
        for place in rng.choice(places, size=min(count, len(places)), replace=False):
            words = options[int(place)]
            edited[int(place)] = Token(_match_case(words[rng.integers(len(words))], tokens[int(place)].text))
        return edited

    def _synonyms(self, word: str) -> list[str]:
        lower = word.lower()
        near = self.vectors.nearest_words(lower, self.settings.neighbours)
        return [w for w, cosine in near if cosine >= self.settings.neighbour_similarity and _form(w) == _form(lower)]


def crossover(mother: Sequence[Token], father: Sequence[Token], rng: np.random.Generator) -> list[Token]:
    """One-point crossover at the ends of sentences, so that both halves stay readable.

    Where a parent has one sentence only, the cut is after it: the child is both, mother first.
    Protected spans may then appear twice or not at all; the caller checks for that.
    """
    first, second = _sentences(mother), _sentences(father)
    cut = int(rng.integers(1, len(first) + 1))
    # The father gives what follows the same point; sentences that the mother's half holds are not said twice.
    head = first[:cut]
    tail = [sentence for sentence in second[min(cut, len(second)) :] or second[-1:] if sentence not in head]
    tokens = [token for sentence in head for token in sentence]
    for sentence in tail:
        if tokens and not tokens[-1].text.isspace():
            tokens.append(Token(" "))
        tokens += sentence
    return tokens


def delete_word(tokens: Sequence[Token], rng: np.random.Generator) -> list[Token]:
    """Drop one word that carries little of the specification, and one of the spaces around it."""
    places = [
        i
        for i in _editable(tokens)
        if 0 < i < len(tokens) - 1 and tokens[i - 1].text == " " and tokens[i + 1].text == " "
    ]
    adverbs = [i for i in places if tokens[i].text.lower().endswith("ly")]
    places = adverbs or places
    if not places:
        return list(tokens)
    place = places[rng.integers(len(places))]
    return [*tokens[: place - 1], *tokens[place + 1 :]]


def insert_phrase(tokens: Sequence[Token], rng: np.random.Generator) -> list[Token]:
    """Add a sentence of guidance after a sentence, or (one time in four) an adverb at the end of the first."""
    sentences = _sentences(tokens)
    text = "".join(token.text for token in tokens)
    if rng.random() < 0.25:
        word = WORDS[rng.integers(len(WORDS))]
        for i, token in enumerate(tokens):
            if token.is_word and token.text.lower() in (
                "write",
                "find",
                "check",
                "return",
                "compute",
                "count",
                "given",
            ):
                return [*tokens[: i + 1], Token(" "), Token(word), *tokens[i + 1 :]]
    fresh = [sentence for sentence in SENTENCES if sentence not in text] or list(SENTENCES)
    phrase = tokenize(fresh[rng.integers(len(fresh))])
    place = int(rng.integers(1, len(sentences) + 1)) if sentences else 0
    edited: list[Token] = []
    for index, sentence in enumerate(sentences):
        edited += sentence
        if index + 1 == place:
            if not edited[-1].text.isspace():
                edited.append(Token(" "))
            edited += phrase
            if index + 1 < len(sentences):
                edited.append(Token(" "))
    return edited or phrase


def _known(episode: Episode) -> set[str]:
    return {episode.prompt.instruction, *(individual.prompt.instruction for individual in episode.population)}


def _least_edit(episode: Episode) -> Proposal:
    """Where every offspring was a copy or drifted too far: one new sentence of guidance on the original."""
    known = _known(episode)
    for index in episode.rng.permutation(len(SENTENCES)):
        child = f"{episode.original.instruction.rstrip()} {SENTENCES[index]}".strip()
        if child not in known:
            return Proposal(episode.prompt.with_instruction(child), note="edit budget spent; least edit taken")
    return Proposal(episode.prompt, note="no new offspring found; prompt kept")


def _editable(tokens: Sequence[Token]) -> list[int]:
    return [
        i for i, token in enumerate(tokens) if token.is_word and len(token.text) > 2 and token.text.lower() not in _KEEP
    ]


def _sentences(tokens: Sequence[Token]) -> list[list[Token]]:
    """Runs of tokens that end with a full stop (or ? or !) and the space after it."""
    runs: list[list[Token]] = [[]]
    for i, token in enumerate(tokens):
        runs[-1].append(token)
        ended = token.text.isspace() and i > 0 and tokens[i - 1].text in (".", "?", "!")
        if ended:
            runs.append([])
    return [run for run in runs if run]


def _form(word: str) -> str:
    """The word's ending, a rough stand-in for its part of speech where that can be told from it."""
    return next((suffix for suffix in _SUFFIXES if word.endswith(suffix) and len(word) > len(suffix) + 2), "")


def _match_case(word: str, pattern: str) -> str:
    if pattern.isupper() and len(pattern) > 1:
        return word.upper()
    return word.capitalize() if pattern[:1].isupper() else word
