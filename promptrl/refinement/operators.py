"""What an operator is, the `direct` one, and how the configuration's action names become operators.

An operator answers one question: which prompt is tried next? A further action is one class and one line
of configuration: `environment.actions: [direct, lexical, semantic, "my_package.my_module:MyOperator"]`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from promptrl.errors import ConfigError
from promptrl.models.base import CodeModel
from promptrl.refinement.episode import Episode, Proposal
from promptrl.refinement.lexical import Lexical, LexicalSettings, WordVectors
from promptrl.refinement.semantic import Semantic, SemanticSettings
from promptrl.settings import Settings


@runtime_checkable
class Operator(Protocol):
    """Proposes the next prompt for each of many episodes at once, so that model calls can be batched.

    Implementations may read an episode but never change it, and draw random numbers only from its `rng`.
    """

    def propose(self, episodes: Sequence[Episode]) -> list[Proposal]: ...


class Direct:
    """Keeps the prompt and draws again from the model: the decoding's randomness does the work."""

    def propose(self, episodes: Sequence[Episode]) -> list[Proposal]:
        return [Proposal(episode.prompt) for episode in episodes]


class OperatorSettings(Settings):
    """The settings of the operators that have any."""

    lexical: LexicalSettings = LexicalSettings()
    semantic: SemanticSettings = SemanticSettings()


@dataclass(frozen=True)
class OperatorContext:
    """What operators are made from: the models that they may use, their settings and the run's seed."""

    rewriter: CodeModel
    vectors: WordVectors
    settings: OperatorSettings
    seed: int


OPERATORS: Final[dict[str, Callable[[OperatorContext], Operator]]] = {
    "direct": lambda context: Direct(),
    "lexical": lambda context: Lexical(context.vectors, context.settings.lexical),
    "semantic": lambda context: Semantic(
        context.rewriter, context.vectors, context.settings.semantic, seed=context.seed
    ),
}


def make_operators(actions: Sequence[str], context: OperatorContext) -> dict[str, Operator]:
    """The operators of the named actions, in the actions' order.

    A name is one of `OPERATORS`, or `module:Class` for a user's own; the class is called with the context.

    Raises:
        ConfigError: for a name that is neither, or a class that is no operator.
    """
    return {action: _make_operator(action, context) for action in actions}


def _make_operator(action: str, context: OperatorContext) -> Operator:
    if factory := OPERATORS.get(action):
        return factory(context)
    module_name, colon, class_name = action.partition(":")
    allowed = f"allowed are {', '.join(OPERATORS)} and 'module:Class' of your own"
    if not colon:
        raise ConfigError(f"environment.actions names the unknown action {action!r}; {allowed}")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # where a user's own module lies, whichever command was started
    try:
        operator_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"environment.actions names {action!r}, which cannot be imported ({error}); {allowed}"
        ) from error
    if not (isinstance(operator_class, type) and callable(getattr(operator_class, "propose", None))):
        raise ConfigError(f"environment.actions names {action!r}, which is no class with a method 'propose'; {allowed}")
    operator: Operator = operator_class(context)
    return operator
