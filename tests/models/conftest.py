from __future__ import annotations

from pathlib import Path

import pytest

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
