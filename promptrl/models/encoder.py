"""The sentence encoder whose 384 numbers are the state, and the words it holds close to each other."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from promptrl.errors import AssetError
from promptrl.models.weights import quiet_transformers

Floats = npt.NDArray[np.float32]

_MEMO_TEXTS = 4096
_BATCH_TOKENS = 8192
_MIN_WORD = 3  # letters: shorter pieces are mostly abbreviations and scraps
_SUFFIXES = ("'s", "ingly", "edly", "ing", "ied", "ies", "est", "ed", "es", "er", "ly", "s", "d", "e", "y")


class PromptEncoder:
    """`sentence-transformers/all-MiniLM-L6-v2`: mean of the last layer's vectors, brought to unit length.

    The model reads 256 word pieces. A longer text is read in windows of that size, the last one ending with the text,
    and their vectors are averaged, so that a change at the end of a long prompt still moves the state.

    Args:
        path: The model's folder.

    Raises:
        AssetError: If the folder does not hold the model.
    """

    def __init__(self, path: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        path = Path(path)
        if not (path / "config.json").is_file():
            raise AssetError(f"The sentence encoder's folder {path} holds no config.json.")
        try:
            with quiet_transformers():
                self._model: Any = AutoModel.from_pretrained(path, dtype=torch.float32, local_files_only=True)
                self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (ValueError, OSError, KeyError, RuntimeError) as error:
            raise AssetError(
                f"The sentence encoder in {path} cannot be loaded: {str(error).splitlines()[0]}"
            ) from error
        self._model.eval().requires_grad_(False)
        self.dimension: int = self._model.config.hidden_size
        self.window = _window_of(path)
        self._memo: OrderedDict[str, Floats] = OrderedDict()
        self._words: _WordIndex | None = None

    def encode(self, texts: Sequence[str]) -> Floats:
        """Embed texts.

        Returns:
            (texts, 384) float32, each row of unit length.
        """
        wanted = list(dict.fromkeys(text for text in texts if text not in self._memo))
        fresh = dict(zip(wanted, self._embed(wanted), strict=True)) if wanted else {}
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        for index, text in enumerate(texts):
            if text in fresh:
                rows[index] = fresh[text]
            else:
                rows[index] = self._memo[text]
                self._memo.move_to_end(text)
        self._memo.update(fresh)
        while len(self._memo) > _MEMO_TEXTS:
            self._memo.popitem(last=False)
        return rows

    def similarity(self, first: str, second: str) -> float:
        """Cosine of two texts' embeddings, in [-1, 1]."""
        left, right = self.encode([first, second])
        return float(np.clip(left @ right, -1.0, 1.0))

    def _embed(self, texts: list[str]) -> Floats:
        windows: list[list[int]] = []
        owners: list[int] = []
        for index, pieces in enumerate(self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]):
            for window in self._windows(pieces):
                windows.append(window)
                owners.append(index)
        vectors = np.zeros((len(windows), self.dimension), dtype=np.float32)
        order = sorted(range(len(windows)), key=lambda index: len(windows[index]))
        start = 0
        while start < len(order):
            stop = start + 1
            while stop < len(order) and (stop + 1 - start) * len(windows[order[stop]]) <= _BATCH_TOKENS:
                stop += 1
            batch = order[start:stop]
            vectors[batch] = self._forward([windows[index] for index in batch])
            start = stop
        sums = np.zeros((len(texts), self.dimension), dtype=np.float32)
        np.add.at(sums, owners, vectors)
        return _unit(sums)

    def _windows(self, pieces: list[int]) -> list[list[int]]:
        begin, end = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        size = self.window - 2
        starts = list(range(0, max(len(pieces), 1), size))
        if len(pieces) > size:
            starts[-1] = len(pieces) - size  # a full last window, rather than a scrap that counts as much as the rest
        return [[begin, *pieces[start : start + size], end] for start in starts]

    def _forward(self, windows: list[list[int]]) -> Floats:
        width = max(len(window) for window in windows)
        ids = torch.full((len(windows), width), int(self._tokenizer.pad_token_id))
        mask = torch.zeros((len(windows), width), dtype=torch.long)
        for row, window in enumerate(windows):
            ids[row, : len(window)] = torch.tensor(window)
            mask[row, : len(window)] = 1
        with torch.inference_mode():
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask[..., None].to(states.dtype)
            means: Floats = ((states * weights).sum(dim=1) / weights.sum(dim=1)).numpy()
        return _unit(means)

    def nearest_words(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """The words closest to `word` among the encoder's own whole-word pieces.

        Closeness is the cosine of the input embeddings. The word itself, other forms of it and second forms of a word
        already listed are left out.

        Returns:
            Up to `k` pairs of word (lower case) and cosine, closest first; empty where `word` is not one piece.
        """
        if self._words is None:
            table: Floats = self._model.get_input_embeddings().weight.detach().numpy()
            self._words = _WordIndex(self._tokenizer.get_vocab(), table)
        return list(self._words.nearest(word.lower(), k))


class _WordIndex:
    """Unit vectors of the alphabetic whole-word pieces, with their stems."""

    def __init__(self, vocabulary: dict[str, int], table: Floats) -> None:
        words = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) >= _MIN_WORD]
        words.sort(key=lambda word: vocabulary[word])
        self._words = words
        self._place = {word: index for index, word in enumerate(words)}
        self._vectors = _unit(table[[vocabulary[word] for word in words]])
        self.nearest = lru_cache(maxsize=8192)(self._nearest)

    def _nearest(self, word: str, k: int) -> tuple[tuple[str, float], ...]:
        if word not in self._place:
            return ()
        scores = self._vectors @ self._vectors[self._place[word]]
        taken = {_stem(word)}
        found: list[tuple[str, float]] = []
        count = min(len(scores), 4 * k + 16)
        best = np.argpartition(-scores, count - 1)[:count]
        for index in best[np.argsort(-scores[best], kind="stable")]:
            other = self._words[index]
            if _stem(other) in taken:
                continue
            taken.add(_stem(other))
            found.append((other, float(scores[index])))
            if len(found) == k:
                break
        return tuple(found)


def _stem(word: str) -> str:
    """A word without its inflection: crude, and only good for telling two forms of one word."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_WORD:
            word = word[: -len(suffix)]
            break
    if len(word) > _MIN_WORD and word[-1] == word[-2] and word[-1] not in "aeiou":
        word = word[:-1]  # running: runn, run
    return word.rstrip("iey") if len(word.rstrip("iey")) >= _MIN_WORD else word


def _unit(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Floats = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled


def _window_of(path: Path) -> int:
    """Word pieces the model is used with, special ones included: 256, where the folder does not say otherwise."""
    try:
        value = json.loads((path / "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"]
    except (OSError, ValueError, KeyError):
        return 256
    return int(value)
