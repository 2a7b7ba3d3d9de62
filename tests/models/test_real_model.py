"""The real 0.5B model, quickly: does it load, write code, stop, draw anew, and answer from the cache."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from promptrl.assets import cache_dir
from promptrl.models import CachedModel, CodeModel, GenerationCache, ModelSettings, code_request
from promptrl.models.causal import CausalModel

TASKS = [
    'Complete the function.\n\ndef add(a, b):\n    """Return the sum of a and b."""',
    'Complete the function.\n\ndef is_even(n):\n    """Return True if n is even."""',
    'Complete the function.\n\ndef longest(words: list[str]) -> str:\n    """Return the longest of the words."""',
]


@pytest.fixture(scope="module")
def settings(real_gguf: Path) -> ModelSettings:
    return ModelSettings(path=real_gguf, quantization="int8", request="terse", device="cpu")


@pytest.fixture(scope="module")
def model(settings: ModelSettings) -> CausalModel:
    return CausalModel(settings, cache_dir=cache_dir())


@pytest.mark.real_model
def test_answers_are_code_that_stops(settings: ModelSettings, model: CausalModel, tmp_path: Path) -> None:
    cached: CodeModel = CachedModel(model, GenerationCache(tmp_path))
    asked = [code_request(settings, task, max_new_tokens=96) for task in TASKS]
    answers = cached.generate(asked)
    for answer, name in zip(answers, ("add", "is_even", "longest"), strict=True):
        assert answer.finish_reason == "stop"
        assert "```" not in answer.text
        assert "<|" not in answer.text
        names = {node.name for node in ast.walk(ast.parse(answer.text)) if isinstance(node, ast.FunctionDef)}
        assert name in names
        assert 5 < answer.tokens_out < 96
        assert answer.tokens_in > 40
    again = CachedModel(CausalModel(settings, cache_dir=cache_dir()), GenerationCache(tmp_path))
    assert [answer.text for answer in again.generate(asked)] == [answer.text for answer in answers]
    assert isinstance(again.model, CausalModel)
    assert not again.model.is_loaded


@pytest.mark.real_model
def test_draws_differ_and_come_back(settings: ModelSettings, model: CausalModel) -> None:
    base = code_request(settings, TASKS[2], temperature=1.0, max_new_tokens=32, seed=3)
    draws = [replace(base, draw=draw) for draw in range(4)]
    first = [answer.text for answer in model.generate(draws)]
    assert len(set(first)) > 1
    assert first == [answer.text for answer in model.generate(draws)]


@pytest.mark.real_model
def test_begin_of_the_chat_stands_once(model: CausalModel, settings: ModelSettings) -> None:
    text = model.load().prompter.prompt_text(code_request(settings, "x"))
    assert text.count("<|im_start|>user") == 1
    assert text.endswith("<|im_start|>assistant\n```python\n")
