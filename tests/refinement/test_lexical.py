"""The lexical operator: what it may change, and how its offspring read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptrl.errors import PromptRLError
from promptrl.execution.verdict import Outcome, Status, TestResult, Verdict
from promptrl.models.base import Generation
from promptrl.refinement.episode import Episode, Individual, Step
from promptrl.refinement.lexical import Genome, Lexical, LexicalSettings, crossover, delete
from promptrl.refinement.phrases import PHRASES, suitable
from promptrl.refinement.prompt import Prompt, protected_spans
from promptrl.refinement.wording import DELETIONS, EXCHANGES, INSERTIONS, drop, exchange, insert, places, sentences
from promptrl.tasks import load_benchmark
from tests.refinement.samples import INSTRUCTIONS, episode_of
from tests.scripted import HashingEncoder, make_engine

# Words that make another task of it when they go.
_TELLING = re.compile(
    r"""\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|once|twice|both|half|first|second|third|last|\w*th
    |next|previous|\w+est|most|least|more|less|than|greater|smaller|larger|fewer|maximum|minimum|not|no|non|none|never
    |only|all|any|each|every|even|odd|positive|negative|ascending|descending|increasing|decreasing|left|right|start\w*
    |end\w*|before|after|between|prefix\w*|suffix\w*|vowels?|consonants?|uppercase|lowercase|upper|lower|row|column
    |rows|columns|sum|product|count|sort\w*|add|remove|multipl\w+|append|reverse|shift|index\w*|length|unique|distinct
    |same|different|equal|true|false|if|otherwise|and|or|return|returns|empty|prime)\b""",
    re.IGNORECASE | re.VERBOSE,
)


class EverySynonym(HashingEncoder):
    """Holds every word close to all that any rule would take instead, and to words that none would."""

    def nearest_words(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        return [(other, 0.9) for rule in EXCHANGES for other in rule.instead.split()] + [("shortest", 0.95)]


def ask(text: str, *others: tuple[str, float], seed: int = 0, **settings_: object) -> str:
    lexical = Lexical(EverySynonym(), LexicalSettings.model_validate({"similarity_floor": -1, **settings_}))
    (proposal,) = lexical.propose([episode_of(text, *others, seed=seed)])
    return proposal.prompt.instruction


def telling(text: str) -> Counter[str]:
    return Counter(word.lower() for word in _TELLING.findall(text))


@settings(max_examples=150, deadline=None)
@given(INSTRUCTIONS, INSTRUCTIONS, st.integers(0, 2**32), st.floats(0, 1))
def test_protected_spans_stay_and_the_child_is_new(first: str, second: str, seed: int, rate: float) -> None:
    episode = episode_of(first, (second, rate), seed=seed)
    (proposal,) = Lexical(EverySynonym()).propose([episode])
    assert proposal.prompt.contract == episode.original.contract
    assert protected_spans(proposal.prompt.instruction) >= protected_spans(first)
    assert proposal.prompt.instruction not in {first, second}
    if proposal.note is None:
        encoder, floor = HashingEncoder(), LexicalSettings().similarity_floor
        assert encoder.similarity(proposal.prompt.render(), episode.original.render()) >= floor


@settings(max_examples=150, deadline=None)
@given(INSTRUCTIONS, st.integers(0, 2**32), st.integers(1, 6))
def test_a_lineage_keeps_every_sentence_and_telling_word(text: str, seed: int, generations: int) -> None:
    episode, lexical = episode_of(text, seed=seed), Lexical(EverySynonym(), LexicalSettings(similarity_floor=-1))
    for _ in range(generations):
        (proposal,) = lexical.propose([episode])
        child = Genome.read(proposal.prompt.instruction, text)
        assert telling(child.task) == telling(text)
        assert len(sentences(f"{child.task} ")) == len(sentences(f"{text} "))
        assert len(child.guidance) == len(set(child.guidance)) <= 3
        episode.population.append(Individual(proposal.prompt, 0.0))


def test_the_episodes_generator_fixes_the_child() -> None:
    assert ask("Find the biggest value of `xs`.", seed=4) == ask("Find the biggest value of `xs`.", seed=4)


def test_what_the_episode_has_tried_is_not_proposed_again() -> None:
    text = "Sort it."
    episode = episode_of(text)
    lexical = Lexical(HashingEncoder(), LexicalSettings(similarity_floor=-1))
    for _ in range(40):
        (proposal,) = lexical.propose([episode])
        assert proposal.prompt not in [step.prompt for step in episode.steps]
        episode.steps.append(step_of(proposal.prompt, len(episode.steps)))


def test_parents_are_chosen_by_pass_rate() -> None:
    good, bad = "Return good things.", "Return bad things."
    for selection in ("tournament", "proportional"):
        lexical = Lexical(HashingEncoder(), LexicalSettings.model_validate({"selection": selection}))
        rng = np.random.default_rng(0)
        population = [Individual(Prompt(bad, ""), 0.1), Individual(Prompt(good, ""), 0.9)]
        picks = [lexical._select(population, rng).instruction for _ in range(200)]
        assert picks.count(good) > 150


def test_one_encoding_per_round_for_all_episodes() -> None:
    encoder = HashingEncoder()
    Lexical(encoder).propose([episode_of(f"Find the given values of `x{i}`.", seed=i) for i in range(8)])
    assert len(encoder.calls) <= LexicalSettings().attempts
    assert encoder.calls[0] > 8


def seeds(most: int = 30) -> Iterator[np.random.Generator]:
    yield from (np.random.default_rng(seed) for seed in range(most))


def test_crossover_takes_each_sentence_from_one_parent_and_the_guidance_of_both() -> None:
    mother = Genome("Find the sum of a list. Use the given loop. Return the total.", ("Watch out for edge cases.",))
    father = Genome("Get the sum of a list. Use the loop. Return the total.", ("Write complete, working code.",))
    children = {crossover(mother, father, rng, 3) for rng in seeds()}
    assert {child.task for child in children} == {
        "Find the sum of a list. Use the loop. Return the total.",
        "Find the sum of a list. Use the given loop. Return the total.",
    }
    assert {child.guidance for child in children} == {mother.guidance + father.guidance}
    assert {len(crossover(mother, father, rng, 1).guidance) for rng in seeds()} == {1}


@pytest.mark.parametrize(
    "rewrite",
    ["Sum it with the given loop.", "Return the total. Find the sum of a list.", "Loop over it. Print what comes out."],
)
def test_crossover_with_a_rewrite_exchanges_guidance_alone(rewrite: str) -> None:
    mother = Genome("Find the sum of a list. Return the total.")
    father = Genome(rewrite, ("Watch out for edge cases.",))
    assert {crossover(mother, father, rng, 3) for rng in seeds()} == {Genome(mother.task, father.guidance)}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Use it, i.e. the list, e.g. this one etc. and so on vs. that.", 1),
        ("Rules:\n1. Not empty.\n2. Sorted.", 2),
        ("Print 0, 1, ... and so on. Then stop.", 2),
        ("Take it (not empty. Not sorted) and go. Stop.", 2),
        ("It is less than 10. Return it.", 2),
        ('Replace every "." by a space. Stop!', 2),
        ("A title\n\nFind it. What is it? ", 3),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert "".join(sentences(text)) == text
    assert len(sentences(text)) == count


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Sort it.", "Sort it. G"),
        ("Sort it", "Sort it. G"),
        ("Sort it by `x`\n", "Sort it by `x`. G"),
        ("Sort\nit.", "Sort\nit.\nG"),
        ("Replace spaces\nwith -", "Replace spaces\nwith -\n\nG"),
        ("Rules:\n* no sort\n* x < 3", "Rules:\n* no sort\n* x < 3\n\nG"),
        ("Sort it.\n\nFor example:", "Sort it. G\n\nFor example:"),
        ("Sort the list\nas follows:", "G Sort the list\nas follows:"),
        ("", "G"),
    ],
)
def test_guidance_stands_after_the_tasks_text_and_is_found_again(text: str, written: str) -> None:
    guidance = (PHRASES[1].text, PHRASES[0].text)
    instruction = Genome(text, guidance).write()
    assert instruction == written.replace("G", " ".join(guidance))
    assert Genome.read(instruction, text).guidance == guidance
    assert telling(Genome.read(instruction, text).task) == telling(text)


def test_a_phrase_that_the_task_itself_says_is_no_guidance() -> None:
    text = "Sort it. Watch out for edge cases."
    assert Genome.read(text, text) == Genome(text)


def test_phrases_suit_the_task() -> None:
    assert "Return the result instead of printing it." not in suitable("Print the sum.", "function")
    assert "Use only the standard library." not in suitable("Sort it with numpy.", "function")
    function, stdin = suitable("Sort it.", "function"), suitable("Sort it.", "stdin")
    assert not [phrase for phrase in function if re.search("print only|standard input|output", phrase, re.IGNORECASE)]
    assert not [phrase for phrase in stdin if re.search("function|return|argument", phrase, re.IGNORECASE)]
    assert not [p for p in PHRASES if re.search("example|signature|above|below", p.text)]


def changed(text: str, rules: Any, edit: Any) -> set[str]:
    return {new for p in places(text, rules) for word in p.instead if (new := edit(text, p, word)) and new != text}


def dropped(text: str) -> list[str | None]:
    return [drop(text, place) for place in places(text, DELETIONS)]


@pytest.mark.parametrize(
    "text",
    [
        "Given a list, find out given that you should, which will.",
        "The longest of two given. It is given by three vowels.",
        "Number of moves to get sorted lists you are required to make.",
        "Create a list of specific-purpose items 'a given b' and `to find the`.",
    ],
)
def test_words_stay_where_their_form_or_meaning_is_another(text: str) -> None:
    assert not changed(text, EXCHANGES, exchange)
    assert not [place for place in places(text, DELETIONS) if "out" not in text[place.start : place.end]]


def test_edits_keep_articles_case_and_line_breaks() -> None:
    assert changed("a given number", EXCHANGES, exchange) == {
        "a provided number",
        "a supplied number",
        "a specified number",
    }
    assert changed("FIND all of it", EXCHANGES, exchange) == {
        "DETERMINE all of it",
        "OBTAIN all of it",
        "GET all of it",
    }
    assert dropped("Sort the\ngiven list") == ["Sort the\nlist"]
    assert dropped("Sort the given\nlist") == ["Sort the\nlist"]
    assert dropped("Please sort it") == ["Sort it"]
    assert "Please write an empty function" in changed("Write an empty function", INSERTIONS, insert)
    assert "Write a function to reliably sort it" in changed("Write a function to sort it", INSERTIONS, insert)


def test_deletion_drops_guidance_where_no_word_is_empty() -> None:
    genome = Genome("Sort two lists.", ("Watch out for edge cases.",))
    assert delete(genome, np.random.default_rng(0)) == Genome("Sort two lists.")
    assert delete(Genome("Sort two lists."), np.random.default_rng(0)) == Genome("Sort two lists.")


@pytest.mark.parametrize("rate", ["replacement_rate", "deletion_rate", "insertion_rate"])
def test_each_edit_can_be_had_alone(rate: str) -> None:
    rates: dict[str, Any] = dict.fromkeys(
        ("crossover_rate", "replacement_rate", "deletion_rate", "insertion_rate", "word_insertion"), 0.0
    )
    text = "Find the sum of the given list."
    child = ask(text, **{**rates, rate: 1.0})
    words = Genome.read(child, text)
    assert bool(words.guidance) == (rate == "insertion_rate")
    assert len(words.task.split()) == (6 if rate == "deletion_rate" else 7)


def step_of(prompt: Prompt, index: int) -> Step:
    verdict = Verdict(Status.FAILED, (TestResult(Outcome.WRONG, "7"),))
    return Step(index, "lexical", prompt, 0, Generation("", 1, 1, "stop"), "code", verdict, -1.0, False, False)


def test_the_population_takes_in_children_while_nothing_passes() -> None:
    engine = make_engine(lambda request: "", cast(Any, None), population_size=3)
    episode = episode_of("Sort it.")
    for index in range(6):
        episode.steps.append(step_of(Prompt(f"Sort it {index}.", episode.original.contract), index))
        engine._remember(episode, episode.steps[-1])
    assert [individual.prompt.instruction for individual in episode.population] == [
        "Sort it.",
        "Sort it 5.",
        "Sort it 4.",
    ]


@pytest.fixture(scope="module")
def minilm() -> Any:
    from promptrl.assets import find_model
    from promptrl.models import PromptEncoder

    try:
        return PromptEncoder(find_model("minilm"))
    except PromptRLError as error:
        pytest.skip(f"the encoder is not here: {error}")


def test_offspring_of_real_tasks_with_the_real_encoder(minilm: Any) -> None:
    lexical = Lexical(minilm)
    tasks = [task for task in load_benchmark("humaneval").tasks if len(task.text) < 800][::4]
    episodes = []
    for seed in range(3):
        for task in tasks:
            prompt = Prompt.from_task(task)
            episode = Episode(task, task.base, 5, np.random.default_rng(seed), prompt, prompt)
            episode.population = [Individual(prompt, 0.0)]
            episodes.append(episode)
    for _ in range(3):
        for episode, proposal in zip(episodes, lexical.propose(episodes), strict=True):
            text, child = episode.original.instruction, proposal.prompt.instruction
            assert proposal.note is None
            assert child not in [individual.prompt.instruction for individual in episode.population]
            assert proposal.prompt.contract == episode.original.contract
            assert protected_spans(child) >= protected_spans(text)
            genome = Genome.read(child, text)
            assert telling(genome.task) == telling(text)
            # A full stop that the last sentence lacked may have been added, nothing else.
            before, after = sentences(text.rstrip()), sentences(genome.task.rstrip())
            assert len(before) == len(after)
            for old, new in zip(before, after, strict=True):
                lost = Counter(re.findall(r"\w+", old.lower())) - Counter(re.findall(r"\w+", new.lower()))
                assert lost.total() <= 6
                assert re.sub(r"\S", "", old).count("\n") == re.sub(r"\S", "", new).count("\n")
            said = Counter(piece.strip() for piece in sentences(child) if piece.strip())
            assert all(n == 1 or said[piece] <= text.count(piece) for piece, n in said.items())
            episode.population = [*episode.population, Individual(proposal.prompt, 0.0)][-6:]
    offspring = {e.population[-1].prompt.instruction for e in episodes}
    print("\n\n".join(sorted(offspring)[::4][:20]))
    assert len(offspring) > 0.9 * len(episodes)
