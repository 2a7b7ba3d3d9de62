"""The client against llama.cpp's own server with the real model; needs the `benchmarks` extra."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.generation import llama_server
from promptrl.models import ModelSettings, ServerSettings, code_request, load_model

PYTHON = os.environ.get("PROMPTRL_LLAMA_PYTHON", sys.executable)
pytestmark = [pytest.mark.slow, pytest.mark.real_model]


@pytest.fixture(scope="module")
def base_url(real_gguf: Path) -> Iterator[str]:
    if subprocess.run([PYTHON, "-c", "import xllamacpp"], capture_output=True).returncode:
        pytest.skip("xllamacpp is not installed")
    with llama_server(PYTHON, real_gguf, slots=4, threads=2) as address:
        yield address


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_real_server_writes_code(base_url: str, api: str) -> None:
    server = ServerSettings.model_validate(
        {"base_url": base_url, "model": "m", "api": api, "continues_prefill": True, "concurrency": 4}
    )
    settings = ModelSettings(family="server", server=server, request="terse")
    stub = 'def add(a, b):\n    """Return the sum of a and b."""\n'
    asked = [
        code_request(settings, stub, stub=stub, max_new_tokens=32, temperature=temperature, draw=draw)
        for draw, temperature in enumerate((0.0, 0.8, 0.8))
    ]
    for answer in load_model(settings, cache_dir=None).generate(asked):
        assert "return" in answer.text
        assert "```" not in answer.text
        assert answer.tokens_in > 5
        assert answer.tokens_out > 0
