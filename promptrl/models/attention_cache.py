"""Keys and values of the attention layers: of the rows being decoded, and of prompts that were read before."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_GROWTH = 128  # places by which the buffers grow: rare enough to copy, small enough not to waste memory
_MIN_SHARED = 16  # tokens that two prompts must share at the start before taking them over pays


class _OwnCache(Cache):
    """What transformers asks of a cache, with the storage left to the subclass."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return self.length + int(query_length), 0


class PrefillCache(_OwnCache):
    """For reading prompts, packed into one row: what was read before, and what is computed after it.

    Args:
        past: Keys and values before the row, each (layers, heads, tokens, head size); None for nothing.
    """

    def __init__(self, past: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.past = past
        self.length = 0 if past is None else past[0].shape[2]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep the new (1, heads, tokens, head size) and return them with the past before them."""
        self.keys.append(key_states)
        self.values.append(value_states)
        if self.past is None:
            return key_states, value_states
        keys, values = self.past[0][layer_idx], self.past[1][layer_idx]
        return torch.cat([keys[None], key_states], dim=2), torch.cat([values[None], value_states], dim=2)

    def part(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of some of the new tokens: each (layers, heads, tokens, head size)."""
        return (
            torch.stack([layer[0, :, begin:end] for layer in self.keys]),
            torch.stack([layer[0, :, begin:end] for layer in self.values]),
        )


class SlotCache(_OwnCache):
    """For decoding: one slot per row, each row from place 0 on without padding, written in place.

    A row that is finished gives up its slot by having the last row moved into it, so that the first `rows` slots are
    the live ones and nothing else is ever copied.
    """

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.rows = 0
        self._row_index: Tensor = torch.empty(0, dtype=torch.long)
        self._places: Tensor = self._row_index

    def place(self, keys: Tensor, values: Tensor, room: int) -> int:
        """Put a prompt's keys and values, each (layers, heads, tokens, head size), in the next slot; the slot's index.

        `room` is the number of places after the prompt to keep ready; more are made when needed.
        """
        layers, heads, tokens, _ = keys.shape
        if not self.keys:
            capacity = tokens + min(room, _GROWTH)
            self.keys = [keys.new_zeros((self.slots, heads, capacity, keys.shape[3])) for _ in range(layers)]
            self.values = [values.new_zeros((self.slots, heads, capacity, values.shape[3])) for _ in range(layers)]
        self._reserve(tokens + 1)
        slot = self.rows
        for layer in range(layers):
            self.keys[layer][slot, :, :tokens] = keys[layer]
            self.values[layer][slot, :, :tokens] = values[layer]
        self.rows += 1
        return slot

    def drop(self, slot: int, length: int) -> None:
        """Give up a slot; `length` is the number of places the last row has filled."""
        self.rows -= 1
        if slot != self.rows:
            for buffer in (*self.keys, *self.values):
                buffer[slot, :, :length] = buffer[self.rows, :, :length]

    def aim(self, places: Tensor, longest: int) -> None:
        """Say at which place each live row writes next, (rows,) int64, and how many places are looked at."""
        self._reserve(longest)
        self._places = places
        self._row_index = torch.arange(self.rows, device=places.device)
        self.length = longest - 1

    def _reserve(self, places: int) -> None:
        capacity = self.keys[0].shape[2]
        if places <= capacity:
            return
        extra = max(places - capacity, _GROWTH)
        for buffers in (self.keys, self.values):
            for layer, old in enumerate(buffers):
                grown = old.new_zeros((old.shape[0], old.shape[1], capacity + extra, old.shape[3]))
                grown[:, :, :capacity] = old
                buffers[layer] = grown

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token per row, (rows, heads, 1, head size), and return views of all places looked at."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[self._row_index, :, self._places] = key_states[:, :, 0]
        values[self._row_index, :, self._places] = value_states[:, :, 0]
        seen = self.length + 1
        return keys[: self.rows, :, :seen], values[: self.rows, :, :seen]


@dataclass(frozen=True, slots=True)
class Remembered:
    """A prompt, or the start of one, that was read: its tokens, keys, values and the scores of the next token."""

    tokens: npt.NDArray[np.int64]
    keys: Tensor
    values: Tensor
    logits: Tensor | None

    @property
    def size_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + (0 if self.logits is None else self.logits.nbytes)


def shared_start(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> int:
    """How many tokens two prompts share at their start."""
    length = min(len(first), len(second))
    different = np.nonzero(first[:length] != second[:length])[0]
    return int(different[0]) if len(different) else length


class PromptMemory:
    """The keys and values of recent prompts, the longest unused leaving first.

    Args:
        limit_bytes: Memory for all of them. 0 remembers nothing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[bytes, Remembered] = OrderedDict()
        self._token_bytes = 0.0

    def exact(self, tokens: npt.NDArray[np.int64]) -> Remembered | None:
        """The very same prompt, if it was read to its end."""
        key = tokens.tobytes()
        entry = self._entries.get(key)
        if entry is None or entry.logits is None:
            return None
        self._entries.move_to_end(key)
        return entry

    def longest(self, tokens: npt.NDArray[np.int64]) -> tuple[Remembered | None, int]:
        """The remembered prompt with the longest shared start, and how many of its tokens can be taken over.

        At least one token is left to be read, for its scores decide the first token of the answer.
        """
        best_key, best = None, 0
        for key, entry in self._entries.items():
            shared = min(shared_start(entry.tokens, tokens), len(tokens) - 1)
            if shared > best:
                best_key, best = key, shared
        if best_key is None or best < _MIN_SHARED:
            return None, 0
        self._entries.move_to_end(best_key)
        return self._entries[best_key], best

    def would_fit(self, tokens: int) -> bool:
        """Whether a prompt of so many tokens can be remembered, as far as is known from those seen before."""
        return 0 < self.limit_bytes >= tokens * self._token_bytes

    def add(self, entry: Remembered) -> None:
        """Remember a prompt, if it fits at all."""
        self._token_bytes = entry.size_bytes / len(entry.tokens)
        if entry.size_bytes > self.limit_bytes:
            return
        key = entry.tokens.tobytes()
        old = self._entries.pop(key, None)
        self.size_bytes += entry.size_bytes - (0 if old is None else old.size_bytes)
        self._entries[key] = entry
        while self.size_bytes > self.limit_bytes:
            _, gone = self._entries.popitem(last=False)
            self.size_bytes -= gone.size_bytes

    def clear(self) -> None:
        """Forget everything, where memory is short."""
        self._entries.clear()
        self.size_bytes = 0
