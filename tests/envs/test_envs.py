"""The environments' semantics on scripted answers: flags, last observations, order, seeds."""

from __future__ import annotations

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from promptrl.envs import PromptRefinementEnv, PromptRefinementVectorEnv, SB3VecEnv
from promptrl.errors import ConfigError, TaskError
from promptrl.execution import Judge
from promptrl.models.base import GenerationRequest
from promptrl.refinement.engine import GenerationSettings
from promptrl.refinement.operators import OperatorSettings
from promptrl.refinement.state import StateName, state_size
from tests.scripted import make_engine, make_task, number_of, right, wrong

TASKS = [make_task(number) for number in range(1, 7)]
STATES: tuple[StateName, ...] = ("prompt", "prompt+progress", "prompt+feedback")


def never(request: GenerationRequest) -> str:
    return wrong(number_of(request))


def always(request: GenerationRequest) -> str:
    return right(number_of(request))


def on_second_draw(request: GenerationRequest) -> str:
    return right(number_of(request)) if request.draw == 1 else wrong(number_of(request))


def even_tasks(request: GenerationRequest) -> str:
    number = number_of(request)
    return right(number) if number % 2 == 0 else wrong(number)


@pytest.mark.parametrize("state", STATES)
def test_check_env_of_gymnasium_and_sb3(judge: Judge, state: StateName) -> None:
    env = PromptRefinementEnv(make_engine(even_tasks, judge), TASKS, state=state, render_mode="ansi")
    gymnasium_check_env(env, skip_render_check=True)
    sb3_check_env(env)
    assert env.observation_space.shape == (state_size(state, 3),)


def test_unsolved_episode_is_truncated_at_the_horizon_and_never_both(judge: Judge) -> None:
    env = PromptRefinementEnv(make_engine(never, judge, horizon=2), TASKS)
    env.reset(seed=0)
    assert env.step(0)[2:4] == (False, False)
    assert env.step(0)[2:4] == (False, True)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)


def test_solved_exactly_at_the_horizon_is_terminated_not_truncated(judge: Judge) -> None:
    env = PromptRefinementEnv(make_engine(on_second_draw, judge, horizon=2), TASKS)
    env.reset(seed=0)
    assert env.step(0)[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["pass_rate"], info["status"], info["tests_passed"], info["tests_total"]) == (1.0, "passed", 4, 4)


def test_the_seed_decides_the_first_task_and_a_task_can_be_named(judge: Judge) -> None:
    env = PromptRefinementEnv(make_engine(never, judge), TASKS)
    first = {env.reset(seed=seed)[1]["task_id"] for seed in range(12)}
    assert len(first) > 1
    assert env.reset(seed=3)[1]["task_id"] == env.reset(seed=3)[1]["task_id"]
    assert env.reset(options={"task_id": "Scripted/5"})[1]["task_id"] == "Scripted/5"
    with pytest.raises(TaskError, match="'Scripted/99' is not among"):
        env.reset(options={"task_id": "Scripted/99"})
    with pytest.raises(ConfigError, match="reset option 'task' is unknown; allowed are task_id, reset_mask"):
        env.reset(options={"task": "Scripted/5"})


def test_tasks_come_in_shuffled_epochs_without_repeats(judge: Judge) -> None:
    env = PromptRefinementEnv(make_engine(never, judge), TASKS)
    env.reset(seed=1)
    ids = [env.reset()[1]["task_id"] for _ in range(3 * len(TASKS) - 1)]
    epochs = [ids[: len(TASKS) - 1], ids[len(TASKS) - 1 : 2 * len(TASKS) - 1], ids[2 * len(TASKS) - 1 :]]
    assert all(max(Counter(epoch).values()) == 1 for epoch in epochs)
    assert epochs[1] != epochs[2]


def test_the_observation_changes_with_the_prompt_alone(judge: Judge) -> None:
    env = PromptRefinementEnv(make_engine(never, judge, horizon=9), TASKS)
    start, _ = env.reset(seed=0)
    same, *_ = env.step(0)
    assert np.array_equal(start, same)
    mutated, *_, info = env.step(1)
    assert not np.array_equal(start, mutated)
    again, *_ = env.step(1)
    assert not np.array_equal(mutated, again), info
    assert abs(float(np.linalg.norm(mutated)) - 1.0) < 1e-5


def test_vector_env_equals_single_envs(judge: Judge) -> None:
    n, rng = 3, np.random.default_rng(0)
    vector = PromptRefinementVectorEnv(make_engine(even_tasks, judge, horizon=3), TASKS, num_envs=n)
    singles = [PromptRefinementEnv(make_engine(even_tasks, judge, horizon=3), TASKS) for _ in range(n)]
    observations, infos = vector.reset(seed=11)
    own = [env.reset(seed=11 + i) for i, env in enumerate(singles)]
    assert np.array_equal(observations, np.stack([o for o, _ in own]))
    assert list(infos["task_id"]) == [info["task_id"] for _, info in own]
    ended = 0
    for _ in range(12):
        actions = rng.integers(3, size=n)
        observations, rewards, terminations, truncations, infos = vector.step(actions)
        for i, env in enumerate(singles):
            observation, reward, terminated, truncated, info = env.step(actions[i])
            assert (rewards[i], terminations[i], truncations[i]) == (reward, terminated, truncated)
            if terminated or truncated:
                ended += 1
                assert np.array_equal(infos["final_obs"][i], observation)
                final = infos["final_info"]
                assert {key: final[key][i] for key in info} == info
                observation, info = env.reset()
            assert np.array_equal(observations[i], observation)
            assert {key: infos[key][i] for key in info} == info
    assert ended >= 3


def test_one_vector_step_is_one_batch_of_each_kind(judge: Judge) -> None:
    engine = make_engine(never, judge, horizon=9)
    env = PromptRefinementVectorEnv(engine, TASKS, num_envs=6)
    env.reset(seed=0)
    encoder_calls = len(engine.encoder.calls)  # type: ignore[attr-defined]
    env.step(np.zeros(6, dtype=np.int64))
    assert [len(batch) for batch in engine.coder.batches] == [6]  # type: ignore[attr-defined]
    assert engine.encoder.calls[encoder_calls:] == [6]  # type: ignore[attr-defined]
    env.step(np.full(6, 2))
    assert [len(batch) for batch in engine.operators["semantic"].rewriter.batches] == [6]  # type: ignore[attr-defined]


def test_next_step_and_disabled_autoreset(judge: Judge) -> None:
    zeros = np.zeros(2, dtype=np.int64)
    env = PromptRefinementVectorEnv(
        make_engine(never, judge, horizon=1), TASKS, num_envs=2, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    env.reset(seed=0)
    _, _, _, truncations, infos = env.step(zeros)
    assert truncations.all()
    assert list(infos["action"]) == ["direct", "direct"]
    _, rewards, terminations, truncations, infos = env.step(zeros)
    assert not rewards.any()
    assert not (terminations | truncations).any()
    assert list(infos["action"]) == ["", ""]
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP

    env = PromptRefinementVectorEnv(
        make_engine(even_tasks, judge, horizon=2), TASKS, num_envs=2, autoreset_mode=AutoresetMode.DISABLED
    )
    env.reset(seed=0, options={"task_id": ["Scripted/1", "Scripted/2"]})
    _, _, terminations, truncations, _ = env.step(zeros)
    assert (terminations.tolist(), truncations.tolist()) == ([False, True], [False, False])
    with pytest.raises(RuntimeError, match="reset_mask"):
        env.step(zeros)
    _, infos = env.reset(options={"reset_mask": terminations})
    assert infos["_task_id"].tolist() == [False, True]
    env.step(zeros)


def test_sb3_gets_the_terminal_observation_and_the_truncation(judge: Judge) -> None:
    env = SB3VecEnv(PromptRefinementVectorEnv(make_engine(even_tasks, judge, horizon=1), TASKS, num_envs=6))
    env.seed(5)
    before = env.reset()
    ids = [info["task_id"] for info in env.reset_infos]
    observations, rewards, dones, infos = env.step(np.zeros(6, dtype=np.int64))
    assert dones.all()
    for i, info in enumerate(infos):
        solved = int(ids[i].split("/")[1]) % 2 == 0
        assert info["task_id"] == ids[i]
        assert info["TimeLimit.truncated"] is (not solved)
        assert np.array_equal(info["terminal_observation"], before[i])
        assert rewards[i] == (1.0 if solved else -1.0)
        assert not np.array_equal(observations[i], before[i])


def test_sb3_wrappers_work(judge: Judge) -> None:
    env = VecNormalize(
        VecMonitor(SB3VecEnv(PromptRefinementVectorEnv(make_engine(even_tasks, judge, horizon=2), TASKS, num_envs=2)))
    )
    env.reset()
    seen = []
    for _ in range(4):
        _, _, dones, infos = env.step(np.zeros(2, dtype=np.int64))
        seen += [info["episode"] for done, info in zip(dones, infos, strict=True) if done]
    assert seen
    assert all(episode["l"] in (1, 2) for episode in seen)


def test_gymnasium_wrappers_work(judge: Judge) -> None:
    env: gym.Env = PromptRefinementEnv(make_engine(never, judge, horizon=5), TASKS)
    env = gym.wrappers.NormalizeReward(gym.wrappers.TimeLimit(gym.wrappers.RecordEpisodeStatistics(env), 2))
    env.reset(seed=0)
    assert env.step(0)[3] is False
    *_, truncated, _ = env.step(0)
    assert truncated is True


def test_render_shows_diff_verdict_and_reward(judge: Judge) -> None:
    def rewrite(request: GenerationRequest) -> str:
        return " Slowly add 3 to the given value `x`. Return the result."

    operators = OperatorSettings.model_validate({"semantic": {"place": "instead"}})
    engine = make_engine(never, judge, rewrite=rewrite, operators=operators)
    env = PromptRefinementEnv(engine, TASKS, render_mode="ansi")
    env.reset(seed=0, options={"task_id": "Scripted/3"})
    env.step(2)
    shown = env.render()
    assert shown is not None
    assert "Scripted/3  step 1/5  semantic  failed 0/4  reward -1.00" in shown
    assert "[-" in shown
    assert "{+" in shown
    with pytest.raises(ConfigError, match="render_mode is 'rgb'; allowed are human, ansi or None"):
        PromptRefinementEnv(make_engine(never, judge), TASKS, render_mode="rgb")


def test_an_environment_without_tasks_is_refused(judge: Judge) -> None:
    with pytest.raises(TaskError, match="at least one task"):
        PromptRefinementEnv(make_engine(never, judge), [])


def test_the_curriculum_prefers_tasks_neither_always_nor_never_solved(judge: Judge) -> None:
    def answer(request: GenerationRequest) -> str:
        # Task 1 is always solved, task 2 every other time, tasks 3 to 6 never.
        number, batches = number_of(request), len(engine.coder.batches)  # type: ignore[attr-defined]
        return right(number) if number == 1 or (number == 2 and batches % 2) else wrong(number)

    engine = make_engine(answer, judge, horizon=1)
    env = PromptRefinementVectorEnv(engine, TASKS, num_envs=4, task_order="curriculum")
    env.reset(seed=0)
    for _ in range(60):
        env.step(np.zeros(4, dtype=np.int64))
    assert env.statistics is not None
    assert env.statistics.episodes.sum() == 240
    assert env.statistics.weights().argmax() == 1
    assert env.statistics.episodes.argmax() == 1
    assert env.statistics.weights().min() > 0
    assert env.statistics.weights().sum() == pytest.approx(1)
    state = env.state_dict()
    restored = PromptRefinementVectorEnv(engine, TASKS, num_envs=4, task_order="curriculum")
    restored.load_state_dict(state)
    assert restored.state_dict() == state


def test_variants_make_a_task_s_episodes_repeat(judge: Judge) -> None:
    def prompts(variants: int | None) -> dict[str, set[str]]:
        engine = make_engine(never, judge, horizon=2)
        engine.episode_settings = engine.episode_settings.model_copy(update={"variants": variants})
        env = PromptRefinementVectorEnv(engine, TASKS, num_envs=2)
        env.reset(seed=0)
        found: dict[str, set[str]] = {task.task_id: set() for task in TASKS}
        for _ in range(16 * len(TASKS)):
            env.step(np.array([1, 1]))
            for slot in env.slots:
                assert slot.episode is not None
                if slot.episode.steps:
                    found[slot.episode.task.task_id].add(slot.episode.steps[0].prompt.instruction)
        return found

    once, twice, fresh = prompts(1), prompts(2), prompts(None)
    assert {len(own) for own in once.values()} == {1}
    assert max(len(own) for own in twice.values()) == 2
    assert all(own <= other for own, other in zip(once.values(), twice.values(), strict=True))
    assert max(len(own) for own in fresh.values()) > 2


def test_state_dict_brings_back_running_episodes(judge: Judge) -> None:
    def make() -> PromptRefinementVectorEnv:
        return PromptRefinementVectorEnv(make_engine(even_tasks, judge, horizon=4), TASKS, num_envs=3)

    env, actions = make(), np.array([1, 2, 0])
    env.reset(seed=2)
    for _ in range(3):
        env.step(actions)
    state = env.state_dict()
    restored = make()
    restored.load_state_dict(state)
    for _ in range(5):
        for ours, theirs in zip(env.step(actions)[:4], restored.step(actions)[:4], strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(("greedy", "offspring"), [("original", 0.8), ("every", 0.0)])
def test_the_nth_draw_of_a_prompt_is_the_nth_whatever_came_between(judge: Judge, greedy: str, offspring: float) -> None:
    engine = make_engine(never, judge, rewrite=lambda request: "", horizon=9)
    engine.generation_settings = GenerationSettings.model_validate({"greedy": greedy})
    env = PromptRefinementEnv(engine, TASKS)
    env.reset(seed=0)
    # A refused rewrite keeps the prompt: its answer is that prompt's next draw.
    for action in (0, 2, 0, 1, 0, 0):
        env.step(action)
    requests = engine.coder.requests  # type: ignore[attr-defined]
    texts = [request.user for request in requests]
    assert texts[0] == texts[1] == texts[2]
    assert texts[3] == texts[4] == texts[5] != texts[0]
    assert [request.draw for request in requests] == [0, 1, 2, 0, 1, 2]
    assert [request.temperature for request in requests] == [0.0, 0.8, 0.8, offspring, 0.8, 0.8]


@pytest.mark.parametrize(
    ("greedy", "lexical", "rewritten"), [("original", 0.8, 0.8), ("rewrites", 0.8, 0.0), ("every", 0.0, 0.0)]
)
def test_which_first_answers_are_greedy(judge: Judge, greedy: str, lexical: float, rewritten: float) -> None:
    engine = make_engine(never, judge, rewrite=lambda request: " whole numbers and returns what they give.", horizon=9)
    engine.generation_settings = GenerationSettings.model_validate({"greedy": greedy})
    env = PromptRefinementEnv(engine, TASKS)
    env.reset(seed=0)
    for action in (1, 0, 2, 0):  # an offspring and its second draw, a rewrite and its second draw
        env.step(action)
    requests = engine.coder.requests  # type: ignore[attr-defined]
    assert [request.draw for request in requests] == [0, 1, 0, 1]
    assert [request.temperature for request in requests] == [lexical, 0.8, rewritten, 0.8]


def test_a_seed_makes_the_curriculum_start_anew(judge: Judge) -> None:
    env = PromptRefinementEnv(make_engine(even_tasks, judge, horizon=1), TASKS, task_order="curriculum")

    def order() -> list[str]:
        ids = [env.reset(seed=3)[1]["task_id"]]
        for _ in range(8):
            env.step(0)
            ids.append(env.reset()[1]["task_id"])
        return ids

    assert order() == order()


def test_sb3_options_choose_the_task(judge: Judge) -> None:
    env = SB3VecEnv(PromptRefinementVectorEnv(make_engine(never, judge), TASKS, num_envs=2))
    env.set_options({"task_id": "Scripted/3"})
    env.reset()
    assert [info["task_id"] for info in env.reset_infos] == ["Scripted/3", "Scripted/3"]
    env.reset()
    assert [info["task_id"] for info in env.reset_infos] != ["Scripted/3", "Scripted/3"]


def test_bad_actions_and_task_ids_change_nothing(judge: Judge) -> None:
    env = PromptRefinementVectorEnv(make_engine(never, judge), TASKS, num_envs=2)
    _, infos = env.reset(seed=0)
    with pytest.raises(TaskError, match="'nope' is not among"):
        env.reset(options={"task_id": ["Scripted/1", "nope"]})
    assert [slot.current().task.task_id for slot in env.slots] == list(infos["task_id"])
    with pytest.raises(ConfigError, match="is 5; give one id, or a list of 2"):
        env.reset(options={"task_id": 5})
    with pytest.raises(ValueError, match="dtype float64; needed are integers"):
        env.step(np.array([1.9, 0.2]))  # type: ignore[arg-type]
    single = PromptRefinementEnv(make_engine(never, judge), TASKS)
    single.reset(seed=0)
    with pytest.raises(TypeError):
        single.step(1.7)  # type: ignore[arg-type]


def test_a_vector_renders_the_last_step_of_an_ended_episode(judge: Judge) -> None:
    env = PromptRefinementVectorEnv(make_engine(always, judge), TASKS, num_envs=2, render_mode="ansi")
    env.reset(seed=0)
    assert all("not yet answered" in text for text in env.render() or ())
    env.step(np.zeros(2, dtype=np.int64))
    assert [text.count("passed 4/4  reward +1.00") for text in env.render() or ()] == [1, 1]


def test_one_rewriting_step_is_one_encoding_of_rewrites_and_one_of_states(judge: Judge) -> None:
    def rewrite(request: GenerationRequest) -> str:
        return f" Add {number_of(request)} to the given value `x`. Return the result."

    engine = make_engine(never, judge, rewrite=rewrite)
    env = PromptRefinementVectorEnv(engine, TASKS, num_envs=6)
    env.reset(seed=0)
    before = len(engine.encoder.calls)  # type: ignore[attr-defined]
    env.step(np.full(6, 2))
    vectors = engine.operators["semantic"].vectors  # type: ignore[attr-defined]
    assert vectors is engine.encoder
    assert engine.encoder.calls[before:] == [12, 6]  # type: ignore[attr-defined]
