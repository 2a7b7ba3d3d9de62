"""Records for the tests of the report: made up where the page's shape is tested, never for a result."""

from __future__ import annotations

from typing import Any

from promptrl.evaluation.records import SCHEMA_VERSION, Record

ODD = (
    "<script>window.hit = 1</script></ScRiPt><!-- \" ' & \0 \ud800 \u2028 \u202e ]]> {{script}} "
    "<img src=x onerror=hit()> `é`"
)
"""What a model or a benchmark might put anywhere: markup, quotes, and characters that break scripts and files."""


def step(task: str, number: int, **changes: Any) -> Record:
    """One step's record, of a direct attempt that passes one of two tests."""
    record: Record = {
        "schema": SCHEMA_VERSION,
        "method": "repeat-direct",
        "seed": 0,
        "task_id": task,
        "episode": 0,
        "step": number,
        "action": "direct",
        "instruction": "Add one to x.",
        "prompt": "Add one to x.\n\ndef add(x):",
        "draw": number,
        "answer": "def add(x):\n    return x",
        "code": "def add(x):\n    return x\n",
        "status": "partial",
        "error": None,
        "pass_rate": 0.5,
        "tests": ["passed", "wrong"],
        "reward": 0.5,
        "terminated": False,
        "truncated": False,
        "note": None,
        "finish_reason": "stop",
        "tokens_in": 100,
        "tokens_out": 20,
        "cached": False,
        "model_calls": 1,
        "seconds": 0.5,
        "rewrite_calls": 0,
        "rewrite_cached": 0,
        "rewrite_tokens_in": 0,
        "rewrite_tokens_out": 0,
        "rewrite_seconds": 0.0,
        "report_pass_rate": 0.5,
    }
    return record | changes


SOLVED: dict[str, Any] = {
    "pass_rate": 1.0,
    "report_pass_rate": 1.0,
    "reward": 1.0,
    "status": "passed",
    "tests": ["passed", "passed"],
    "code": "def add(x):\n    return x + 1\n",
    "terminated": True,
    "last": True,
}
FAILED: dict[str, Any] = {
    "pass_rate": 0.0,
    "report_pass_rate": 0.0,
    "reward": -1.0,
    "status": "failed",
    "tests": ["wrong", "exception"],
    "truncated": True,
    "last": True,
}


def some_episodes(tasks: int = 6, *, run: str | None = None, method: str = "random-hybrid") -> list[Record]:
    """Two steps per task, the second with another prompt; every third task is solved, one is misled."""
    records = []
    for number in range(tasks):
        name = f"Made/{number}"
        about = {"method": method, "episode": number, "benchmark": "made"} | ({} if run is None else {"run": run})
        end = SOLVED if number % 3 == 0 else FAILED
        if number == 1:
            end = SOLVED | {"report_pass_rate": 0.5}
        second = "Increase the value x by one and return it.\n\ndef add(x):"
        records += [
            step(name, 0, **about),
            step(name, 1, action="semantic", prompt=second, rewrite_tokens_out=7, **about, **end),
        ]
    return records
