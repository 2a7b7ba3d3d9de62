"""Choosing the next token: greedy, or drawn so that a draw depends on nothing but itself."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from promptrl.models.base import GenerationRequest

_HEAD = 256  # most likely tokens that are sorted; nearly every draw falls among them
_ROWS = 8  # scored at a time on a CPU


def draw_numbers(request: GenerationRequest) -> npt.NDArray[np.float64] | None:
    """One number in [0, 1) for each token that a request may draw; None where it is greedy.

    They come from a generator of the request's own, seeded with the seed, the draw's index and a hash of the text, so
    that they are the same in every batch and on every machine.
    """
    if request.temperature == 0:
        return None
    text = "\0".join((request.system or "", request.user, request.prefill))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    words = np.frombuffer(digest, dtype=np.uint32).tolist()
    seed = np.random.SeedSequence([request.seed & (2**64 - 1), request.draw & (2**64 - 1), *words])
    return np.random.Generator(np.random.Philox(seed)).random(request.max_new_tokens)


def choose_tokens(
    logits: Tensor,
    temperatures: npt.NDArray[np.float64],
    top_ps: npt.NDArray[np.float64],
    numbers: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """The next token of each row.

    A drawn token is found by walking down the tokens from the most to the least likely until their probabilities add
    up to the row's number. Going down in this order, rounding in the model moves a boundary only where two tokens
    are about as likely.

    Args:
        logits: (rows, vocabulary) scores, of any float dtype and device.
        temperatures: (rows,); 0 takes the best token.
        top_ps: (rows,) in (0, 1].
        numbers: (rows,) in [0, 1); not looked at where greedy.

    Returns:
        (rows,) int64 token ids.
    """
    chosen = np.empty(len(logits), dtype=np.int64)
    greedy = np.flatnonzero(temperatures == 0)
    drawn = np.flatnonzero(temperatures > 0)
    if len(greedy):
        rows = logits if not len(drawn) else logits[torch.from_numpy(greedy).to(logits.device)]
        chosen[greedy] = rows.argmax(dim=-1).cpu().numpy()
    if not len(drawn):
        return chosen
    # A few rows at a time, whose scores stay near the core: for many, most of the time went into fetching memory.
    step = _ROWS if logits.device.type == "cpu" else len(drawn)
    for begin in range(0, len(drawn), step):
        some = drawn[begin : begin + step]
        scores = logits[torch.from_numpy(some).to(logits.device)].float()
        scores.div_(torch.from_numpy(temperatures[some]).to(scores)[:, None])
        chosen[some] = _draw(scores, top_ps[some], numbers[some])
    return chosen


def _draw(scores: Tensor, top_ps: npt.NDArray[np.float64], numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    # In single precision, right to about 1e-6: in double it took longer than all else here together.
    total = torch.logsumexp(scores, dim=-1, keepdim=True)
    head_scores, head_ids = torch.topk(scores, k=min(_HEAD, scores.shape[-1]), dim=-1)
    reached = torch.cumsum(torch.exp(head_scores.double() - total.double()), dim=-1).cpu().numpy()
    ids = head_ids.cpu().numpy()
    chosen = np.empty(len(scores), dtype=np.int64)
    for row in range(len(scores)):
        found = _walk(reached[row], float(top_ps[row]), float(numbers[row]))
        if found is not None:
            chosen[row] = ids[row, found]
            continue
        # The number falls in the long tail: sort all of this row.
        every, order = torch.sort(scores[row], descending=True)
        sums = torch.cumsum(torch.exp(every.double() - total[row].double()), dim=-1).cpu().numpy()
        sums /= sums[-1]
        found = _walk(sums, float(top_ps[row]), float(numbers[row]))
        chosen[row] = int(order[len(sums) - 1 if found is None else found])
    return chosen


def _walk(reached: npt.NDArray[np.float64], top_p: float, number: float) -> int | None:
    """Index of the drawn token among tokens sorted by probability; None where the sorted part does not tell."""
    if top_p < 1:
        if reached[-1] < top_p:
            return None
        mass = float(reached[int(np.searchsorted(reached, top_p))])  # the nucleus holds the token that crosses top-p
    else:
        mass = 1.0
    index = int(np.searchsorted(reached, number * mass, side="right"))
    return index if index < len(reached) else None
