"""The table of reward cases."""

from __future__ import annotations

import pytest

from promptrl.execution import Candidate, Judge
from promptrl.execution.verdict import Outcome, Status, TestResult, Verdict
from promptrl.refinement.reward import binary_reward, shaped_reward
from tests.scripted import half_right, make_task, right, wrong


@pytest.mark.parametrize(
    ("code", "shaped", "binary"),
    [
        pytest.param(right(1), 1.0, 1.0, id="all pass"),
        pytest.param(half_right(1), 0.5, 0.0, id="two of four pass"),
        pytest.param(wrong(1), -1.0, 0.0, id="none passes though the code ran"),
        pytest.param(None, -2.0, 0.0, id="no code found"),
        pytest.param("def add_1(x:\n", -2.0, 0.0, id="syntax error"),
        pytest.param("import nowhere\n" + right(1), -2.0, 0.0, id="exception at import"),
        pytest.param("def other(x):\n    return x", -2.0, 0.0, id="entry point missing"),
        pytest.param("def add_1(x):\n    raise ValueError", -2.0, 0.0, id="every test raises"),
        pytest.param("def add_1(x):\n    return x + 1 if x == 0 else 1 / 0", 0.25, 0.0, id="one passes, three raise"),
        pytest.param("def add_1(x):\n    return -9 if x == 0 else 1 / 0", -1.0, 0.0, id="one wrong, three raise"),
        pytest.param("import os\nos._exit(0)\n" + right(1), -2.0, 0.0, id="leaves at import"),
        pytest.param("def add_1(x):\n    import os\n    os._exit(0)", -2.0, 0.0, id="leaves in every call"),
        pytest.param("while True:\n    pass\n" + right(1), -2.0, 0.0, id="import does not end"),
    ],
)
def test_reward_table(judge: Judge, code: str | None, shaped: float, binary: float) -> None:
    task = make_task(1)
    (verdict,) = judge.judge([Candidate(code, task, task.base)])
    assert (shaped_reward(verdict), binary_reward(verdict)) == (shaped, binary), verdict


def test_a_test_without_record_counts_as_not_passed() -> None:
    verdict = Verdict(Status.PARTIAL, (TestResult(Outcome.PASSED), TestResult(Outcome.CRASHED)))
    assert shaped_reward(verdict) == 0.5
