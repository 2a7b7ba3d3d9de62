"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

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
