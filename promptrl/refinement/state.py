"""What the agent sees of an episode: the method's own state, and two richer ones that are off by default.

| part | numbers | range | in |
| --- | --- | --- | --- |
| MiniLM of the rendered prompt, unit length | 384 | [-1, 1] | every state |
| steps taken / horizon | 1 | [0, 1] | `prompt+progress`, `prompt+feedback` |
| pass rate of the last attempt, 0 before the first | 1 | [0, 1] | same |
| status of the last attempt, one-hot in the order of `Status`; zeros before the first | 5 | {0, 1} | same |
| times each action was taken / horizon | actions | [0, 1] | same |
| MiniLM of the last failure's text, zeros where there is none | 384 | [-1, 1] | `prompt+feedback` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from promptrl.execution.verdict import Status
from promptrl.refinement.episode import Episode, failure_text

StateName = Literal["prompt", "prompt+progress", "prompt+feedback"]

EMBEDDING_SIZE: Final = 384
_STATUSES: Final = tuple(Status)


def state_size(state: StateName, n_actions: int) -> int:
    """How many numbers a state has."""
    progress = 2 + len(_STATUSES) + n_actions
    return {
        "prompt": EMBEDDING_SIZE,
        "prompt+progress": EMBEDDING_SIZE + progress,
        "prompt+feedback": 2 * EMBEDDING_SIZE + progress,
    }[state]


def state_bounds(state: StateName, n_actions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Least and greatest value of each number, both of shape (state_size,), float32."""
    low = np.full(state_size(state, n_actions), -1.0, dtype=np.float32)
    low[EMBEDDING_SIZE : state_size("prompt+progress", n_actions)] = 0.0
    return low, np.ones_like(low)


def observe(
    episodes: Sequence[Episode],
    state: StateName,
    actions: Sequence[str],
    encode: Callable[[Sequence[str]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """The states of many episodes, shape (len(episodes), state_size), float32, from one batched encoding."""
    if not episodes:
        return np.zeros((0, state_size(state, len(actions))), dtype=np.float32)
    texts = [episode.prompt.render() for episode in episodes]
    failures = [failure_text(e.last, e.suite) if e.last else "" for e in episodes] if state == "prompt+feedback" else []
    encoded = encode([*texts, *filter(None, failures)])
    parts = [encoded[: len(texts)]]
    if state != "prompt":
        parts.append(np.array([_progress(episode, actions) for episode in episodes], dtype=np.float32))
    if state == "prompt+feedback":
        vectors = iter(encoded[len(texts) :])
        nothing = np.zeros(EMBEDDING_SIZE, dtype=np.float32)
        parts.append(np.stack([next(vectors) if failure else nothing for failure in failures]))
    # Rounding can leave a component of a unit vector a hair outside the declared box.
    states: NDArray[np.float32] = np.clip(np.concatenate(parts, axis=1), -1.0, 1.0, dtype=np.float32)
    return states


def _progress(episode: Episode, actions: Sequence[str]) -> list[float]:
    last = episode.last
    taken = [step.action for step in episode.steps]
    return [
        len(taken) / episode.horizon,
        last.verdict.pass_rate if last else 0.0,
        *(float(last is not None and last.verdict.status is status) for status in _STATUSES),
        *(taken.count(action) / episode.horizon for action in actions),
    ]
