"""The examples of `promptrl refine` can be solved: their tests pass a right answer and fail a nearly right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptrl.execution import Candidate, Judge
from promptrl.refining import task_from_prompt, task_from_stub, tasks_from_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "refine"

ROTATION = """\
def is_rotation(first, second):
    return len(first) == len(second) and second in first + first
"""
ISLANDS = """\
def count_islands(values):
    return sum(value == 1 and (index == 0 or values[index - 1] == 0) for index, value in enumerate(values))
"""
INTERVALS = """\
def merge_intervals(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
"""
PREFIX = """\
import os
def common_prefix(words):
    return "" if not words else os.path.commonprefix(words)
"""


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("rotations", ROTATION, ROTATION.replace("len(first) == len(second) and ", "")),
        ("islands", ISLANDS, ISLANDS.replace("index == 0 or ", "index and ")),
        ("merge_intervals", INTERVALS, INTERVALS.replace("max(end, merged[-1][1])", "end")),
        ("common_prefix", PREFIX, PREFIX.replace('"" if not words else ', "words[0] and ")),
    ],
)
def test_a_right_answer_passes(judge: Judge, name: str, right: str, wrong: str) -> None:
    if name == "merge_intervals":
        (task,) = tasks_from_file(EXAMPLES / f"{name}.yaml")
    elif name == "common_prefix":
        task = task_from_prompt(EXAMPLES / f"{name}.txt", name, EXAMPLES / "asserts_for_prefix.py", judge=judge)
    else:
        tests = "test_rotations.py" if name == "rotations" else "asserts_for_islands.py"
        task = task_from_stub(EXAMPLES / f"{name}.py", EXAMPLES / tests, judge=judge)
    good, bad = judge.judge([Candidate(code, task, task.base) for code in (right, wrong)])
    assert good.pass_rate == 1.0
    assert bad.pass_rate < 1.0
