from __future__ import annotations

import ast
import json
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptrl.errors import RunError
from promptrl.execution.preamble import PREAMBLE
from promptrl.refining.output import check_output, diff_text, word_diff
from promptrl.refining.result import standalone

CASES = [
    ("def f(x):\n    return math.sqrt(x)\n", "math.sqrt"),
    ("from __future__ import annotations\n\ndef f(x: List[int]) -> int:\n    return Counter(x)[1]\n", "Counter"),
    ('"""Doc."""\nimport os\n\ndef f(x):\n    return gcd(x)\n\ndef gcd(x):\n    return heappop([x])\n', "heappop"),
    ("class Solution:\n    def f(self, x):\n        return reduce(lambda a, b: a + b, [x, x])\n", "reduce"),
]


@pytest.mark.parametrize(("code", "used"), CASES)
def test_code_that_leans_on_the_judge_stands_on_its_own(code: str, used: str) -> None:
    alone = types.ModuleType("alone")
    exec(compile(standalone(code, "f"), "best.py", "exec"), alone.__dict__)
    assert callable(alone.f)
    argument = [1, 1] if used == "Counter" else 4
    assert alone.f(argument) in (2.0, 2, 4, 8)


@pytest.mark.parametrize(
    "code",
    [
        "import math\n\n\ndef f(x):\n    return math.sqrt(x)\n",
        "def f(count):\n    product = count\n    return product\n",
        "def f(x):\n    return sum(x)\n",
        "def f(x\n",
    ],
)
def test_what_lacks_nothing_stays_as_it_is(code: str) -> None:
    assert standalone(code, "f") == code


def test_every_name_that_the_judge_supplies_can_be_written_out() -> None:
    names = {
        alias.name
        for statement in ast.parse(PREAMBLE).body
        for alias in statement.names  # type: ignore[attr-defined]
    }
    for name in sorted(names):
        code = standalone(f"def f():\n    return {name}\n")
        scope: dict[str, object] = {}
        exec(code, scope)
        assert callable(scope["f"])
        scope["f"]()


WORDS = st.lists(st.sampled_from(["sum", "of", "the", "numbers", ",", "\n", "`x`"]), max_size=12).map(" ".join)


@given(WORDS, WORDS)
def test_a_diff_holds_both_texts(before: str, after: str) -> None:
    pieces = list(word_diff(before, after))
    assert "".join(text for sign, text in pieces if sign != "+") == before
    assert "".join(text for sign, text in pieces if sign != "-") == after
    assert all(text for _, text in pieces)


def test_a_diff_in_a_pipe_and_in_colours() -> None:
    before, after = "Return the sum of [it].", "Return the total of [it]."
    assert diff_text(before, after, colour=False).plain == "Return the [-sum-]{+total+} of [it]."
    coloured = diff_text(before, after, colour=True)
    assert coloured.plain == "Return the sumtotal of [it]."
    assert [str(span.style) for span in coloured.spans] == ["red strike", "green bold"]


def test_folders_that_hold_something(tmp_path: Path) -> None:
    check_output(tmp_path / "new", resume=False)
    check_output(tmp_path, resume=False)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="is not an empty folder; give another --output"):
        check_output(tmp_path, resume=True)
    (tmp_path / "refinement.json").write_text(json.dumps({}))
    with pytest.raises(RunError, match="already holds a refinement; use --resume"):
        check_output(tmp_path, resume=False)
    check_output(tmp_path, resume=True)
    with pytest.raises(RunError, match="is not a folder"):
        check_output(tmp_path / "notes.txt", resume=True)
