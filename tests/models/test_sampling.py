from __future__ import annotations

import numpy as np
import torch

from promptrl.models import GenerationRequest
from promptrl.models.sampling import choose_tokens, draw_numbers


def draw(logits: torch.Tensor, numbers: np.ndarray, temperature: float = 1.0, top_p: float = 1.0) -> np.ndarray:
    rows = len(numbers)
    return choose_tokens(
        logits.expand(rows, -1), np.full(rows, temperature), np.full(rows, top_p), np.asarray(numbers, dtype=float)
    )


def test_shares_of_many_draws_are_the_probabilities() -> None:
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0])
    numbers = (np.arange(20000) + 0.5) / 20000
    for temperature in (0.5, 1.0, 2.0):
        shares = np.bincount(draw(logits, numbers, temperature), minlength=4) / 20000
        np.testing.assert_allclose(shares, torch.softmax(logits / temperature, 0).numpy(), atol=2e-4)


def test_top_p_keeps_the_token_that_crosses_it_and_none_after() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    numbers = (np.arange(10000) + 0.5) / 10000
    shares = np.bincount(draw(logits, numbers, top_p=0.6), minlength=4) / 10000
    np.testing.assert_allclose(shares, [0.625, 0.375, 0, 0], atol=1e-3)
    assert set(draw(logits, numbers, top_p=0.01)) == {0}


def test_the_tail_of_a_large_vocabulary_is_reached() -> None:
    logits = torch.zeros(800)  # flat: most of the mass lies outside the sorted head
    tokens = draw(logits, (np.arange(800) + 0.5) / 800)
    assert len(set(tokens.tolist())) > 790
    assert 0 <= tokens.min() <= tokens.max() < 800
    assert draw(logits, np.array([1 - 2**-53]))[0] < 800
    assert len(set(draw(logits, (np.arange(800) + 0.5) / 800, top_p=0.5).tolist())) <= 401


def test_greedy_and_drawn_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 5.0], [5.0, 0.0], [0.0, 0.1]])
    tokens = choose_tokens(logits, np.array([0.0, 0.0, 1.0]), np.ones(3), np.array([0.0, 0.0, 0.99]))
    assert tokens.tolist() == [1, 0, 0]


def test_numbers_depend_on_text_seed_and_draw() -> None:
    def numbers(**changes: object) -> list[float]:
        base = {"user": "a", "temperature": 1.0, "max_new_tokens": 3}
        found = draw_numbers(GenerationRequest(**(base | changes)))  # type: ignore[arg-type]
        assert found is not None
        return found.tolist()

    assert numbers() == numbers()
    others = [numbers(user="b"), numbers(seed=1), numbers(draw=1), numbers(seed=-1), numbers(system="s")]
    assert all(other != numbers() for other in others)
    assert numbers(max_new_tokens=5)[:3] == numbers()
    assert draw_numbers(GenerationRequest("a")) is None
