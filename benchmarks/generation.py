"""How fast answers are written, in answers per second, each way measured in one run on the same prompts.

    python benchmarks/generation.py [--prompts 16] [--batch-size 32] [--tokens 160] [--only NAME ...] [--llama-python P]

Compared are: the library's `generate` with one prompt at a time and with all at once; the decode loop of this package
with each of its means taken away by itself; 8 bits; and llama.cpp's server, where `xllamacpp` can be imported by
`--llama-python`. Prompts come from HumanEval. Ratios are to one prompt at a time. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from promptrl.assets import cache_dir, find_model
from promptrl.models import Generation, GenerationRequest, ModelSettings, ServerSettings, code_request
from promptrl.models.causal import CausalModel
from promptrl.models.server import ServerModel
from promptrl.tasks import load_benchmark

LLAMA_SERVER = """
import sys, time, xllamacpp as x
parameters = x.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_parallel = int(sys.argv[2])
parameters.n_ctx = 1024 * int(sys.argv[2])
parameters.hostnames, parameters.port = ["127.0.0.1"], 0
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = int(sys.argv[3])
parameters.warmup = False
server = x.Server(parameters)
print(server.listening_address, flush=True)
while True:
    time.sleep(1)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of writing the answers: seconds for all of them and tokens written."""

    name: str
    seconds: float
    answers: int
    tokens_out: int

    @property
    def per_second(self) -> float:
        return self.answers / self.seconds


def measure(name: str, requests: Sequence[GenerationRequest], run: Callable[[], list[Generation]]) -> Measured:
    started = time.perf_counter()
    answers = run()
    seconds = time.perf_counter() - started
    measured = Measured(name, seconds, len(requests), sum(answer.tokens_out for answer in answers))
    print(f"{name:34} {measured.per_second:7.3f} answers/s  {measured.tokens_out / seconds:7.1f} tokens/s", flush=True)
    return measured


def plain_generate(
    model: CausalModel, requests: Sequence[GenerationRequest], batch_size: int, dtype: torch.dtype
) -> Callable[[], list[Generation]]:
    """The library's own `generate` with the same prompts and stops; the model is loaded before the clock starts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model.folder, padding_side="left")
    plain: Any = AutoModelForCausalLM.from_pretrained(model.folder, dtype=dtype)
    plain.eval()
    prompter = model.load().prompter

    def run() -> list[Generation]:
        answers = []
        for start in range(0, len(requests), batch_size):
            some = requests[start : start + batch_size]
            texts = [prompter.prompt_text(request) for request in some]
            encoded = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            width = encoded["input_ids"].shape[1]
            with torch.inference_mode():
                written = plain.generate(
                    **encoded,
                    max_new_tokens=some[0].max_new_tokens,
                    do_sample=False,
                    stop_strings=list(some[0].stop),
                    tokenizer=tokenizer,
                    pad_token_id=tokenizer.pad_token_id,
                )
            for row, mask in zip(written, encoded["attention_mask"], strict=True):
                count = int((row[width:] != tokenizer.pad_token_id).sum())
                text = tokenizer.decode(row[width:], skip_special_tokens=True)
                answers.append(Generation(text, int(mask.sum()), count, "stop"))
        return answers

    return run


def own_loop(settings: ModelSettings, requests: Sequence[GenerationRequest], name: str) -> Measured:
    model = CausalModel(settings, cache_dir=cache_dir())
    model.load()
    measured = measure(name, requests, lambda: model.generate(requests))
    gc.collect()
    return measured


def llama_server(
    python: str, gguf: Path, requests: Sequence[GenerationRequest], slots: int, threads: int, prompter: Any
) -> Measured:
    """llama.cpp's server on the same texts, sent as completions so that the prompts are the same to the letter."""
    command = [python, "-c", LLAMA_SERVER, str(gguf), str(slots), str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            server = ServerSettings(base_url=f"{address}/v1", model="m", api="completions", concurrency=slots)
            model = ServerModel(ModelSettings(family="server", server=server))
            texts = [replace(ask, user=prompter.prompt_text(ask), prefill="", system=None) for ask in requests]
            model.generate([replace(texts[0], max_new_tokens=1)])
            return measure(f"llama.cpp server, {slots} slots", requests, lambda: model.generate(texts))
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16, help="how many HumanEval prompts (default 16)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=160, help="longest answer (default 160)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--request", choices=["script", "terse"], default="terse")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--one-dtype", default="auto", help="dtype of the library's own generate")
    parser.add_argument("--only", nargs="*", help="one, generate, loop, no-prefix, no-refill, int8, redraw, llama")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that can import xllamacpp")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = ModelSettings(name=arguments.model, request=arguments.request, batch_size=arguments.batch_size)
    tasks = list(load_benchmark("humaneval").tasks)[: arguments.prompts]
    requests = [
        code_request(settings, f"{task.instruction}\n\n{task.contract}".strip(), max_new_tokens=arguments.tokens)
        for task in tasks
    ]
    wanted = set(arguments.only or ["one", "generate", "loop", "no-prefix", "no-refill", "int8", "redraw", "llama"])
    results: list[Measured] = []
    base = CausalModel(settings, cache_dir=cache_dir())
    dtype = base.dtype if arguments.one_dtype == "auto" else getattr(torch, arguments.one_dtype)
    if "one" in wanted:
        results.append(measure("generate, one at a time", requests, plain_generate(base, requests, 1, dtype)))
    if "generate" in wanted:
        run = plain_generate(base, requests, arguments.batch_size, dtype)
        results.append(measure("generate, batched", requests, run))
    del base
    gc.collect()
    if "loop" in wanted:
        results.append(own_loop(settings, requests, "decode loop"))
    if "no-prefix" in wanted:
        without = settings.model_copy(update={"prompt_memory_mb": 0})
        results.append(own_loop(without, requests, "decode loop, no shared prefix"))
    if "no-refill" in wanted:
        half = settings.model_copy(update={"batch_size": max(1, arguments.batch_size // 4)})
        results.append(own_loop(half, requests, f"decode loop, {half.batch_size} rows, refilled"))
    if "int8" in wanted:
        small = settings.model_copy(update={"quantization": "int8"})
        results.append(own_loop(small, requests, "decode loop, int8"))
    if "redraw" in wanted:
        model = CausalModel(settings.model_copy(update={"quantization": "int8"}), cache_dir=cache_dir())
        model.generate([replace(request, max_new_tokens=1) for request in requests])
        name = "decode loop, int8, prompts known"
        results.append(measure(name, requests, lambda: model.generate(requests)))
    if "llama" in wanted:
        gguf, prompter = find_model(arguments.model), CausalModel(settings, cache_dir=cache_dir()).load().prompter
        for slots in (1, 8):
            try:
                results.append(llama_server(arguments.llama_python, gguf, requests, slots, arguments.threads, prompter))
            except Exception as error:
                print(f"llama.cpp server, {slots} slots: left out ({error})")
    report: dict[str, Any] = {
        "prompts": len(requests),
        "batch_size": arguments.batch_size,
        "max_new_tokens": arguments.tokens,
        "threads": arguments.threads,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "answers_per_second": {result.name: round(result.per_second, 4) for result in results},
    }
    if results:
        first = results[0]
        report["ratio_to"] = first.name
        report["ratios"] = {result.name: round(result.per_second / first.per_second, 2) for result in results}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
