from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from promptrl.errors import AssetError, ConfigError, ModelError
from promptrl.models import GenerationRequest, ModelSettings
from promptrl.models.causal import CausalModel
from promptrl.models.decoding import LoopOptions
from promptrl.models.weights import pick_device
from tests.models.tiny import CONFIGS, model, run_out_above, save_causal

PROMPTS = [
    "def one():",
    "def f(x):\n    # " + "a long comment " * 9,
    "x",
    "def f(x):\n    # " + "a long comment " * 3,
    "Wörter und 数字: 漢字",
    "def one():\n    return 2",
]


def requests(**changes: object) -> list[GenerationRequest]:
    return [replace(GenerationRequest(prompt, max_new_tokens=24), **changes) for prompt in PROMPTS]  # type: ignore[arg-type]


def reference(folder: Path, text: str, tokens: int) -> list[int]:
    """Greedy tokens by the library's own `generate`, one prompt at a time, in plain float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    encoded = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        written = plain.generate(
            encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=[0, 3],
            pad_token_id=0,
        )
    return [int(token) for token in written[0, encoded["input_ids"].shape[1] :]]


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_batched_greedy_answers_are_those_of_generate_one_at_a_time(tmp_path: Path, architecture: str) -> None:
    folder = save_causal(tmp_path / architecture, architecture, chat=False)
    loaded = model(folder, prompt_style="completion", batch_size=4).load()
    jobs, order = loaded.prompter.make_jobs(requests())
    loaded.decoder.run(jobs)
    for index, prompt in zip(order, PROMPTS, strict=True):
        assert jobs[index].written == reference(folder, prompt, 24)


@pytest.mark.parametrize("settings", [{"batch_size": 1}, {"batch_size": 3}, {"prompt_memory_mb": 0}])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_else_is_in_the_batch_changes_nothing(
    tiny_folder: Path, settings: dict[str, object], temperature: float
) -> None:
    together = model(tiny_folder).generate(requests(temperature=temperature, top_p=0.95))
    other = model(tiny_folder, **settings)
    asked = requests(temperature=temperature, top_p=0.95)
    alone = [other.generate([request])[0] for request in reversed(asked)][::-1]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert [answer.tokens_out for answer in together] == [answer.tokens_out for answer in alone]


@pytest.mark.parametrize(
    "options",
    [
        {"sort": False},
        {"refill": False},
        {"leave": False},
        {"pack": False},
        {"sort": False, "refill": False, "leave": False, "pack": False},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_makes_the_loop_fast_changes_no_answer(
    tiny_folder: Path, options: dict[str, bool], temperature: float
) -> None:
    asked = requests(temperature=temperature, top_p=0.95)
    fast = model(tiny_folder, batch_size=2)
    plain = model(tiny_folder, batch_size=2)
    plain.load().decoder.options = LoopOptions(**options)
    assert [answer.text for answer in plain.generate(asked)] == [answer.text for answer in fast.generate(asked)]


def test_draws_follow_seed_and_index_alone(tiny_folder: Path) -> None:
    tiny = model(tiny_folder)
    ask = GenerationRequest("count", temperature=1.0, max_new_tokens=20)
    draws = [replace(ask, draw=draw) for draw in range(4)]
    first = [answer.text for answer in tiny.generate(draws)]
    assert len(set(first)) == 4
    assert [answer.text for answer in tiny.generate(draws[::-1])] == first[::-1]
    assert tiny.generate([replace(ask, draw=2)])[0].text == first[2]
    assert tiny.generate([replace(ask, draw=2, seed=1)])[0].text != first[2]


def test_greedy_is_one_answer_whatever_draw_seed_and_top_p(tiny_folder: Path) -> None:
    tiny = model(tiny_folder)
    loaded = tiny.load()
    ask = GenerationRequest("count", max_new_tokens=20)
    jobs, order = loaded.prompter.make_jobs([ask, replace(ask, draw=3), replace(ask, seed=9), replace(ask, top_p=0.5)])
    assert len(jobs) == 1
    assert order == [0, 0, 0, 0]


def test_answer_holds_no_prompt_prefill_stop_or_special_token(tiny_folder: Path) -> None:
    tiny = model(tiny_folder)
    long = tiny.generate([GenerationRequest("tell", prefill="```python\n", max_new_tokens=40)])[0]
    assert long.tokens_out <= 40
    assert "<|" not in long.text
    stop = long.text[5:7]
    cut = tiny.generate([GenerationRequest("tell", prefill="```python\n", stop=(stop,), max_new_tokens=40)])[0]
    assert cut.text == long.text[: long.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.tokens_out < long.tokens_out


def test_finish_reason_tells_end_from_limit(tiny_folder: Path) -> None:
    tiny = model(tiny_folder)
    answers = tiny.generate(requests(max_new_tokens=3))
    for answer in answers:
        assert (answer.finish_reason == "length") == (answer.tokens_out == 3) or answer.finish_reason == "stop"
    loaded = tiny.load()
    jobs, _ = loaded.prompter.make_jobs([GenerationRequest("x", max_new_tokens=5)])
    loaded.decoder.end_ids = frozenset(range(1000))
    loaded.decoder.run(jobs)
    assert (len(jobs[0].written), jobs[0].finish_reason) == (1, "stop")


@pytest.mark.parametrize("adds_begin", [False, True])
def test_begin_token_stands_once(tmp_path: Path, adds_begin: bool) -> None:
    folder = save_causal(tmp_path / "chat", adds_begin=adds_begin)
    tokens = (
        model(folder, prompt_style="chat").load().prompter.prompt_tokens(GenerationRequest("hello", system="Be brief."))
    )
    assert list(tokens).count(1) == 1
    assert tokens[0] == 1


def test_a_missing_chat_template_is_said_and_plain_text_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save_causal(tmp_path / "plain", chat=False)
    with caplog.at_level(logging.WARNING):
        loaded = model(folder, prompt_style="chat").load()
    assert "no chat template" in caplog.text
    assert loaded.prompter.prompt_text(GenerationRequest("ask", system="sys", prefill="go")) == "sys\n\naskgo"


def test_long_prompts_lose_their_middle_and_are_counted(tiny_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny = model(tiny_folder, max_context=128)
    long = GenerationRequest("START" + "-" * 300 + "END", max_new_tokens=32)
    with caplog.at_level(logging.WARNING):
        answer = tiny.generate([long, GenerationRequest("short", max_new_tokens=32)])[0]
    assert answer.tokens_in <= 96
    assert "1 of 2 prompts" in caplog.text
    tokens, was_cut = tiny.load().prompter.fit(long)
    text = tiny.load().prompter.tokenizer.decode(tokens)
    assert was_cut
    assert "START" in text
    assert "END<|im_end|>" in text


def test_long_prompts_are_refused_where_asked(tiny_folder: Path) -> None:
    tiny = model(tiny_folder, max_context=128, overlong="refuse")
    with pytest.raises(ModelError, match="do not fit into the model's context of 128"):
        tiny.generate([GenerationRequest("-" * 300, max_new_tokens=32)])
    with pytest.raises(ConfigError, match="max_new_tokens is 4000"):
        tiny.generate([GenerationRequest("x", max_new_tokens=4000)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_decoding_settings_that_cannot_be_meant(tiny_folder: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        model(tiny_folder).generate(requests(**change))


def test_out_of_memory_halves_the_batch_and_goes_on(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = [answer.text for answer in model(tiny_folder).generate(requests())]
    tiny = model(tiny_folder, batch_size=6)
    decoder = tiny.load().decoder
    run_out_above(2, decoder, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert [answer.text for answer in tiny.generate(requests())] == whole
    assert decoder.batch_size <= 2
    assert "at most 3 answers" in caplog.text
    monkeypatch.setattr(decoder, "_step", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none")))
    with pytest.raises(ModelError, match="single answer"):
        tiny.generate(requests())


def test_a_prompt_is_read_once(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = model(tiny_folder)
    decoder = tiny.load().decoder
    read: list[int] = []
    forward = decoder._read_packed

    def counting(prompts: list[Any]) -> object:
        read.extend(prompt.count for prompt in prompts)
        return forward(prompts)

    monkeypatch.setattr(decoder, "_read_packed", counting)
    ask = GenerationRequest("a prompt that is drawn from many times", temperature=1.0, max_new_tokens=4)
    tiny.generate([replace(ask, draw=draw) for draw in range(6)])
    assert len(read) == 1
    tiny.generate([replace(ask, draw=9)])
    assert len(read) == 1
    tiny.generate([replace(ask, user=ask.user + ", and again")])
    assert len(read) == 2
    assert read[1] < read[0] // 2


def test_what_memory_cannot_hold_is_not_read_for_it(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = (tiny := model(tiny_folder)).load().decoder
    decoder.memory.limit_bytes = 1000  # a few tokens
    read: list[int] = []
    forward = decoder._read_packed

    def counting(prompts: list[Any]) -> object:
        read.append(len(prompts))
        return forward(prompts)

    monkeypatch.setattr(decoder, "_read_packed", counting)
    asked = [GenerationRequest("what all of these begin with, " + name, max_new_tokens=2) for name in ("a", "b")]
    first = tiny.generate(asked)
    assert read == [1, 2]  # the shared start, once, to learn how large it is
    assert [answer.text for answer in tiny.generate(asked)] == [answer.text for answer in first]
    assert read == [1, 2, 2]


def test_int8_and_fingerprints(tiny_folder: Path, tmp_path: Path) -> None:
    plain, small = model(tiny_folder), model(tiny_folder, quantization="int8")
    assert plain.fingerprint != small.fingerprint
    assert plain.fingerprint == model(tiny_folder).fingerprint
    assert plain.fingerprint != model(tiny_folder, dtype="bfloat16").fingerprint
    assert plain.fingerprint != model(save_causal(tmp_path / "other", "qwen2")).fingerprint
    assert not small.is_loaded
    assert len(small.generate(requests())) == len(PROMPTS)
    with pytest.raises(ConfigError, match="runs on a CPU only"):
        CausalModel(ModelSettings(path=tiny_folder, quantization="int8", device="meta"))


def test_a_quantised_model_stays_on_the_cpu_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device(ModelSettings()).type == "cuda"
    assert not caplog.records
    assert pick_device(ModelSettings(quantization="int8")).type == "cpu"
    assert "with 'none' the GPU is used" in caplog.text


def test_missing_or_broken_weights_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="do not exist"):
        model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AssetError, match=r"neither a config\.json nor"):
        model(tmp_path / "empty")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match="cannot be read as a model"):
        CausalModel(ModelSettings(path=tmp_path / "bad.gguf"), cache_dir=tmp_path / "cache").load()
    assert [path.name for path in (tmp_path / "cache" / "converted").iterdir()] == []
