from __future__ import annotations

from collections.abc import Iterator

import pytest

from promptrl.execution import Judge, SandboxSettings

QUICK = SandboxSettings(
    workers=2, time_limit_floor=0.3, time_limit_default=0.3, import_time_limit=0.6, memory_mb=512, max_timeouts=2
)


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    with Judge(QUICK) as shared:
        yield shared


@pytest.fixture(scope="session")
def rlimits_judge() -> Iterator[Judge]:
    with Judge(QUICK.model_copy(update={"isolation": "rlimits"})) as shared:
        yield shared
