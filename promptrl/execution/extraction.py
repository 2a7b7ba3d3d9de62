"""Finds the code in a model's answer; Python's own parser decides what is code.

The order of attempts: the answer as it stands; its fenced blocks; a function's body that continues the
stub; the definitions that stand between lines of prose. Wherever the entry point is defined wins.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from promptrl.execution import source
from promptrl.execution.fences import clean, fenced_blocks, repaired, without_closing

TYPING_NAMES: Final = (
    *("Any", "Callable", "Deque", "Dict", "FrozenSet", "Generator", "Iterable", "Iterator", "List", "Literal"),
    *("Mapping", "NamedTuple", "Optional", "Sequence", "Set", "Tuple", "Type", "TypeVar", "Union"),
)
"""Names of `typing` that annotations use and answers forget; imported where an answer uses and lacks them.

Other forgotten imports are no matter of extraction: the judge supplies them, or not, the same for all.
"""

_MIXED_TABS: Final = "inconsistent use of tabs"
"""In Python's message on indentation that mixes tabs and spaces."""
_MOST_ATTEMPTS: Final = 80
"""Bound on how often one text is parsed again with its end cut off."""


@dataclass(frozen=True, slots=True)
class ExtractedCode:
    """The code of an answer, or why there is none; exactly one of the first two is None.

    Attributes:
        code: A module that compiles.
        error: `truncated: ...`, `syntax error: ...` or `no code found ...`.
        added_imports: Lines put before the code because the answer used but lacked them.
    """

    code: str | None
    error: str | None
    added_imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    tree: ast.Module
    python: bool  # its fence says so


def extract_code(
    answer: str, *, entry_point: str | None = None, stub: str = "", kept_names: Sequence[str] = ()
) -> ExtractedCode:
    """Find the code in an answer.

    For a function task everything at the top of the chosen blocks is kept but demonstrations: bare calls,
    prints, asserts, main guards. Of several definitions of the entry point the last that does something
    counts; other blocks are added where it uses what they define. Imports of the stub, its helpers and
    names of `typing` are added where the code uses and lacks them. For a program (no entry point) all of
    the chosen block is kept.

    Args:
        answer: What the model wrote.
        entry_point: The function asked for; None for a program that reads standard input.
        stub: Code that an answer which is only a function's body continues (HumanEval's prompt).
        kept_names: Names of the stub that are added where the code lacks them, used or not.

    Returns:
        Code that compiles, or the reason why there is none. Whether the code defines the entry point is
        for the judge to say.
    """
    try:
        return _extracted(answer, entry_point, stub, frozenset(kept_names))
    except RecursionError:
        return ExtractedCode(None, "syntax error: not parsable: the code is nested too deeply")


def _extracted(answer: str, entry_point: str | None, stub: str, kept_names: frozenset[str]) -> ExtractedCode:
    text, truncated = clean(answer)
    if truncated:
        return ExtractedCode(None, "truncated: the answer ends inside its thinking")
    if not text.strip():
        return ExtractedCode(None, "no code found: the answer is empty")
    fenced, rest = fenced_blocks(text)
    blocks = _parsed(fenced)
    if entry_point is None:
        whole = repaired(text)
        tree = source.parse(whole)
        if tree is not None and _is_code(tree):
            blocks = [_Block(whole, tree, False)]
        found = _program(blocks or _loose_code(text))
        return ExtractedCode(found, None) if found else _nothing(text, fenced)
    found = _function(text, rest, blocks, fenced, entry_point, stub)
    if found is None:
        return _nothing(text, fenced)
    tree = source.parse(found)
    if tree is not None:
        cleaned = source.without_demos(found, tree, entry_point=entry_point)
        found = cleaned if source.parse(cleaned) is not None else found
    return _completed(found.strip("\n") + "\n", entry_point, stub, kept_names)


def _parsed(fenced: Sequence[tuple[str, bool]]) -> list[_Block]:
    blocks = []
    for text, python in fenced:
        tree = source.parse(text)
        if tree is not None and tree.body and (python or _is_code(tree)):
            blocks.append(_Block(text, tree, python))
    return blocks


def _is_code(tree: ast.Module) -> bool:
    """Whether a module that parses is more than words that happen to parse ("Sure", "Note: this")."""
    return any(
        not isinstance(node, (ast.Expr, ast.AnnAssign))
        or (isinstance(node, ast.AnnAssign) and node.value is not None)
        or (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)))
        for node in tree.body
    )


def _function(
    text: str, rest: str, blocks: list[_Block], fenced: list[tuple[str, bool]], entry_point: str, stub: str
) -> str | None:
    """The source that defines the entry point, or the best code there is without it."""
    whole_text = repaired(text)
    whole = source.parse(whole_text)
    if whole is not None and _solves(whole, entry_point):
        return whole_text
    if any(_solves(block.tree, entry_point) for block in blocks):
        return _joined(blocks, entry_point)
    # A block cut short, or followed by what is not code, may still hold the whole function.
    for broken in [block for block, _ in reversed(fenced) if source.parse(block) is None]:
        loose = _loose_code(broken)
        if any(_solves(block.tree, entry_point) for block in loose):
            return _joined([*blocks, *loose], entry_point)
    bodies = [block for block, _ in reversed(fenced)]
    if not fenced or not any(_mentions_definition(block, entry_point) for block in bodies):
        bodies.append(without_closing(text) if not fenced else rest)
    for body in bodies:
        if stub and not _mentions_definition(body, entry_point):
            continued = _continued(stub, body, entry_point)
            if continued is not None:
                return continued
    loose = _loose_code(rest)
    if any(_solves(block.tree, entry_point) for block in loose):
        return _joined([*blocks, *loose], entry_point)
    cut = _cut_short(fenced[-1][0] if fenced else _from_first_code(text), entry_point)
    if cut is not None:
        return cut
    # The entry point is nowhere: the judge will say so of the most that there is.
    candidates = [block for block in (*blocks, *loose) if _is_code(block.tree)]
    return max(candidates, key=lambda block: len(block.text)).text if candidates else None


def _solves(tree: ast.Module, entry_point: str) -> bool:
    definition = source.definition_of(tree, entry_point)
    return definition is not None and not source.is_trivial(definition)


def _mentions_definition(text: str, entry_point: str) -> bool:
    return re.search(rf"\bdef\s+{re.escape(entry_point)}\b", text) is not None


def _joined(blocks: Sequence[_Block], entry_point: str) -> str:
    """The last block that defines the entry point, after the other blocks that define what it lacks."""
    main = max(index for index, block in enumerate(blocks) if _solves(block.tree, entry_point))
    chosen = {main}
    missing = source.missing_names(blocks[main].tree) if len(blocks) > 1 else set()
    bound = [source.bound_names(block.tree.body) for block in blocks]
    while missing:
        # Nearest first, so that the latest version of a helper is taken.
        others = sorted((index for index in range(len(blocks)) if index not in chosen), key=lambda i: abs(main - i))
        found = next((i for i in others if bound[i] & missing), None)
        if found is None:
            found = next((i for i in others if "*" in bound[i]), None)  # may well be where they come from
        if found is None:
            break
        chosen.add(found)
        missing |= source.missing_names(blocks[found].tree)
        for index in chosen:
            missing -= bound[index]
    texts = [blocks[index].text.strip("\n") for index in sorted(chosen) if index != main]
    return _together(texts, blocks[main].text)


def _continued(stub: str, body: str, entry_point: str) -> str | None:
    """The stub with an answer that is only the function's body, its indentation mended where it was lost."""
    body = body.strip("\n")
    if not body.strip():
        return None
    first, _, rest = body.partition("\n")
    dedented = textwrap.dedent(body)
    variants = [
        body,
        "    " + body.lstrip(),  # the first line lost its indentation
        textwrap.indent(dedented, "    "),
        textwrap.indent(f"{first.lstrip()}\n{textwrap.dedent(rest)}", "    "),
        textwrap.indent(_spaces_for_tabs(dedented), "    "),
    ]
    head = stub.rstrip() + "\n"
    for variant in dict.fromkeys(variants):
        tree = source.parse(head + variant)
        if tree is not None and _solves(tree, entry_point):
            return head + variant
    for variant in dict.fromkeys(variants):
        cut = _cut_short(variant, entry_point, head=head)
        if cut is not None:
            return cut
    return None


def _spaces_for_tabs(text: str) -> str:
    return re.sub(r"(?m)^[\t ]*", lambda blanks: blanks.group().replace("\t", "    "), text)


def _cut_short(text: str, entry_point: str, *, head: str = "") -> str | None:
    """The longest beginning of a text, in whole lines, that parses and defines the entry point."""
    lines = text.rstrip().split("\n")
    if _MIXED_TABS in source.check(head + "\n".join(lines))[1]:
        return None  # what follows is no cut end, and a shorter function would be another one
    ends = (end for end in range(len(lines), 0, -1) if lines[end - 1].strip())
    for end in islice(ends, _MOST_ATTEMPTS):
        candidate = head + "\n".join(lines[:end])
        tree = source.parse(candidate)
        if tree is not None:
            if _solves(tree, entry_point):
                return candidate
            if head:
                return None  # what is left of the body does nothing
    return None


def _loose_code(text: str) -> list[_Block]:
    """The runs of statements that stand between lines of prose, as one block each."""
    lines = text.split("\n")
    blocks: list[_Block] = []
    run: list[str] = []
    for chunk, tree in _chunks(lines):
        if tree is None:
            _close(run, blocks)
        else:
            run.append(chunk)
    _close(run, blocks)
    return blocks


def _chunks(lines: list[str]) -> Iterator[tuple[str, ast.Module | None]]:
    """The text cut at lines that are not indented; pieces that are code come with their tree.

    A piece that does not parse alone is tried together with what follows (strings and brackets may
    span lines that are not indented), and is prose where that does not help.
    """
    starts = [number for number, line in enumerate(lines) if line.strip() and not line[0].isspace()]
    if not starts:
        return
    ends = [*starts[1:], len(lines)]
    position = 0
    while position < len(starts):
        if not _may_be_code(lines[starts[position]]):
            yield lines[starts[position]], None
            position += 1
            continue
        for last in range(position, min(position + _MOST_ATTEMPTS // 4, len(starts))):
            chunk = repaired("\n".join(lines[starts[position] : ends[last]]).rstrip())
            tree = source.parse(chunk)
            if tree is not None:
                break
        else:
            yield lines[starts[position]], None
            position += 1
            continue
        yield chunk, tree if _is_code(tree) else None
        position = last + 1


def _may_be_code(line: str) -> bool:
    """A quick look that spares the parser most lines of prose; whatever passes is still parsed."""
    return (
        re.match(
            r"(def|class|import|from|async|if|for|while|try|with|print)\b|@|[A-Za-z_][\w.\[\], ]*(\(|[-+*/|&]?=)", line
        )
        is not None
    )


def _close(run: list[str], blocks: list[_Block]) -> None:
    if run:
        text = "\n".join(run)
        tree = source.parse(text)
        if tree is not None:
            blocks.append(_Block(text, tree, False))
        run.clear()


def _program(blocks: Sequence[_Block]) -> str | None:
    """The block that is the program: the last that reads input, or the longest; helpers it lacks come first."""
    if not blocks:
        return None
    tagged = [block for block in blocks if block.python and _is_code(block.tree)] or blocks
    # What starts other programs shows how to run this one.
    tagged = [block for block in tagged if "subprocess" not in source.bound_names(block.tree.body)] or tagged
    reading = [block for block in tagged if _reads_input(block.tree)]
    main = reading[-1] if reading else max(tagged, key=lambda block: len(block.text))
    texts: list[str] = []
    missing = source.missing_names(main.tree) if len(blocks) > 1 else set()
    for block in reversed([other for other in blocks if other is not main]):
        names = source.bound_names(block.tree.body)
        if names & missing or (missing and "*" in names):
            texts.insert(0, block.text)
            missing = (missing | source.missing_names(block.tree)) - names
    return _together(texts, main.text) + "\n"


def _together(helpers: Sequence[str], main: str) -> str:
    """The helpers' text before the main one's; only the main one where they do not compile as one module."""
    whole = "\n\n\n".join(text.strip("\n") for text in (*helpers, main))
    return whole if not helpers or source.parse(whole) is not None else main.strip("\n")


def _reads_input(tree: ast.Module) -> bool:
    """Whether a program reads its standard input, wherever in it."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="input" | "stdin" | "fileinput", ctx=ast.Load()):
                return True
            case ast.Attribute(attr="stdin", ctx=ast.Load()):
                return True
            case ast.Call(func=ast.Name(id="open"), args=[ast.Constant(value=0 | "/dev/stdin"), *_]):
                return True
    return False


def _completed(code: str, entry_point: str, stub: str, kept_names: frozenset[str]) -> ExtractedCode:
    """The code after the imports and helpers that it lacks and uses, or has to have."""
    tree = source.parse(code)
    if tree is None:
        return ExtractedCode(code, None)
    missing = source.missing_names(tree) | (kept_names - source.bound_names(tree.body))
    if not missing:
        return ExtractedCode(code, None)
    added = _from_stub(stub, missing, entry_point)
    imports = [line for line in added if line.startswith(("import ", "from "))]
    typing = sorted(missing & set(TYPING_NAMES))
    if typing:
        imports.append(f"from typing import {', '.join(typing)}")
    helpers = [text for text in added if text not in imports]
    if not imports and not helpers:
        return ExtractedCode(code, None)
    # A __future__ import has to stay first.
    future, code = _future_first(code, tree)
    text = "\n".join([*future, *imports]) + "\n\n\n" + "".join(f"{helper}\n\n\n" for helper in helpers) + code
    if source.parse(text) is None:
        return ExtractedCode(code, None)
    return ExtractedCode(text.lstrip("\n"), None, tuple(imports))


def _from_stub(stub: str, missing: set[str], entry_point: str) -> list[str]:
    """The imports and helpers of the stub that define missing names, in the stub's order; they leave `missing`."""
    tree = source.parse(stub) if stub else None
    if tree is None:
        return []
    chosen: set[int] = set()
    while True:
        found = next(
            (
                number
                for number, node in enumerate(tree.body)
                if number not in chosen and (names := source.bound_names([node])) & missing and entry_point not in names
            ),
            None,
        )
        if found is None:
            return [_text_of(stub, tree.body[number]) for number in sorted(chosen)]
        chosen.add(found)
        # A helper may itself need an import of the stub.
        missing |= source.missing_names(ast.Module([tree.body[found]], []))
        missing -= source.bound_names(tree.body[number] for number in chosen)


def _text_of(text: str, node: ast.stmt) -> str:
    """The source of a statement with its decorators, which `ast` counts as outside it."""
    segment = ast.get_source_segment(text, node) or ""
    decorators = getattr(node, "decorator_list", [])
    if not decorators:
        return segment
    first = min(item.lineno for item in decorators)
    return "\n".join([*text.split("\n")[first - 1 : node.lineno - 1], segment])


def _future_first(code: str, tree: ast.Module) -> tuple[list[str], str]:
    lines = code.split("\n")
    future: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.lineno == node.end_lineno:
            future.append(lines[node.lineno - 1])
            lines[node.lineno - 1] = ""
    return future, "\n".join(lines)


def _from_first_code(text: str) -> str:
    """The text from the first line on that begins a definition or an import; all of it where none does."""
    first = re.search(r"(?m)^((async\s+)?def|class|import|from)\s+[A-Za-z_]|^@\w", text)
    return text[first.start() :] if first else text


def _nothing(text: str, fenced: Sequence[tuple[str, bool]]) -> ExtractedCode:
    """Why there is no code: the syntax error of what looks like it, or that nothing does."""
    looks_like_code = [block for block, _ in fenced if block.strip()]
    if not looks_like_code and re.search(r"(?m)^[ \t]*(def|class|import|from)\s+\w+", text):
        looks_like_code = [_from_first_code(text)]
    for block in looks_like_code:
        tree, fault = source.check(block)
        if tree is None:
            return ExtractedCode(None, f"syntax error: {fault}")
    return ExtractedCode(None, "no code found in the answer")
