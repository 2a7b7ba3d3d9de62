"""Requests as text: the published template and the format built in for tokenizers without one give the same."""

from __future__ import annotations

import logging

import pytest

from promptrl.models import GenerationRequest, ModelSettings, code_request, resolve_style
from promptrl.models.prompting import Prompter
from tests.models.tiny import make_tokenizer

# As the tokenizers of CodeLlama-7b-Instruct-hf and deepseek-coder-*-instruct ship them.
CODELLAMA = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
    "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{% if not add_generation_prompt is defined %}\n{% set add_generation_prompt = false %}\n{% endif %}\n"
    "{%- set ns = namespace(found=false) -%}\n{%- for message in messages -%}\n"
    "    {%- if message['role'] == 'system' -%}\n        {%- set ns.found = true -%}\n    {%- endif -%}\n"
    "{%- endfor -%}\n{{bos_token}}{%- if not ns.found -%}\n{{'You are an AI programming assistant, utilizing the "
    "Deepseek Coder model, developed by Deepseek Company, and you only answer questions related to computer science. "
    "For politically sensitive questions, security and privacy issues, and other non-computer science questions, you "
    "will refuse to answer\\n'}}\n{%- endif %}\n{%- for message in messages %}\n"
    "    {%- if message['role'] == 'system' %}\n{{ message['content'] }}\n    {%- else %}\n"
    "        {%- if message['role'] == 'user' %}\n{{'### Instruction:\\n' + message['content'] + '\\n'}}\n"
    "        {%- else %}\n{{'### Response:\\n' + message['content'] + '\\n<|EOT|>\\n'}}\n        {%- endif %}\n"
    "    {%- endif %}\n{%- endfor %}\n{% if add_generation_prompt %}\n{{'### Response:'}}\n{% endif %}"
)
NAMES = {"codellama/CodeLlama-7b-Instruct-hf": CODELLAMA, "deepseek-ai/deepseek-coder-1.3b-instruct": DEEPSEEK}
STUB = 'def add(a, b):\n    """Sum of two numbers.\n\n    >>> add(1, 2)\n    3\n    """\n'


def prompter(settings: ModelSettings, template: str | None = None) -> Prompter:
    tokenizer = make_tokenizer(chat=False, adds_begin=True)
    tokenizer.chat_template = template
    return Prompter(tokenizer, settings, resolve_style(settings), 4096)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefill", ["", "```python\n"])
def test_built_in_formats_are_the_published_templates(name: str, prefill: str) -> None:
    ask = GenerationRequest("Add two numbers.", prefill=prefill)
    settings = ModelSettings(name=name)
    shipped, built_in = prompter(settings, NAMES[name]), prompter(settings)
    assert shipped.prompt_text(ask).removeprefix("<|begin|>") == built_in.prompt_text(ask)
    assert shipped.prompt_tokens(ask).tolist() == built_in.prompt_tokens(ask).tolist()


def test_what_the_families_read() -> None:
    codellama = prompter(ModelSettings(name="CodeLlama-7b-Instruct-hf"))
    assert codellama.prompt_text(GenerationRequest("Add.", "Be brief.", "```python\n")) == (
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nAdd. [/INST] ```python\n"
    )
    assert prompter(ModelSettings(name="CodeLlama-7b-Instruct-hf"), CODELLAMA).prompt_text(
        GenerationRequest("Add.", "Be brief.", "```python\n")
    ) == ("<|begin|>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nAdd. [/INST] ```python\n")
    deepseek = prompter(ModelSettings(name="deepseek_coder-6.7b-instruct"))
    text = deepseek.prompt_text(GenerationRequest("Add.", prefill="```python\n"))
    assert text.startswith("You are an AI programming assistant, utilizing the Deepseek Coder model")
    assert text.endswith("you will refuse to answer\n### Instruction:\nAdd.\n### Response:\n```python\n")
    qwen = prompter(ModelSettings(name="anything", chat_format="qwen"))
    assert qwen.prompt_text(GenerationRequest("Add.", "Be brief.")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nAdd.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_format_that_is_named_goes_before_the_tokenizers_own() -> None:
    text = prompter(ModelSettings(name="m", chat_format="codellama"), DEEPSEEK).prompt_text(GenerationRequest("Add."))
    assert text == "[INST] Add. [/INST]"


def test_a_chat_model_of_no_known_family_is_asked_in_plain_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        plain = prompter(ModelSettings(name="new-chat-model"))
    assert "new-chat-model has no chat template" in caplog.text
    assert plain.prompt_text(GenerationRequest("Add.", "Be brief.", "x")) == "Be brief.\n\nAdd.x"


def test_base_models_complete_the_stub_and_a_refined_prompt_stands_above_it() -> None:
    settings = ModelSettings(name="bigcode/starcoder2-3b")
    contract = 'def add(a, b):\n    """\n    >>> add(1, 2)\n    3\n    """'
    plain = code_request(settings, f"Sum of two numbers.\n\n{contract}", stub=STUB)
    assert (plain.user, plain.prefill) == ("", STUB)
    refined = code_request(settings, f"The total of both.\n\n{contract}", stub=STUB)
    assert (refined.user, refined.prefill) == ("# The total of both.\n\n", contract + "\n")
    assert "\ndef " in refined.stop
    stubless = code_request(settings, "Write a function to add.\n\nassert add(1, 2) == 3")
    assert stubless.user == "# Write a function to add.\n#\n# assert add(1, 2) == 3\n\n"
    assert stubless.prefill == ""
    assert "\ndef " not in stubless.stop
    assert "\nassert " in stubless.stop


def test_codet5p_reads_tabs_and_instructcodet5p_its_authors_words() -> None:
    settings = ModelSettings(name="Salesforce/codet5p-770m-py")
    ask = code_request(settings, STUB, stub=STUB)
    t5 = prompter(settings)
    assert t5.prompt_text(ask) == STUB.replace("    ", "\t")
    assert t5.source_tokens(ask) is None
    settings = ModelSettings(name="Salesforce/instructcodet5p-16b")
    ask = code_request(settings, f"Sum of two numbers.\n\n{STUB}", stub=STUB)
    frame = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        "\n\n\n### Instruction:\nCreate a Python script for this problem:\nSum of two numbers.\n\n### Response:"
    )
    assert ask.user == frame
    instruct = prompter(settings)
    assert instruct.prompt_text(ask) == frame + STUB.replace("    ", "\t")
    source = instruct.source_tokens(ask)
    assert source is not None
    assert instruct.tokenizer.decode(source, skip_special_tokens=True) == frame
    job = instruct.make_jobs([ask])[0][0]
    job.written = instruct.tokenizer("\treturn a + b", add_special_tokens=False)["input_ids"]
    assert instruct.answer(job, ask) == "    return a + b"
