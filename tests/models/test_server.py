from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from promptrl.errors import ConfigError, ModelError
from promptrl.models import GenerationRequest, ModelSettings, ServerSettings
from promptrl.models.server import ServerModel

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
