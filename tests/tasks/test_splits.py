"""No task, and no text of a task, is on two sides of a split."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from promptrl.errors import ConfigError, TaskError
from promptrl.tasks import CallTest, Splits, SplitSettings, Task, TestSuite, assert_disjoint, load_splits
from promptrl.tasks.mbpp import mbpp_number
from promptrl.tasks.similarity import NearCopies, normalised_text, similarity, words


def task(name: str, text: str) -> Task:
    return Task(name, "custom", text, "", TestSuite("base", (CallTest((), 1),)), entry_point="f")


def files(data_dir: Path) -> dict[str, Path]:
    names = {"humaneval": "HumanEval.jsonl.gz", "mbpp": "mbpp.jsonl", "apps": "apps_sample.jsonl"}
    names |= {"humaneval_plus": "HumanEvalPlus-v0.1.10.jsonl.gz", "mbpp_plus": "MbppPlus-v0.2.0.jsonl.gz"}
    return {name: data_dir / filename for name, filename in names.items()}


@cache
def loaded(data_dir: Path, name: str, settings: SplitSettings) -> Splits:
    paths = files(data_dir)
    return load_splits(name, settings, path=paths[name], training_path=paths["mbpp"])


def split(data_dir: Path, name: str, **settings: object) -> Splits:
    return loaded(data_dir, name, SplitSettings.model_validate(settings))


def numbers(tasks: tuple[Task, ...]) -> list[int]:
    return [mbpp_number(one.task_id) for one in tasks]


@pytest.mark.parametrize("name", ["mbpp", "mbpp_plus", "humaneval_plus", "humaneval", "apps"])
def test_nothing_is_on_two_sides(data_dir: Path, name: str) -> None:
    splits = split(data_dir, name)
    assert_disjoint(splits)
    parts = (splits.train, splits.validation, splits.test)
    ids = [one.task_id for part in parts for one in part]
    assert len(ids) == len(set(ids))
    for index, part in enumerate(parts):
        texts = {normalised_text(one.instruction) for one in part}
        others = {normalised_text(one.instruction) for other in parts[index + 1 :] for one in other}
        assert not texts & others
    # No near copy of a test or validation task is left in training.
    near = NearCopies((*splits.validation, *splits.test), 0.75)
    assert [one.task_id for one in splits.train if near.closest(one)] == []


def test_mbpp_plus_follows_the_ids(data_dir: Path) -> None:
    splits = split(data_dir, "mbpp_plus")
    assert {one.benchmark for one in splits.test} == {"mbpp_plus"}
    assert {one.benchmark for one in (*splits.train, *splits.validation)} == {"mbpp"}
    assert len(splits.test) == 224
    assert all(11 <= number <= 510 for number in numbers(splits.test))
    assert all(511 <= number <= 600 for number in numbers(splits.validation))
    assert all(601 <= number <= 974 for number in numbers(splits.train))
    copies = [left for left in splits.left_out if "near copy" in left.reason]
    assert len(copies) == 41
    assert len(splits.train) + len(splits.validation) == 374 + 90 - 41
    # The classic: "first repeated character" is task 217 and task 602.
    assert len(split(data_dir, "mbpp").test) == 500
    reasons = {left.task_id: left.reason for left in split(data_dir, "mbpp").left_out}
    assert reasons["Mbpp/602"] == "near copy of test task Mbpp/217 (similarity 1.00)"


def test_humaneval_plus_is_tested_whole_and_trained_on_mbpp(data_dir: Path) -> None:
    splits = split(data_dir, "humaneval_plus")
    assert len(splits.test) == 164
    assert {one.benchmark for one in splits.train} == {"mbpp"}


def test_caps_take_a_seeded_sample_and_the_first_of_the_tests(data_dir: Path) -> None:
    whole = split(data_dir, "mbpp_plus")
    cut = split(data_dir, "mbpp_plus", n_train=20, n_validation=5, n_test=10, seed=3)
    assert (len(cut.train), len(cut.validation), len(cut.test)) == (20, 5, 10)
    assert cut.test == whole.test[:10]
    assert numbers(cut.test) == sorted(numbers(whole.test))[:10]
    assert set(numbers(cut.train)) < set(numbers(whole.train))
    assert numbers(cut.train) == sorted(numbers(cut.train))
    assert cut.left_out == whole.left_out
    assert cut.train == split(data_dir, "mbpp_plus", n_train=20, seed=3).train
    assert cut.train != split(data_dir, "mbpp_plus", n_train=20, seed=4).train


def test_humaneval_is_split_within_itself(data_dir: Path) -> None:
    splits = split(data_dir, "humaneval", n_train=60, n_validation=10, n_test=40, seed=1)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (60, 10, 40)
    again = split(data_dir, "humaneval", n_train=30, n_validation=10, n_test=40, seed=1)
    assert again.test == splits.test
    assert again.validation == splits.validation
    assert split(data_dir, "humaneval", n_test=40, seed=2).test != splits.test
    with pytest.raises(ConfigError, match="holds 164 tasks, but n_train, n_validation and n_test ask for 200"):
        split(data_dir, "humaneval", n_train=100, n_validation=50, n_test=50)


def test_custom_tasks_are_split(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    words = ["add", "divide", "sort", "reverse", "count", "join", "split", "rotate", "hash", "parse"]
    rows = [
        {"id": word, "prompt": f"{word} {word} it", "entry_point": "f", "tests": ["assert f(1) == 1"]} for word in words
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    splits = load_splits("custom", SplitSettings(n_test=3, n_validation=2), path=path)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (5, 2, 3)
    with pytest.raises(TaskError, match="the train part of custom would hold no task"):
        load_splits("custom", SplitSettings(n_test=10, n_validation=0), path=path)
    assert load_splits("custom", SplitSettings(n_test=10, n_validation=0, n_train=0), path=path).train == ()


def test_the_data_of_every_part_is_named(data_dir: Path) -> None:
    assert set(split(data_dir, "mbpp_plus").sha256) == {"mbpp", "mbpp_plus"}
    assert set(split(data_dir, "humaneval").sha256) == {"humaneval"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown benchmark 'mbqq'"):
        load_splits("mbqq")


@pytest.mark.parametrize(
    "values", [{"n_train": -1}, {"near_copy_threshold": 0}, {"near_copy_threshold": 1.5}, {"n": 1}]
)
def test_impossible_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SplitSettings.model_validate(values)


def test_an_overlap_is_an_error() -> None:
    one, two = task("A/1", "Sort the list."), task("A/2", "Reverse the list.")
    assert_disjoint(Splits((one,), (), (two,)))
    with pytest.raises(TaskError, match="task A/1 is in the train part and in the test part"):
        assert_disjoint(Splits((one,), (), (one, two)))
    copy = task("A/3", "  sort THE\nlist")
    with pytest.raises(TaskError, match=r"task A/3 of the test part has the text of A/1 of the train part"):
        assert_disjoint(Splits((one,), (), (copy,)))


def test_the_opening_does_not_count() -> None:
    first = words(task("1", "Write a python function to find the largest number."))
    second = words(task("2", "Write a function to find the smallest number."))
    assert first == {"find": 1, "the": 1, "largest": 1, "number": 1}
    assert similarity(first, second) == pytest.approx(3 / 5)


texts = st.text(st.sampled_from("abc 1.,\n"), max_size=30)


@given(texts, texts)
def test_similarity_is_symmetric_and_bounded(first: str, second: str) -> None:
    one, two = words(task("1", first)), words(task("2", second))
    value = similarity(one, two)
    assert 0 <= value <= 1
    assert value == similarity(two, one)
    assert similarity(one, one) == (1.0 if one else 0.0)
    assert (value == 1.0) == (one == two and bool(one))


@given(st.lists(texts, min_size=1, max_size=6), texts, st.sampled_from([0.3, 0.75, 1.0]))
def test_the_closest_task_is_the_closest(others: list[str], text: str, threshold: float) -> None:
    tasks = [task(str(number), other) for number, other in enumerate(others)]
    own = task("own", text)
    best = max(similarity(words(own), words(other)) for other in tasks)
    match = NearCopies(tasks, threshold).closest(own)
    assert (match is not None) == (best >= threshold)
    if match is not None:
        assert match.similarity == pytest.approx(best)
