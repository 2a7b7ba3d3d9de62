"""Which words of an instruction may be exchanged, dropped or added, and where its sentences end.

Neighbours in an embedding are often opposites or of another form (shortest is close to longest, gave to given), and
one wrong word makes another task. So a word may be edited only where a rule below says so. A rule
names the word, the words around it that fix its form and meaning there, and what may stand instead; everything
that no rule names stays: numbers, comparatives, names of things, operations, function words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from promptrl.refinement.prompt import tokenize


class Rule(NamedTuple):
    """An edit of `word` between `before` and `after` (patterns; a space there is any white space)."""

    before: str
    word: str
    after: str
    instead: str = ""


class Place(NamedTuple):
    """Where a rule holds: text[start:end] is the word, empty for an insertion."""

    start: int
    end: int
    instead: tuple[str, ...]


# Where a verb is an order or an infinitive, so that its form is known: "Find", "to find", "to correctly find".
_ORDER = r"\A\s*|[.!?:,] |\bto |\bplease |\bto [a-z]+ly |\A[a-z]+ly "
_FUNCTION = r" (?:a|an|the|this) (?:\w+ ){0,2}?function"
# Where "given" is an adjective: "the given list", "of given length", but not "given that" or "given a list".
_NOUN_PHRASE = r"\b(?:a|an|the|this|these|those|any|two|both|each|of|in|from|for|than) "
_NO_CLAUSE = r" (?!(?:a|an|the|by|in|as|to|at|on|for|with|that|below|above|and|or|is|are|if|its|their|any)\b)[a-z`]"
_ADVERBS = "correctly reliably accurately"
_QUALITIES = "correct complete working"
_MAKE = "write create implement develop define"

EXCHANGES: Final = (
    Rule(_ORDER, "write", _FUNCTION, "create implement develop define"),
    Rule(_ORDER, "create|implement|develop|define", _FUNCTION, _MAKE),
    Rule(_ORDER, "find", " (?:the|all)", "determine obtain get"),
    Rule(_ORDER, "find", " (?:whether|if)", "determine check"),
    Rule(_ORDER, "find", " (?!out|the|all|whether|if)", "determine"),
    Rule(_ORDER, "determine", " (?:the|how)", "find"),
    Rule(_ORDER, "compute|calculate", " ", "compute calculate determine"),
    Rule(_ORDER, "check|verify|determine", " (?:if|whether)", "check verify determine"),
    Rule(_ORDER, "get|obtain", " (?:a|an|the|all|each)", "get obtain"),
    Rule(_ORDER, "identify|recognize|detect", " (?!if|whether|as)", "identify recognize detect"),
    Rule(_NOUN_PHRASE, "given|provided|supplied", _NO_CLAUSE, "given provided supplied specified"),
    Rule(r"\b(?:a|the) ", "specified", _NO_CLAUSE, "given"),
    Rule(r"[a-z`] ", "using|utilizing|employing", " ", "using utilizing employing"),
    Rule(
        r"\b(?!is|are|be|was|were|been|not|you)[a-z]+ ", "required|needed", " (?:to|for)", "required needed necessary"
    ),
    Rule(r"\b(?!maximum|minimum|most|least|frequently)[a-z]+ ", "occurring|appearing", " ", "occurring appearing"),
    Rule(r"\b(?:a|the) ", "specific|particular|certain", " [a-z]", "specific particular certain"),
    Rule(r"\bfunction (?:that |which )?(?:only )?", "takes|accepts|receives", " ", "takes accepts receives"),
    Rule(r"\b(?:should|must|will|and|result) ", "also", " [a-z]", "additionally"),
    Rule(r"\A\s*|[.!?] ", "assume|suppose", " ", "assume suppose"),
    Rule(r"\byou (?:can|may) ", "assume", " ", "suppose"),
    Rule(r"\bfor ", "example|instance", r"\s*[,:]", "example instance"),
    Rule(r"\byour ", "task|job", " is to", "task job"),
    Rule(r"\byour ", "goal|aim", " is to", "goal aim"),
    Rule(r"\b(?:function|variable|parameter|argument) ", "named|called", " ", "named called"),
    Rule(r"\bthe ", "entire", " [a-z]", "whole"),
)
DELETIONS: Final = (
    Rule(r"\b(?:the|this|these|those|the two) ", "given|provided|supplied", _NO_CLAUSE),
    Rule(r"\b(?:a|the|this) ", "python", " (?:function|program|code|script)"),
    Rule("", "carefully|simply|please|kindly|basically|actually", " [a-z`]"),
    Rule(r"\b(?:function|program) to ", _ADVERBS.replace(" ", "|"), " [a-z]"),
    Rule(r"\ba ", _QUALITIES.replace(" ", "|"), " (?:python )?function"),
    Rule(r"[a-z`] ", "by", " (?:using|utilizing|employing)"),
    Rule(r"\b(?:should|must|will|it's|is|are|result) ", "also", " [a-z]"),
    Rule(r"\b(?:between|the|all|of) ", "available", " [a-z]"),
    Rule(r"\bfind ", "out", " (?:how|if|whether|the)"),
)
INSERTIONS: Final = (
    Rule(r"\b(?:function|program) to ", "", r"(?!\w+ly\b)[a-z]+ [a-z`]", _ADVERBS),
    Rule(rf"\b(?:{_MAKE.replace(' ', '|')}) a ", "", r"(?:python )?function", _QUALITIES),
    Rule(rf"\b(?:{_MAKE.replace(' ', '|')}) a ", "", "function", "python"),
    Rule(r"\A", "", r"(?:write|create|implement|develop|define|find|return|check|compute|calculate) [a-z]", "please"),
)

_VOWELS = "aeiou"
_STOP = re.compile(r"[.?!]+[\"'”’)\]]*\s+")
_PARAGRAPH = re.compile(r"[ \t]*\n[ \t]*\n\s*")
# What a full stop may follow without ending a sentence: "i.e", "etc", an item's number at the start of a line.
_NO_END = re.compile(
    r"(?:\.[A-Za-z]*|\b(?:etc|vs|cf|resp|eg|ie|approx|fig)|(?:\A|\n)[ \t]*\(?\w{1,2})\Z", re.IGNORECASE
)

# A last line that is no prose: an item of a list, something indented, a row of a table, a formula.
_ITEM = re.compile(r"\s|(?:[-*•'|]|\w{1,2}[.)])\s|.*[=|<>]")


def places(text: str, rules: Sequence[Rule]) -> list[Place]:
    """Where the rules hold in `text`, first to last, nowhere in a protected span and nowhere twice."""
    frozen = _protected_ranges(text)
    found: dict[int, Place] = {}
    for rule in rules:
        pattern = f"(?:{rule.before})(?P<word>{_whole(rule.word)})(?={rule.after})".replace(" ", r"\s+")
        for match in re.finditer(pattern, text, re.IGNORECASE):
            start, end = match.span("word")
            if not any(first < max(end, start + 1) and start < last for first, last in frozen):
                found.setdefault(start, Place(start, end, tuple(rule.instead.split())))
    return [found[start] for start in sorted(found)]


def exchange(text: str, place: Place, word: str) -> str | None:
    """`text` with `word` at the place; None where the article before it would not fit."""
    old = text[place.start : place.end]
    if not _article_fits(text[: place.start], old, word):
        return None
    return text[: place.start] + _match_case(word, old) + text[place.end :]


def drop(text: str, place: Place) -> str | None:
    """`text` without the word and one of the spaces around it, never a line break."""
    before, after = text[: place.start], text[place.end :]
    if not _article_fits(before, text[place.start :], after.lstrip()):
        return None
    if after[:1] == " ":
        after = after[1:]
    elif before[-1:] == " ":
        before = before[:-1]
    else:
        return None
    return before + (after[:1].upper() + after[1:] if text[place.start].isupper() else after)


def insert(text: str, place: Place, word: str) -> str | None:
    """`text` with one more word; one at the very start takes over the capital letter."""
    before, after = text[: place.start], text[place.start :]
    if not _article_fits(before, after, word):
        return None
    if not before.strip() and after[:1].isupper():
        word, after = word.capitalize(), after[:1].lower() + after[1:]
    return f"{before}{word} {after}"


def sentences(text: str) -> list[str]:
    """The sentences with the white space after them; joined they are the text."""
    paragraphs = {match.end() for match in _PARAGRAPH.finditer(text)}
    ends = [0]
    for end in sorted(paragraphs.union(_stops(text))):
        if end in paragraphs or not _opened(text[ends[-1] : end]):
            ends.append(end)
    pieces = [text[first:last] for first, last in zip(ends, [*ends[1:], len(text)], strict=True)]
    return [piece for piece in pieces if piece]


def _stops(text: str) -> Iterator[int]:
    frozen = _protected_ranges(text)
    for match in _STOP.finditer(text):
        sign, start = match.group().rstrip(), match.start()
        quoted = any(first <= start < last for first, last in frozen)
        if not quoted and not sign.startswith("..") and not (sign.startswith(".") and _NO_END.search(text[:start])):
            yield match.end()


def _opened(text: str) -> bool:
    """Whether a bracket is still open at the end."""
    return any(text.count(opening) > text.count(closing) for opening, closing in ("()", "[]", "{}"))


def _protected_ranges(text: str) -> list[tuple[int, int]]:
    ranges, position = [], 0
    for token in tokenize(text):
        if token.protected:
            ranges.append((position, position + len(token.text)))
        position += len(token.text)
    return ranges


def _whole(word: str) -> str:
    """A pattern of the word alone; of nothing, for an insertion. A name with a hyphen or apostrophe is another word."""
    return rf"(?<![\w'’-])(?:{word})(?![\w'’-])" if word else ""


def _article_fits(before: str, old: str, new: str) -> bool:
    """Whether what follows "a" or "an" still asks for it."""
    article = re.search(r"\ban?\s+\Z", before, re.IGNORECASE)
    return not article or (old[:1].lower() in _VOWELS) == (new[:1].lower() in _VOWELS)


def _match_case(word: str, pattern: str) -> str:
    if pattern.isupper() and len(pattern) > 1:
        return word.upper()
    return word.capitalize() if pattern[:1].isupper() else word


def joint(head: str) -> str:
    """What stands between a task's text and what is added after it: the full stop that is missing, and white space."""
    if not head:
        return ""
    ended = head.rstrip("\"'”’)]`").endswith((".", "?", "!", ":", ";", "```"))
    last = head[head.rfind("\n") + 1 :]
    # After a sign, or an item of a list, a full stop could be read as a part of it ("replace spaces with -").
    if ("\n" in head and _ITEM.match(last)) or not (ended or re.search(r"[\w\"'”’)\]`]\Z", head)):
        return "\n\n"
    return ("" if ended else ".") + ("\n" if "\n" in head else " ")
