"""Validation during training: its scores, what it keeps, and that training does not notice it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3 import PPO

from promptrl.errors import RunError
from promptrl.execution import Judge
from promptrl.methods.ppo import kept_agent, train
from promptrl.methods.settings import PPOSettings
from promptrl.methods.validation import (
    VALIDATION_FILE,
    ValidationHistory,
    ValidationResult,
    Validator,
    read_validation,
    validation_subset,
)
from promptrl.models.base import GenerationRequest
from tests.methods.test_ppo import SMALL, make_env, weights
from tests.scripted import Answer, half_right, make_engine, make_task, number_of, right, wrong
from tests.workbench import REWRITE, TASKS, only_rewritten

pytestmark = pytest.mark.usefixtures("one_torch_thread")

VALIDATED = SMALL.model_copy(update={"eval_freq": 16})


def make_validator(judge: Judge, answer: Answer = only_rewritten, **settings: object) -> Validator:
    engine = make_engine(answer, judge, rewrite=lambda request: REWRITE)
    return Validator(engine, TASKS[8:11], seed=3, **settings)  # type: ignore[arg-type]


def known_answers(request: GenerationRequest) -> str:
    """Task 1 at once, task 2 at the third draw of the unchanged prompt, task 3 half, task 4 never."""
    number = number_of(request)
    if number == 1 or (number == 2 and request.draw == 2):
        return right(number)
    return half_right(number) if number == 3 else wrong(number)


def test_the_scores_of_a_known_case(judge: Judge) -> None:
    engine = make_engine(known_answers, judge, horizon=3)
    validator = Validator(engine, [make_task(number) for number in range(1, 5)], seed=0, batch_size=3)
    told: list[tuple[int, int]] = []
    result = validator.run(lambda episodes, _: [0] * len(episodes), 64, lambda *done: told.append(done))
    assert (result.steps, result.n, result.strict) == (64, 4, 0.5)
    assert result.soft == pytest.approx((1 + 1 + (1 - 0.5**3) + 0) / 4)
    assert result.mean_return == pytest.approx((1 + (-1 - 1 + 1) + 3 * 0.5 - 3) / 4)
    assert result.mean_length == (1 + 3 + 3 + 3) / 4
    assert result.action_shares == {"direct": 1.0, "lexical": 0.0, "semantic": 0.0}
    assert told == [(3, 4), (4, 4)]


def test_report_tests_never_choose_an_agent(judge: Judge) -> None:
    def only_the_base_tests(request: GenerationRequest) -> str:
        return f"def add_{(n := number_of(request))}(x):\n    return x + {n} if x < 50 else 0"

    tasks = [make_task(number, plus=True) for number in (1, 2)]
    scores = []
    for protocol in ("held_out", "paper"):
        engine = make_engine(only_the_base_tests, judge, protocol=protocol)
        result = Validator(engine, tasks, seed=0).run(lambda episodes, _: [0] * len(episodes), 0)
        scores.append(result.strict)
    assert scores == [1.0, 0.0]


def test_training_does_not_notice_validation(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    alone = train(make_env(judge), SMALL, tmp_path / "plain", seed=3)
    assert not (tmp_path / "plain" / VALIDATION_FILE).exists()
    for deterministic in (True, False):
        folder = tmp_path / str(deterministic)
        folder.mkdir()
        validator = make_validator(judge, deterministic=deterministic)
        watched = train(make_env(judge), VALIDATED, folder, seed=3, validator=validator)
        assert torch.equal(weights(alone), weights(watched))
        assert [result.steps for result in read_validation(folder / VALIDATION_FILE)] == [16, 32, 48, 64]


def test_a_resumed_run_has_the_same_validations_and_best_agent(judge: Judge, tmp_path: Path) -> None:
    """Stopped in the middle of the second and of the third rollout."""
    settings = VALIDATED.model_copy(update={"save_freq": 64, "n_epochs": 8, "learning_rate": 3e-3})
    whole = tmp_path / "whole"
    whole.mkdir()
    agent = train(make_env(judge), settings, whole, seed=3, validator=make_validator(judge))
    for stop_at in (24, 40):
        cut = tmp_path / str(stop_at)
        cut.mkdir()

        def stop(done: int, total: int, figures: dict[str, float], stop_at: int = stop_at) -> None:
            if done >= stop_at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(make_env(judge), settings, cut, seed=3, validator=make_validator(judge), on_progress=stop)
        np.random.seed(99)
        torch.manual_seed(99)
        resumed = train(make_env(judge), settings, cut, seed=3, validator=make_validator(judge), resume=True)
        assert torch.equal(weights(resumed), weights(agent))
        assert (cut / VALIDATION_FILE).read_text() == (whole / VALIDATION_FILE).read_text()
        best = [PPO.load(folder / "best_agent.zip") for folder in (whole, cut)]
        assert torch.equal(weights(best[0]), weights(best[1]))


def test_validations_after_the_checkpoint_are_made_again(judge: Judge, tmp_path: Path) -> None:
    train(make_env(judge), VALIDATED, tmp_path, seed=3, validator=make_validator(judge))
    lines = (tmp_path / VALIDATION_FILE).read_text()
    future = {**json.loads(lines.splitlines()[-1]), "steps": 80, "strict": 1.0, "best": True}
    (tmp_path / VALIDATION_FILE).write_text(lines + json.dumps(future) + "\n")
    longer = VALIDATED.model_copy(update={"total_timesteps": 80})
    train(make_env(judge), longer, tmp_path, seed=3, validator=make_validator(judge), resume=True)
    results = read_validation(tmp_path / VALIDATION_FILE)
    assert [result.steps for result in results] == [16, 32, 48, 64, 80]
    assert (tmp_path / VALIDATION_FILE).read_text().startswith(lines)


def test_early_stopping_and_what_is_kept(judge: Judge, tmp_path: Path) -> None:
    def never(request: GenerationRequest) -> str:
        return wrong(number_of(request))

    # Nothing is ever solved, so that no validation is better than the first.
    settings = VALIDATED.model_copy(update={"total_timesteps": 160, "early_stop_evals": 2})
    agent = train(make_env(judge), settings, tmp_path, seed=3, validator=make_validator(judge, never))
    results = read_validation(tmp_path / VALIDATION_FILE)
    assert [result.best for result in results] == [True, False, False]
    assert agent.num_timesteps == 48 == results[-1].steps
    again = train(make_env(judge), settings, tmp_path, seed=3, validator=make_validator(judge, never), resume=True)
    assert again.num_timesteps == 48
    assert torch.equal(weights(again), weights(agent))
    assert PPO.load(tmp_path / "best_agent.zip").num_timesteps == 16
    assert kept_agent(tmp_path, settings).name == "best_agent.zip"
    assert kept_agent(tmp_path, settings.model_copy(update={"keep": "last"})).name == "agent.zip"
    assert kept_agent(tmp_path / "elsewhere", settings).name == "agent.zip"


def test_validation_is_off_without_a_frequency(judge: Judge, tmp_path: Path) -> None:
    for number, every in enumerate((0, None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = SMALL.model_copy(update={"total_timesteps": 16, "eval_freq": every})
        train(make_env(judge), settings, folder, seed=0, validator=make_validator(judge))
        assert not (folder / VALIDATION_FILE).exists()
        assert not (folder / "best_agent.zip").exists()
    with pytest.raises(RunError, match="validation needs at least one task"):
        Validator(make_engine(known_answers, judge), [], seed=0)


def result(steps: int, strict: float, soft: float = 0.5, mean_return: float = 0.0) -> ValidationResult:
    return ValidationResult(steps, 4, strict, soft, mean_return, 1.0, {"direct": 1.0})


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=8))
def test_the_best_is_the_first_of_the_highest_rank(ranks: list[tuple[int, int, int]]) -> None:
    history = ValidationHistory(Path("nowhere"), 0)
    history.results = [result(number, a / 2, b / 2, c) for number, (a, b, c) in enumerate(ranks)]
    best = history.best
    assert best is not None
    assert best.steps == ranks.index(max(ranks))
    assert history.since_best == len(ranks) - 1 - ranks.index(max(ranks))


def test_a_broken_history_is_refused(tmp_path: Path) -> None:
    history = ValidationHistory(tmp_path, 0)
    history.add(result(16, 0.5))
    with pytest.raises(RunError, match=r"holds validation\.jsonl but no best_agent\.zip"):
        ValidationHistory(tmp_path, 16)
    assert ValidationHistory(tmp_path, 8).results == []
    (tmp_path / VALIDATION_FILE).write_text('{"schema": 2}\n')
    with pytest.raises(RunError, match="cannot be read as validations"):
        read_validation(tmp_path / VALIDATION_FILE)


@given(st.integers(0, 90), st.one_of(st.none(), st.integers(1, 100)))
def test_a_subset_is_evenly_spread(n: int, size: int | None) -> None:
    tasks = [make_task(number) for number in range(n)]
    subset = validation_subset(tasks, size)
    numbers = [int(task.task_id.split("/")[1]) for task in subset]
    assert numbers == sorted(set(numbers))
    assert len(subset) == (n if size is None else min(n, size))
    gaps = np.diff([*numbers, n])
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="early_stop_evals needs validation"):
        PPOSettings(eval_freq=0, early_stop_evals=2)
