"""`semantic`: a pretrained instruct model reflects on what happened and rewrites the instruction.

The contract is shown to the model as context and is never its to change. What comes back is cleaned of
chatter, code and quotes, and follows the instruction as a clarification or stands in its place. It is refused,
with the reason in the proposal's note, when it is empty, too long, drifts from the task or, in the instruction's
place, loses a protected span. Feedback comes from the reward tests alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from promptrl.models.base import CodeModel, Generation, GenerationRequest
from promptrl.refinement.episode import Episode, Proposal, failed_tests, failure_text
from promptrl.refinement.prompt import Prompt, protected_spans
from promptrl.refinement.wording import joint
from promptrl.settings import Settings

Feedback = Literal["none", "status", "failing_test"]

_SYSTEM = "You improve the wording of programming tasks so that a small code model solves them. You never write code."
# What never changes comes first: a model that keeps the keys and values of common starts reads it once.
_REFLECT = """A code model was given the task below and its code was tested. In one or two sentences, say what the \
task's wording leaves unclear and what the code must take care of. No code.

Task: {instruction}

{contract}

{outcome}"""
# It holds no example: a small model wrote the example's task into seven rewrites of eleven.
_REWRITE = """Rewrite the description of the programming task below in words of your own, so that nothing is left \
open: what goes in, what comes out and which special cases count. Keep the meaning. Plain sentences, no code, no \
examples, at most {words} words.

Description: {instruction}

These lines belong to the task and stay as they are, do not repeat them:
{contract}

{outcome}{reflection}{kept}"""
# Parts of the request above that a small model writes into its answer, in small letters.
_REQUEST: Final = (
    "these lines belong to the task",
    "keep the meaning. ",
    "plain sentences, no code",
    "keep exactly as here",
)
_LABELLED = "Description: "
_CLARIFIES: Final = "In other words: "
_FAILED: Final = "It must also pass: "
# A small model that is free to begin as it likes copies the description word by word in every third rewrite.
_OPENINGS: Final[dict[str, str]] = {"function": "Write a function that takes", "stdin": "Write a program that reads"}

_REWRITING = (
    r"(?:rewritten|improved|revised|updated|clearer)\s+(?:\w+\s+)?(?:task|description|instruction|version|prompt)"
)
_CHATTER = re.compile(
    rf"^\s*(?:(?:sure|certainly|of course|okay|ok)\s*[!,.:]\s*"
    rf"|(?:here(?:'s| is) )?(?:the |a |my |your )?{_REWRITING}\b[^\n:]{{0,40}}:\s*)",
    re.IGNORECASE,
)
_LABEL = re.compile(r"^\s*(?:task|description|instruction|prompt|rewrite|problem)\s*:\s*", re.IGNORECASE)
_EMPHASIS = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_CODE_LINE = re.compile(
    r"^\s*(?:def \w+\s*\(|class \w+\s*[(:]|import \w+\s*$|from \w+ import |assert \w+\s*[(=]|return \S+\s*$"
    r"|>>> |@\w+|print\()"
)


class SemanticSettings(Settings):
    """How the rewriting model is asked, and which rewrites are accepted."""

    feedback: Feedback = "status"
    calls: Literal[1, 2] = Field(
        1, description="1: reflect and rewrite at once; 2: a reflection first, then the rewrite"
    )
    temperature: float = Field(0.7, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    max_new_tokens: int = Field(160, ge=16)
    max_words: int = Field(90, ge=10)
    least_share: float = Field(0.4, ge=0, le=1, description="least words of a rewrite, as a share of the original's")
    similarity_floor: float = Field(0.6, ge=-1, le=1, description="least cosine of rewrite and original prompt")
    place: Literal["after", "instead"] = Field(
        "after", description="whether a rewrite follows the instruction as a clarification, or stands in its place"
    )
    failed_tests: int = Field(
        0, ge=0, description="most reward tests that the episode's code failed for a rewrite to end with"
    )


class Encoder(Protocol):
    """What the operator needs of MiniLM."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]: ...


class Semantic:
    """The rewriting operator; `rewriter` may be another model than the one that writes the code."""

    def __init__(
        self, rewriter: CodeModel, vectors: Encoder, settings: SemanticSettings | None = None, *, seed: int = 0
    ) -> None:
        self.rewriter = rewriter
        self.vectors = vectors
        self.settings = settings or SemanticSettings()
        self.seed = seed

    def propose(self, episodes: Sequence[Episode]) -> list[Proposal]:
        if not episodes:
            return []
        spent: list[list[Generation]] = [[] for _ in episodes]
        reflections = [""] * len(episodes)
        if self.settings.calls == 2:
            notes = self.rewriter.generate([self._request(episode, _REFLECT, prefill="") for episode in episodes])
            for index, answer in enumerate(notes):
                spent[index].append(answer)
                reflections[index] = f"\nA reviewer noted: {' '.join(answer.text.split())}"
        rewrites = self.rewriter.generate(
            [
                self._request(
                    episode, _REWRITE, prefill=_LABELLED + _OPENINGS[episode.task.style], reflection=reflection
                )
                for episode, reflection in zip(episodes, reflections, strict=True)
            ]
        )
        found = [self._read(episode, rewrite) for episode, rewrite in zip(episodes, rewrites, strict=True)]
        # One batched encoding tells which of the readable rewrites drifted from the task.
        texts = [prompt.render() for e, (prompt, refused) in zip(episodes, found, strict=True) if not refused]
        originals = [e.original.render() for e, (_, refused) in zip(episodes, found, strict=True) if not refused]
        vectors = self.vectors.encode([*texts, *originals]) if texts else np.zeros((0, 1))
        near = iter((vectors[: len(texts)] * vectors[len(texts) :]).sum(axis=1))
        proposals = []
        for episode, rewrite, before, (prompt, refused) in zip(episodes, rewrites, spent, found, strict=True):
            if not refused and next(near) < self.settings.similarity_floor:
                prompt, refused = episode.prompt, "rewrite drifted from the task"
            reason = f"{refused}; prompt kept" if refused else None
            proposals.append(Proposal(prompt, note=reason, rewrites=(*before, rewrite)))
        return proposals

    def _request(self, episode: Episode, template: str, *, prefill: str, reflection: str = "") -> GenerationRequest:
        spans = sorted(protected_spans(episode.original.instruction))
        text = template.format(
            instruction=episode.prompt.instruction.strip(),
            contract=episode.prompt.contract.strip("\n"),
            outcome=self._outcome(episode),
            reflection=reflection,
            words=self.settings.max_words,
            kept=f" Keep exactly as here: {', '.join(spans)}." if spans else "",
        )
        return GenerationRequest(
            user=text,
            system=_SYSTEM,
            prefill=prefill,
            stop=("```", "\n\n"),
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            max_new_tokens=self.settings.max_new_tokens,
            # The step's index tells apart two rewrites of one prompt within an episode.
            draw=len(episode.steps),
            seed=self.seed,
        )

    def _outcome(self, episode: Episode) -> str:
        """What the last attempt came to, as far as the feedback setting tells."""
        last = episode.last
        if last is None or self.settings.feedback == "none":
            return ""
        verdict = last.verdict
        text = f"The last code passed {verdict.tests_passed} of {verdict.tests_total} tests ({verdict.status.value})."
        if self.settings.feedback == "failing_test" and (failure := failure_text(last, episode.suite)):
            text += f" A failure: {failure}."
        return text

    def _told(self, episode: Episode, text: str) -> str:
        """A rewrite with the tests that the episode's code failed, where there are any that the task does not show."""
        shown = failed_tests(episode, self.settings.failed_tests)
        return f"{text}{joint(text)}{_FAILED}{'; '.join(shown)}" if text and shown else text

    def _read(self, episode: Episode, rewrite: Generation) -> tuple[Prompt, str | None]:
        """The prompt that a rewrite makes, or the present one with the reason why it makes none."""
        parent, original = episode.prompt, episode.original.instruction
        text, replaces = clean_rewrite(rewrite.text), self.settings.place == "instead"
        # A sentence of its own comes from a model that began anew instead of going on from the opening.
        if text and not (text[:1].isupper() and text[1:2].islower()):
            text = f"{_OPENINGS[episode.task.style]} {text}"
        before = _unclarified(parent.instruction, original)
        told = self._told(episode, text)
        new = told if replaces or not text else f"{before}{joint(before)}{_CLARIFIES}{told[0].lower()}{told[1:]}"
        refused = None
        if not text:
            refused = "rewrite empty"
        elif rewrite.finish_reason == "length" or len(text.split()) > 2 * self.settings.max_words:
            refused = "rewrite longer than allowed"
        elif replaces and len(text.split()) < self.settings.least_share * len(original.split()):
            refused = "rewrite dropped most of the words"
        elif replaces and (lost := protected_spans(original) - protected_spans(text)):
            refused = f"rewrite dropped {', '.join(sorted(lost)[:3])}"
        elif any(phrase in text.lower() for phrase in _REQUEST):
            refused = "rewrite repeats the request"
        elif text == before or new == parent.instruction.strip():
            refused = "rewrite changed nothing"
        return (parent, refused) if refused else (parent.with_instruction(new), None)


def _unclarified(instruction: str, original: str) -> str:
    """An instruction without the clarification that an earlier rewrite added; the task may use its words, too."""
    return _CLARIFIES.join(instruction.split(_CLARIFIES)[: original.count(_CLARIFIES) + 1]).strip()


def clean_rewrite(answer: str) -> str:
    """The rewritten instruction within a model's answer: no code, label, opening chatter or quotes around it."""
    text = _EMPHASIS.sub(r"\1", _FENCE.sub(" ", answer))
    text = "\n".join(line for line in text.splitlines() if not _CODE_LINE.match(line)).strip()
    for _ in range(3):
        shorter = _LABEL.sub("", _CHATTER.sub("", text, count=1), count=1).strip()
        if shorter == text:
            break
        text = shorter
    for opening, closing in (('"', '"'), ("'", "'"), ("“", "”")):
        inner = text[1:-1]
        if len(text) > 2 and text[0] == opening and text[-1] == closing and not {opening, closing} & set(inner):
            text = inner.strip()
    return re.sub(r"\n{2,}", "\n", text)
