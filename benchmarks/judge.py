"""How fast the judge is, next to EvalPlus's own evaluator, and whether it leaves anything behind.

    python benchmarks/judge.py [--cases DIR] [--evalplus-python PATH] [--workers 2] [--leak-candidates 10000]

DIR holds `samples_<benchmark>_<part>.jsonl` files, optionally with `verdicts_*.jsonl` beside them. Both evaluators get
the same samples, base and plus tests, the same number of workers, and stop a suite at its first failing test, as
EvalPlus does by itself; expected outputs are computed before the clock starts. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from promptrl.execution import Candidate, Judge, SandboxSettings, Status, resolve_expected
from promptrl.tasks import Task, TestSuite, load_benchmark
from promptrl.tasks.task import CallTest

EVALPLUS_DRIVER = """
import json, sys, time
from concurrent.futures import ProcessPoolExecutor

def main():
    request = json.load(open(sys.argv[1]))
    from evalplus import evaluate as ev
    from evalplus.data import get_human_eval_plus, get_mbpp_plus
    name = request["name"]
    problems = get_human_eval_plus() if name == "humaneval" else get_mbpp_plus()
    wanted = {s["task_id"] for s in request["samples"]}
    problems = {k: v for k, v in problems.items() if k in wanted}
    ev.CACHE_DIR = request["cache"]
    only_present = [] if name == "humaneval" else ev.MBPP_OUTPUT_NOT_NONE_TASKS
    expected = ev.get_groundtruth(problems, "benchmark-" + name, only_present)
    start = time.perf_counter()
    with ProcessPoolExecutor(max_workers=request["workers"]) as pool:
        futures = [
            pool.submit(ev.check_correctness, name, i, problems[s["task_id"]], s["solution"], expected[s["task_id"]],
                        False, True, i)
            for i, s in enumerate(request["samples"])
        ]
        results = [f.result() for f in futures]
    seconds = time.perf_counter() - start
    verdicts = [[r["base"][0] == "pass", r["plus"][0] == "pass"] for r in results]
    json.dump({"seconds": seconds, "verdicts": verdicts}, open(sys.argv[2], "w"))

if __name__ == "__main__":
    main()
"""
EVALPLUS_NAMES = {"humaneval_plus": "humaneval", "mbpp_plus": "mbpp"}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_cases(folder: Path) -> dict[str, list[tuple[dict[str, Any], dict[str, Any] | None]]]:
    """Benchmark name → samples, each with the verdict given beside it."""
    cases: dict[str, list[tuple[dict[str, Any], dict[str, Any] | None]]] = {}
    for path in sorted(folder.glob("samples_*.jsonl")):
        name = path.stem.removeprefix("samples_").rpartition("_")[0]
        samples = read_lines(path)
        beside = path.with_name(path.name.replace("samples_", "verdicts_"))
        given: list[Any] = read_lines(beside) if beside.exists() else [None] * len(samples)
        cases.setdefault(name, []).extend(zip(samples, given, strict=True))
    return cases


def suites(task: Task) -> list[TestSuite]:
    return [task.base] if task.plus is None else [task.base, task.plus]


def run_ours(tasks: dict[str, Task], samples: list[dict[str, Any]], judge: Judge) -> tuple[float, list[list[bool]]]:
    candidates = [
        Candidate(sample["solution"], tasks[sample["task_id"]], suite)
        for sample in samples
        for suite in suites(tasks[sample["task_id"]])
    ]
    start = time.perf_counter()
    found = judge.judge(candidates)
    seconds = time.perf_counter() - start
    passed = iter(verdict.status is Status.PASSED for verdict in found)
    # A task without plus tests passes them, as in EvalPlus.
    return seconds, [
        [next(passed), next(passed) if tasks[sample["task_id"]].plus is not None else True] for sample in samples
    ]


def run_evalplus(
    name: str, samples: list[dict[str, Any]], workers: int, python: str
) -> tuple[float, list[list[bool]]] | None:
    """EvalPlus's seconds and verdicts; None where it is not installed."""
    probe = subprocess.run([python, "-c", "import evalplus"], capture_output=True, check=False)
    if probe.returncode != 0:
        print(f"EvalPlus skipped: {python} has no package 'evalplus' (pip install 'promptrl[benchmarks]')")
        return None
    with tempfile.TemporaryDirectory() as folder:
        driver, request, answer = (Path(folder) / part for part in ("driver.py", "request.json", "answer.json"))
        driver.write_text(EVALPLUS_DRIVER)
        request.write_text(
            json.dumps({"name": EVALPLUS_NAMES[name], "samples": samples, "workers": workers, "cache": folder})
        )
        environment = dict(os.environ)
        data = Path(environment.get("PROMPTRL_DATA_DIR", ""))
        for variable, file in (
            ("HUMANEVAL_OVERRIDE_PATH", "HumanEvalPlus-v0.1.10.jsonl.gz"),
            ("MBPP_OVERRIDE_PATH", "MbppPlus-v0.2.0.jsonl.gz"),
        ):
            if (data / file).is_file():
                environment.setdefault(variable, str(data / file))
        done = subprocess.run(
            [python, str(driver), str(request), str(answer)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not answer.exists():
            print(f"EvalPlus skipped: it failed: {done.stderr.strip().splitlines()[-1:]}")
            return None
        result = json.loads(answer.read_text())
        return result["seconds"], result["verdicts"]


def trivial_task() -> Task:
    tests = TestSuite("base", tuple(CallTest((n, 1), n + 1, reference_seconds=0.0) for n in range(3)))
    return Task("Trivial/1", "own", "Add.", "", tests, entry_point="add")


def median_trivial(judge: Judge, rounds: int = 200) -> float:
    """Milliseconds from handing over one right candidate to its verdict."""
    task = trivial_task()
    candidate = Candidate("def add(a, b):\n    return a + b", task, task.base)
    judge.judge([candidate] * 4)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        judge.judge([candidate])
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def traces() -> dict[str, int]:
    """Descendants, descriptors, resident kB of this process and of its descendants, and sandbox folders in /tmp."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                resident[int(entry.name)] = 4 * int((entry / "statm").read_text().split()[1])
            except OSError:
                continue
    own = {os.getpid()}
    for _ in range(6):
        own |= {pid for pid, parent in parents.items() if parent in own}
    return {
        "processes": len(own) - 1,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "temp_entries": len(list(Path(tempfile.gettempdir()).glob("promptrl-sandbox-*"))),
        "parent_mb": resident.get(os.getpid(), 0) // 1024,
        "sandboxes_mb": sum(resident.get(pid, 0) for pid in own if pid != os.getpid()) // 1024,
    }


def leak_check(judge: Judge, number: int) -> dict[str, Any]:
    """What is there before and after `number` candidates, a fifth of which leave something behind on purpose."""
    task = trivial_task()
    right = "def add(a, b):\n    return a + b"
    leaving = (
        "import subprocess, threading, time\nopen('left', 'w').write('x' * 1000)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\nsubprocess.Popen(['sleep', '600'])\n" + right
    )
    candidates = [Candidate(leaving if n % 5 == 0 else right, task, task.base) for n in range(number)]
    judge.judge(candidates[: 20 * judge.settings.workers])
    before = traces()
    start = time.perf_counter()
    found = Counter(str(verdict.status) for verdict in judge.judge(candidates))
    seconds = time.perf_counter() - start
    after = traces()
    kept = all(after[key] == before[key] for key in ("processes", "descriptors", "temp_entries"))
    grown = after["parent_mb"] + after["sandboxes_mb"] - before["parent_mb"] - before["sandboxes_mb"]
    return {
        "candidates": number,
        "seconds": round(seconds, 1),
        "statuses": dict(found),
        "before": before,
        "after": after,
        "nothing_left": kept,
        "grown_mb": grown,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases",
        type=Path,
        default=os.environ.get("PROMPTRL_CASES_DIR"),
        help="folder with samples_<benchmark>_<part>.jsonl; PROMPTRL_CASES_DIR where unset",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "promptrl", help="for expected outputs")
    parser.add_argument("--evalplus-python", default=sys.executable, help="interpreter that has evalplus 0.3.1")
    parser.add_argument("--leak-candidates", type=int, default=10_000, help="0 leaves the leak check out")
    options = parser.parse_args()

    result: dict[str, Any] = {"python": platform.python_version(), "workers": options.workers, "benchmarks": {}}
    strict = SandboxSettings(workers=options.workers, forgiving=False, stop_when_decided=True)
    ours_total = theirs_total = 0.0
    if options.cases is None:
        print("no samples (--cases, or PROMPTRL_CASES_DIR): only the trivial candidate and what is left are measured")
    for name, cases in (read_cases(options.cases) if options.cases else {}).items():
        benchmark = load_benchmark(name)
        samples = [sample for sample, _ in cases]
        wanted = {sample["task_id"] for sample in samples}
        tasks = resolve_expected(
            [task for task in benchmark.tasks if task.task_id in wanted],
            data_sha256=benchmark.sha256,
            cache_dir=options.cache,
            settings=strict,
        )
        by_id = {task.task_id: task for task in tasks}
        with Judge(strict) as judge:
            seconds, verdicts = run_ours(by_id, samples, judge)
        with Judge(strict.model_copy(update={"stop_when_decided": False})) as judge:
            seconds_all, verdicts_all = run_ours(by_id, samples, judge)
        entry: dict[str, Any] = {
            "samples": len(samples),
            "seconds": round(seconds, 2),
            "seconds_every_outcome": round(seconds_all, 2),
            "same_with_every_outcome": verdicts == verdicts_all,
        }
        given = [verdict for _, verdict in cases]
        if all(given):
            expected = [[v["base_status"] == "pass", v["plus_status"] == "pass"] for v in given if v]
            entry["disagreements_with_given"] = [
                samples[n]["task_id"] for n in range(len(samples)) if verdicts[n] != expected[n]
            ]
        theirs = (
            run_evalplus(name, samples, options.workers, options.evalplus_python) if name in EVALPLUS_NAMES else None
        )
        if theirs is not None:
            entry["evalplus_seconds"] = round(theirs[0], 2)
            entry["times_faster"] = round(theirs[0] / seconds, 2)
            entry["disagreements_with_evalplus"] = [
                samples[n]["task_id"] for n in range(len(samples)) if verdicts[n] != theirs[1][n]
            ]
            ours_total += seconds
            theirs_total += theirs[0]
        result["benchmarks"][name] = entry
        print(f"{name}: {json.dumps(entry)}", flush=True)
    if theirs_total:
        result["times_faster"] = round(theirs_total / ours_total, 2)
    with Judge(SandboxSettings(workers=options.workers)) as judge:
        result["trivial_median_ms"] = round(median_trivial(judge), 2)
        print(f"trivial candidate: median {result['trivial_median_ms']} ms", flush=True)
        if options.leak_candidates:
            result["leak_check"] = leak_check(judge, options.leak_candidates)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
