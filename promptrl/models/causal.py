"""Frozen causal language models from transformers: chat models, base models, GGUF files."""

from __future__ import annotations

from collections.abc import Sequence

from promptrl.errors import PromptRLError
from promptrl.models.backbone import Loaded, LocalModel, find_end_ids, generation
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
        """Answer calls as they come, in one batch, until no more will; what came at once and is equal once.

        Raises:
            ModelError: If the model cannot be loaded, or memory runs out.
        """
        first = more(True)  # a model that is asked nothing is not loaded
        if first is not None:
            loaded = self.load()
            loaded.decoder.serve(_CallJobs(loaded.prompter, first, more))


class _CallJobs:
    """Calls as jobs of a decoder.

    Args:
        prompter: of the model.
        first: calls that have come already.
        more: where others come from.
    """

    def __init__(self, prompter: Prompter, first: Sequence[Call], more: More) -> None:
        self._prompter = prompter
        self._first = first
        self._more = more
        self._calls: dict[int, list[Call]] = {}  # by the identity of their job

    def more(self, wait: bool) -> list[Job] | None:
        while True:
            calls: Sequence[Call] | None
            calls, self._first = self._first or self._more(wait), ()
            if calls is None:
                return None
            jobs = self._begin(calls)
            if jobs or not wait:
                return jobs

    def _begin(self, calls: Sequence[Call]) -> list[Job]:
        try:
            for call in calls:
                check_decoding(call.request.temperature, call.request.top_p, call.request.max_new_tokens)
            jobs, order = self._prompter.make_jobs([call.request for call in calls])
        except PromptRLError as error:
            if len(calls) > 1:  # which of them it is shows when each is tried alone
                return [job for call in calls for job in self._begin([call])]
            calls[0].failed(error)
            return []
        for index, call in zip(order, calls, strict=True):
            self._calls.setdefault(id(jobs[index]), []).append(call)
        return jobs

    def finished(self, job: Job) -> None:
        calls = self._calls.pop(id(job))
        for call in calls:
            call.answered(generation(self._prompter, job, call.request, job.seconds / len(calls)))
