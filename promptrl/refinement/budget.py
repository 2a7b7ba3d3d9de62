"""What a search may spend, and the ledger that counts what it did spend.

Fairness is code here, not a promise: methods and operators get their language model only as a `MeteredModel`,
which keeps every answer it handed out until some task has been charged for it. Whoever runs a method charges what
the models really did, ends an episode once one of its caps is reached, and refuses a method whose calls no task pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pydantic import Field

from promptrl.errors import RunError
from promptrl.models.base import CodeModel, Generation, GenerationRequest
from promptrl.refinement.episode import Step
from promptrl.settings import Settings

Cap = Literal["attempts", "calls", "tokens", "seconds"]

CAPS: Final[tuple[Cap, ...]] = ("attempts", "calls", "tokens", "seconds")


class Budget(Settings):
    """What may be spent, per task in an evaluation; what is unset is not capped."""

    attempts: int | None = Field(None, ge=1, description="codes that are judged; environment.horizon where unset")
    calls: int | None = Field(None, ge=1, description="model calls, rewriting and reflecting included")
    tokens: int | None = Field(None, ge=1, description="tokens in and out together")
    seconds: float | None = Field(None, gt=0, description="model time as first spent, in seconds")

    def cap(self, kind: Cap) -> float | None:
        """The cap of one kind, None where there is none."""
        cap: float | None = getattr(self, kind)
        return cap


@dataclass(slots=True)
class Ledger:
    """Counts what was spent against a budget: of one episode, or of a whole run. Pure counting, no model.

    An answer from the cache counts as what it cost when it was first made, so that a replay is the same run.
    """

    budget: Budget = field(default_factory=Budget)
    attempts: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens in and out together."""
        return self.tokens_in + self.tokens_out

    def charge(self, *generations: Generation, attempts: int = 0) -> None:
        """Count model calls, each with its tokens and seconds, and `attempts` judged codes."""
        self.attempts += attempts
        self.calls += len(generations)
        self.tokens_in += sum(generation.tokens_in for generation in generations)
        self.tokens_out += sum(generation.tokens_out for generation in generations)
        self.seconds += sum(generation.seconds for generation in generations)

    def charge_step(self, step: Step) -> None:
        """Count one attempt with all that it took: the code's own call and those spent on finding its prompt."""
        self.charge(step.generation, *step.rewrites, attempts=1)

    def exceeded(self) -> Cap | None:
        """The first cap that leaves nothing to spend, None while all leave something."""
        return self.would_exceed()

    def would_exceed(self, *generations: Generation) -> Cap | None:
        """As `exceeded`, were these calls charged too."""
        after = replace(self)
        after.charge(*generations)
        for kind in CAPS:
            cap = self.budget.cap(kind)
            if cap is not None and getattr(after, kind) >= cap:
                return kind
        return None


class MeteredModel:
    """A language model as methods and operators get it: every answer is kept until somebody is charged for it.

    Args:
        model: The model that answers.
    """

    def __init__(self, model: CodeModel) -> None:
        self._model = model
        self._open: dict[int, Generation] = {}
        self._budgets: tuple[Budget, ...] = ()

    @property
    def fingerprint(self) -> str:
        return self._model.fingerprint

    def lend(self, budgets: Sequence[Budget]) -> None:
        """Say whose budgets pay for the calls to come: those of the tasks that a method is asked about next."""
        self._budgets = tuple(budgets)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer all requests, in order.

        Raises:
            RunError: when the calls not yet charged come to more than the whole budgets of all tasks at hand.
        """
        self._check(len(requests))
        # Each answer is an object of its own, so that it can be told whether somebody was charged for it.
        answers = [replace(generation) for generation in self._model.generate(requests)]
        self._open.update((id(answer), answer) for answer in answers)
        return answers

    def settle(self, charged: Iterable[Generation]) -> int:
        """Strike off answers that were charged to a task; returns how many are left that nobody paid for."""
        for generation in charged:
            self._open.pop(id(generation), None)
        return len(self._open)

    def _check(self, asked: int) -> None:
        """Refuse a search without end inside one choice, which no check between steps would ever see."""
        spent = Ledger()
        spent.charge(*self._open.values())
        spent.calls += asked
        for kind in ("calls", "tokens", "seconds"):
            caps = [budget.cap(kind) for budget in self._budgets]
            together = sum(cap for cap in caps if cap is not None)
            if caps and None not in caps and getattr(spent, kind) > together:
                raise RunError(
                    f"one choice asked for {getattr(spent, kind):g} {kind} of the language model; the {len(caps)} "
                    f"tasks it is about may spend {together:g} in all"
                )
