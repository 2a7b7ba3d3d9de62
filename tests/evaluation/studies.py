"""Run folders made by hand, whose every number is known, for tests of what is made from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from promptrl.config import Config, parse_config
from promptrl.evaluation.records import Record, RecordFile

Attempt = tuple[str, float, float]
"""An attempt's action, and its pass rates on the reward tests and on the report tests."""


def record(
    method: str, task_id: str, episode: int, step: int, attempt: Attempt, *, seed: int = 0, last: bool = False
) -> Record:
    """One line of a run with the fields that the runner writes; an attempt costs 100 + 20 tokens and 2 seconds."""
    action, rate, report_rate = attempt
    rewrites = int(action == "semantic")
    line = {
        **{"schema": 1, "method": method, "seed": seed, "task_id": task_id, "episode": episode, "step": step},
        **{"action": action, "instruction": "Add.", "prompt": "Add.", "draw": step, "answer": "def f(): pass"},
        **{"code": "def f(): pass", "status": "passed" if rate == 1 else "failed", "error": None, "pass_rate": rate},
        **{"tests": ["passed"], "reward": rate or -1.0, "terminated": rate == 1.0, "truncated": last and rate < 1.0},
        **{"note": None, "finish_reason": "stop", "tokens_in": 100, "tokens_out": 20, "cached": False},
        **{"model_calls": 1, "seconds": 2.0, "rewrite_calls": rewrites, "rewrite_cached": 0},
        **{"rewrite_tokens_in": 50 * rewrites, "rewrite_tokens_out": 10 * rewrites, "rewrite_seconds": 1.0 * rewrites},
        "report_pass_rate": report_rate,
    }
    return line | ({"last": True, "capped": None} if last else {})


def write_run(
    folder: Path,
    methods: Mapping[str, Mapping[str, Sequence[Attempt]]],
    *,
    training: Sequence[Sequence[Attempt]] = (),
    data_sha256: str = "d" * 64,
    fingerprint: str = "f" * 64,
    **config: object,
) -> Path:
    """A run folder: per method and task the attempts; `training` holds the attempts of each episode."""
    parsed = make_config(**config)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(parsed.to_yaml())
    data = {parsed.benchmark: data_sha256}
    (folder / "versions.json").write_text(json.dumps({"model_fingerprint": fingerprint, "data_sha256": data}))
    for method, tasks in methods.items():
        file = RecordFile(folder / "evaluation" / f"{method}.jsonl")
        file.append(
            *(
                record(method, task_id, episode, n, a, seed=parsed.seed, last=n == len(attempts) - 1)
                for episode, (task_id, attempts) in enumerate(tasks.items())
                for n, a in enumerate(attempts)
            )
        )
        file.close()
    if training:
        file = RecordFile(folder / "train.jsonl")
        file.append(
            *(
                record("ppo", "T/0", episode, n, attempt, seed=parsed.seed, last=n == len(attempts) - 1) | {"env": 0}
                for episode, attempts in enumerate(training)
                for n, attempt in enumerate(attempts)
            )
        )
        file.close()
    return folder


def make_config(**changes: object) -> Config:
    """The defaults with changes, given as `environment__reward="binary"`."""
    values: dict[str, object] = {"name": "study"}
    for key, value in changes.items():
        group, _, inner = key.partition("__")
        if inner:
            values.setdefault(group, {})[inner] = value  # type: ignore[index]
        else:
            values[group] = value
    return parse_config(values)


def tasks_solved(count: int, n: int = 40, *, horizon: int = 3, salt: str = "") -> dict[str, list[Attempt]]:
    """`n` tasks of which `count` are solved, each in the step that its number says; the others never."""
    order = sorted(range(n), key=lambda k: hashlib.sha256(f"{salt}{k}".encode()).hexdigest())
    solved = set(order[:count])
    actions = ("direct", "lexical", "semantic")
    found: dict[str, list[Attempt]] = {}
    for k in range(n):
        length = k % horizon + 1 if k in solved else horizon
        missed: list[Attempt] = [(actions[(k + s) % 3], 0.25 * (s % 2), 0.25 * (s % 2)) for s in range(length)]
        found[f"T/{k}"] = [*missed[:-1], (missed[-1][0], 1.0, 1.0)] if k in solved else missed
    return found
