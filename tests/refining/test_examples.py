"""The examples of `promptrl refine` can be solved: their tests pass a right answer and fail a nearly right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptrl.execution import Candidate, Judge
from promptrl.refining import task_from_prompt, task_from_stub, tasks_from_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "refine"

SHIFT = """\
def shift_letters(text, by):
    def shifted(letter):
        if not letter.isalpha():
            return letter
        first = ord("A") if letter.isupper() else ord("a")
        return chr((ord(letter) - first + by) % 26 + first)
    return "".join(map(shifted, text))
"""
SIZE = """\
def format_bytes(count):
    if count < 1024:
        return f"{count} B"
    for unit in ("KB", "MB", "GB"):
        count /= 1024
        if count < 1024 or unit == "GB":
            return f"{count:.1f} {unit}"
"""
FREQUENT = """\
def most_frequent(values):
    return min(values, key=lambda value: (-values.count(value), value))
"""
RUN = """\
def longest_run(text):
    runs = [(letter, len(list(group))) for letter, group in groupby(text)]
    return max(runs, key=lambda run: run[1], default=("", 0))
"""


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("ciphering", SHIFT, SHIFT.replace('ord("A") if letter.isupper() else ord("a")', 'ord("a")')),
        ("sizes", SIZE, SIZE.replace(" B", "")),
        ("most_frequent", FREQUENT, FREQUENT.replace(", value))", "))")),
        ("longest_run", RUN, RUN.replace("text)]", "sorted(text))]")),
    ],
)
def test_a_right_answer_passes(judge: Judge, name: str, right: str, wrong: str) -> None:
    if name == "most_frequent":
        (task,) = tasks_from_file(EXAMPLES / "most_frequent.yaml")
    elif name == "longest_run":
        task = task_from_prompt(EXAMPLES / f"{name}.txt", name, EXAMPLES / "asserts_for_runs.py", judge=judge)
    else:
        tests = "test_ciphering.py" if name == "ciphering" else "asserts_for_sizes.py"
        task = task_from_stub(EXAMPLES / f"{name}.py", EXAMPLES / tests, judge=judge)
    good, bad = judge.judge([Candidate(code, task, task.base) for code in (right, wrong)])
    assert good.pass_rate == 1.0
    assert bad.pass_rate < 1.0
