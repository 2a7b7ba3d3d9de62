"""How long an evaluation takes whose answers are all kept: HumanEval+, 164 tasks and 5 attempts each, twice.

    python benchmarks/replay.py

A replay asks no model, so which one wrote the answers does not matter. They come from a tiny model with random weights,
which solves nothing: every task takes all of its attempts, the most there can be. Each run is a process of its own,
start-up included. Nothing here is a score. The last line is one JSON object.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ATTEMPTS = 5


def main() -> None:
    from promptrl.assets import cache_dir

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tiny = importlib.import_module("tests.models.tiny")  # the unit tests' model
        model = tiny.save_causal(root / "tiny-random-weights", "qwen2")
        cache = root / "cache"
        cache.mkdir()
        for name in ("models", "data", "expected"):  # what is fetched or computed once, and no answers or verdicts
            if (cache_dir() / name).is_dir():
                (cache / name).symlink_to(cache_dir() / name)
        environment = {**os.environ, "PROMPTRL_CACHE_DIR": str(cache)}
        first, replay = (_evaluate(root / name, model, environment) for name in ("first", "replay"))
        summary = json.loads((root / "replay" / "summary.json").read_text())["evaluation"][0]
        records = [_records(root / name) for name in ("first", "replay")]
    differing = sorted({key for one, two in zip(*records, strict=True) for key in one if one[key] != two[key]})
    print(
        f"first {first[0]:.1f} s, replay {replay[0]:.1f} s ({replay[1]:.1f} s of CPU), fields that differ: {differing}"
    )
    print(
        json.dumps(
            {
                "tasks": summary["n"],
                "attempts": summary["attempts"],
                "first_seconds": round(first[0], 2),
                "replay_seconds": round(replay[0], 2),
                "replay_cpu_seconds": round(replay[1], 2),
                "first_over_replay": round(first[0] / replay[0], 2),
                "fields_that_differ": differing,
            }
        )
    )


def _evaluate(output: Path, model: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds on the clock and of the CPU for one evaluation in a process of its own."""
    command = [sys.executable, "-m", "promptrl.cli", "evaluate", "--config", "humaneval_plus.yaml"]
    command += ["--method", "repeat-direct", "--output", str(output)]
    for setting in (
        f"model.path={model}",
        "model.device=cpu",
        "generation.max_new_tokens=32",
        f"environment.horizon={ATTEMPTS}",
    ):
        command += ["--set", setting]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _records(output: Path) -> list[dict[str, object]]:
    """The records of a run but for what says that an answer was kept."""
    lines = (output / "evaluation" / "repeat-direct.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if not key.endswith("cached")} for line in lines]


if __name__ == "__main__":
    main()
