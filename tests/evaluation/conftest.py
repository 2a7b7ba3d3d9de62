"""What the tests of this room share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> Iterator[None]:
    """Each call of statsmodels collects garbage; what is loaded already need not be looked through every time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
