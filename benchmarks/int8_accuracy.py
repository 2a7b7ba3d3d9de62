"""What 8 bits cost: greedy pass rates of the int8 model and the unquantised one on the same prompts, in pairs.

    python benchmarks/int8_accuracy.py [--benchmarks humaneval_plus mbpp_plus] [--limit N] [--dtype auto]

Answers go through the ordinary cache, so that a stopped run goes on where it was. A task counts as solved where its
answer passes base and plus tests; `base` says the same of the base tests alone. The difference is int8 less
unquantised, in percentage points, with a paired bootstrap interval (95 %); the test is McNemar's, exact. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from promptrl.models import Generation, GenerationRequest, ModelSettings
    from promptrl.tasks import Task

CHUNK = 64  # answers asked for at once; a stop loses at most these


@dataclass(frozen=True, slots=True)
class Outcome:
    """One task under one precision: solved on base tests, on all tests, and the answer."""

    base: bool
    all: bool
    text: str


def answers(
    settings: ModelSettings, requests: Sequence[GenerationRequest], title: str
) -> tuple[list[Generation], dict[str, Any]]:
    """All answers, from the cache where they are there, and what they cost."""
    from promptrl.assets import cache_dir
    from promptrl.models import CachedModel, load_model
    from promptrl.progress import progress_bar

    model = load_model(settings, cache_dir=cache_dir())
    assert isinstance(model, CachedModel)
    found: list[Generation] = []
    started = time.perf_counter()
    with progress_bar(title, len(requests), Console(stderr=True), unit="answers") as advance:
        for start in range(0, len(requests), CHUNK):
            found += model.generate(requests[start : start + CHUNK])
            advance(len(found), {})
    costs = {
        "fingerprint": model.fingerprint,
        "model_calls": model.misses,
        "tokens_out": sum(answer.tokens_out for answer in found),
        "model_seconds": round(sum(answer.seconds for answer in found), 1),
        "wall_seconds": round(time.perf_counter() - started, 1),
    }
    del model
    gc.collect()
    return found, costs


def judge_all(
    tasks: Sequence[Task], requests: Sequence[GenerationRequest], found: Sequence[Generation], workers: int | None
) -> list[Outcome]:
    from promptrl.execution import Candidate, Judge, SandboxSettings, Status
    from promptrl.execution.extraction import extract_code

    settings = SandboxSettings(stop_when_decided=True)
    if workers is not None:
        settings = settings.model_copy(update={"workers": workers})
    codes = [
        extract_code(request.prefill + answer.text, entry_point=task.entry_point, stub=task.stub).code
        for task, request, answer in zip(tasks, requests, found, strict=True)
    ]
    suites = [[task.base] if task.plus is None else [task.base, task.plus] for task in tasks]
    with Judge(settings) as judge:
        verdicts = iter(
            judge.judge(
                [
                    Candidate(code, task, suite)
                    for code, task, group in zip(codes, tasks, suites, strict=True)
                    for suite in group
                ]
            )
        )
    passed = [[next(verdicts).status is Status.PASSED for _ in group] for group in suites]
    return [Outcome(each[0], all(each), answer.text) for each, answer in zip(passed, found, strict=True)]


def compare(first: Sequence[Outcome], second: Sequence[Outcome]) -> dict[str, Any]:
    """Int8 (first) and unquantised (second) outcomes of the same tasks, side by side."""
    from statsmodels.stats.contingency_tables import mcnemar

    from promptrl.evaluation.statistics import paired_bootstrap

    result: dict[str, Any] = {
        "tasks": len(first),
        "same_text": sum(one.text == two.text for one, two in zip(first, second, strict=True)),
    }
    for name in ("all", "base"):
        pairs = [(getattr(one, name), getattr(two, name)) for one, two in zip(first, second, strict=True)]
        both, only_int8 = pairs.count((True, True)), pairs.count((True, False))
        only_plain, neither = pairs.count((False, True)), pairs.count((False, False))
        interval = paired_bootstrap([float(one) for one, _ in pairs], [float(two) for _, two in pairs])
        result["base_and_plus" if name == "all" else "base"] = {
            "int8": both + only_int8,
            "unquantised": both + only_plain,
            "both": both,
            "only_int8": only_int8,
            "only_unquantised": only_plain,
            "neither": neither,
            "int8_percent": round(100 * (both + only_int8) / len(pairs), 2),
            "unquantised_percent": round(100 * (both + only_plain) / len(pairs), 2),
            "difference_points": round(100 * (only_int8 - only_plain) / len(pairs), 2),
            "interval_points": [round(100 * interval.low, 2), round(100 * interval.high, 2)],
            "mcnemar_exact_p": float(mcnemar([[both, only_int8], [only_plain, neither]], exact=True).pvalue),
        }
    return result


def measure(name: str, options: argparse.Namespace, costs: dict[str, Any]) -> tuple[list[Outcome], list[Outcome]]:
    from promptrl.assets import cache_dir
    from promptrl.execution import SandboxSettings, resolve_expected
    from promptrl.models import ModelSettings, code_request
    from promptrl.refinement.prompt import Prompt
    from promptrl.tasks import load_benchmark

    benchmark = load_benchmark(name)
    tasks = resolve_expected(
        benchmark.tasks[: options.limit],
        data_sha256=benchmark.sha256,
        cache_dir=cache_dir(),
        settings=SandboxSettings(),
    )
    plain = ModelSettings(
        name=options.model, request=options.request, batch_size=options.batch_size, dtype=options.dtype, device="cpu"
    )
    outcomes = []
    for precision, settings in (
        ("int8", plain.model_copy(update={"quantization": "int8", "dtype": "auto"})),
        ("unquantised", plain),
    ):
        requests = [
            code_request(settings, Prompt.from_task(task).render(), stub=task.stub, max_new_tokens=options.tokens)
            for task in tasks
        ]
        found, costs[precision] = answers(settings, requests, f"{name}, {precision}")
        outcomes.append(judge_all(tasks, requests, found, options.workers))
    return outcomes[0], outcomes[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", nargs="+", default=["humaneval_plus", "mbpp_plus"])
    parser.add_argument("--limit", type=int, help="only so many tasks of each")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="of the unquantised")
    parser.add_argument("--request", choices=["script", "terse"], default="terse")
    parser.add_argument("--tokens", type=int, default=512, help="longest answer (default 512)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, help="of the judge; one per core where unset")
    options = parser.parse_args()

    from promptrl.errors import PromptRLError

    result: dict[str, Any] = {key: getattr(options, key) for key in ("model", "request", "tokens", "batch_size")}
    pooled: tuple[list[Outcome], list[Outcome]] = ([], [])
    try:
        for name in options.benchmarks:
            costs: dict[str, Any] = {}
            int8, unquantised = measure(name, options, costs)
            pooled[0].extend(int8)
            pooled[1].extend(unquantised)
            result[name] = compare(int8, unquantised) | {"costs": costs}
            print(f"{name}: {json.dumps(result[name])}", flush=True)
    except PromptRLError as error:
        sys.exit(f"int8_accuracy: {error}")
    if len(options.benchmarks) > 1:
        result["together"] = compare(*pooled)

    import torch

    from promptrl.models import ModelSettings
    from promptrl.models.weights import pick_dtype

    settings = ModelSettings(dtype=options.dtype, device="cpu")
    result["unquantised_dtype"] = str(pick_dtype(settings, torch.device("cpu"))).removeprefix("torch.")
    result["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
