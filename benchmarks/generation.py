"""How fast answers are written, each way measured in one run on the same prompts, with the same stop rule.

    python benchmarks/generation.py                                   every way, 64 prompts of MBPP+
    python benchmarks/generation.py --only one-auto loop-auto int8    some of them
    python benchmarks/generation.py --prompts 16 --at-most one-bfloat16=4
    python benchmarks/generation.py --llama-python PATH               a Python that can import xllamacpp

Answers are greedy, end at the closing fence and have at most `--tokens` tokens. Loading a model, and one short answer
to another prompt, come before each clock starts. `auto` is the precision that the package picks for this machine where
nothing is quantised. The ways that take one means away do so from the full loop in `--means` precision. The last line
is one JSON object; its ratios compare answers per second.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptrl.errors import PromptRLError

if TYPE_CHECKING:
    from promptrl.models import Generation, GenerationRequest, ModelSettings
    from promptrl.models.causal import CausalModel

WAYS = {
    "one-bfloat16": "the library's generate, one prompt at a time, bfloat16",
    "one-auto": "the library's generate, one prompt at a time",
    "generate-auto": "the library's generate, batched",
    "generate-bfloat16": "the library's generate, batched, bfloat16",
    "loop-auto": "decode loop",
    "loop-bfloat16": "decode loop, bfloat16",
    "int8": "decode loop, int8",
    "means": "decode loop with all its means",
    "no-prefix": "... without sharing what prompts begin with",
    "refill-singly": "... each free place is filled at once, prompts being read one by one",
    "no-refill": "... the next batch starts when this one has ended",
    "no-leave": "... finished rows are computed to the end of their batch",
    "no-pack": "... each prompt read alone",
    "no-sort": "... prompts in the order they came",
    "no-means": "... without any of these",
    "drawn": "... drawn at temperature 0.8",
    "known": "... prompts read before",
    "duplicates-once": "... each prompt twice, answered once",
    "duplicates-apart": "... each prompt twice, answered twice",
    "llama": "llama.cpp's server, by number of slots",
    "server": "client of that server with all slots, by requests in flight",
    "minilm": "MiniLM on the same prompts",
}
LEFT_OUT = ("generate-bfloat16", "loop-bfloat16")  # unless asked for: where bfloat16 is emulated they take very long

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


@contextmanager
def llama_server(python: str, gguf: Path, slots: int, threads: int) -> Iterator[str]:
    """llama.cpp's server, 1024 tokens per slot, as long as the block runs; its address up to and including /v1.

    Raises:
        RuntimeError: If it does not start.
    """
    command = [python, "-c", LLAMA_SERVER, str(gguf), str(slots), str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError(f"the server did not start; can {python} import xllamacpp?")
            yield f"{address}/v1"
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of writing the answers: seconds for all of them, tokens written, and the answers' texts."""

    name: str
    seconds: float
    answers: int
    tokens_in: int
    tokens_out: int
    texts: tuple[str, ...] = ()
    dtype: str = ""

    @property
    def per_second(self) -> float:
        return self.answers / self.seconds

    def report(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "seconds": round(self.seconds, 3),
            "answers_per_second": round(self.per_second, 4),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "tokens_out_per_second": round(self.tokens_out / self.seconds, 1),
        } | ({"dtype": self.dtype} if self.dtype else {})


class Bench:
    """The prompts, the model that is loaded at the moment, and what was measured so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch

        from promptrl.models import ModelSettings

        torch.set_num_threads(arguments.threads or torch.get_num_threads())
        self.threads = torch.get_num_threads()
        self.arguments = arguments
        self.settings = ModelSettings(
            name=arguments.model, request=arguments.request, batch_size=arguments.batch_size, device="cpu"
        )
        self.limits = dict(arguments.at_most)
        self.results: dict[str, Measured] = {}
        self.problems: dict[str, str] = {}
        self._loaded: tuple[ModelSettings, CausalModel] | None = None
        self.requests = self._requests()
        self.auto = str(self._unloaded(self.settings).dtype).removeprefix("torch.")

    def _requests(self) -> list[GenerationRequest]:
        from promptrl.models import code_request
        from promptrl.refinement.prompt import Prompt
        from promptrl.tasks import load_benchmark
        from promptrl.tasks.mbpp import TEST_IDS, mbpp_number

        tasks = list(load_benchmark(self.arguments.benchmark).tasks)
        if self.arguments.benchmark.startswith("mbpp"):
            tasks = [task for task in tasks if mbpp_number(task.task_id) in TEST_IDS]
        return [
            code_request(
                self.settings, Prompt.from_task(task).render(), stub=task.stub, max_new_tokens=self.arguments.tokens
            )
            for task in tasks[: self.arguments.prompts]
        ]

    def asked(self, way: str) -> list[GenerationRequest]:
        """The prompts for a way: all, or as many as `--at-most` allows, evenly spread."""
        count = min(len(self.requests), self.limits.get(way, len(self.requests)))
        return [self.requests[number * len(self.requests) // count] for number in range(count)]

    def warm_up(self) -> GenerationRequest:
        """A short answer to none of the prompts."""
        return replace(self.requests[0], user="Say hello.", max_new_tokens=4)

    def measure(
        self, name: str, asked: Sequence[GenerationRequest], run: Callable[[], list[Generation]], dtype: str = ""
    ) -> None:
        from promptrl.models.formats import cut_at_stop

        started = time.perf_counter()
        answers = run()
        seconds = time.perf_counter() - started
        texts = tuple(cut_at_stop(answer.text, ask.stop)[0] for answer, ask in zip(answers, asked, strict=True))
        tokens_in, tokens_out = (sum(getattr(a, f"tokens_{way}") for a in answers) for way in ("in", "out"))
        self.results[name] = measured = Measured(name, seconds, len(asked), tokens_in, tokens_out, texts, dtype)
        print(
            f"{name:18} {measured.per_second:7.3f} answers/s {tokens_out / seconds:7.1f} tokens/s"
            f" {len(asked):4} answers {dtype:9} {WAYS.get(name, '')}",
            flush=True,
        )

    def _unloaded(self, settings: ModelSettings) -> CausalModel:
        from promptrl.assets import cache_dir
        from promptrl.models.causal import CausalModel

        return CausalModel(settings, cache_dir=cache_dir())

    def model(self, quantization: str = "none", dtype: str = "auto") -> CausalModel:
        """The model, loaded and warm, with nothing remembered; only the last one asked for is kept in memory."""
        from promptrl.models.decoding import LoopOptions

        settings = self.settings.model_copy(update={"quantization": quantization, "dtype": dtype})
        if self._loaded is None or self._loaded[0] != settings:
            self.free()
            self._loaded = (settings, self._unloaded(settings))
        model = self._loaded[1]
        decoder = model.load().decoder
        decoder.options, decoder.batch_size = LoopOptions(), settings.batch_size
        decoder.memory.limit_bytes = settings.prompt_memory_mb * 2**20
        model.generate([self.warm_up()])
        decoder.memory.clear()
        return model

    def free(self) -> None:
        self._loaded = None
        gc.collect()

    def plain(self, way: str, batch_size: int, dtype: str) -> None:
        """The library's own `generate` with the same prompts and stops."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from promptrl.models import Generation
        from promptrl.models.backbone import find_end_ids
        from promptrl.models.weights import quiet_transformers

        self.free()
        folder = self._unloaded(self.settings).folder
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        with quiet_transformers():
            plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        plain.eval()
        prompter, end_ids = self.prompter(), sorted(find_end_ids(plain, tokenizer))

        def run(asked: Sequence[GenerationRequest]) -> list[Generation]:
            answers = []
            for start in range(0, len(asked), batch_size):
                some = asked[start : start + batch_size]
                texts = [prompter.prompt_text(request) for request in some]
                encoded = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
                width = encoded["input_ids"].shape[1]
                with torch.inference_mode():
                    written = plain.generate(
                        **encoded,
                        max_new_tokens=some[0].max_new_tokens,
                        do_sample=False,
                        eos_token_id=end_ids,
                        stop_strings=list(some[0].stop),
                        tokenizer=tokenizer,
                        pad_token_id=tokenizer.pad_token_id,
                    )
                for row, mask in zip(written, encoded["attention_mask"], strict=True):
                    count = int((row[width:] != tokenizer.pad_token_id).sum())
                    text = tokenizer.decode(row[width:], skip_special_tokens=True)
                    answers.append(Generation(text, int(mask.sum()), count, "stop"))
            return answers

        run([self.warm_up()])
        asked = self.asked(way)
        self.measure(way, asked, lambda: run(asked), dtype)

    def prompter(self) -> Any:
        """The model's own format without the model."""
        from transformers import AutoTokenizer

        from promptrl.models.prompting import Prompter

        model = self._unloaded(self.settings)
        return Prompter(AutoTokenizer.from_pretrained(model.folder), self.settings, model.style, 32768)

    def loop(self, way: str, quantization: str, dtype: str) -> None:
        model, asked = self.model(quantization, dtype), self.asked(way)
        name = quantization if quantization != "none" else str(model.dtype).removeprefix("torch.")
        self.measure(way, asked, lambda: model.generate(asked), name)

    def means(self, way: str) -> None:
        """The loop with one of its means taken away, or given prompts that show what another is worth."""
        precision = self.arguments.means
        model = self.model("int8" if precision == "int8" else "none", "auto")
        decoder, asked = model.load().decoder, self.asked(way)
        if way in ("no-refill", "no-leave", "no-sort", "no-pack"):
            decoder.options = replace(decoder.options, **{way.removeprefix("no-"): False})
        elif way == "refill-singly":
            decoder.options = replace(decoder.options, refill_at=1)
        elif way == "no-means":
            decoder.options = replace(decoder.options, sort=False, leave=False, refill=False, pack=False)
        elif way == "drawn":
            asked = [replace(request, temperature=0.8, top_p=0.95) for request in asked]
        elif way == "known":
            model.generate([replace(request, max_new_tokens=1) for request in asked])
        elif way.startswith("duplicates"):
            asked = asked[: max(1, len(asked) // 2)] * 2
        if way in ("no-prefix", "no-means"):
            decoder.memory.limit_bytes = 0
        run = self._apart(model, asked) if way == "duplicates-apart" else lambda: model.generate(asked)
        self.measure(way, asked, run, precision if precision == "int8" else self.auto)

    def _apart(self, model: CausalModel, asked: Sequence[GenerationRequest]) -> Callable[[], list[Generation]]:
        """The loop without finding out first that some requests are the same."""
        from promptrl.models import Generation

        loaded = model.load()

        def run() -> list[Generation]:
            jobs = [loaded.prompter.make_jobs([request])[0][0] for request in asked]
            loaded.decoder.run(jobs)
            return [
                Generation(loaded.prompter.answer(job, request), len(job.tokens), len(job.written), job.finish_reason)
                for job, request in zip(jobs, asked, strict=True)
            ]

        return run

    def llama(self) -> None:
        """llama.cpp's server with as many requests in flight as it has slots."""
        for slots in self.arguments.slots:
            self._serve("llama", f"llama-{slots}", slots, slots)

    def server(self) -> None:
        """The client with fewer and more requests in flight than a server of many slots takes."""
        for concurrency in self.arguments.concurrency:
            self._serve("server", f"server-{concurrency}", max(self.arguments.slots), concurrency)

    def _serve(self, way: str, name: str, slots: int, concurrency: int) -> None:
        """A server of its own for each measurement, as a server remembers the prompts it has read."""
        from promptrl.assets import find_model
        from promptrl.models import ModelSettings, ServerSettings
        from promptrl.models.server import ServerModel

        self.free()
        prompter, asked = self.prompter(), self.asked(way)
        with llama_server(
            self.arguments.llama_python, find_model(self.arguments.model), slots, self.threads
        ) as base_url:
            # As completions, so that the prompts are the same to the letter.
            server = ServerSettings(base_url=base_url, model="m", api="completions", concurrency=concurrency)
            model = ServerModel(ModelSettings(family="server", server=server))
            texts = [
                replace(request, user=prompter.prompt_text(request), prefill="", system=None)
                for request in (self.warm_up(), *asked)
            ]
            model.generate(texts[:1])
            self.measure(name, asked, lambda: model.generate(texts[1:]), "q4_k_m")

    def minilm(self) -> None:
        """The encoder on the texts that the model was asked with."""
        from promptrl.assets import find_model
        from promptrl.models import Generation, PromptEncoder

        self.free()
        encoder, asked = PromptEncoder(find_model("minilm")), self.asked("minilm")
        encoder.encode(["Say hello."])

        def run() -> list[Generation]:
            encoder.encode([request.user for request in asked])
            return [Generation("", 0, 0, "stop") for _ in asked]

        self.measure("minilm", asked, run, "float32")

    def run(self, way: str) -> None:
        """Measure one of `WAYS`."""
        if way in ("llama", "server", "minilm"):
            getattr(self, way)()
        elif way in ("one-auto", "one-bfloat16", "generate-auto", "generate-bfloat16"):
            kind, dtype = way.split("-")
            rows = 1 if kind == "one" else self.arguments.batch_size
            self.plain(way, rows, self.auto if dtype == "auto" else dtype)
        elif way.startswith("loop-"):
            self.loop(way, "none", way.removeprefix("loop-"))
        elif way == "int8":
            self.loop(way, "int8", "auto")
        else:
            self.means(way)

    def report(self) -> dict[str, Any]:
        results, arguments = self.results, self.arguments
        first = next(iter(results.values()), None)
        report: dict[str, Any] = {
            "model": arguments.model,
            "benchmark": arguments.benchmark,
            "request": arguments.request,
            "prompts": len(self.requests),
            "batch_size": arguments.batch_size,
            "max_new_tokens": arguments.tokens,
            "auto": self.auto,
            "means": arguments.means,
            "threads": self.threads,
            "machine": machine(),
            "versions": versions(),
            "ways": {name: result.report() for name, result in results.items()},
        }
        if first is not None and first.answers:
            written = [result for result in results.values() if result.tokens_in and result.tokens_out]
            if written:
                report["mean_tokens_in"] = round(written[0].tokens_in / written[0].answers, 1)
                report["mean_tokens_out"] = round(written[0].tokens_out / written[0].answers, 1)
        for base in ("one-bfloat16", "one-auto", "generate-auto", "loop-auto", "means"):
            if base in results:
                report.setdefault("ratios_to", {})[base] = {
                    name: round(result.per_second / results[base].per_second, 3)
                    for name, result in results.items()
                    if name != "minilm"
                }
        for base in ("one-auto", "loop-auto", "means"):
            if base in results:
                report.setdefault("same_text_as", {})[base] = {
                    name: same(result, results[base])
                    for name, result in results.items()
                    if name not in ("minilm", "drawn") and len(result.texts) == len(results[base].texts)
                }
        if "minilm" in results:
            encoding = 1 / results["minilm"].per_second
            report["minilm_share_of_step"] = {
                name: round(encoding / (encoding + 1 / results[name].per_second), 5)
                for name in ("loop-auto", "int8")
                if name in results
            }
        servers = {name: result for name, result in results.items() if name.startswith("llama-")}
        if servers:
            report["best_server"] = max(servers, key=lambda name: servers[name].per_second)
        if self.problems:
            report["left_out"] = self.problems
        return report


def same(first: Measured, second: Measured) -> float:
    """Share of answers with the same text."""
    pairs = list(zip(first.texts, second.texts, strict=True))
    return round(sum(one == other for one, other in pairs) / max(1, len(pairs)), 4)


def machine() -> dict[str, Any]:
    from promptrl.models.weights import cpu_multiplies_bfloat16

    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model n")]
        name = names[0] if names else name
    return {"cpu": name, "bfloat16_in_hardware": cpu_multiplies_bfloat16(), "system": platform.platform(terse=True)}


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in ("promptrl", "torch", "transformers")
    }


def limit(text: str) -> tuple[str, int]:
    way, _, count = text.partition("=")
    if way not in WAYS or not count.isdigit() or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not WAY=N with one of {', '.join(WAYS)}")
    return way, int(count)


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:18} {what}" for name, what in WAYS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nWays:\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(WAYS), metavar="WAY", help="just these ways, in this order")
    parser.add_argument("--without", nargs="+", choices=list(WAYS), metavar="WAY", default=[], help="all but these")
    parser.add_argument("--benchmark", default="mbpp_plus", help="whose prompts (default mbpp_plus, test ids)")
    parser.add_argument("--prompts", type=positive, default=64, help="how many prompts (default 64)")
    parser.add_argument(
        "--at-most", action="append", type=limit, metavar="WAY=N", default=[], help="N of the prompts, spread, for WAY"
    )
    parser.add_argument("--batch-size", type=positive, default=32, help="rows at once (default 32)")
    parser.add_argument("--tokens", type=positive, default=256, help="longest answer (default 256)")
    parser.add_argument("--threads", type=positive, help="one per core where unset")
    parser.add_argument("--request", choices=["script", "terse"], default="terse")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--means", choices=["int8", "auto"], default="int8", help="precision of the loop less a means")
    parser.add_argument("--slots", type=positive, nargs="+", default=[1, 4, 8, 16], help="of llama.cpp's server")
    parser.add_argument("--concurrency", type=positive, nargs="+", default=[1, 2, 4, 8, 16], help="of the client")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that can import xllamacpp")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse()
    ways = arguments.only or [way for way in WAYS if way not in (*LEFT_OUT, *arguments.without)]
    bench = Bench(arguments)
    if bench.auto == "bfloat16":  # both names would mean the same
        ways = [way for way in ways if not way.endswith("-bfloat16")]
    print(
        f"{len(bench.requests)} prompts of {arguments.benchmark}, {bench.threads} threads, auto is {bench.auto}",
        flush=True,
    )
    for way in ways:
        try:
            bench.run(way)
        except (PromptRLError, RuntimeError, OSError) as error:  # one way that cannot be run here costs no other
            bench.problems[way] = " ".join(str(error).split())[:300]
            print(f"{way:18} left out: {bench.problems[way]}", flush=True)
    print(json.dumps(bench.report()))


if __name__ == "__main__":
    main()
