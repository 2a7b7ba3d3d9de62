from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from promptrl.config import Config, parse_config
from promptrl.errors import ConfigError, ModelError
from promptrl.models import (
    CachedModel,
    GenerationCache,
    GenerationRequest,
    ModelSettings,
    PartialModelError,
    ServerSettings,
)
from promptrl.models.server import ServerModel
from promptrl.workbench import Workbench

Reply = tuple[int, dict[str, str], Any]


def chat(text: str, finish: str = "stop") -> Reply:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return 200, {}, {"choices": [{"message": {"content": text}, "finish_reason": finish}], "usage": usage}


class Script:
    """A server that answers as a function of the number of the request and its body."""

    def __init__(self, reply: Callable[[int, dict[str, Any]], Reply]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most = self._now = 0
        lock = threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(script.bodies)
                    script.bodies.append(body)
                    script.headers.append(dict(self.headers))
                    script._now += 1
                    script.most = max(script.most, script._now)
                status, headers, data = reply(number, body)
                with lock:
                    script._now -= 1
                payload = data.encode() if isinstance(data, str) else json.dumps(data).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def model(self, **server: Any) -> ServerModel:
        base_url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        values = {"base_url": base_url, "model": "m", "backoff": 0.01, "timeout": 5.0} | server
        return ServerModel(ModelSettings(family="server", server=ServerSettings(**values)))


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int, dict[str, Any]], Reply]], Script]]:
    started: list[Script] = []

    def start(reply: Callable[[int, dict[str, Any]], Reply]) -> Script:
        started.append(Script(reply))
        return started[-1]

    yield start
    for script in started:
        script.http.shutdown()
        script.http.server_close()


def test_many_requests_at_once_keep_their_order(serve: Any) -> None:
    def reply(number: int, body: dict[str, Any]) -> Reply:
        time.sleep(0.02 * (number % 3))
        return chat(body["messages"][-1]["content"].upper())

    script = serve(reply)
    answers = script.model(concurrency=4).generate([GenerationRequest(f"q{i}") for i in range(12)])
    assert [answer.text for answer in answers] == [f"Q{i}" for i in range(12)]
    assert (answers[0].tokens_in, answers[0].tokens_out, answers[0].finish_reason) == (7, 3, "stop")
    assert 2 <= script.most <= 4


def test_body_says_everything_that_decides_the_answer(serve: Any) -> None:
    script = serve(lambda number, body: chat("x"))
    model = script.model(continues_prefill=True, concurrency=1)
    ask = GenerationRequest("q", "sys", "```python\n", ("\n```",), 0.7, 0.9, 50, draw=1, seed=2)
    model.generate([ask, GenerationRequest("q", "sys", "```python\n", ("\n```",), 0.7, 0.9, 50, draw=2, seed=2)])
    first, second = script.bodies
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant"]
    assert (first["max_tokens"], first["temperature"], first["top_p"], first["stop"]) == (50, 0.7, 0.9, ["\n```"])
    assert first["continue_final_message"] is True
    assert first["seed"] != second["seed"]
    model.generate([GenerationRequest("q")])
    assert "seed" not in script.bodies[2]
    assert script.bodies[2]["temperature"] == 0


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_trouble_is_waited_out(serve: Any, status: int) -> None:
    script = serve(lambda number, body: (status, {}, {"error": {"message": "busy"}}) if number < 2 else chat("fine"))
    assert script.model().generate([GenerationRequest("q")])[0].text == "fine"
    assert len(script.bodies) == 3


def test_the_servers_own_waiting_time_is_kept(serve: Any) -> None:
    script = serve(lambda number, body: (429, {"Retry-After": "0.3"}, {}) if number == 0 else chat("fine"))
    started = time.perf_counter()
    script.model().generate([GenerationRequest("q")])
    assert time.perf_counter() - started >= 0.3


def test_lasting_trouble_is_an_error_and_never_an_answer(serve: Any) -> None:
    script = serve(lambda number, body: (500, {}, {"error": {"message": "broken"}}))
    with pytest.raises(ModelError, match="gave no answer: status 500: broken"):
        script.model(retries=2, concurrency=1).generate([GenerationRequest("q")])
    assert len(script.bodies) == 3
    refusing = serve(lambda number, body: (400, {}, {"error": "no such model"}))
    with pytest.raises(ModelError, match="status 400: no such model"):
        refusing.model().generate([GenerationRequest("q")])
    assert len(refusing.bodies) == 1


@pytest.mark.parametrize(
    "data",
    ["<html>", {"choices": []}, {"choices": [{"message": {"content": None}, "finish_reason": "content_filter"}]}, []],
)
def test_answers_in_no_known_format_are_errors(serve: Any, data: object) -> None:
    with pytest.raises(ModelError):
        serve(lambda number, body: (200, {}, data)).model().generate([GenerationRequest("q")])


def test_slow_and_absent_servers(serve: Any) -> None:
    def sleepy(number: int, body: dict[str, Any]) -> Reply:
        time.sleep(0.5)
        return chat("late")

    with pytest.raises(ModelError, match="ReadTimeout"):
        serve(sleepy).model(timeout=0.1, retries=1).generate([GenerationRequest("q")])
    with pytest.raises(ModelError, match="ConnectError"):
        serve(sleepy).model(base_url="http://127.0.0.1:9/v1", retries=1).generate([GenerationRequest("q")])
    with pytest.raises(ConfigError, match="must be an http or https address"):
        serve(sleepy).model(base_url="localhost:80")


def test_the_key_is_sent_and_never_shown(
    serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    status = {"code": 503}
    script = serve(lambda number, body: (status["code"], {}, {"error": {"message": "key sk-very-secret is wrong"}}))
    with caplog.at_level(logging.DEBUG), pytest.raises(ModelError) as caught:
        script.model(api_key_env="MY_KEY", retries=1).generate([GenerationRequest("q")])
    assert script.headers[0]["Authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in str(caught.value) + caplog.text


def test_what_was_answered_before_a_failure_is_kept_and_the_failure_named(serve: Any, tmp_path: Path) -> None:
    broken = {"q2"}

    def reply(number: int, body: dict[str, Any]) -> Reply:
        text = body["messages"][-1]["content"]
        return (400, {}, {"error": "bad word"}) if text in broken else chat(text.upper())

    script = serve(reply)
    inner = script.model(concurrency=1)
    asked = [GenerationRequest(f"q{number}") for number in range(5)]
    with pytest.raises(PartialModelError, match=r"1 of 5 requests failed.*; request 3 \('q2'\): .*bad word") as caught:
        CachedModel(inner, GenerationCache(tmp_path)).generate(asked)
    assert {0, 1} <= set(caught.value.answers) <= {0, 1, 3, 4}
    broken.clear()
    sent = len(script.bodies)
    model = CachedModel(inner, GenerationCache(tmp_path))
    assert [answer.text for answer in model.generate(asked)] == ["Q0", "Q1", "Q2", "Q3", "Q4"]
    assert model.hits == len(caught.value.answers)
    assert len(script.bodies) - sent == 5 - len(caught.value.answers)


def test_a_failure_ends_the_waiting_of_the_others(serve: Any) -> None:
    def reply(number: int, body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["content"] == "wait":
            return 429, {"Retry-After": "100"}, {}
        return 400, {}, {"error": "no"}

    with pytest.raises(PartialModelError, match="2 of 2 requests failed"):
        serve(reply).model(concurrency=2).generate([GenerationRequest("wait"), GenerationRequest("x")])


def test_addresses_and_keys_that_would_be_shown_are_refused(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script = serve(lambda number, body: chat("x"))
    for address in ("http://user:sk-secret@localhost/v1", "http://localhost/v1?key=sk-secret"):
        with pytest.raises(ConfigError, match="holds a password or a query") as caught:
            script.model(base_url=address)
        assert "sk-secret" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-sécret")
    with pytest.raises(ConfigError, match="MY_KEY holds characters") as caught:
        script.model(api_key_env="MY_KEY").generate([GenerationRequest("q")])
    assert "cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="api_key_env: must be the name") as caught:
        parse_config({"model": {"server": {"api_key_env": "sk-secret"}}})
    assert "sk-secret" not in str(caught.value)


def test_the_key_is_in_no_configuration_fingerprint_or_kept_answer(
    serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = serve(lambda number, body: chat("x")).model(api_key_env="MY_KEY")
    before = model.fingerprint
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    assert model.fingerprint == before
    CachedModel(model, GenerationCache(tmp_path)).generate([GenerationRequest("q")])
    assert "sk-very-secret" not in next(tmp_path.iterdir()).read_text()
    assert "sk-very-secret" not in Config(model=model.settings).to_yaml() + repr(model.settings)


@pytest.mark.parametrize(("workers", "concurrency"), [(None, 8), (4, 8), (64, 64)])
def test_workers_of_an_evaluation_ask_a_server_as_wide(workers: int | None, concurrency: int) -> None:
    server = {"base_url": "http://localhost:1/v1", "model": "m"}
    config = parse_config(
        {"model": {"family": "server", "server": server}, "cache": False, "evaluation": {"workers": workers}}
    )
    coder = Workbench(config).coder
    assert isinstance(coder, ServerModel)
    assert coder.server.concurrency == concurrency
    assert config.evaluation.at_once == (workers or config.evaluation.batch_size)


def test_answers_are_cut_at_stops_and_end_marks(serve: Any) -> None:
    script = serve(lambda number, body: chat("```python\nx = 1\n```\nDone<|im_end|>"))
    model = script.model(continues_prefill=True)
    assert model.generate([GenerationRequest("q", prefill="```python\n", stop=("\n```",))])[0].text == "x = 1"
    assert model.generate([GenerationRequest("q")])[0].text.endswith("Done")


def test_completions_api_sends_one_text(serve: Any) -> None:
    reply = (200, {}, {"choices": [{"text": " b", "finish_reason": "length"}]})
    script = serve(lambda number, body: reply)
    answer = script.model(api="completions").generate([GenerationRequest("def f():", "sys", "\n    ")])[0]
    assert script.bodies[0]["prompt"] == "sys\n\ndef f():\n    "
    assert (answer.text, answer.finish_reason) == (" b", "length")
