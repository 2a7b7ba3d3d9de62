"""The EPiC-style search: its phases, its batching, its selection, and the authors' faults that it does not have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from promptrl.evaluation.records import Record, read_records
from promptrl.evaluation.runner import evaluate
from promptrl.execution import Judge
from promptrl.methods import MethodContext
from promptrl.methods.epic import Epic, exchange_words
from promptrl.methods.rewriting import rewritten
from promptrl.methods.search_settings import EpicSettings, MethodSettings
from promptrl.models.base import Generation, GenerationRequest
from promptrl.refinement.budget import Budget, MeteredModel
from promptrl.refinement.prompt import Prompt, protected_spans
from promptrl.tasks.task import Task
from tests.refinement.samples import INSTRUCTIONS
from tests.scripted import HashingEncoder, ScriptedModel, half_right, make_engine, make_task, number_of, right, wrong

ORIGINAL = "Write a function that slowly adds {} to the given value `x`. Return the result."


class Vectors(HashingEncoder):
    """Every word that a rule allows is near, in alphabetical order."""

    def nearest_words(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        near = ["supplied", "specified", "provided", "implement", "develop", "define", "create", "given", "write"]
        return [(other, 0.9 - 0.01 * place) for place, other in enumerate(near) if other != word][:k]


def variant(request: GenerationRequest) -> str:
    """Another text for each draw; the number and `x` of the task stay in it."""
    number = number_of(request)
    return f" Write a function that takes the given integer `x` and adds {number} to it, way {chr(96 + request.draw)}."


def run(
    judge: Judge,
    path: Path,
    answer: object,
    *,
    rewrite: object = variant,
    tasks: Sequence[Task] = (make_task(1), make_task(2), make_task(3)),
    batch_size: int = 8,
    attempts: int = 5,
    seed: int = 0,
    protocol: str = "paper",
    **settings: object,
) -> tuple[dict[str, list[Record]], ScriptedModel]:
    model = ScriptedModel(rewrite)  # type: ignore[arg-type]
    meter = MeteredModel(model)
    engine = make_engine(answer, judge, rewriter=meter, horizon=attempts, seed=seed, protocol=protocol)  # type: ignore[arg-type]
    context = MethodContext(
        engine.actions,
        seed,
        rewriter=meter,
        vectors=Vectors(),
        settings=MethodSettings(epic=EpicSettings.model_validate(settings)),
        attempts=attempts,
    )
    evaluate(Epic(context), engine, tasks, path, seed=seed, budget=Budget(), meter=meter, batch_size=batch_size)
    records: dict[str, list[Record]] = {}
    for record in read_records(path):
        records.setdefault(record["task_id"], []).append(record)
    return records, model


def never(request: GenerationRequest) -> str:
    return wrong(number_of(request))


def test_the_unchanged_prompt_comes_first_and_ends_the_search_where_it_passes(judge: Judge, tmp_path: Path) -> None:
    records, model = run(judge, tmp_path / "r.jsonl", lambda request: right(number_of(request)))
    assert [[r["instruction"] for r in lines] for lines in records.values()] == [
        [ORIGINAL.format(n)] for n in (1, 2, 3)
    ]
    assert model.batches == []


def test_one_call_per_phase_for_all_tasks_and_only_what_can_still_be_tried(judge: Judge, tmp_path: Path) -> None:
    records, model = run(judge, tmp_path / "r.jsonl", never, mutator="model")
    # Three variants of each task in one batch, then one mutant of each, as one attempt is left.
    assert [len(batch) for batch in model.batches] == [9, 3]
    assert {request.temperature for request in model.batches[0]} == {0.9}
    assert {request.temperature for request in model.batches[1]} == {0.8}
    assert len({(request.user, request.draw) for request in model.requests}) == 12
    for lines in records.values():
        assert [line["action"] for line in lines] == ["original", "variant", "variant", "variant", "mutant"]
        # A prompt that was carried over costs no attempt: each one tried is new, and its code is greedy.
        assert len({line["prompt"] for line in lines}) == 5
        assert {line["draw"] for line in lines} == {0}
        assert [line["rewrite_calls"] for line in lines] == [0, 3, 0, 0, 1]


@pytest.mark.parametrize(
    ("attempts", "settings", "actions"),
    [
        (10, {}, ["original"] + ["variant"] * 5 + ["mutant"] * 4),
        (9, {}, ["original"] + ["variant"] * 3 + ["mutant"] * 5),
        (5, {"population": 10}, ["original"] + ["variant"] * 4),
        (2, {}, ["original", "variant"]),
        (1, {}, ["original"]),
    ],
)
def test_the_population_fits_the_budget(
    judge: Judge, tmp_path: Path, attempts: int, settings: dict[str, Any], actions: list[str]
) -> None:
    records, _ = run(judge, tmp_path / "r.jsonl", never, attempts=attempts, tasks=[make_task(1)], **settings)
    assert [line["action"] for line in records["Scripted/1"]] == actions


def test_word_mutants_cost_no_call_and_keep_what_must_stay(judge: Judge, tmp_path: Path) -> None:
    records, model = run(judge, tmp_path / "r.jsonl", never, mutator="words")
    assert [len(batch) for batch in model.batches] == [9]
    for lines in records.values():
        mutant, before = lines[-1], {line["instruction"] for line in lines[:-1]}
        assert mutant["action"] == "mutant"
        assert mutant["instruction"] not in before
        assert any(len(mutant["instruction"].split()) == len(text.split()) for text in before)
        assert "`x`" in mutant["instruction"]


def test_parents_are_drawn_by_fitness_and_uniformly_where_nothing_passes(judge: Judge, tmp_path: Path) -> None:
    def second_variant_is_half_right(request: GenerationRequest) -> str:
        number = number_of(request)
        return half_right(number) if "way b" in request.user else wrong(number)

    tasks = [make_task(number) for number in range(1, 13)]
    _, model = run(judge, tmp_path / "r.jsonl", second_variant_is_half_right, tasks=tasks, mutator="model")
    parents = [request.user for request in model.requests if request.temperature == 0.8]
    assert len(parents) == 12
    assert all("way b" in user for user in parents)
    _, model = run(judge, tmp_path / "s.jsonl", never, tasks=tasks, mutator="model")
    parents = [request.user for request in model.requests if request.temperature == 0.8]
    assert len({user.split("way ")[1][0] if "way " in user else "original" for user in parents}) == 4


def test_a_search_depends_on_seed_and_task_alone(judge: Judge, tmp_path: Path) -> None:
    def prompts(name: str, **how: object) -> dict[str, list[str]]:
        records, _ = run(judge, tmp_path / name, never, attempts=8, **how)  # type: ignore[arg-type]
        return {task_id: [line["prompt"] for line in lines] for task_id, lines in records.items()}

    first = prompts("a")
    assert prompts("b", batch_size=1) == first
    assert prompts("c", tasks=[make_task(3), make_task(1)]) == {key: first[key] for key in ("Scripted/3", "Scripted/1")}
    assert prompts("d", seed=1) != first


def test_below_a_full_pass_only_where_it_is_asked_for(judge: Judge, tmp_path: Path) -> None:
    def half(request: GenerationRequest) -> str:
        return half_right(number_of(request))

    assert len(run(judge, tmp_path / "a", half)[0]["Scripted/1"]) == 5
    assert len(run(judge, tmp_path / "b", half, accept_first=0.5)[0]["Scripted/1"]) == 1
    # A generation is finished before it is judged good enough.
    assert len(run(judge, tmp_path / "c", half, accept_generation=0.5)[0]["Scripted/1"]) == 4


def test_one_task_does_not_depend_on_how_many_others_are_solved(judge: Judge, tmp_path: Path) -> None:
    def only_the_first(request: GenerationRequest) -> str:
        return right(1) if number_of(request) == 1 else wrong(number_of(request))

    alone, _ = run(judge, tmp_path / "a", only_the_first, tasks=[make_task(2)])
    among, _ = run(judge, tmp_path / "b", only_the_first)
    assert [r["prompt"] for r in alone["Scripted/2"]] == [r["prompt"] for r in among["Scripted/2"]]


def test_the_answer_is_the_best_code_found_not_that_of_the_original_prompt(judge: Judge, tmp_path: Path) -> None:
    def once(request: GenerationRequest) -> str:
        number = number_of(request)
        return half_right(number) if "way c" in request.user else wrong(number)

    records, _ = run(judge, tmp_path / "r.jsonl", once)
    assert [line["pass_rate"] for line in records["Scripted/1"]][:4] == [0.0, 0.0, 0.0, 0.5]


def test_an_unreadable_model_still_leaves_something_to_try(judge: Judge, tmp_path: Path) -> None:
    records, _ = run(judge, tmp_path / "r.jsonl", never, rewrite=lambda request: "```\ncode\n```", mutator="model")
    lines = records["Scripted/1"]
    assert [line["action"] for line in lines] == ["original"] + ["redraw"] * 4
    assert [line["draw"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[1]["note"] == "no new prompt found; drawn again"
    assert sum(line["rewrite_calls"] for line in lines) == 3 + 2 + 2 + 1


def test_no_prompt_holds_a_test_that_only_the_report_may_use(judge: Judge, tmp_path: Path) -> None:
    tasks = [make_task(number, plus=True) for number in (1, 2)]
    seen: list[str] = []

    def answer(request: GenerationRequest) -> str:
        seen.append(request.user)
        return half_right(number_of(request))

    _, model = run(judge, tmp_path / "r.jsonl", answer, tasks=tasks, protocol="held_out", attempts=10)
    assert seen
    assert model.requests
    assert not any("100" in text for text in [*seen, *(request.user for request in model.requests)])


def test_rewrites_keep_names_and_whole_sentences() -> None:
    prompt = Prompt("Add 3 to `x`.", "def f(x):")
    new, note = rewritten(prompt, Generation(" Add 3 to the integer `x`.", 1, 1, "stop"))
    assert (new, note) == (prompt.with_instruction("Add 3 to the integer `x`."), None)
    new, note = rewritten(prompt, Generation(" Add a number. Return it. For exam", 1, 1, "length"))
    assert new == prompt.with_instruction("Add 3 to `x`.\nAdd a number. Return it.")
    assert note == "rewrite dropped a name or value; task's own text kept"
    assert rewritten(prompt, Generation("Add", 1, 1, "length")) == (None, "rewrite empty")
    # A model that fell into a loop is heard once.
    new, _ = rewritten(
        prompt, Generation("Add 3 to `x`. Not 4 though. Add 3 to `x`. Not 4 though. Add", 1, 1, "length")
    )
    assert new == prompt.with_instruction("Add 3 to `x`. Not 4 though.")


@given(INSTRUCTIONS, st.integers(0, 9))
def test_exchanged_words_change_nothing_that_is_protected(text: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    new = exchange_words(text, Vectors(), rng, rate=1.0, most=2)
    assert protected_spans(new) == protected_spans(text)
    assert len(new.split()) == len(text.split())
    assert exchange_words(text, Vectors(), rng, rate=1e-12, most=2) == text


def test_candidates_are_the_most_similar_words() -> None:
    class Near(Vectors):
        def nearest_words(self, word: str, k: int = 10) -> list[tuple[str, float]]:
            return [("specified", 0.2), ("supplied", 0.9), ("provided", 0.5)]

    found = {
        exchange_words("Sort the given list.", Near(), np.random.default_rng(n), rate=1.0, most=2) for n in range(20)
    }
    assert found == {"Sort the supplied list.", "Sort the provided list."}


def test_choose_fits_the_protocol() -> None:
    """Episodes come as a batch; none at all is no call."""
    model = ScriptedModel(variant)
    method = Epic(MethodContext(("direct",), 0, rewriter=model, vectors=Vectors()))
    observations: NDArray[np.float32] = np.zeros((0, 384), dtype=np.float32)
    assert method.choose([], observations) == []
    assert model.batches == []
