"""The environment under another trainer: the example's plain PyTorch PPO learns the one action that pays."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from promptrl.envs import PromptRefinementVectorEnv
from promptrl.execution import Judge
from promptrl.models.base import GenerationRequest
from promptrl.refinement.operators import OperatorSettings
from tests.scripted import make_engine, make_task, number_of, right, wrong

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain_ppo.py"


@pytest.mark.usefixtures("one_torch_thread")
def test_plain_ppo_learns(judge: Judge) -> None:
    spec = importlib.util.spec_from_file_location("plain_ppo", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    plain_ppo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain_ppo)

    def answer(request: GenerationRequest) -> str:
        number = number_of(request)
        return right(number) if request.draw == 0 and "slowly" not in request.user else wrong(number)

    def rewrite(request: GenerationRequest) -> str:
        return f" Add {number_of(request)} to the given value `x`. Return the result."

    tasks = [make_task(number) for number in range(1, 5)]
    operators = OperatorSettings.model_validate({"semantic": {"place": "instead"}})
    engine = make_engine(answer, judge, rewrite=rewrite, operators=operators, horizon=2)
    envs = PromptRefinementVectorEnv(engine, tasks, num_envs=8)
    agent, means = plain_ppo.train(envs, updates=12, n_steps=4, seed=0)
    assert np.mean(means[-3:]) > np.mean(means[:3])
    observations, _ = envs.reset(seed=1)
    assert agent.distribution(torch.from_numpy(observations)).probs.mean(0).argmax() == 2
