from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from promptrl.errors import PromptRLError
from tests.models.tiny import save_causal


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal(tmp_path_factory.mktemp("tiny-llama-chat"))


@pytest.fixture(scope="session")
def real_gguf() -> Path:
    from promptrl.assets import find_model

    try:
        return find_model("qwen2.5-coder-0.5b")
    except PromptRLError as error:
        pytest.skip(f"the real model is not here: {error}")


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    from promptrl.assets import find_model

    try:
        return find_model("minilm")
    except PromptRLError as error:
        pytest.skip(f"the encoder is not here: {error}")


@pytest.fixture(autouse=True)
def few_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models run on one thread: two would spend their time waiting for each other."""
    threads = torch.get_num_threads()
    if "real_model" not in request.keywords:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
