"""Steps per second of the vector environment, with the real model: cold and warm cache, and against DummyVecEnv.

    python benchmarks/env.py [--steps 4] [--long-run 10000] [--output FILE]

All figures come from one run on the same tasks, seeds and actions. Cold: an empty cache of answers. Warm: the same
actions again in a fresh engine, answered from disk. `model_time` says how the model's seconds at n = 32 and in
DummyVecEnv divide into reading prompts and writing answers, per environment step. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="quickstart.yaml")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="override a key, as in training")
    parser.add_argument("--steps", type=int, default=4, help="vector steps per measurement")
    parser.add_argument("--long-run", type=int, default=10_000, help="episodes for the flatness check; 0 leaves it out")
    options = parser.parse_args()

    from promptrl.assets import cache_dir, find_model
    from promptrl.config import load_config
    from promptrl.workbench import Workbench

    config = load_config(options.config, options.overrides)
    # Weights are shared with the ordinary cache; answers go to an empty one, so that cold is cold.
    os.environ["PROMPTRL_MODEL_DIR"] = str(find_model(config.model.name).parent)
    kept = [folder for folder in (cache_dir() / "models", cache_dir() / "converted") if folder.is_dir()]
    figures: dict[str, Any] = {"config": options.config, "overrides": options.overrides, "steps": options.steps}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMPTRL_CACHE_DIR"] = folder
        for weights in kept:
            (cache_dir() / weights.name).symlink_to(weights)
        workbench = Workbench(config)
        try:
            _rate(workbench, 1, 1, seed=500)  # loads what is loaded once
            for n in (1, 8, 32):
                # Other seeds and thus other episodes for each n, so that no n finds the answers of another.
                with _model_time(workbench) as seconds:
                    cold = _rate(workbench, n, options.steps, seed=1000 * n)
                warm = _rate(workbench, n, options.steps, seed=1000 * n)
                figures[f"n={n}"] = {"cold_steps_per_s": cold, "warm_steps_per_s": warm}
                print(f"n = {n:2}: cold {cold:8.2f} steps/s, warm {warm:8.2f} steps/s", flush=True)
            per_step = 1 / (32 * options.steps)
            figures["model_time"] = {"vector": {kind: spent * per_step for kind, spent in seconds.items()}}
            with _model_time(workbench) as seconds:
                figures["dummy"] = _dummy(workbench, 32, options.steps, seed=77_000)
            figures["model_time"]["dummy"] = {kind: spent * per_step for kind, spent in seconds.items()}
            figures["vector_over_dummy"] = figures["n=32"]["cold_steps_per_s"] / figures["dummy"]
            print(f"DummyVecEnv over 32 single environments, cold: {figures['dummy']:.2f} steps/s")
            print(f"vector / dummy at n = 32: {figures['vector_over_dummy']:.2f}")
            for name, parts in figures["model_time"].items():
                print(f"{name}: " + ", ".join(f"{kind} {spent:.2f} s/step" for kind, spent in parts.items()))
            if options.long_run:
                figures["long_run"] = _long_run(workbench, options.long_run)
        finally:
            workbench.close()
    print(json.dumps(figures))


@contextmanager
def _model_time(workbench: Any) -> Iterator[dict[str, float]]:
    """Seconds that the loaded model reads prompts and writes tokens within the block."""
    decoder = workbench.coder.model.load().decoder
    seconds = {"reading": 0.0, "writing": 0.0}

    def timed(kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                seconds[kind] += time.perf_counter() - started

        return run

    decoder._read = timed("reading", decoder._read)
    decoder._step = timed("writing", decoder._step)
    try:
        yield seconds
    finally:
        del decoder._read, decoder._step


def _rate(workbench: Any, n: int, steps: int, seed: int) -> float:
    """Environment steps per second over `steps` vector steps with seeded uniform actions."""
    env = workbench.vector_env("train", n)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    started = time.perf_counter()
    for _ in range(steps):
        env.step(rng.integers(env.single_action_space.n, size=n))
    return n * steps / (time.perf_counter() - started)


def _dummy(workbench: Any, n: int, steps: int, seed: int) -> float:
    """The same through Stable-Baselines3's DummyVecEnv, which steps its environments one after the other."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    from promptrl.envs import PromptRefinementEnv

    tasks = workbench.tasks("train")
    env = DummyVecEnv([lambda: PromptRefinementEnv(workbench.engine(), tasks) for _ in range(n)])
    env.seed(seed)
    env.reset()
    rng = np.random.default_rng(seed)
    started = time.perf_counter()
    for _ in range(steps):
        env.step(rng.integers(3, size=n))
    return n * steps / (time.perf_counter() - started)


def _long_run(workbench: Any, episodes: int) -> dict[str, float]:
    """Time and memory of the first and last tenth of many warm episodes (`direct` alone, answers from the cache)."""
    env = workbench.vector_env("train", 32)
    env.reset(seed=5)
    zeros = np.zeros(32, dtype=np.int64)
    for _ in range(2 * workbench.config.environment.horizon * len(workbench.tasks("train")) // 32 + 1):
        env.step(zeros)  # every answer is now in the cache
    ended, marks = 0, []
    while ended < episodes:
        started, steps, goal = time.perf_counter(), 0, ended + episodes // 10
        while ended < goal:
            _, _, terminations, truncations, _ = env.step(zeros)
            ended += int((terminations | truncations).sum())
            steps += 32
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        marks.append((1e3 * (time.perf_counter() - started) / steps, memory))
    first, last = marks[0], marks[-1]
    print(f"{episodes} episodes: {first[0]:.3f} ms/step in the first tenth, {last[0]:.3f} in the last;", end=" ")
    print(f"peak memory {first[1]:.0f} MB, then {last[1]:.0f} MB")
    return {"first_ms": first[0], "last_ms": last[0], "first_mb": first[1], "last_mb": last[1]}


if __name__ == "__main__":
    main()
