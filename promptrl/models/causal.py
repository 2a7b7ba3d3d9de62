"""Frozen causal language models from transformers: chat models, base models, GGUF files."""

from __future__ import annotations

from dataclasses import dataclass

from promptrl.errors import PromptRLError
from promptrl.models.backbone import Loaded, LocalModel, find_end_ids
from promptrl.models.base import Generation
from promptrl.models.calls import Call, More
from promptrl.models.decoding import CausalDecoder, Job
from promptrl.models.formats import check_decoding
from promptrl.models.prompting import Prompter


class CausalModel(LocalModel):
    """A causal language model: reads the prompt and goes on."""

    backend = "causal"

    def _load(self) -> Loaded:
        from transformers import AutoModelForCausalLM

        settings = self.settings
        config, tokenizer, model = self._load_parts(AutoModelForCausalLM, attn_implementation="sdpa")
        text_config = config.get_text_config()
        limits = [getattr(text_config, "max_position_embeddings", None), settings.max_context]
        if getattr(text_config, "use_sliding_window", True):
            # Within the window every layer sees everything, which is how rows are computed here.
            limits.append(getattr(text_config, "sliding_window", None))
        decoder = CausalDecoder(
            model,
            device=self.device,
            dtype=self.dtype,
            end_ids=find_end_ids(model, tokenizer),
            batch_size=settings.batch_size,
            memory_bytes=settings.prompt_memory_mb * 2**20,
        )
        context = min([limit for limit in limits if limit] or [4096])
        return Loaded(Prompter(tokenizer, settings, self.style, context), decoder)

    def answer_calls(self, more: More) -> None:
        """Answer calls as they come, in one batch, until no more will; a call's equal greedy requests once.

        Raises:
            ModelError: If the model cannot be loaded, or memory runs out.
        """
        loaded = self.load()
        loaded.decoder.serve(_CallJobs(loaded.prompter, more))


@dataclass
class _Open:
    """A call whose answers are being written."""

    call: Call
    jobs: list[Job]
    order: list[int]
    left: int


class _CallJobs:
    """Calls as jobs of a decoder; equal requests of a call are one job.

    Args:
        prompter: of the model.
        more: where calls come from.
    """

    def __init__(self, prompter: Prompter, more: More) -> None:
        self._prompter = prompter
        self._more = more
        self._open: dict[int, _Open] = {}

    def more(self, wait: bool) -> list[Job] | None:
        while True:
            calls = self._more(wait)
            if calls is None:
                return None
            jobs = [job for call in calls for job in self._begin(call)]
            if jobs or not wait:
                return jobs

    def _begin(self, call: Call) -> list[Job]:
        try:
            for request in call.requests:
                check_decoding(request.temperature, request.top_p, request.max_new_tokens)
            jobs, order = self._prompter.make_jobs(call.requests)
        except PromptRLError as error:
            call.failed(error)
            return []
        if not jobs:
            call.answered([])
        opened = _Open(call, jobs, order, len(jobs))
        self._open.update({id(job): opened for job in jobs})
        return jobs

    def finished(self, job: Job) -> None:
        opened = self._open.pop(id(job))
        opened.left -= 1
        if not opened.left:
            call = opened.call
            call.answered(
                [
                    Generation(
                        text=self._prompter.answer(opened.jobs[index], request),
                        tokens_in=len(opened.jobs[index].tokens),
                        tokens_out=len(opened.jobs[index].written),
                        finish_reason=opened.jobs[index].finish_reason,
                        seconds=opened.jobs[index].seconds,
                    )
                    for index, request in zip(opened.order, call.requests, strict=True)
                ]
            )
