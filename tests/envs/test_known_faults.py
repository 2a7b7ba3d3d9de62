"""The faults of PROMIS's environment and evaluation, one test each: none of them is here.

Most of these have further tests where the part itself is tested; here each stands once under its number in
docs/methods.md.
"""

from __future__ import annotations

import importlib
import itertools
import os
import pkgutil

import numpy as np
import pytest

import promptrl
from promptrl.config import Config
from promptrl.envs import PromptRefinementEnv, PromptRefinementVectorEnv
from promptrl.errors import TaskError
from promptrl.evaluation.runner import summarize
from promptrl.execution import Judge
from promptrl.execution.extraction import extract_code
from promptrl.execution.judge import Candidate
from promptrl.methods.base import available_methods
from promptrl.models.base import GenerationRequest
from promptrl.refinement.engine import report_suite, reward_suite
from promptrl.tasks.task import TestSuite
from tests.scripted import make_engine, make_task, number_of, right, wrong

TASKS = [make_task(number) for number in range(1, 7)]
ZEROS = np.zeros(3, dtype=np.int64)


def never(request: GenerationRequest) -> str:
    return wrong(number_of(request))


def test_1_reset_follows_the_seed_and_does_not_always_start_with_the_first_task(judge: Judge) -> None:
    env = PromptRefinementEnv(make_engine(never, judge), TASKS)
    ids = [env.reset(seed=seed)[1]["task_id"] for seed in range(20)]
    assert set(ids) - {"Scripted/1"}
    assert [env.reset(seed=seed)[1]["task_id"] for seed in range(20)] == ids


def test_2_the_step_cap_truncates_and_does_not_terminate(judge: Judge) -> None:
    env = PromptRefinementEnv(make_engine(never, judge, horizon=3), TASKS)
    env.reset(seed=0)
    flags = [env.step(0)[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]


def test_3_the_final_observation_is_that_of_the_episode_which_ended(judge: Judge) -> None:
    engine = make_engine(never, judge, horizon=1)
    env = PromptRefinementEnv(engine, TASKS)
    start, info = env.reset(seed=0)
    end, *_, after = env.step(0)
    assert after["task_id"] == info["task_id"]
    assert np.array_equal(start, end)  # `direct` keeps the prompt, and the prompt is all that the state holds
    vector = PromptRefinementVectorEnv(engine, TASKS, num_envs=3)
    before, infos = vector.reset(seed=0)
    following, *_, ended = vector.step(ZEROS)
    assert np.array_equal(np.stack(list(ended["final_obs"])), before)
    assert list(ended["final_info"]["task_id"]) == list(infos["task_id"])
    assert not np.array_equal(following, before)


def test_4_the_observation_is_of_the_changed_prompt_and_changes_add_up(judge: Judge) -> None:
    engine = make_engine(never, judge, rewrite=lambda request: f" {_description(request)} More.", horizon=9)
    env = PromptRefinementEnv(engine, [make_task(1)])
    observations = [env.reset(seed=0)[0]]
    prompts = []
    for _ in range(3):
        observation, *_, info = env.step(2)
        observations.append(observation)
        prompts.append(info["prompt"])
    assert [prompt.count("More.") for prompt in prompts] == [1, 2, 3]
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(observations))
    assert np.array_equal(observations[-1], engine.encode([prompts[-1]])[0])


def _description(request: GenerationRequest) -> str:
    return request.user.split("Description: ")[1].split("\n\n")[0]


@pytest.mark.parametrize(
    "code", ["while True: pass", "import sys\nsys.exit(0)", "import os\nos._exit(0)", "raise SystemExit"]
)
def test_5_tests_run_outside_this_process_and_in_bounded_time(judge: Judge, code: str) -> None:
    task = make_task(1)
    (verdict,) = judge.judge([Candidate(code, task, task.base)])
    assert verdict.pass_rate == 0.0
    assert verdict.execution_failure


def test_5_candidates_are_other_processes_and_an_empty_suite_is_refused(judge: Judge) -> None:
    task = make_task(1)
    code = f"import os\ndef add_1(x):\n    return x + 1 if os.getpid() != {os.getpid()} else 0"
    (verdict,) = judge.judge([Candidate(code, task, task.base)])
    assert verdict.pass_rate == 1.0
    with pytest.raises(TaskError, match="holds no tests"):
        TestSuite("base", ())


def test_6_every_module_and_every_registered_method_is_there() -> None:
    for module in pkgutil.walk_packages(promptrl.__path__, "promptrl."):
        # The sandbox's own programs run inside it, and __main__ runs the command line.
        if ".sandbox" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for entry_point in available_methods().values():
        assert callable(entry_point.load().choose)


def test_7_imports_and_helpers_stay_with_the_function() -> None:
    answer = "import math\n\ndef half(x):\n    return x / 2\n\ndef root(x):\n    return math.sqrt(half(x))\n"
    found = extract_code(f"```python\n{answer}```", entry_point="root")
    assert found.code is not None
    namespace: dict[str, object] = {}
    exec(found.code, namespace)
    assert namespace["root"](8) == 2.0  # type: ignore[operator]
    # "First function only" would have kept `half` alone.
    assert {"math", "half", "root"} <= namespace.keys()


def test_8_what_is_rewarded_is_not_what_is_reported(judge: Judge) -> None:
    task = make_task(1, plus=True)
    assert reward_suite(task, "held_out").tests == task.base.tests
    assert set(report_suite(task).tests) > set(task.base.tests)
    engine = make_engine(lambda request: "def add_1(x):\n    return x + 1 if x < 50 else 0", judge, protocol="held_out")
    episode = engine.start(task, np.random.default_rng(0))
    (step,) = engine.step([episode], [0])
    assert (step.reward, step.terminated) == (1.0, True)
    assert engine.report([episode])[0][0].pass_rate == 0.8


def test_9_a_rate_is_over_tasks_whatever_the_number_of_steps() -> None:
    record = {
        **dict.fromkeys(("model_calls", "rewrite_calls", "cached", "rewrite_cached", "tokens_in", "tokens_out"), 0),
        **dict.fromkeys(("rewrite_tokens_in", "rewrite_tokens_out", "seconds", "rewrite_seconds"), 0),
    }
    steps = [
        {**record, "task_id": "a", "step": 0, "pass_rate": 1.0, "report_pass_rate": 1.0, "last": True},
        *({**record, "task_id": "b", "step": n, "pass_rate": 0.0, "report_pass_rate": 0.0} for n in range(10)),
    ]
    steps[-1]["last"] = True
    result = summarize("m", steps)
    assert (result.n, result.solved, result.strict) == (2, 1, 0.5)


def test_9_a_checkpoint_brings_back_what_will_be_drawn(judge: Judge) -> None:
    def make() -> PromptRefinementVectorEnv:
        return PromptRefinementVectorEnv(
            make_engine(lambda request: right(number_of(request)), judge, horizon=2), TASKS, num_envs=3
        )

    env = make()
    env.reset(seed=5)
    env.step(ZEROS)
    state = env.state_dict()
    expected = [list(env.step(ZEROS)[4]["task_id"]) for _ in range(6)]
    restored = make()
    restored.load_state_dict(state)
    assert [list(restored.step(ZEROS)[4]["task_id"]) for _ in range(6)] == expected


def test_9_an_evaluated_agent_takes_its_likeliest_action() -> None:
    assert Config().evaluation.deterministic
