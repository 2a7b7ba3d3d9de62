"""Frozen sequence-to-sequence models: CodeT5 and CodeT5+.

The encoder reads the prompt; the decoder writes the answer, and in the larger CodeT5+ models (2B and up) is given the
prompt too and goes on from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from promptrl.models.backbone import Loaded, LocalModel, find_end_ids
from promptrl.models.decoding import Job, run_halving
from promptrl.models.prompting import Prompter
from promptrl.models.sampling import choose_tokens

_PROMPTED_DECODERS = ("codet5p", "codet5p_module")


class Seq2SeqModel(LocalModel):
    """An encoder-decoder model."""

    backend = "seq2seq"

    def _load(self) -> Loaded:
        from transformers import AutoModelForSeq2SeqLM

        settings = self.settings
        config, tokenizer, model = self._load_parts(AutoModelForSeq2SeqLM)
        limits = [settings.max_context, getattr(config, "n_positions", None)]
        prompts_decoder = settings.prompt_decoder
        if prompts_decoder is None:
            prompts_decoder = config.model_type in _PROMPTED_DECODERS
        start = getattr(model.generation_config, "decoder_start_token_id", None)
        if start is None:
            start = getattr(config, "decoder_start_token_id", None)
        decoder = Seq2SeqDecoder(
            model,
            device=self.device,
            start_id=start if start is not None else tokenizer.bos_token_id or tokenizer.pad_token_id or 0,
            end_ids=find_end_ids(model, tokenizer),
            batch_size=settings.batch_size,
            prompts_decoder=prompts_decoder,
        )
        context = min([limit for limit in limits if limit] or [512])
        prompter = Prompter(tokenizer, settings, self.style, context, answer_in_context=prompts_decoder)
        return Loaded(prompter, decoder)


class Seq2SeqDecoder:
    """Runs jobs through an encoder-decoder model.

    The encoder's rows are padded at the right and masked. Decoder prompts are not padded at all: rows are grouped by
    the length of theirs, which is one for all where it is only the start token.
    """

    def __init__(
        self,
        model: Any,
        *,
        device: torch.device,
        start_id: int,
        end_ids: frozenset[int],
        batch_size: int,
        prompts_decoder: bool,
    ) -> None:
        self.model = model
        self.device = device
        self.start_id = start_id
        self.end_ids = end_ids
        self.batch_size = batch_size
        self.prompts_decoder = prompts_decoder
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    def run(self, jobs: Sequence[Job]) -> None:
        """Write all answers into their jobs, with half the rows each time that memory runs out.

        Raises:
            ModelError: If memory runs out even for a single row.
        """
        run_halving(self, jobs, self._run)

    def _run(self, jobs: list[Job]) -> None:
        queue = sorted(jobs, key=lambda job: (-len(job.tokens), job.tokens.tobytes()))
        while queue:
            width = len(queue[0].tokens) if self.prompts_decoder else None
            group = [job for job in queue if width is None or len(job.tokens) == width][: self.batch_size]
            taken = {id(job) for job in group}
            queue = [job for job in queue if id(job) not in taken]
            self._run_group(group)

    def _padded(self, rows: Sequence[npt.NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
        """Tokens and mask, each (rows, longest)."""
        ids = torch.zeros((len(rows), max(len(row) for row in rows)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.from_numpy(row)
            mask[number, : len(row)] = 1
        return ids.to(self.device), mask.to(self.device)

    def _run_group(self, jobs: list[Job]) -> None:
        ids, mask = self._padded([job.tokens if job.source is None else job.source for job in jobs])
        encoded = self.model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
        tokens = torch.full((len(jobs), 1), self.start_id, device=self.device)
        if self.prompts_decoder:
            prompts, _ = self._padded([job.tokens for job in jobs])  # all of one length: nothing is padded
            tokens = prompts if bool((prompts[:, 0] == self.start_id).all()) else torch.cat([tokens, prompts], dim=1)
        live, cache = list(jobs), None
        while live:
            extra: dict[str, Any] = {} if cache is None else {self._cache_name: cache}
            output = self.model(
                encoder_outputs=encoded,
                attention_mask=mask,
                decoder_input_ids=tokens,
                use_cache=True,
                return_dict=True,
                **extra,
            )
            cache = output.get(self._cache_name) or output.get("past_key_values")
            logits: Tensor = output.logits[:, -1]
            chosen = choose_tokens(
                logits,
                np.array([job.temperature for job in live]),
                np.array([job.top_p for job in live]),
                np.array([job.next_number for job in live]),
            )
            for job, token in zip(live, chosen, strict=True):
                job.take(int(token), self.end_ids)
            kept = [row for row, job in enumerate(live) if not job.is_finished]
            tokens = torch.from_numpy(chosen[kept])[:, None].to(self.device)
            if len(kept) < len(live) and kept:
                rows = torch.tensor(kept, device=self.device)
                mask = mask[rows]
                encoded.last_hidden_state = encoded.last_hidden_state[rows]
                cache.batch_select_indices(rows)
            live = [live[row] for row in kept]
