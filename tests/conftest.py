"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from promptrl.execution import Judge
from tests.scripted import make_judge

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    with make_judge() as judge:
        yield judge


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of benchmark files that PROMPTRL_DATA_DIR names."""
    if not (folder := os.environ.get("PROMPTRL_DATA_DIR")):
        pytest.skip("PROMPTRL_DATA_DIR is not set; the files of MBPP, MBPP+ and HumanEval+ are needed")
    return Path(folder)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Small networks on one thread: on a busy machine two would wait for each other at every layer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
