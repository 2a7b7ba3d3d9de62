from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from promptrl.errors import ModelError
from promptrl.line_store import LineStore
from promptrl.models import CachedModel, Generation, GenerationCache, GenerationRequest, request_key
from promptrl.models.commands import cache_app

ANSWER = Generation("return 1\n", 12, 4, "stop", 0.5)


class Counting:
    fingerprint = "f" * 64

    def __init__(self) -> None:
        self.asked: list[GenerationRequest] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.asked += requests
        return [replace(ANSWER, text=f"{request.user} {request.draw}") for request in requests]


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.9},
        {"max_new_tokens": 128},
        {"draw": 1},
        {"seed": 1},
        {"system": "Be brief."},
        {"system": ""},
        {"stop": ("\n\n",)},
        {"prefill": "x"},
        {"user": "q"},
        {"top_p": 0.9},
    ],
)
def test_everything_that_decides_an_answer_is_in_its_key(change: dict[str, object]) -> None:
    base = GenerationRequest("p", temperature=0.8)
    assert request_key("m1", replace(base, **change)) != request_key("m1", base)  # type: ignore[arg-type]


def test_keys_of_greedy_requests_ignore_what_greedy_ignores() -> None:
    base = GenerationRequest("p")
    assert request_key("m", base) == request_key("m", replace(base, draw=3, seed=4, top_p=0.5))
    assert request_key("m", base) != request_key("m2", base)
    assert request_key("m", GenerationRequest("ab", prefill="c")) != request_key(
        "m", GenerationRequest("a", prefill="bc")
    )


def test_a_second_run_asks_nothing(tmp_path: Path) -> None:
    asked = [GenerationRequest(f"task {i}", temperature=0.8, draw=d) for i in range(164) for d in range(5)]
    first = CachedModel(Counting(), GenerationCache(tmp_path))
    answers = first.generate(asked)
    assert not any(answer.cached for answer in answers)
    inner = Counting()
    second = CachedModel(inner, GenerationCache(tmp_path))
    replayed = second.generate(asked)
    assert inner.asked == []
    assert (second.hits, second.misses) == (820, 0)
    assert all(answer.cached for answer in replayed)
    assert [replace(answer, cached=False) for answer in replayed] == answers


def test_equal_requests_of_one_call_are_asked_once(tmp_path: Path) -> None:
    inner = Counting()
    model = CachedModel(inner, GenerationCache(tmp_path))
    answers = model.generate([GenerationRequest("a"), GenerationRequest("b"), GenerationRequest("a", draw=7)])
    assert [answer.text for answer in answers] == ["a 0", "b 0", "a 0"]
    assert [answer.cached for answer in answers] == [False, False, True]
    assert len(inner.asked) == 2
    assert (model.hits, model.misses) == (1, 2)


def test_kept_answers_are_all_or_none(tmp_path: Path) -> None:
    inner = Counting()
    model = CachedModel(inner, GenerationCache(tmp_path))
    (answer,) = model.generate([GenerationRequest("a")])
    assert model.kept([GenerationRequest("a"), GenerationRequest("b")]) is None
    found = model.kept([GenerationRequest("a"), GenerationRequest("a")])
    assert found == [replace(answer, cached=True)] * 2
    assert (len(inner.asked), model.hits, model.misses) == (1, 2, 1)


def test_errors_are_not_kept(tmp_path: Path) -> None:
    class Broken(Counting):
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            raise ModelError("The server is gone.")

    with pytest.raises(ModelError):
        CachedModel(Broken(), GenerationCache(tmp_path)).generate([GenerationRequest("a")])
    assert GenerationCache(tmp_path).sizes() == []


@pytest.mark.parametrize("position", ["key", "checksum", "text", "newline"])
def test_altered_lines_are_counted_and_asked_again(tmp_path: Path, position: str) -> None:
    cache = GenerationCache(tmp_path)
    cache.put("m", [(f"{i:064d}", ANSWER) for i in range(3)])
    path = tmp_path / "m.jsonl"
    data = bytearray(path.read_bytes())
    line = len(data) // 3
    at = {"key": line + 5, "checksum": line + 70, "text": line + 120, "newline": 2 * line - 1}[position]
    data[at] ^= 0x01
    path.write_bytes(data)
    fresh = GenerationCache(tmp_path)
    found = fresh.get("m", [f"{i:064d}" for i in range(3)])
    assert f"{1:064d}" not in found
    assert f"{0:064d}" in found
    assert all(replace(answer, cached=False) == ANSWER for answer in found.values())
    assert fresh.sizes()[0].damaged >= 1
    fresh.put("m", [(f"{1:064d}", ANSWER)])
    assert f"{1:064d}" in GenerationCache(tmp_path).get("m", [f"{1:064d}"])


def test_a_line_altered_after_it_was_indexed_is_not_trusted(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path)
    cache.put("m", [("0" * 64, ANSWER)])
    assert cache.get("m", ["0" * 64])
    path = tmp_path / "m.jsonl"
    with path.open("r+b") as file:
        file.seek(130)
        file.write(b"#")
    assert cache.get("m", ["0" * 64]) == {}


@pytest.mark.parametrize("cut", [1, 30, 100, 150])
def test_half_a_line_costs_only_itself(tmp_path: Path, cut: int) -> None:
    cache = GenerationCache(tmp_path)
    cache.put("m", [("0" * 64, ANSWER), ("1" * 64, ANSWER)])
    path = tmp_path / "m.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    fresh = GenerationCache(tmp_path)
    assert set(fresh.get("m", ["0" * 64, "1" * 64])) == {"0" * 64}
    fresh.put("m", [("2" * 64, ANSWER)])
    found = GenerationCache(tmp_path).get("m", ["0" * 64, "1" * 64, "2" * 64])
    # Where only the line's end was missing, the next writer supplies it.
    assert set(found) - {"1" * 64} == {"0" * 64, "2" * 64}
    assert ("1" * 64 in found) == (cut == 1)


WRITER = """
import sys
from pathlib import Path
from promptrl.models.base import Generation
from promptrl.models.cache import GenerationCache
cache, name, number = GenerationCache(Path(sys.argv[1])), sys.argv[2], 0
while True:
    items = []
    for _ in range(20):
        key = f"{name}{number:0{64 - len(name)}d}"
        items.append((key, Generation(key * 20, number, 1, "stop")))
        number += 1
    cache.put("m", items)
    print(number, flush=True)
"""


def test_killed_writers_leave_nothing_wrong(tmp_path: Path) -> None:
    promised: dict[str, int] = {}
    for turn in range(4):
        writers = {
            f"{turn}{letter}": subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path), f"{turn}{letter}"], stdout=subprocess.PIPE, text=True
            )
            for letter in "ab"
        }
        for writer in writers.values():
            assert writer.stdout is not None
            writer.stdout.readline()
        time.sleep(0.05 * (turn + 1))
        for name, writer in writers.items():
            os.kill(writer.pid, signal.SIGKILL)
            lines = writer.communicate()[0].splitlines()
            promised[name] = max([20, *(int(line) for line in lines if line.isdigit())])
    keys = {f"{name}{number:0{64 - len(name)}d}": number for name, count in promised.items() for number in range(count)}
    found = GenerationCache(tmp_path).get("m", keys)
    assert set(found) == set(keys)
    assert all(answer.text == key * 20 and answer.tokens_in == keys[key] for key, answer in found.items())


def test_two_caches_see_each_other(tmp_path: Path) -> None:
    one, two = GenerationCache(tmp_path), GenerationCache(tmp_path)
    assert two.get("m", ["0" * 64]) == {}
    one.put("m", [("0" * 64, ANSWER)])
    assert two.get("m", ["0" * 64])["0" * 64].text == ANSWER.text


def test_sizes_and_clearing_by_model(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path)
    cache.put("one", [("0" * 64, ANSWER)])
    cache.put("two/x", [("0" * 64, ANSWER), ("1" * 64, replace(ANSWER, text="é\n\u2028"))])
    assert [(size.name, size.entries, size.damaged) for size in cache.sizes()] == [("one", 1, 0), ("two-x", 2, 0)]
    assert cache.get("two/x", ["1" * 64])["1" * 64].text == "é\n\u2028"
    assert cache.clear("two/x") > 0
    assert cache.get("two/x", ["1" * 64]) == {}
    assert [size.name for size in cache.sizes()] == ["one"]
    cache.put("two/x", [("2" * 64, ANSWER)])
    assert cache.get("two/x", ["2" * 64])
    cache.clear()
    assert cache.sizes() == []


def test_commands_list_and_clear_by_name_or_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTRL_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "generations"
    for name in ("qwen-coder-0123456789abcdef", "qwen-coder-ffff456789abcdef", "other-aaaa456789abcdef"):
        GenerationCache(folder).put(name, [("0" * 64, ANSWER), ("1" * 64, ANSWER)])
    with (folder / "other-aaaa456789abcdef.jsonl").open("a") as file:
        file.write("half a line")
        file.write("\n")
    run = CliRunner().invoke
    listed = run(cache_app, ["list"]).output.splitlines()
    assert [line.split() for line in listed[1:4]] == [
        ["other", "aaaa456789abcdef", "2", "0.00", "1"],
        ["qwen-coder", "0123456789abcdef", "2", "0.00", "0"],
        ["qwen-coder", "ffff456789abcdef", "2", "0.00", "0"],
    ]
    assert listed[-2].startswith("6 answers, 0.00 MB in ")
    assert listed[-1] == "0 verdicts, 0.00 MB"
    for arguments, said in (
        ([], "name one model"),
        (["qwen-coder", "--all"], "name one"),
        (["x"], "no answers of 'x'"),
    ):
        result = run(cache_app, ["clear", *arguments])
        assert result.exit_code != 0
        assert said in str(result.exception)
    assert run(cache_app, ["clear", "ffff45"], input="n\n").exit_code != 0
    assert len(GenerationCache(folder).sizes()) == 3
    assert "removed" in run(cache_app, ["clear", "ffff45"], input="y\n").output
    assert [size.fingerprint for size in GenerationCache(folder).sizes()] == ["aaaa456789abcdef", "0123456789abcdef"]
    assert run(cache_app, ["clear", "qwen-coder", "--yes"]).exit_code == 0
    assert [size.model for size in GenerationCache(folder).sizes()] == ["other"]
    assert run(cache_app, ["clear", "--all", "--yes"]).exit_code == 0
    assert "nothing is kept" in run(cache_app, ["clear", "--all", "--yes"]).output


def test_commands_count_and_clear_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTRL_CACHE_DIR", str(tmp_path))
    run = CliRunner().invoke
    GenerationCache(tmp_path / "generations").put("qwen-0123456789abcdef", [("0" * 64, ANSWER)])
    for name in ("mbpp", "humaneval"):
        LineStore(tmp_path / "verdicts" / f"{name}.jsonl").append([("0" * 64, b"{}"), ("1" * 64, b"{}")])
    assert run(cache_app, ["list"]).output.splitlines()[-1].startswith("4 verdicts, 0.00 MB")
    assert "say --all, or --verdicts" in str(run(cache_app, ["clear", "qwen", "--verdicts"]).exception)
    assert run(cache_app, ["clear", "--verdicts"], input="n\n").exit_code != 0
    assert "4 verdicts" in run(cache_app, ["clear", "--verdicts", "--yes"]).output
    assert list((tmp_path / "verdicts").iterdir()) == []
    assert len(GenerationCache(tmp_path / "generations").sizes()) == 1, "answers stay"
    assert "nothing is kept" in run(cache_app, ["clear", "--verdicts"]).output


def test_several_processes_write_and_read_at_once(tmp_path: Path) -> None:
    names = [f"w{number}" for number in range(3)]
    code = WRITER.replace("while True:", "for _ in range(25):")
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stdout=subprocess.DEVNULL) for name in names
    ]
    keys = [f"{name}{number:0{64 - len(name)}d}" for name in names for number in range(500)]
    reader, seen = GenerationCache(tmp_path), 0
    while any(writer.poll() is None for writer in writers):
        found = reader.get("m", keys)  # whatever is there at any moment is whole
        assert all(answer.text == key * 20 for key, answer in found.items())
        assert len(found) >= seen
        seen = len(found)
    assert [writer.returncode for writer in writers] == [0] * 3
    assert len(GenerationCache(tmp_path).get("m", keys)) == len(keys) == 1500
    assert GenerationCache(tmp_path).sizes()[0].damaged == 0


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        GenerationCache(tmp_path / "file").put("m", [("0" * 64, ANSWER)])


def test_lines_are_readable_by_others(tmp_path: Path) -> None:
    GenerationCache(tmp_path).put("m", [("0" * 64, ANSWER)])
    key, checksum, payload = (tmp_path / "m.jsonl").read_text().rstrip("\n").split(" ", 2)
    assert (len(key), len(checksum)) == (64, 32)
    assert json.loads(payload)["text"] == ANSWER.text
