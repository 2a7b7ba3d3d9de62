"""Code from answers: every form in which models write it, judged by what the code then does."""

from __future__ import annotations

import ast
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptrl.execution.extraction import extract_code

F = "```"
ADD = "def add(a, b):\n    return a + b\n"
STUB = (
    "from typing import List\n\n\ndef total(xs: List[int]) -> int:\n"
    '    """ Sum the numbers.\n    >>> total([1, 2])\n    3\n    """\n'
)
INNER_FENCE = f'def add(a, b):\n    """\n{F}\nadd(1, 2)\n{F}\n    """\n    return a + b\n'
TESTS = "from solution import add\ndef test_add():\n    assert add(1, 2) == 3\n"


def names(code: str | None) -> set[str]:
    """Names bound at the top of a module; the code itself is never run here."""
    assert code is not None
    bound: set[str] = set()
    for node in ast.parse(code).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.Assign):
            bound.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update(alias.asname or alias.name for alias in node.names)
    return bound


def returns(code: str | None, function: str) -> str:
    """The source of what the last return of a function gives back."""
    assert code is not None
    found = ""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            found = [
                ast.unparse(inner.value) for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value
            ][-1]
    return found


ANSWERS = {
    "python fence": f"{F}python\n{ADD}{F}",
    "tag with digits and CRLF": f"{F}Python3\r\ndef add(a, b):\r\n    return a + b\r\n{F}",
    "py tag": f"{F}py\n{ADD}{F}",
    "braces tag": f"{F}{{.python .numberLines}}\n{ADD}{F}",
    "tag and title": f'{F}python title="add.py"\n{ADD}{F}',
    "tag with blank": f"{F} python\n{ADD}{F}",
    "no tag": f"{F}\n{ADD}{F}",
    "no tag, no newline": f"{F}def add(a, b):\n    return a + b\n{F}",
    "tag and code on one line": f"{F}python def add(a, b):\n    return a + b\n{F}",
    "fence on one line": f"Use\n{F}python def add(a, b): return a + b{F}\nfor it",
    "notebook magic": f"{F}python\n%matplotlib inline\n!pip install x\n{ADD}{F}",
    "tildes": f"~~~python\n{ADD}~~~",
    "four backticks": f"{F}`python\n{ADD}{F}`",
    "never closed": f"{F}python\ndef add(a, b):\n    return a + b",
    "never opened": f"{ADD}{F}",
    "closed at the end of the line": f"{F}python\ndef add(a, b):\n    return a + b{F}",
    "fence in a docstring": f"{F}python\n{INNER_FENCE.replace(F, '    ' + F)}{F}",
    "fence in a docstring at line start": f"{F}python\n{INNER_FENCE}{F}\nDone.",
    "fence in a docstring, no fences": INNER_FENCE,
    "draft in a think block": f"<think>{F}python\ndef add(a, b): return 0\n{F}</think>\n{F}python\n{ADD}{F}",
    "prose around": "Sure! Here it is:\n\ndef add(a, b):\n    return a + b\n\nHope this helps.",
    "prose around a fence": f"Here's the function you asked for:\n\n{F}python\n{ADD}{F}\n\nIt’s “simple”.",
    "prose that parses": "Sure\n\ndef add(a, b):\n    return a + b\n\nNote: this\nDone",
    "curly quotes in prose": f"Here’s the “add” function：\n{ADD}\nThat’s all!",
    "bare": ADD,
    "bom": f"\ufeff{ADD}",
    "bom in the fence": f"{F}python\n\ufeff{ADD}{F}",
    "tabs": f"{F}python\ndef add(a, b):\n\treturn a + b\n{F}",
    "no-break spaces": f"{F}python\ndef add(a, b):\n\u00a0\u00a0\u00a0\u00a0return a +\u00a0b\n{F}",
    "ideographic spaces": "def add(a, b):\n\u3000\u3000return a + b\n",
    "end mark": f"{ADD}<|endoftext|>",
    "end marks after the fence": f"{F}python\n{ADD}{F}<|im_end|>\n<|endoftext|>\n",
    "shell block first": f"{F}bash\npip install numpy\n{F}\n\n{F}python\n{ADD}{F}",
    "output block last": f"{F}python\n{ADD}{F}\nOutput:\n{F}\n3\n{F}",
    "usage block last": f"{F}python\n{ADD}{F}\nUsage:\n{F}python\nprint(add(1, 2))\n{F}",
    "test block last": f"{F}python\n{ADD}{F}\n{F}python\n{TESTS}{F}",
    "stub block last": f"{F}python\n{ADD}{F}\nYou filled in:\n{F}python\ndef add(a, b):\n    pass\n{F}",
    "stub block first": f"Given\n{F}python\ndef add(a, b):\n    ...\n{F}\nwe get\n{F}python\n{ADD}{F}",
    "corrected version": f"{F}python\ndef add(a, b):\n    return a - b\n{F}\nOops, rather:\n{F}python\n{ADD}{F}",
    "indented in a list": f"1. Write it:\n\n   {F}python\n   def add(a, b):\n       return a + b\n   {F}\n2. Done",
    "doctest lines after": f"{F}python\n{ADD}\n>>> add(1, 2)\n3\n{F}",
    "terminal session": f"{F}\n>>> def add(a, b):\n...     return a + b\n>>> add(1, 2)\n3\n{F}",
    "truncated last line": f"{F}python\n{ADD}\nprint(add(1,",
    "truncated test": f"{ADD}\ndef test_add():\n    assert add(1, 2) == 3\n    assert add(",
    "truncated after prose": f"Sure, it's this:\n\n{ADD}\n    # and then\nprint(add(1,",
    "prose in the fence": f"{F}python\n{ADD}\nThis function adds two numbers, doesn't it?\n{F}",
    "main guard with input": f'{ADD}\nif __name__ == "__main__":\n    print(add(int(input()), int(input())))\n',
    "prompt repeated": f'{F}python\ndef add(a, b):\n    """Add."""\n{F}\n{F}python\n{ADD}{F}',
    "defined twice in one block": f'{F}python\n{ADD}\ndef add(a, b):\n    """Add."""\n{F}',
    "asynchronous talk": f"I will `add` things.\n{F}python\n{ADD}{F}\nand `def add(a, b)` is its head",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_the_function_is_found(answer: str) -> None:
    found = extract_code(answer, entry_point="add")
    assert found.error is None
    assert returns(found.code, "add") == "a + b"


def test_an_open_think_block_is_no_answer() -> None:
    found = extract_code(f"<think>\nlet me see {F}python\n{ADD}{F}", entry_point="add")
    assert found.code is None
    assert found.error == "truncated: the answer ends inside its thinking"


@pytest.mark.parametrize("answer", ["", "  \n", "<|endoftext|>", "I cannot do that.", "Sure", f"{F}python\n{F}"])
@pytest.mark.parametrize("entry_point", ["add", None])
def test_no_code_is_said(answer: str, entry_point: str | None) -> None:
    found = extract_code(answer, entry_point=entry_point)
    assert found.code is None
    assert found.error is not None
    assert found.error.startswith("no code found")


def test_a_syntax_error_is_reported_as_such() -> None:
    found = extract_code(f"{F}python\ndef add(a, b:\n    return a + b\n{F}", entry_point="add")
    assert found.code is None
    assert found.error is not None
    assert found.error.startswith("syntax error: ")
    assert "line 1" in found.error
    mixed = extract_code("def add(a, b):\n    if a:\n\treturn b\n        return a\n", entry_point="add")
    assert mixed.error is not None
    assert mixed.error.startswith("syntax error: ")


def test_the_line_of_a_syntax_error_is_that_of_the_code() -> None:
    found = extract_code("It's this:\n\ndef add(a, b):\n    return (a + b\n", entry_point="add")
    assert found.error is not None
    assert "line 2" in found.error


def test_everything_at_the_top_is_kept_but_demonstrations() -> None:
    answer = f"""{F}python
import math
from dataclasses import dataclass

LIMIT = 10
TABLE = [n * n for n in range(LIMIT)]
cache = {{}}
primes = []
for n in range(2, 20):
    if all(n % p for p in primes):
        primes.append(n)
cache.update(a=1)

def area(r):
    return math.pi * _sq(r) + len(primes) + len(cache)

@dataclass
class Point:
    x: int

def _sq(x):
    return x * x

# a comment that stays
result = area(2)
n = int(input())
assert area(0) == 0
print(area(1))
for r in range(3):
    print(area(r))
area(5)
if __name__ == "__main__":
    print(area(float(input())))
{F}"""
    found = extract_code(answer, entry_point="area")
    assert found.code is not None
    assert names(found.code) == {"math", "dataclass", "LIMIT", "TABLE", "cache", "primes", "area", "Point", "_sq"}
    assert "primes.append(n)" in found.code
    assert "cache.update" in found.code
    assert "# a comment that stays" in found.code
    for gone in ("print", "assert", "input", "result", "__main__"):
        assert gone not in found.code


def test_a_demonstration_on_the_line_of_an_import_is_dropped_alone() -> None:
    found = extract_code('import math; print("é", math.pi)\ndef area(r): return math.pi * r\n', entry_point="area")
    assert found.code is not None
    assert "print" not in found.code
    assert names(found.code) == {"math", "area"}


def test_the_recursion_limit_stays() -> None:
    found = extract_code(f"import sys\nsys.setrecursionlimit(10**6)\n{ADD}print(1)\n", entry_point="add")
    assert found.code is not None
    assert "setrecursionlimit" in found.code


def test_helpers_from_other_blocks_come_along() -> None:
    answer = (
        f"First a helper:\n{F}python\nimport math\n\ndef square(x):\n    return x * x\n{F}\n"
        f"a note:\n{F}\nnothing = 1\n{F}\nThen:\n{F}python\ndef area(r):\n    return math.pi * square(r)\n{F}"
    )
    found = extract_code(answer, entry_point="area")
    assert names(found.code) == {"math", "square", "area"}


def test_a_helper_in_a_later_block_comes_along() -> None:
    answer = f"{F}python\ndef area(r):\n    return 3 * sq(r)\n{F}\nwith\n{F}python\ndef sq(x):\n    return x * x\n{F}"
    assert names(extract_code(answer, entry_point="area").code) == {"sq", "area"}


BODIES = {
    "as it should be": "    return sum(xs)\n",
    "first line lost its indentation": "return sum(xs)",
    "first of several lines": "result = 0\n    for x in xs:\n        result += x\n    return result\n",
    "not indented": "result = 0\nfor x in xs:\n    result += x\nreturn result\n",
    "tabs": "\tresult = 0\n\tfor x in xs:\n\t\tresult += x\n\treturn result\n",
    "fenced": f"{F}python\n    return sum(xs)\n{F}",
    "fenced, not indented": f"The body is:\n{F}python\nreturn sum(xs)\n{F}",
    "goes on with another function": "    return sum(xs)\n\n\ndef other(ys):\n    return 1\n\nprint(total([1]))\n",
    "goes on and is cut off": "    return sum(xs)\n\n\ndef other(ys):\n    return (1 +",
    "goes on in prose": "    return sum(xs)\n\nThis works because sum adds up, doesn't it?\n",
    "end mark": "    return sum(xs)<|endoftext|>",
    "closing fence": f"    return sum(xs)\n{F}\n",
    "CRLF": "    result = sum(xs)\r\n    return result\r\n",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_continues_the_stub(body: str) -> None:
    found = extract_code(body, entry_point="total", stub=STUB)
    assert found.error is None
    assert returns(found.code, "total") in ("sum(xs)", "result")
    assert "List" in names(found.code)


def test_without_a_stub_a_body_is_no_function() -> None:
    found = extract_code("    return sum(xs)\n", entry_point="total")
    assert found.code is None or "total" not in names(found.code)


def test_the_stub_repeated_and_completed() -> None:
    found = extract_code(f"{F}python\n{STUB}    return sum(xs)\n{F}", entry_point="total", stub=STUB)
    assert returns(found.code, "total") == "sum(xs)"
    assert found.added_imports == ()


def test_class_solution_is_kept_and_gets_its_imports() -> None:
    answer = (
        "class Solution:\n    def two_sum(self, nums: List[int], target: int) -> List[int]:\n"
        "        seen = {}\n        for i, x in enumerate(nums):\n            if target - x in seen:\n"
        "                return [seen[target - x], i]\n            seen[x] = i\n"
    )
    found = extract_code(answer, entry_point="two_sum")
    assert names(found.code) == {"Solution", "List"}
    assert found.added_imports == ("from typing import List",)


def test_forgotten_imports_are_added_and_named() -> None:
    found = extract_code(
        "from __future__ import annotations\ndef f(xs: Optional[list]) -> Dict:\n    return {}\n",
        entry_point="f",
    )
    assert found.added_imports == ("from typing import Dict, Optional",)
    assert found.code is not None
    compile(found.code, "x", "exec")  # the __future__ import still comes first


def test_helpers_of_the_stub_keep_their_decorators() -> None:
    stub = (
        "from dataclasses import dataclass\nimport functools\n\n"
        "@dataclass(\n    frozen=True,\n)\nclass Slot:\n    start: int\n\n\n"
        '@functools.cache\ndef first(): return Slot(1)\n\n\ndef f(x):\n    """Add."""\n'
    )
    found = extract_code(f"{F}python\ndef f(x):\n    return first(), Slot(x)\n{F}", entry_point="f", stub=stub)
    assert found.code is not None
    assert "@dataclass(\n    frozen=True,\n)\nclass Slot:" in found.code
    module: dict[str, Any] = {"__name__": __name__}
    exec(compile(found.code, "x", "exec", dont_inherit=True), module)
    assert module["f"](2) == (module["Slot"](1), module["Slot"](2))
    assert module["first"].cache_info().misses == 1
    assert found.added_imports == ("from dataclasses import dataclass", "import functools")


def test_helpers_of_the_stub_are_added() -> None:
    stub = "import math\n\ndef poly(x):\n    return math.pow(x, 2)\n\n\ndef root(x):\n    '''Find it.'''\n"
    found = extract_code("def root(x):\n    return poly(x)\n", entry_point="root", stub=stub)
    assert names(found.code) == {"math", "poly", "root"}


def test_an_odd_space_inside_a_string_stays() -> None:
    found = extract_code('def f():\n\u00a0\u00a0\u00a0\u00a0return "a\u00a0b"  # it\'s\u00a0so\n', entry_point="f")
    assert found.code is not None
    assert '"a\u00a0b"' in found.code


def test_an_end_mark_inside_the_answer_stays() -> None:
    found = extract_code('def f():\n    return "<|endoftext|>"\n', entry_point="f")
    assert returns(found.code, "f") == "'<|endoftext|>'"


PROGRAM = 'def main():\n    print(int(input()) * 2)\n\n\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    "answer",
    [
        PROGRAM,
        f"{F}python\n{PROGRAM}{F}",
        f"Read the number, then double it.\n\n{F}python\n{PROGRAM}{F}\nInput\n{F}\n21\n{F}\nOutput\n{F}\n42\n{F}",
        f"{F}python\n{PROGRAM}",
        f"{F}python\nx = 1\ny = 2\nz = 3\nprint(x + y + z, x * y * z, 'a longer one than the program itself is')\n{F}\n"
        f"{F}python\n{PROGRAM}{F}",
    ],
)
def test_a_program_keeps_everything(answer: str) -> None:
    found = extract_code(answer)
    assert found.code is not None
    assert found.code.strip() == PROGRAM.strip()


def test_a_program_between_prose() -> None:
    found = extract_code("Here is it:\n\nn = int(input())\nprint(n * 2)\n\nHope it helps!")
    assert found.code is not None
    assert found.code.strip() == "n = int(input())\nprint(n * 2)"


def test_code_without_the_entry_point_is_left_to_the_judge() -> None:
    found = extract_code(f"{F}python\ndef plus(a, b):\n    return a + b\n{F}", entry_point="add")
    assert names(found.code) == {"plus"}


@given(st.text(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_text_gives_code_that_compiles_or_a_reason(text: str) -> None:
    for entry_point in ("add", None):
        found = extract_code(
            text, entry_point=entry_point, stub="def add(a, b):\n    '''Add.'''\n" if entry_point else ""
        )
        assert (found.code is None) != (found.error is None)
        if found.code is not None:
            compile(found.code, "x", "exec")


PIECES = [
    *(
        "def add(a, b):\n",
        "    return a + b\n",
        "import math\n",
        f"{F}python\n",
        f"{F}\n",
        F,
        "Sure!\n",
        "It's (this [\n",
    ),
    *("class Solution:\n", "    def add(self, a, b):\n", "        return a + b\n", ">>> add(1, 2)\n3\n", '"""\n'),
    *("if __name__ == '__main__':\n    print(add(int(input()), 2))\n", "x = add(1, 2)\n", "\t", "\u00a0", "\ufeff"),
    *("assert add(1, 2) == 3\n", "@cache\n", "print(", "# it\n", "global x\n", "return 1\n", "await x\n", "\r\n"),
    *(
        "from __future__ import annotations\n",
        "try:\n    import re\nexcept ImportError:\n    re = None\n",
        "del math; x = 1\n",
    ),
    *("match x:\n    case {'a': 1, **rest}:\n        pass\n", "def add(a, b): ...\n", "<think>\n", "</think>\n"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_mixture_gives_code_that_compiles_or_a_reason(answer: str) -> None:
    for entry_point, stub in (("add", ""), ("add", "def add(a, b):\n    '''Add.'''\n"), (None, "")):
        found = extract_code(answer, entry_point=entry_point, stub=stub)
        assert (found.code is None) != (found.error is None)
        if found.code is not None:
            compile(found.code, "x", "exec", dont_inherit=True)


WORDS = st.lists(
    st.sampled_from(["Sure!", "Here it is:", "It's done.", "Note: this", "* a", "1. b", "", "(c)"]), max_size=5
)


@given(WORDS, WORDS, st.sampled_from(["python", "", "py", "Python3"]), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_prose_never_changes_what_is_found(
    before: list[str], after: list[str], tag: str, fenced: bool, crlf: bool
) -> None:
    block = f"{F}{tag}\n{ADD}{F}" if fenced else ADD
    answer = "\n".join([*before, "", block, "", *after])
    found = extract_code(answer.replace("\n", "\r\n") if crlf else answer, entry_point="add")
    assert returns(found.code, "add") == "a + b"


@given(st.integers(0, len(ADD) - 1))
def test_finding_twice_finds_the_same(cut: int) -> None:
    once = extract_code(f"{F}python\n{ADD}\nprint(1)\n{ADD[:cut]}", entry_point="add")
    if once.code is not None:
        assert extract_code(once.code, entry_point="add").code == once.code


@pytest.mark.parametrize(
    "answer", ["x = " + "(" * 5000, "-" * 50_000 + "1", "def f():\n" + "    if 1:\n" * 200, "\x00def add(): pass"]
)
def test_what_the_parser_cannot_take_is_no_crash(answer: str) -> None:
    found = extract_code(f"{F}python\n{answer}\n{F}", entry_point="add")
    assert found.code is None


def test_a_typical_answer_takes_less_than_5_ms() -> None:
    answer = (
        f"Here is the function:\n\n{F}python\n{STUB}"
        + "    x = [n for n in xs if n]\n" * 20
        + f"    return sum(xs)\n{F}\nDone."
    )
    extract_code(answer, entry_point="total", stub=STUB)
    seconds = []
    for _ in range(20):
        start = time.process_time()
        extract_code(answer, entry_point="total", stub=STUB)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.005  # the least disturbed of them


def test_the_worst_answers_stay_bounded() -> None:
    prose = "It's (not [code, is it?\n" * 400
    fences = f"{F}python\nx = (\n{F}\n" * 60
    start = time.process_time()
    for answer in (prose, fences, prose + fences, "def add(a, b):\n    return (\n" * 300):
        extract_code(answer, entry_point="add", stub=STUB)
    assert time.process_time() - start < 10
