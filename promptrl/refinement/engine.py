"""The engine: one batched step of refinement for many episodes at once.

A step is at most one batched rewriting call (two where a reflection comes first), one batched generation call, the
judging of all candidates in parallel, and one batched MiniLM call for the states; operators encode what they propose in
batches too. Nothing here knows who chose the actions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from promptrl.errors import TaskError
from promptrl.execution.extraction import ExtractedCode, extract_code
from promptrl.execution.judge import Candidate
from promptrl.execution.kept_verdicts import JudgeLike
from promptrl.execution.verdict import Verdict
from promptrl.models.base import CodeModel, GenerationRequest
from promptrl.refinement.episode import Episode, Individual, Proposal, Step
from promptrl.refinement.operators import Operator
from promptrl.refinement.prompt import Prompt
from promptrl.refinement.recent import Recent
from promptrl.refinement.reward import REWARDS, RewardName
from promptrl.settings import Settings
from promptrl.tasks.task import Task, TestSuite

TestProtocol = Literal["paper", "held_out"]

_REMEMBERED: Final = 4096


class EpisodeSettings(Settings):
    """What an episode is: its length, its reward and which tests pay it."""

    horizon: int = Field(5, ge=1, description="most attempts per task (T)")
    reward: RewardName = "shaped"
    protocol: TestProtocol = "paper"
    population_size: int = Field(6, ge=2, description="prompts kept per episode for the lexical operator's parents")
    variants: int | None = Field(
        None,
        ge=1,
        description="random streams per training task that episodes choose from, so that what a model answered to an "
        "earlier one comes from the cache; a fresh stream for each episode where unset",
    )


class GenerationSettings(Settings):
    """How the code model is asked: its first answer to the task's own prompt is greedy, further draws are sampled."""

    greedy: Literal["every", "rewrites", "original"] = Field(
        "original",
        description="which prompts that actions lead to have a greedy first answer: every one, the task's own and "
        "those that a rewriting model wrote, or the task's own alone",
    )
    temperature: float = Field(0.8, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    max_new_tokens: int = Field(512, ge=16)


class RequestFormat(Protocol):
    """Turns a rendered prompt into a request in the code model's own format."""

    def __call__(
        self,
        prompt_text: str,
        *,
        stub: str,
        draw: int,
        seed: int,
        temperature: float,
        top_p: float,
        max_new_tokens: int,
    ) -> GenerationRequest: ...


class Encoder(Protocol):
    """What the engine needs of MiniLM."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]: ...


def reward_suite(task: Task, protocol: TestProtocol) -> TestSuite:
    """The tests that pay the reward and end the episode: all of them (`paper`), or the base tests (`held_out`)."""
    return report_suite(task) if protocol == "paper" else task.base


def report_suite(task: Task) -> TestSuite:
    """The tests that the scores are made from: base and plus together."""
    if task.plus is None:
        return task.base
    return TestSuite(f"{task.base.name}+{task.plus.name}", (*task.base.tests, *task.plus.tests))


class RefinementEngine:
    """Advances episodes. Owns no model: it is given them, and any number of environments may share it.

    Attributes:
        actions: names of the actions, in the order of their numbers.
        seconds: seconds spent so far in `operators`, `generation` (rewriting included), `judging` and `encoding`.
    """

    def __init__(
        self,
        *,
        coder: CodeModel,
        request_format: RequestFormat,
        encoder: Encoder,
        judge: JudgeLike,
        operators: Mapping[str, Operator],
        episode: EpisodeSettings,
        generation: GenerationSettings,
        seed: int = 0,
    ) -> None:
        self.coder = coder
        self.request_format = request_format
        self.encoder = encoder
        self.judge = judge
        self.operators = dict(operators)
        self.actions = tuple(operators)
        self.episode_settings = episode
        self.generation_settings = generation
        self.seed = seed
        self.seconds: dict[str, float] = defaultdict(float)
        self._reward = REWARDS[episode.reward]
        self._codes: Recent[tuple[str, str], ExtractedCode] = Recent(_REMEMBERED)
        self._verdicts: Recent[tuple[str, str, str | None], Verdict] = Recent(_REMEMBERED)
        self._reward_suites: dict[str, TestSuite] = {}
        self._report_suites: dict[str, TestSuite] = {}

    def start(self, task: Task, rng: np.random.Generator, *, horizon: int | None = None) -> Episode:
        """A new episode of `task`; `rng` will be the only randomness of its operators."""
        prompt = Prompt.from_task(task)
        return Episode(
            task=task,
            suite=self._reward_suites.setdefault(task.task_id, reward_suite(task, self.episode_settings.protocol)),
            horizon=horizon or self.episode_settings.horizon,
            rng=rng,
            prompt=prompt,
            original=prompt,
        )

    def step(self, episodes: Sequence[Episode], choices: Sequence[int | Proposal]) -> list[Step]:
        """Advance every episode by one attempt.

        Args:
            episodes: none of them done.
            choices: per episode the number of an action, or a prompt to try as it is.

        Returns:
            The new last step of each episode, in order.

        Raises:
            ValueError: for an episode that is done, or an action that does not exist.
        """
        return self.attempt(episodes, self.propose(episodes, choices))

    def propose(self, episodes: Sequence[Episode], choices: Sequence[int | Proposal]) -> list[Proposal]:
        """The first half of a step: the prompt that each episode tries next; no episode is changed.

        Raises:
            ValueError: for an episode that is done, or an action that does not exist.
            TaskError: for a proposal that changes the contract.
        """
        if any(episode.done for episode in episodes):
            raise ValueError("a step was asked of an episode that is done")
        with self._timed("operators"):
            proposals = self._propose(episodes, choices)
        for choice, proposal in zip(choices, proposals, strict=True):
            rewriting = sum(generation.seconds for generation in proposal.rewrites if not generation.cached)
            self.seconds["generation"] += rewriting
            if not isinstance(choice, Proposal):  # what a method spent, it spent before
                self.seconds["operators"] -= rewriting
        return proposals

    def attempt(self, episodes: Sequence[Episode], proposals: Sequence[Proposal]) -> list[Step]:
        """The second half of a step: code for each proposed prompt, and its verdict."""
        draws = [episode.draws[p.prompt.render()] for episode, p in zip(episodes, proposals, strict=True)]
        requests = [self._request(e, p, d) for e, p, d in zip(episodes, proposals, draws, strict=True)]
        with self._timed("generation"):
            generations = self.coder.generate(requests)
        with self._timed("judging"):
            # What the answer was made to start with (an opened fence, or the stub) is part of the code.
            extracted = [
                self._extract(request.prefill + generation.text, episode.task)
                for episode, request, generation in zip(episodes, requests, generations, strict=True)
            ]
            codes = [found.code for found in extracted]
            verdicts = self._judge([Candidate(c, e.task, e.suite) for e, c in zip(episodes, codes, strict=True)])
            verdicts = [
                verdict if found.error is None else replace(verdict, error=found.error)  # why there is no code
                for verdict, found in zip(verdicts, extracted, strict=True)
            ]
        steps = []
        for episode, proposal, draw, generation, code, verdict in zip(
            episodes, proposals, draws, generations, codes, verdicts, strict=True
        ):
            index = len(episode.steps)
            solved = verdict.pass_rate == 1.0
            step = Step(
                index=index,
                action=proposal.action,
                prompt=proposal.prompt,
                draw=draw,
                generation=generation,
                code=code,
                verdict=verdict,
                reward=self._reward(verdict),
                terminated=solved,
                truncated=not solved and index + 1 >= episode.horizon,
                note=proposal.note,
                rewrites=proposal.rewrites,
            )
            episode.draws[proposal.prompt.render()] += 1
            episode.prompt = proposal.prompt
            episode.steps.append(step)
            self._remember(episode, step)
            steps.append(step)
        return steps

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """MiniLM's vectors of texts, shape (n, 384), float32, unit length."""
        with self._timed("encoding"):
            return self.encoder.encode(texts)

    def report(self, episodes: Sequence[Episode]) -> list[list[Verdict]]:
        """Per episode and step, the verdict on the report tests (base and plus).

        Under `paper` these are the reward tests; under `held_out` no method has seen the plus tests.
        """
        jobs = [(episode, step) for episode in episodes for step in episode.steps]
        fresh = [(e, s) for e, s in jobs if self.episode_settings.protocol == "held_out" and e.task.plus is not None]
        with self._timed("judging"):
            verdicts = iter(self._judge([Candidate(s.code, e.task, self._report_suite(e.task)) for e, s in fresh]))
        judged = {(id(e), s.index): next(verdicts) for e, s in fresh}
        return [[judged.get((id(e), s.index), s.verdict) for s in e.steps] for e in episodes]

    def _propose(self, episodes: Sequence[Episode], choices: Sequence[int | Proposal]) -> list[Proposal]:
        proposals: dict[int, Proposal] = {}
        groups: dict[str, list[int]] = defaultdict(list)
        for index, choice in enumerate(choices):
            if isinstance(choice, Proposal):
                proposals[index] = choice
                continue
            if not 0 <= int(choice) < len(self.actions):
                raise ValueError(f"action {choice} does not exist; allowed are 0 to {len(self.actions) - 1}")
            groups[self.actions[int(choice)]].append(index)
        for name, indices in groups.items():
            for index, proposal in zip(
                indices, self.operators[name].propose([episodes[i] for i in indices]), strict=True
            ):
                proposals[index] = replace(proposal, action=name)
        ordered = [proposals[index] for index in range(len(episodes))]
        for episode, proposal in zip(episodes, ordered, strict=True):
            if proposal.prompt.contract != episode.original.contract:
                raise TaskError(
                    f"a proposal for {episode.task.task_id} changes the task's contract, which no operator may"
                )
        return ordered

    def _extract(self, answer: str, task: Task) -> ExtractedCode:
        """The code in an answer; the same answer to the same task is looked at once."""
        key = (task.task_id, answer)
        if key not in self._codes:
            self._codes[key] = extract_code(
                answer, entry_point=task.entry_point, stub=task.stub, kept_names=task.kept_names
            )
        return self._codes[key]

    def _judge(self, candidates: Sequence[Candidate]) -> list[Verdict]:
        """Verdicts; the same code against the same suite is judged once."""
        keys = [(c.task.task_id, c.suite.name, c.code) for c in candidates]
        fresh = {key: c for key, c in zip(keys, candidates, strict=True) if key not in self._verdicts}
        new = dict(zip(fresh, self.judge.judge(list(fresh.values())), strict=True))
        verdicts = [new.get(key) or self._verdicts[key] for key in keys]
        self._verdicts.update(new)
        return verdicts

    def _report_suite(self, task: Task) -> TestSuite:
        """One object per task, as the judge prepares a suite once."""
        return self._report_suites.setdefault(task.task_id, report_suite(task))

    def _request(self, episode: Episode, proposal: Proposal, draw: int) -> GenerationRequest:
        """The draw-th answer to a prompt: the first is greedy where the settings say so, the others are sampled."""
        settings = self.generation_settings
        # What a method proposes by itself (EPiC, Reflexion) is answered greedily at first, as in its paper.
        first_is_greedy = (
            settings.greedy == "every"
            or (settings.greedy == "rewrites" and bool(proposal.rewrites))
            or proposal.action not in self.operators
        )
        greedy = draw == 0 and (first_is_greedy or proposal.prompt == episode.original)
        return self.request_format(
            proposal.prompt.render(),
            stub=episode.task.stub,
            draw=draw,
            seed=self.seed,
            temperature=0.0 if greedy else settings.temperature,
            top_p=settings.top_p,
            max_new_tokens=settings.max_new_tokens,
        )

    def _remember(self, episode: Episode, step: Step) -> None:
        """Keep the prompt with its best pass rate; the worst goes when there are too many, the original never.

        Of equals the newer stays: while nothing passes, the population would otherwise never take in a child.
        """
        rates = {individual.prompt: individual.pass_rate for individual in episode.population}
        rates[step.prompt] = max(step.verdict.pass_rate, rates.get(step.prompt, 0.0))
        rates.setdefault(episode.original, 0.0)
        tried = {past.prompt: past.index for past in episode.steps}

        def rank(prompt: Prompt) -> tuple[bool, float, int]:
            return prompt == episode.original, rates[prompt], tried.get(prompt, -1)

        ranked = sorted(rates, key=rank, reverse=True)
        kept = ranked[: self.episode_settings.population_size]
        episode.population = [Individual(prompt, rates[prompt]) for prompt in kept]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started
