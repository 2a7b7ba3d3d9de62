"""An episode: one task, the prompts tried on it, and what came of each."""

from __future__ import annotations

import re
import reprlib
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from promptrl.execution.verdict import Outcome, Verdict
from promptrl.models.base import Generation
from promptrl.refinement.prompt import Prompt
from promptrl.tasks.task import AssertTest, CallTest, Comparison, PytestTest, StdinTest, Task, Test, TestSuite

# Values can be huge; reprlib looks only at as much of them as it shows.
_REPR = reprlib.Repr()
_REPR.maxlevel = 4
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = 12
_REPR.maxstring, _REPR.maxlong = 80, 40


def task_rng(seed: int, task_id: str, purpose: str = "") -> np.random.Generator:
    """A generator that depends on the seed and the task alone, so that the order of tasks changes nothing."""
    return np.random.default_rng([seed, zlib.crc32(task_id.encode()), zlib.crc32(purpose.encode())])


@dataclass(frozen=True, slots=True)
class Individual:
    """A prompt of the episode's population and the best pass rate that its code reached."""

    prompt: Prompt
    pass_rate: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an operator, or a method, wants tried next.

    `note` says why a prompt is not what was asked for ("rewrite empty; parent kept"), for the records.
    `rewrites` are the model calls spent on finding it; they count towards the budget. `action` is what
    the records call a method's own proposal; an operator's goes by the action's name.
    """

    prompt: Prompt
    note: str | None = None
    rewrites: tuple[Generation, ...] = ()
    action: str = "proposal"


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt: the action, the prompt it led to, the code that came back and its verdict."""

    index: int
    action: str
    prompt: Prompt
    draw: int
    generation: Generation
    code: str | None
    verdict: Verdict
    reward: float
    terminated: bool
    truncated: bool
    note: str | None = None
    rewrites: tuple[Generation, ...] = ()


@dataclass(slots=True)
class Episode:
    """The state of one task's refinement; only the engine changes it.

    `rng` is the one source of randomness of its operators. `draws` counts, per rendered prompt, how many
    answers were asked for, so that the n-th draw of an unchanged prompt is the n-th whatever came between.
    """

    task: Task
    suite: TestSuite
    horizon: int
    rng: np.random.Generator
    prompt: Prompt
    original: Prompt
    population: list[Individual] = field(default_factory=list)
    draws: Counter[str] = field(default_factory=Counter)
    steps: list[Step] = field(default_factory=list)
    initial_rng_state: dict[str, Any] = field(init=False)
    """State of `rng` at the start: with the actions taken, all that is needed to live the episode again."""

    def __post_init__(self) -> None:
        self.initial_rng_state = dict(self.rng.bit_generator.state)

    @property
    def done(self) -> bool:
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def last(self) -> Step | None:
        return self.steps[-1] if self.steps else None

    @property
    def best(self) -> Step | None:
        """The first step with the highest pass rate on the reward tests: the episode's answer."""
        return max(self.steps, key=lambda step: (step.verdict.pass_rate, -step.index), default=None)


def failure_text(step: Step, suite: TestSuite) -> str:
    """One line on why the step's code is not right, made from the reward tests alone; empty when it is."""
    verdict = step.verdict
    if verdict.error:
        return verdict.error
    for test, result in zip(suite, verdict.results, strict=True):
        if result.outcome is Outcome.PASSED:
            continue
        match test:
            case CallTest(args=args):
                shown = f"{', '.join(map(_short, args))} should give {_short(test.expected)}"
            case AssertTest(source=source):
                shown = f"{source.strip()} should hold"
            case StdinTest(stdin=stdin):
                shown = f"for input {_short(stdin)} it should print {_short(test.expected_stdout)}"
            case PytestTest(node_id=node_id):
                shown = f"{node_id} should pass"
        return f"{shown}; {result.outcome.value}" + (f": {_short_text(result.detail)}" if result.detail else "")
    return ""


def failed_tests(episode: Episode, most: int) -> list[str]:
    """The first `most` reward tests that some step of the episode failed and the task's own text does not show.

    A test that is too long to be shown whole is left out, and so is one of pytest, whose name alone is known.
    """
    failed = {
        index
        for step in episode.steps
        for index, result in enumerate(step.verdict.results)
        if result.outcome not in (Outcome.PASSED, Outcome.NOT_RUN)
    }
    tests = [test for index, test in enumerate(episode.suite) if index in failed and not isinstance(test, PytestTest)]
    lines = dict.fromkeys(shown_test(test, episode.task.entry_point) for test in tests)
    known = _plain(episode.original.render())
    return [line for line in lines if "…" not in line and "..." not in line and _plain(line) not in known][:most]


def feedback(step: Step, suite: TestSuite, *, most: int, entry_point: str | None = None) -> str:
    """What the reward tests said of the step's code: passed ones, then failed ones with what came out instead.

    Args:
        step: a step of an episode.
        suite: that episode's suite, the only source of feedback.
        most: most tests listed of each kind.
        entry_point: the function's name.
    """
    if step.code is None:
        return "No code could be read: it is missing, cut off, or not valid Python."
    verdict = step.verdict
    pairs = list(zip(suite, verdict.results, strict=True))
    passed = [shown_test(test, entry_point) for test, result in pairs if result.outcome is Outcome.PASSED]
    failed = [
        f"{shown_test(test, entry_point)}  # {_short_text(result.detail) or result.outcome.value}"
        for test, result in pairs
        if result.outcome not in (Outcome.PASSED, Outcome.NOT_RUN)
    ]
    if verdict.execution_failure and len({result.detail for _, result in pairs}) == 1:
        failed = [f"The code does not run: {_short_text(verdict.error or verdict.status.value)}"]
    parts = [
        f"{title}:\n" + "\n".join(lines[:most]) for title, lines in (("Passed", passed), ("Failed", failed)) if lines
    ]
    return "\n".join(parts)


def shown_test(test: Test, entry_point: str | None) -> str:
    """A test as an assertion for people and models to read."""
    match test:
        case CallTest(args=args, expected=expected, comparison=comparison):
            call = f"{entry_point or 'f'}({', '.join(map(_short, args))})"
            if comparison is Comparison.TRUTH:
                return f"assert {call}" if expected else f"assert not {call}"
            if comparison is Comparison.NOT_NONE:
                return f"assert {call} is not None" if expected else f"assert {call} is None"
            return f"assert {call} == {_short(expected)}"
        case AssertTest(source=source):
            return _short_text(source.strip(), 400)
        case StdinTest(stdin=stdin, expected_stdout=stdout):
            return f"input {_short(stdin)} prints {_short(stdout)}"
        case PytestTest(node_id=node_id):
            return node_id


def _plain(text: str) -> str:
    """Without white space and with one kind of quotes, to find a test in a text that writes it otherwise."""
    return re.sub(r"\s", "", text).replace('"', "'")


def _short(value: object) -> str:
    return _short_text(_REPR.repr(value))


def _short_text(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
