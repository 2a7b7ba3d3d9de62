from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration

from promptrl.models import GenerationRequest, ModelSettings, load_model
from promptrl.models.seq2seq import Seq2SeqModel
from tests.models.test_causal import PROMPTS, requests
from tests.models.tiny import save_seq2seq


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_seq2seq(tmp_path_factory.mktemp("tiny-t5"))


def model(folder: Path, **settings: object) -> Seq2SeqModel:
    values = {"path": folder, "family": "seq2seq", "device": "cpu", "dtype": "float32"} | settings
    return Seq2SeqModel(ModelSettings.model_validate(values))


@pytest.mark.parametrize("prompt_decoder", [False, True])
def test_batched_greedy_answers_are_those_of_generate_one_at_a_time(folder: Path, prompt_decoder: bool) -> None:
    loaded = model(folder, prompt_decoder=prompt_decoder, batch_size=4).load()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    jobs, order = loaded.prompter.make_jobs(requests())
    loaded.decoder.run(jobs)
    for index, prompt in zip(order, PROMPTS, strict=True):
        encoded = tokenizer(prompt.replace("    ", "\t"), return_tensors="pt")
        extra = {}
        width = 1
        if prompt_decoder:
            extra["decoder_input_ids"] = torch.cat([torch.tensor([[1]]), encoded["input_ids"]], dim=1)
            width = extra["decoder_input_ids"].shape[1]
        with torch.inference_mode():
            ids = plain.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                max_new_tokens=24,
                do_sample=False,
                eos_token_id=[0, 3],
                **extra,
            )
        assert jobs[index].written == ids[0, width:].tolist()


def test_encoder_and_decoder_may_read_different_texts(folder: Path) -> None:
    loaded = model(folder, prompt_style="instructcodet5p", prompt_decoder=True, batch_size=4).load()
    asked = [replace(request, prefill="def g(x):") for request in requests()]
    jobs, order = loaded.prompter.make_jobs(asked)
    loaded.decoder.run(jobs)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    for index, request in zip(order, asked, strict=True):
        user, whole = (text.replace("    ", "\t") for text in (request.user, request.user + request.prefill))
        start = torch.cat([torch.tensor([[1]]), tokenizer(whole, return_tensors="pt")["input_ids"]], dim=1)
        with torch.inference_mode():
            ids = plain.generate(
                **tokenizer(user, return_tensors="pt"),
                decoder_input_ids=start,
                max_new_tokens=24,
                do_sample=False,
                eos_token_id=[0, 3],
            )
        assert jobs[index].written == ids[0, start.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_else_is_in_the_batch_changes_nothing(folder: Path, temperature: float) -> None:
    tiny = model(folder)
    together = tiny.generate(requests(temperature=temperature))
    alone = [tiny.generate([request])[0] for request in requests(temperature=temperature)]
    assert [answer.text for answer in together] == [answer.text for answer in alone]


def test_the_family_is_told_from_the_folder(folder: Path) -> None:
    found = load_model(ModelSettings(path=folder), cache_dir=None)
    assert isinstance(found, Seq2SeqModel)
    answer = found.generate([replace(GenerationRequest("def f():"), max_new_tokens=4)])[0]
    assert "<|" not in answer.text
