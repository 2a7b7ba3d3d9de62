"""The loop that writes many answers at once with a causal model.

Jobs are given as a list, or come while others are being written. Prompts are read some at a time, packed into one row,
each from the longest start that was read before. Rows lie without padding, so that a row is computed as it would be
alone; a finished row leaves at once, and the next waiting prompt takes its place.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from promptrl.errors import ModelError
from promptrl.models.attention_cache import PrefillCache, PromptMemory, Remembered, SlotCache, shared_start
from promptrl.models.base import FinishReason
from promptrl.models.sampling import choose_tokens

logger = logging.getLogger(__name__)

_PREFILL_TOKENS = {"cpu": 192}  # tokens read in one go; a CPU has nothing to win from more in float32,
_PREFILL_TOKENS_BFLOAT16 = {"cpu": 512}  # and some in bfloat16, which it multiplies faster than memory brings weights
_PREFILL_TOKENS_GPU = 4096  # each sees all others in the mask
_SEEN_PER_READ = 4  # tokens, known starts included, that all of those read in one go may be masked from
_REFILL_PARTS = {"cpu": 8}
_REFILL_PARTS_GPU = 4
_SHARED_WORTH = 16


@dataclass(slots=True)
class Job:
    """One answer to be written: prompt tokens in, `written` out.

    `ends` is asked after each token whether the text so far has reached a stop string. `source` is what an encoder
    reads where that is not the prompt itself.
    """

    tokens: npt.NDArray[np.int64]
    max_new_tokens: int
    temperature: float
    top_p: float
    numbers: npt.NDArray[np.float64] | None
    ends: Callable[[list[int]], bool]
    written: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    source: npt.NDArray[np.int64] | None = None
    seconds: float = 0.0
    """Of the model's time, shared with whatever was computed together; counted for causal models alone."""

    def take(self, token: int, end_ids: frozenset[int]) -> None:
        """Add a token, and note whether it ends the answer."""
        self.written.append(token)
        if token in end_ids or self.ends(self.written):
            self.finish_reason = "stop"

    @property
    def is_finished(self) -> bool:
        return self.finish_reason == "stop" or len(self.written) >= self.max_new_tokens

    @property
    def next_number(self) -> float:
        """The number that draws the next token; 0 where none is drawn."""
        return 0.0 if self.numbers is None or self.is_finished else float(self.numbers[len(self.written)])


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What the loop does to be fast. No answer depends on it: it can be turned off to see what each means is worth."""

    sort: bool = True
    """Prompts of like length share the batch."""
    leave: bool = True
    """A finished row leaves the batch at once; else it is computed until the last of its batch is finished."""
    refill: bool = True
    """A waiting prompt takes the place of a row that left; else the next batch begins when this one has ended."""
    pack: bool = True
    """Several prompts are read at once, whatever each has in common with earlier ones; else one by one."""
    refill_at: int | None = None
    """How many rows have to be free for that; None for an eighth of the batch on a CPU, and a quarter elsewhere.

    Prompts that are read together are read faster than one by one, and waiting for them leaves places empty.
    """


class JobSource(Protocol):
    """Where jobs come from while others are being written."""

    def more(self, wait: bool) -> Sequence[Job] | None:
        """The jobs that have come since, at least one with `wait`; None where none will come any more."""
        ...

    def finished(self, job: Job) -> None:
        """Take note that an answer has been written."""
        ...


class Batched(Protocol):
    """A decoder whose number of rows can be lowered."""

    batch_size: int
    device: torch.device


def run_halving(
    decoder: Batched,
    jobs: Sequence[Job],
    run: Callable[[list[Job]], None],
    forget: Callable[[], None] = lambda: None,
) -> None:
    """Run jobs, and where memory runs out go on with half the rows; unfinished answers start anew.

    A draw depends on nothing but itself, so starting anew gives the same answer.

    Args:
        decoder: Whose `batch_size` is lowered.
        jobs: To be written.
        run: Writes all of the jobs it is given.
        forget: Frees what can be spared.

    Raises:
        ModelError: If memory runs out even for a single row.
    """
    while True:
        waiting = [job for job in jobs if not job.is_finished]
        for job in waiting:
            job.written.clear()
        try:
            with torch.inference_mode():
                run(waiting)
            return
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
        # Outside the handler, so that the traceback no longer holds the tensors.
        if decoder.batch_size == 1:
            raise ModelError("Memory ran out with a single answer in the batch; use a smaller model or context.")
        decoder.batch_size = max(1, decoder.batch_size // 2)
        logger.warning("Memory ran out: going on with at most %d answers at once.", decoder.batch_size)
        forget()
        if decoder.device.type == "cuda":
            torch.cuda.empty_cache()


class CausalDecoder:
    """Runs jobs through a causal language model.

    Args:
        model: The model, in evaluation mode.
        device: Where it lies.
        dtype: Of its activations.
        end_ids: Tokens that end an answer.
        batch_size: Rows at once, at most.
        memory_bytes: For keys and values of recent prompts.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        dtype: torch.dtype,
        end_ids: frozenset[int],
        batch_size: int,
        memory_bytes: int,
    ) -> None:
        self.model = model
        self.device = device
        self.dtype = dtype
        self.end_ids = end_ids
        self.batch_size = batch_size
        self.memory = PromptMemory(memory_bytes)
        self.options = LoopOptions()
        parameters = inspect.signature(model.forward).parameters
        # Renamed in transformers 5.24; the old name goes in 5.40.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters

    def run(self, jobs: Sequence[Job]) -> None:
        """Write all answers into their jobs, with half the rows each time that memory runs out.

        Raises:
            ModelError: If memory runs out even for a single row.
        """
        run_halving(self, jobs, self._run, self.memory.clear)

    def serve(self, source: JobSource) -> None:
        """Write answers as their jobs come, until no more will.

        Jobs that came together are read before those that came later, the longest first.

        Raises:
            ModelError: If memory runs out even for a single row.
        """
        coming = _Coming(source)
        run_halving(self, coming.unfinished, lambda jobs: self._run(jobs, coming), self.memory.clear)

    def _run(self, jobs: list[Job], coming: _Coming | None = None) -> None:
        if coming is not None:  # memory may have run out between a job's last token and the word of it
            coming.note(list(coming.unfinished))
        queue = self._queue(jobs)
        refills = self.options.refill and self.options.leave
        slots = min(self.batch_size, len(queue)) if coming is None else self.batch_size
        cache = SlotCache(slots)
        live: list[Job] = []
        part = _REFILL_PARTS.get(self.device.type, _REFILL_PARTS_GPU)
        refill_at = self.options.refill_at or max(1, slots // part)
        lengths = np.zeros(slots, dtype=np.int64)
        while True:
            if coming is not None and not coming.ended:
                queue += self._queue(coming.more(wait=not queue and not live))
            if not queue and not live:
                return
            started = time.perf_counter()
            if queue and (not live or (refills and slots - len(live) >= refill_at)):
                fresh, queue = queue[: slots - len(live)], queue[slots - len(live) :]
                for job, entry in self._read(fresh):
                    assert entry.logits is not None
                    job.take(int(self._choose(entry.logits[None], [job])[0]), self.end_ids)
                    if not job.is_finished:
                        slot = cache.place(entry.keys, entry.values, job.max_new_tokens)
                        lengths[slot] = len(job.tokens)
                        live.append(job)
                _share_time(fresh, started)
                if coming is not None:
                    coming.note(fresh)
                continue
            logits = self._step(cache, live, lengths[: len(live)])
            lengths[: len(live)] += 1
            chosen = self._choose(logits, live)
            for job, token in zip(live, chosen, strict=True):
                if not job.is_finished:
                    job.take(int(token), self.end_ids)
            _share_time(live, started)
            if coming is not None:
                coming.note(live)
            if not self.options.leave and not all(job.is_finished for job in live):
                continue
            for slot in reversed(range(len(live))):
                if live[slot].is_finished:
                    last = live.pop()
                    cache.drop(slot, int(lengths[len(live)]))
                    if slot < len(live):
                        live[slot], lengths[slot] = last, lengths[len(live)]

    def _queue(self, jobs: Sequence[Job]) -> list[Job]:
        """Jobs that came together, in the order in which they are read, and what all of them begin with read."""
        started = time.perf_counter()
        # Longest first: rows of like length share the batch, and the short ones fill up its end.
        queue = list(jobs)
        if self.options.sort:
            queue.sort(key=lambda job: (-len(job.tokens), job.tokens.tobytes()))
        self._read_shared_start(queue)
        _share_time(queue, started)
        return queue

    def _step(self, cache: SlotCache, live: list[Job], lengths: npt.NDArray[np.int64]) -> Tensor:
        """Scores (rows, vocabulary) after each row's last token."""
        longest = int(lengths.max()) + 1
        places = torch.from_numpy(lengths.copy()).to(self.device)
        cache.aim(places, longest)
        tokens = torch.tensor([[job.written[-1]] for job in live], device=self.device)
        seen = torch.arange(longest, device=self.device)[None] <= places[:, None]
        return self._forward(tokens, places[:, None], _as_bias(seen[:, None, None], self.dtype), cache, None)[:, -1]

    def _forward(self, tokens: Tensor, places: Tensor, mask: Tensor, cache: object, keep: Tensor | None) -> Tensor:
        """Scores (rows, kept, vocabulary) at the kept columns, or at the last one."""
        extra: dict[str, object] = {self._cache_name: cache}
        if self._keeps_logits:
            extra["logits_to_keep"] = 1 if keep is None else keep
        output = self.model(
            input_ids=tokens, position_ids=places, attention_mask=mask, use_cache=True, return_dict=True, **extra
        )
        logits: Tensor = output.logits
        if not self._keeps_logits:
            logits = logits[:, -1:] if keep is None else logits[:, keep]
        return logits

    def _read_shared_start(self, jobs: list[Job]) -> None:
        """Read what all prompts have in common, once, unless it is remembered."""
        if len(jobs) < 2:
            return
        shared = min(shared_start(jobs[0].tokens, job.tokens) for job in jobs[1:])
        start = jobs[0].tokens[:shared]
        if shared < _SHARED_WORTH or shared == len(jobs[0].tokens) or not self.memory.would_fit(shared):
            return
        # One token more than is asked for, as the memory never gives a prompt to its very end.
        _, known = self.memory.longest(jobs[0].tokens[: shared + 1])
        if known < shared:
            self.memory.add(self._read_packed([_Unread(start, None, 0)])[0])

    def _read(self, jobs: list[Job]) -> list[tuple[Job, Remembered]]:
        """Read the jobs' prompts, each distinct one once, from the longest known start."""
        entries: dict[bytes, Remembered] = {}
        unread: dict[bytes, _Unread] = {}
        for job in jobs:
            key = job.tokens.tobytes()
            if key in entries or key in unread:
                continue
            known = self.memory.exact(job.tokens)
            if known is not None:
                entries[key] = known
            else:
                unread[key] = _Unread(job.tokens, *self.memory.longest(job.tokens))
        budgets = _PREFILL_TOKENS_BFLOAT16 if self.dtype == torch.bfloat16 else _PREFILL_TOKENS
        budget = budgets.get(self.device.type, _PREFILL_TOKENS_GPU)
        prompts = list(unread.values())
        while prompts:
            read = np.cumsum([prompt.count for prompt in prompts])
            seen = np.cumsum([len(prompt.tokens) for prompt in prompts])
            fits = (read <= budget) & (seen <= _SEEN_PER_READ * budget)
            count = max(1, int(fits.sum())) if self.options.pack else 1
            some, prompts = prompts[:count], prompts[count:]
            for entry in self._read_packed(some):
                entries[entry.tokens.tobytes()] = entry
                self.memory.add(entry)
        return [(job, entries[job.tokens.tobytes()]) for job in jobs]

    def _read_packed(self, prompts: list[_Unread]) -> list[Remembered]:
        """Read prompts as one row, one after the other without padding, each of which sees itself and its own start."""
        starts: dict[int, _Unread] = {}  # per remembered start the prompt that shares most of it
        for prompt in prompts:
            if prompt.shared > getattr(starts.get(id(prompt.start)), "shared", 0):
                starts[id(prompt.start)] = prompt
        columns = dict(zip(starts, np.cumsum([0, *(prompt.shared for prompt in starts.values())]), strict=False))
        before = sum(prompt.shared for prompt in starts.values())
        ends = np.cumsum([prompt.count for prompt in prompts])
        width = int(ends[-1])
        seen = torch.zeros((width, before + width), dtype=torch.bool)
        for prompt, end in zip(prompts, ends.tolist(), strict=True):
            own = slice(end - prompt.count, end)
            if prompt.shared:
                column = int(columns[id(prompt.start)])
                seen[own, column : column + prompt.shared] = True
            seen[own, before + own.start : before + end] = torch.ones(prompt.count, prompt.count).tril().bool()
        pasts = [prompt.past for prompt in starts.values()]
        cache = PrefillCache(
            (torch.cat([keys for keys, _ in pasts], dim=2), torch.cat([values for _, values in pasts], dim=2))
            if pasts
            else None
        )
        logits = self._forward(
            torch.from_numpy(np.concatenate([prompt.tokens[prompt.shared :] for prompt in prompts]))[None].to(
                self.device
            ),
            torch.cat([torch.arange(prompt.shared, len(prompt.tokens)) for prompt in prompts])[None].to(self.device),
            _as_bias(seen[None, None].to(self.device), self.dtype),
            cache,
            torch.from_numpy(ends - 1).to(self.device),
        )
        entries = []
        for number, (prompt, end) in enumerate(zip(prompts, ends.tolist(), strict=True)):
            keys, values = cache.part(end - prompt.count, end)
            if prompt.shared:
                keys, values = (torch.cat(both, dim=2) for both in zip(prompt.past, (keys, values), strict=True))
            entries.append(Remembered(prompt.tokens, keys, values, logits[0, number].clone()))
        return entries

    def _choose(self, logits: Tensor, jobs: list[Job]) -> npt.NDArray[np.int64]:
        return choose_tokens(
            logits,
            np.array([job.temperature for job in jobs]),
            np.array([job.top_p for job in jobs]),
            np.array(
                [0.0 if job.numbers is None or job.is_finished else job.numbers[len(job.written)] for job in jobs]
            ),
        )


@dataclass(frozen=True, slots=True)
class _Unread:
    """A prompt, the first `shared` tokens of which are known from another one."""

    tokens: npt.NDArray[np.int64]
    start: Remembered | None
    shared: int

    @property
    def count(self) -> int:
        """Tokens to be read."""
        return len(self.tokens) - self.shared

    @property
    def past(self) -> tuple[Tensor, Tensor]:
        """Keys and values of what is known, each (layers, heads, shared, head size)."""
        assert self.start is not None
        return self.start.keys[:, :, : self.shared], self.start.values[:, :, : self.shared]


class _Coming:
    """A source, and those of its jobs that are not finished, which start anew where memory runs out."""

    def __init__(self, source: JobSource) -> None:
        self.unfinished: list[Job] = []
        self.ended = False
        self._source = source

    def more(self, wait: bool) -> Sequence[Job]:
        jobs = self._source.more(wait)
        self.ended = jobs is None
        self.unfinished += jobs or ()
        return jobs or ()

    def note(self, jobs: Sequence[Job]) -> None:
        """Pass on which of these are finished, each once."""
        waiting = {id(job) for job in self.unfinished}
        for job in [job for job in jobs if job.is_finished and id(job) in waiting]:
            self.unfinished[:] = [other for other in self.unfinished if other is not job]
            self._source.finished(job)


def _share_time(jobs: Sequence[Job], started: float) -> None:
    share = (time.perf_counter() - started) / max(1, len(jobs))
    for job in jobs:
        job.seconds += share


def _as_bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of what is seen as numbers to add to the scores; made once, where each layer would make its own."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "can't allocate memory" in str(error) or "out of memory" in str(error).lower()
