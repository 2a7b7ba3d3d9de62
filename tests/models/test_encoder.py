from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from promptrl.errors import AssetError
from promptrl.models import PromptEncoder

TEXTS = [
    "Write a function that adds two numbers.",
    "",
    "Return the list sorted; keep duplicates.\n\ndef f(xs):\n    ...",
    "größer als 漢字 🙂",
    "word " * 200,
]


@pytest.fixture(scope="module")
def encoder(minilm_folder: Path) -> PromptEncoder:
    return PromptEncoder(minilm_folder)


def test_equal_to_sentence_transformers_on_short_texts(encoder: PromptEncoder, minilm_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(minilm_folder), device="cpu").encode(TEXTS, normalize_embeddings=True)
    ours = encoder.encode(TEXTS)
    assert ours.shape == (len(TEXTS), 384)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)


def test_the_end_of_a_long_text_moves_its_vector(encoder: PromptEncoder) -> None:
    long = "Sort the records by their date and drop the ones without. " * 60
    plain, changed = encoder.encode([long, long + "Then return the median of the prices."])
    assert float(plain @ changed) < 0.9999
    np.testing.assert_allclose(np.linalg.norm([plain, changed], axis=1), 1, atol=1e-6)


def test_vectors_do_not_depend_on_batch_or_memory(encoder: PromptEncoder, minilm_folder: Path) -> None:
    together = encoder.encode(TEXTS)
    fresh = PromptEncoder(minilm_folder)
    alone = np.concatenate([fresh.encode([text]) for text in reversed(TEXTS)])[::-1]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert np.array_equal(encoder.encode([TEXTS[0], "new", TEXTS[0]])[[0, 2]], together[[0, 0]])
    assert encoder.encode([]).shape == (0, 384)


def test_similarity_ranks_meaning(encoder: PromptEncoder) -> None:
    near = encoder.similarity("Return the sum of the list.", "Add up all elements of the list.")
    far = encoder.similarity("Return the sum of the list.", "Penguins live in Antarctica.")
    assert -1 <= far < near <= 1
    assert encoder.similarity("same", "same") == pytest.approx(1, abs=1e-6)


def test_nearest_words_are_other_whole_words(encoder: PromptEncoder) -> None:
    found = encoder.nearest_words("return", 10)
    words = [word for word, _ in found]
    assert len(found) == 10
    assert not {"return", "returns", "returned", "returning"} & set(words)
    assert all(word.isalpha() and word.islower() and len(word) > 2 for word in words)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    assert encoder.nearest_words("Return", 10) == found
    assert encoder.nearest_words("zzzqqqx") == []
    assert encoder.nearest_words("") == []
    assert len(encoder.nearest_words("list", 3)) == 3
    assert any(word in {"big", "huge", "small", "larger"} for word, _ in encoder.nearest_words("large", 10))


def test_a_folder_without_the_model_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"holds no config\.json"):
        PromptEncoder(tmp_path)
