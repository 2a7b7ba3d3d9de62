"""What the searching methods share: reading what a language model wrote."""

from __future__ import annotations

from promptrl.models.base import Generation
from promptrl.refinement.prompt import Prompt, protected_spans
from promptrl.refinement.semantic import clean_rewrite
from promptrl.refinement.wording import sentences


def whole_sentences(answer: Generation) -> str:
    """The answer's text, each sentence once, and without one that was cut off at the answer's length.

    Small models fall into loops: what they said once they then say until they are stopped.
    """
    found = sentences(answer.text)
    if answer.finish_reason == "length":
        found = found[:-1]
    first: dict[str, str] = {}
    for sentence in found:
        first.setdefault(sentence.strip(), sentence)
    return "".join(first.values())


def rewritten(original: Prompt, answer: Generation) -> tuple[Prompt | None, str | None]:
    """The prompt that a rewrite makes of the task, and a note where it is not simply what the model wrote.

    Names, numbers and literals of the task must not get lost: where a rewrite drops one, the task's own text stays
    in front of it. None, with the reason, where nothing readable came back.
    """
    text = clean_rewrite(whole_sentences(answer))
    if not text:
        return None, "rewrite empty"
    own = original.instruction.strip()
    lost = protected_spans(own) - protected_spans(text)
    if lost:
        return original.with_instruction(f"{own}\n{text}"), "rewrite dropped a name or value; task's own text kept"
    return original.with_instruction(text), None
