from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from promptrl.errors import ConfigError
from promptrl.models import ModelSettings, ServerSettings, code_request, resolve_style
from promptrl.models.formats import cut_at_stop, strip_end_marks
from promptrl.models.loading import store_name

STUB = 'def add(a, b):\n    """Sum of two numbers."""\n'


def test_chat_request_opens_a_fence_and_ends_at_its_close() -> None:
    request = code_request(ModelSettings(), "Add {two} numbers.", stub=STUB, draw=3, seed=5, temperature=0.8)
    assert "Add {two} numbers." in request.user
    assert (request.prefill, request.stop) == ("```python\n", ("\n```",))
    assert (request.draw, request.seed, request.temperature) == (3, 5, 0.8)
    assert code_request(ModelSettings(request="terse"), "x").user != code_request(ModelSettings(), "x").user


def test_own_wording_prefix_and_stops() -> None:
    settings = ModelSettings(
        instruction_template="Q: {prompt}\nA:", response_prefix="", stop=("END",), system="You write code."
    )
    request = code_request(settings, "p")
    assert (request.user, request.prefill, request.stop, request.system) == (
        "Q: p\nA:",
        "",
        ("END",),
        "You write code.",
    )


def test_completion_comments_the_words_and_goes_on_from_the_stub() -> None:
    settings = ModelSettings(name="bigcode/starcoder2-3b")
    request = code_request(settings, f"Mind the signs.\nBe fast.\n\n{STUB}", stub=STUB)
    assert request.user == "# Mind the signs.\n# Be fast.\n\n"
    assert request.prefill == STUB
    assert "\ndef " in request.stop
    assert code_request(settings, STUB, stub=STUB).user == ""


def test_a_server_that_does_not_continue_gets_no_prefill_and_may_open_its_own_fence() -> None:
    server = ServerSettings(base_url="http://localhost:1/v1", model="m")
    request = code_request(ModelSettings(family="server", server=server), "p")
    assert (request.prefill, request.stop) == ("", ())
    continues = server.model_copy(update={"continues_prefill": True})
    assert code_request(ModelSettings(family="server", server=continues), "p").prefill == "```python\n"


@pytest.mark.parametrize(
    ("settings", "style"),
    [
        (ModelSettings(), "chat"),
        (ModelSettings(name="Qwen/Qwen2.5-Coder-1.5B-Instruct"), "chat"),
        (ModelSettings(name="deepseek-ai/deepseek-coder-1.3b-base"), "completion"),
        (ModelSettings(name="codellama/CodeLlama-7b-hf"), "completion"),
        (ModelSettings(name="codellama/CodeLlama-7b-Instruct-hf"), "chat"),
        (ModelSettings(name="Salesforce/codet5p-770m-py"), "codet5p"),
        (ModelSettings(path=Path("/models/starcoder2-3b")), "completion"),
        (ModelSettings(name="Qwen/Qwen2.5-Coder-7B"), "completion"),
        (ModelSettings(name="Salesforce/instructcodet5p-16b"), "instructcodet5p"),
        (ModelSettings(name="codellama/CodeLlama-7b-hf", prompt_style="chat"), "chat"),
    ],
)
def test_style_is_told_from_the_configuration(settings: ModelSettings, style: str) -> None:
    assert resolve_style(settings) == style


@pytest.mark.parametrize(
    "bad",
    [
        {"instruction_template": "no place"},
        {"stop": ("",)},
        {"temperature": 0.2},
        {"batch_size": 0},
        {"family": "server"},
        {
            "family": "server",
            "server": {"base_url": "http://localhost/v1", "model": "m"},
            "prompt_style": "completion",
        },
        {"chat_format": "vicuna"},
        {"dtype": "int4"},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ModelSettings.model_validate(bad)


def test_a_model_is_called_by_what_it_is_loaded_from() -> None:
    server = ServerSettings(base_url="http://localhost:1/v1", model="org/m")
    for settings, label, store in (
        (ModelSettings(), "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b"),
        (ModelSettings(path=Path("/w/mine-q4.gguf")), "mine-q4", "mine-q4"),
        (ModelSettings(path=Path("/w/folder-1.5b")), "folder-1.5b", "folder-1.5b"),
        (ModelSettings(family="server", server=server), "org/m", "org-m"),
    ):
        assert (settings.label, store_name(settings)) == (label, store)


def test_negative_temperature_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature is -1"):
        code_request(ModelSettings(), "p", temperature=-1)


def test_cutting_and_end_marks() -> None:
    assert cut_at_stop("abcabd", ("bd", "ca")) == ("ab", True)
    assert cut_at_stop("abc", ()) == ("abc", False)
    assert strip_end_marks("x = 1\n<|im_end|>\n<|endoftext|>") == "x = 1\n"
    assert strip_end_marks('x = "</s>"\n') == 'x = "</s>"\n'
