"""Models behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, `transformers serve`, or a provider."""

from __future__ import annotations

import email.utils
import hashlib
import json
import logging
import os
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import httpx

from promptrl.errors import ConfigError, ModelError
from promptrl.models.base import FinishReason, Generation, GenerationRequest, PartialModelError
from promptrl.models.formats import check_decoding, cut_at_stop, resolve_style, strip_end_marks
from promptrl.models.settings import ModelSettings

logger = logging.getLogger(__name__)

_TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504}
_LONGEST_WAIT = 120.0  # seconds; a server that asks for more is treated as gone
_LONGEST_BACKOFF = 60.0  # seconds between two tries where the server names no time
_VERSION = 1


class ServerModel:
    """Asks a server, several requests at a time.

    The key is taken from the environment for each call and stands in no message, log or record.

    Args:
        settings: With the `server` group filled in.

    Raises:
        ConfigError: If the address is none.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self.server = settings.server
        self.style = resolve_style(settings)
        try:
            url = httpx.URL(self.server.base_url)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.userinfo or url.query:  # it would stand in messages and in the run's configuration
            raise ConfigError(
                "model.server.base_url holds a password or a query; give the address alone, and the key in the "
                f"environment variable {self.server.api_key_env}."
            )
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigError(
                f"model.server.base_url is {self.server.base_url!r}; it must be an http or https address, "
                "such as http://localhost:8000/v1."
            )

    @property
    def fingerprint(self) -> str:
        """sha256 over the address, the model's name there and the format; what runs behind it cannot be seen."""
        parts = {
            "backend": "server",
            "version": _VERSION,
            "base_url": self.server.base_url.rstrip("/"),
            "model": self.server.model,
            "api": self.server.api,
            "continues_prefill": self.server.continues_prefill,
            "style": self.style,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Ask for all answers and return them in order.

        Raises:
            ConfigError: For a decoding setting that cannot be meant.
            ModelError: If the server stays away or refuses; never an empty answer in place of an error. After the
                first failure nothing more is sent or tried again; what was answered by then is in the error
                (`PartialModelError`).
        """
        for request in requests:
            check_decoding(request.temperature, request.top_p, request.max_new_tokens)
        if not requests:
            return []
        key = self._key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=self.server.concurrency)
        executor = ThreadPoolExecutor(self.server.concurrency, thread_name_prefix="server")
        given_up = threading.Event()
        with httpx.Client(headers=headers, timeout=self.server.timeout, limits=limits) as client:
            futures = [executor.submit(self._ask, client, request, key, given_up) for request in requests]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                if any(future.done() and future.exception() for future in futures):
                    given_up.set()
                    wait([future for future in futures if not future.cancel()])
            finally:  # at an error or Ctrl-C nothing more is sent
                given_up.set()
                executor.shutdown(wait=False, cancel_futures=True)
        return _collect(requests, futures)

    def _key(self) -> str:
        """The key, from the environment.

        Raises:
            ConfigError: If it cannot stand in a header; it is not shown.
        """
        key = os.environ.get(self.server.api_key_env, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"The key in {self.server.api_key_env} holds characters that no key has.")
        return key

    def _ask(self, client: httpx.Client, request: GenerationRequest, key: str, given_up: threading.Event) -> Generation:
        started = time.perf_counter()
        path = "/chat/completions" if self.server.api == "chat" else "/completions"
        url = self.server.base_url.rstrip("/") + path
        body = self._body(request)
        reason = ""
        for attempt in range(self.server.retries + 1):
            pause = min(self.server.backoff * 2**attempt, _LONGEST_BACKOFF)
            try:
                response = client.post(url, json=body)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                if response.status_code == 200:
                    return self._read(response, request, time.perf_counter() - started)
                reason = f"status {response.status_code}: {_message_of(response)}"
                if response.status_code not in _TRANSIENT:
                    break
                pause = _retry_after(response) or pause
            if attempt < self.server.retries:
                if pause > _LONGEST_WAIT:
                    reason += f" (asks to wait {pause:.0f} s)"
                    break
                # Of many that were turned away together not all come back together.
                pause *= random.uniform(1.0, 1.25)
                logger.info("The server %s is asked again in %.1f s (%s).", url, pause, _without(key, reason))
                if given_up.wait(pause):
                    break
        raise ModelError(f"The server {url} gave no answer: {_without(key, reason)}")

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.server.model,
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
        }
        if request.temperature > 0:
            body |= {"top_p": request.top_p, "seed": _seed_of(request)}
        if request.stop:
            body["stop"] = list(request.stop)
        if self.server.api == "completions":
            system = "" if request.system is None else request.system + "\n\n"
            return body | {"prompt": system + request.user + request.prefill}
        messages = [] if request.system is None else [{"role": "system", "content": request.system}]
        messages.append({"role": "user", "content": request.user})
        if request.prefill and self.server.continues_prefill:
            messages.append({"role": "assistant", "content": request.prefill})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        return body | {"messages": messages}

    def _read(self, response: httpx.Response, request: GenerationRequest, seconds: float) -> Generation:
        try:
            data = response.json()
            choice = data["choices"][0]
            text = choice["message"]["content"] if self.server.api == "chat" else choice["text"]
            said = choice.get("finish_reason")
            usage = data.get("usage") or {}
            tokens_in, tokens_out = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ModelError(
                f"The server {self.server.base_url} answered in another format than OpenAI's: {response.text[:120]!r}"
            ) from error
        if said not in ("stop", "length") or not isinstance(text, str):
            raise ModelError(f"The server {self.server.base_url} gave no text (finish reason {said!r}).")
        if self.server.continues_prefill and request.prefill:
            text = text.removeprefix(request.prefill)  # some servers repeat what they continue
        text, stopped = cut_at_stop(text, request.stop)
        reason: FinishReason = "stop" if stopped or said == "stop" else "length"
        return Generation(strip_end_marks(text), tokens_in, tokens_out, reason, seconds)


def _collect(requests: Sequence[GenerationRequest], futures: Sequence[Future[Generation]]) -> list[Generation]:
    """The answers in order.

    Raises:
        ModelError: The one request's own.
        PartialModelError: Naming how many of several failed and the first of them, with the answers of the others.
    """
    answers: dict[int, Generation] = {}
    failures: dict[int, BaseException] = {}
    for index, future in enumerate(futures):
        if future.cancelled():
            continue
        error = future.exception()
        if error is None:
            answers[index] = future.result()
        else:
            failures[index] = error
    if not failures:
        return [answers[index] for index in range(len(requests))]
    first = min(failures)
    if len(requests) == 1 or not isinstance(failures[first], ModelError):
        raise failures[first]
    unsent = len(requests) - len(answers) - len(failures)
    text = " ".join(requests[first].user.split())
    raise PartialModelError(
        f"{len(failures)} of {len(requests)} requests failed"
        + (f" and {unsent} were not sent any more" if unsent else "")
        + f"; request {first + 1} ({text[:60]!r}): {failures[first]}",
        answers,
    ) from failures[first]


def _seed_of(request: GenerationRequest) -> int:
    """A seed of the draw's own, below 2**31, which every server takes."""
    text = f"{request.seed}|{request.draw}|{request.system}|{request.user}|{request.prefill}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big") >> 1


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds the server asks to wait, given as a number or a date."""
    value = response.headers.get("Retry-After", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _message_of(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError):
        text = response.text
    return " ".join(str(text).split())[:300]


def _without(key: str, text: str) -> str:
    return text.replace(key, "[key]") if key else text
