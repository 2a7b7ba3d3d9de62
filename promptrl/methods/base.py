"""What a method is: something that chooses, for each running episode, what is tried next.

A method of your own is one class with `choose`, made from a `MethodContext` and registered by its package under
the entry-point group `promptrl.methods`. docs/methods.md shows one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from promptrl.errors import ConfigError
from promptrl.methods.search_settings import MethodSettings
from promptrl.models.base import CodeModel, Generation, GenerationRequest
from promptrl.refinement.engine import TestProtocol
from promptrl.refinement.episode import Episode, Proposal
from promptrl.refinement.lexical import WordVectors

ENTRY_POINT_GROUP: Final = "promptrl.methods"
_OWN_METHODS: Final = {
    "direct": "promptrl.methods.fixed:Direct",
    "repeat-direct": "promptrl.methods.fixed:RepeatDirect",
    "random-hybrid": "promptrl.methods.fixed:RandomHybrid",
    "epic": "promptrl.methods.epic:Epic",
    "reflexion": "promptrl.methods.reflexion:Reflexion",
    "ppo": "promptrl.methods.ppo:PPOMethod",
}


class Method(Protocol):
    """Chooses among the actions, or proposes prompts of its own.

    Attributes:
        name: what tables call it.
        attempts: most attempts per task that it makes, at most the budget's; None for the whole budget.

    A class attribute `reads_states = False` says that `choose` looks at no observation: they are zeros then, and cost
    no encoding.
    """

    name: str
    attempts: int | None

    def choose(self, episodes: Sequence[Episode], observations: NDArray[np.float32]) -> Sequence[int | Proposal | None]:
        """What each of many episodes tries next.

        Args:
            episodes: running ones, to be read and never changed.
            observations: their states, shape (len(episodes), state size), float32.

        Returns:
            Per episode the number of an action, a prompt to try as it is, or None where the method is done with
            the task, after at least one attempt. Model calls made here have to be in some proposal's `rewrites`.
        """
        ...


class NoModel:
    """Stands where a method was given no language model, and says so when it is asked."""

    fingerprint = "none"

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        raise ConfigError("the method asks a language model, and was made without one; give its context a rewriter")


@dataclass(frozen=True)
class MethodContext:
    """What a method may be made from."""

    actions: tuple[str, ...]
    seed: int
    policy: Path | None = None
    """A trained agent's zip, for methods that need one."""
    deterministic: bool = True
    rewriter: CodeModel = field(default_factory=NoModel)
    """The language model for rewriting and reflecting; the runner gives a metered one."""
    vectors: WordVectors | None = None
    """MiniLM's words and sentences."""
    settings: MethodSettings = field(default_factory=MethodSettings)
    attempts: int = 5
    """Codes that the budget allows per task."""
    protocol: TestProtocol = "paper"
    """Which tests an episode's suite holds: all of them, or the base tests alone."""

    def action(self, name: str) -> int:
        """The number of a named action.

        Raises:
            ConfigError: when the environment does not offer it.
        """
        if name not in self.actions:
            raise ConfigError(
                f"the method needs the action {name!r}; environment.actions has {', '.join(self.actions)}"
            )
        return self.actions.index(name)


def available_methods() -> dict[str, EntryPoint]:
    """The methods of this package and those that installed packages register; none is imported yet."""
    own = [EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in _OWN_METHODS.items()]
    others = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name not in _OWN_METHODS]
    return {entry.name: entry for entry in (*own, *others)}


def make_method(name: str, context: MethodContext) -> Method:
    """The named method.

    Raises:
        ConfigError: for an unknown name, naming those that exist.
    """
    method: Method = check_method(name).load()(context)
    return method


def check_method(name: str) -> EntryPoint:
    """Where the named method is, without importing it.

    Raises:
        ConfigError: for an unknown name, naming those that exist.
    """
    methods = available_methods()
    if name not in methods:
        raise ConfigError(f"method {name!r} is unknown; allowed are {', '.join(methods)}")
    return methods[name]
