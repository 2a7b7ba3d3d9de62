"""The settings of a frozen model: which weights, in what precision, and in what words code is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from promptrl.settings import Settings

Family = Literal["auto", "causal", "seq2seq", "server"]
PromptStyle = Literal["auto", "chat", "completion", "codet5p", "instructcodet5p"]
ChatFormatName = Literal["auto", "qwen", "codellama", "deepseek-coder"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8"]


class ServerSettings(Settings):
    """An OpenAI-compatible server. The key is read from the environment variable named here, and never stored."""

    base_url: str = ""
    """Address up to and including `/v1`."""
    model: str = ""
    """The name the server knows the model by."""
    api: Literal["chat", "completions"] = "chat"
    continues_prefill: bool = False
    """Whether a last message of the assistant is continued (vLLM, SGLang, llama.cpp) rather than answered."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "OPENAI_API_KEY"
    """The variable's name, never the key itself."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Requests in flight at once."""
    timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds until one try is given up."""
    retries: Annotated[int, Field(ge=0, le=20)] = 5
    """Further tries after the first, for status 408, 409, 425, 429, 500, 502, 503, 504 and for broken connections."""
    backoff: Annotated[float, Field(gt=0)] = 1.0
    """Seconds before the second try; doubled for each one after, unless the server names a time."""


class ModelSettings(Settings):
    """One frozen code model and how it is asked."""

    name: str = "qwen2.5-coder-0.5b"
    """Name of an asset, or a hub id."""
    path: Path | None = None
    """A GGUF file or a folder of weights; goes before `name`."""
    family: Family = "auto"
    prompt_style: PromptStyle = "auto"
    chat_format: ChatFormatName = "auto"
    """`auto`: the template that the tokenizer ships; where it ships none, the published one of the family that the
    name tells."""
    dtype: DType = "auto"
    """`auto` on a GPU is bfloat16; on a CPU bfloat16 where the CPU multiplies it in hardware, else float32."""
    device: str = "auto"
    quantization: Quantization = "none"
    """`int8`: linear layers in 8 bits, on the CPU only; faster, and a little less exact."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    """Rows decoded at once, at most; halved when memory runs out."""
    max_context: Annotated[int, Field(ge=64)] | None = None
    """Tokens of prompt and answer together; the model's own limit where not given."""
    overlong: Literal["cut", "refuse"] = "cut"
    """A prompt that leaves no room for the answer: loses the middle of its text (counted warning), or is an error."""
    prompt_memory_mb: Annotated[int, Field(ge=0)] = 256
    """Memory for keys and values of recent prompts, so that a prompt drawn from again is not read again."""
    prompt_decoder: bool | None = None
    """Whether a seq2seq model's decoder is given the prompt too; by default where the model is CodeT5+ 2B or larger."""
    trust_remote_code: bool = False

    system: str | None = None
    request: Literal["script", "terse"] = "script"
    """Which of the built-in wordings asks for code, where `instruction_template` is not given."""
    instruction_template: str | None = None
    """Text around the prompt; must hold `{prompt}`."""
    response_prefix: str | None = None
    """How the answer is made to start; by default an opened code fence in chats, nothing elsewhere."""
    stop: tuple[str, ...] | None = None
    """Strings that end an answer; by default the closing fence in chats, the start of other code elsewhere."""
    server: ServerSettings = ServerSettings()

    @property
    def label(self) -> str:
        """The model's name for people: the server's name of it, or that of its file or folder, or `name`."""
        if self.family == "server":
            return self.server.model
        if self.path is not None:
            return self.path.stem if self.path.suffix == ".gguf" else self.path.name
        return self.name

    @field_validator("instruction_template")
    @classmethod
    def _holds_prompt(cls, value: str | None) -> str | None:
        if value is not None and "{prompt}" not in value:
            raise ValueError("must contain {prompt}, the place of the task's text")
        return value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and any(not stop for stop in value):
            raise ValueError("must not contain an empty string, which would end every answer at once")
        return value

    @model_validator(mode="after")
    def _server_is_named(self) -> Self:
        if self.family == "server" and not (self.server.base_url and self.server.model):
            raise ValueError("family 'server' needs server.base_url and server.model")
        if self.family == "server" and self.quantization != "none":
            raise ValueError("quantization is the server's own matter; leave it at 'none' for family 'server'")
        if self.family == "server" and self.prompt_style != "auto":
            # A chat's template is the server's to write, and a stub in a chat message is not gone on from.
            wanted = "chat" if self.prompt_style == "chat" else "completions"
            if self.server.api != wanted:
                raise ValueError(f"prompt_style {self.prompt_style!r} needs server.api {wanted!r}")
        return self
