"""From a verdict to a number: the shaped reward and the binary one that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Literal

from promptrl.execution.verdict import Verdict

RewardName = Literal["shaped", "binary"]

ALL_PASSED = 1.0
NONE_PASSED = -1.0
EXECUTION_FAILURE = -2.0


def shaped_reward(verdict: Verdict) -> float:
    """1 if ρ = 1; ρ if 0 < ρ < 1; −1 if ρ = 0 though the code ran; −2 on execution failure (arXiv 2605.19102)."""
    if verdict.execution_failure:
        return EXECUTION_FAILURE
    return verdict.pass_rate if verdict.tests_passed else NONE_PASSED


def binary_reward(verdict: Verdict) -> float:
    """1 if every test passed, else 0."""
    return ALL_PASSED if verdict.pass_rate == 1.0 else 0.0


REWARDS: MappingProxyType[RewardName, Callable[[Verdict], float]] = MappingProxyType(
    {"shaped": shaped_reward, "binary": binary_reward}
)
