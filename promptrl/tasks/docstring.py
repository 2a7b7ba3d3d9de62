"""Splits a HumanEval prompt into the prose that may be refined and the contract that may not."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Final

_QUOTES: Final = re.compile(r"^[rRuU]?(\"\"\"|'''|\"|')")
_EXAMPLE_HEADER: Final = re.compile(
    r"^\W*(for\s+|some\s+|here\s+are\s+|more\s+|sample\s+|test\s+)*(examples?|sample|example\s+cases?)\b[\s\w()]{0,20}:?\W*$"
    r"|^\W*(e\.g\.|for\s+(example|instance))\W*$"
    r"|^\W*examples?\s*\d*\s*:",
    re.IGNORECASE,
)
_OTHER_HEADER: Final = re.compile(
    r"^\W*(notes?|constraints?|variables?|hints?|remarks?|assumptions?|you\s+(can|may|should)|it\s+is\s+guaranteed)\b",
    re.IGNORECASE,
)
_RESULT: Final = re.compile(r"==|=>|->|➞|→|=|\breturns?\b|\bgives?\b|\bequals?\b|\bshould\b|\bis\b")


def split_prompt(prompt: str, entry_point: str) -> tuple[str, str]:
    """Split a function stub with a docstring into instruction and contract.

    The contract is the stub itself (imports, helpers, signature) with a docstring that holds only the
    examples; the instruction is the rest of the docstring. Together they hold every line of the prompt.

    Raises:
        ValueError: when the prompt does not parse, or has no function `entry_point` with a docstring.
    """
    node = _docstring_node(prompt, entry_point)
    lines = prompt.split("\n")
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    # Column offsets count bytes.
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    literal = ast.get_source_segment(prompt, node) or ""
    opening = _QUOTES.match(literal)
    if opening is None:
        raise ValueError("the docstring is not a plain string")
    quote = opening.group(1)
    prose, examples = split_docstring(literal[opening.end() : -len(quote)], entry_point)
    before, after = "\n".join([*lines[:first], head]), "\n".join([tail, *lines[last + 1 :]])
    if examples:
        indent = head if not head.strip() else "    "
        body = textwrap.indent(examples, indent)
        middle = f"{literal[: opening.end()]}\n{body}\n{indent}{quote}"
        contract = f"{before}{middle}{after}"
    else:
        contract = f"{before.rstrip()}{after}"
    return prose, contract.strip("\n").rstrip()


def _docstring_node(prompt: str, entry_point: str) -> ast.Constant:
    for statement in ast.parse(prompt).body:
        if isinstance(statement, ast.FunctionDef) and statement.name == entry_point:
            # Not ast.get_docstring: one prompt (HumanEval/115) imports before its docstring.
            for inner in statement.body:
                match inner:
                    case ast.Expr(value=ast.Constant(value=str()) as constant):
                        return constant
    raise ValueError(f"no function {entry_point!r} with a docstring")


def split_docstring(text: str, entry_point: str) -> tuple[str, str]:
    """Split the raw text of a docstring into prose and examples, both dedented; every line goes to one of them.

    Examples are doctests with what they print, lines that show a call of the function with its result,
    and whatever stands under a heading like "Example 1:" up to a heading like "Note:".
    """
    lines = _dedent(text)
    examples = [False] * len(lines)
    in_doctest = False
    block_indent: int | None = None  # of the heading whose block of examples is open
    for index, line in enumerate(lines):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if not stripped:
            in_doctest = False
            examples[index] = block_indent is not None
        elif stripped.startswith(">>>"):
            in_doctest = examples[index] = True
        elif in_doctest:
            examples[index] = True
        elif _EXAMPLE_HEADER.match(stripped):
            block_indent = indent
            examples[index] = True
        elif block_indent is not None and not (indent <= block_indent and _OTHER_HEADER.match(stripped)):
            examples[index] = True
        else:
            block_indent = None
            examples[index] = _shows_call(stripped, entry_point)
    if not any(line.strip() and not example for line, example in zip(lines, examples, strict=True)):
        # Nothing would be left to refine: only what is surely an example stays one.
        examples = [line.strip().startswith(">>>") for line in lines]
    return _join(lines, examples, False), _join(lines, examples, True)


def _shows_call(line: str, entry_point: str) -> bool:
    start = line.find(f"{entry_point}(")
    if start < 0:
        return False
    # A sentence about the function that only mentions its call shows no result after it.
    return bool(_RESULT.search(line, start + len(entry_point) + 1)) and start <= 12


def _dedent(text: str) -> list[str]:
    first, *rest = text.split("\n")
    return [first.strip(), *textwrap.dedent("\n".join(rest)).split("\n")] if rest else [first.strip()]


def _join(lines: list[str], examples: list[bool], wanted: bool) -> str:
    kept: list[str] = []
    for line, example in zip(lines, examples, strict=True):
        if example is wanted and (line.strip() or (kept and kept[-1].strip())):
            kept.append(line.rstrip())
    return "\n".join(kept).strip("\n").rstrip()
