"""`promptrl check`: its output line by line, its errors, and its agreement with EvalPlus."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from promptrl.assets import cache_dir
from promptrl.cli import app, run
from promptrl.errors import TaskError
from promptrl.evaluation.check import CheckSummary, check_samples, check_settings, run_check
from promptrl.execution import Candidate, Judge, Status, resolve_expected
from promptrl.tasks import BENCHMARKS, Benchmark, load_benchmark

MBPP_ROWS = [
    {
        "task_id": 1,
        "text": "Add two numbers.",
        "code": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
        "challenge_test_list": ["assert add(-1, 1) == 0", "assert add(2, 2) == 4"],
    },
    {
        "task_id": 2,
        "text": "Halve a number.",
        "code": "def half(a):\n    return a / 2",
        "test_list": ["assert half(3) == 1.5"],
        "challenge_test_list": [],
    },
]
PLUS_ROW = {
    "task_id": "Mbpp/793",
    "prompt": '"""\nFind the last position.\nassert last([1], 1) == 0\n"""\n',
    "entry_point": "last",
    "canonical_solution": "def last(xs, x):\n    return len(xs) - xs[::-1].index(x) - 1\n",
    "base_input": [[[1, 2], 2], [[1, 1], 1]],
    "plus_input": {},
    "atol": 0,
}
ADD = "def add(a, b):\n    return a + b\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small made-up benchmarks leave nothing in the user's cache; the real ones keep theirs between runs.
    if "PROMPTRL_CACHE_DIR" not in os.environ:
        monkeypatch.setenv("PROMPTRL_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


@pytest.fixture
def mbpp(tmp_path: Path) -> Benchmark:
    return load_benchmark("mbpp", path=write(tmp_path / "mbpp.jsonl", MBPP_ROWS))


def judge_rows(benchmark: Benchmark, path: Path, rows: list[Any]) -> tuple[list[dict[str, Any]], CheckSummary]:
    output = io.StringIO()
    summary = check_samples(benchmark, write(path, rows), output=output, settings=check_settings(workers=2))
    return [json.loads(line) for line in output.getvalue().splitlines()], summary


def test_one_line_per_sample_in_the_order_given(mbpp: Benchmark, tmp_path: Path) -> None:
    rows = [
        {"task_id": "Mbpp/2", "solution": "def half(a):\n    return a / 2"},
        {"task_id": "Mbpp/1", "solution": "def add(a, b):\n    return abs(a) + b\n"},
        {"task_id": 1, "completion": ADD},
        {"task_id": "1", "solution": "def add(a, b):\n    return 9\n"},
        {"task_id": "Mbpp/1", "solution": "def add(a, b:\n"},
        {"task_id": "Mbpp/1", "solution": "def add(a, b):\n    while True: pass\n"},
    ]
    lines, summary = judge_rows(mbpp, tmp_path / "samples.jsonl", rows)
    assert lines[0] == {
        "task_id": "Mbpp/2",
        "base_status": "pass",
        "plus_status": None,
        "status": "passed",
        "pass_rate": 1.0,
        "tests": {"base": ["passed"], "plus": []},
        "error": None,
    }
    assert lines[1] == {
        "task_id": "Mbpp/1",
        "base_status": "pass",
        "plus_status": "fail",
        "status": "partial",
        "pass_rate": 0.75,
        "tests": {"base": ["passed", "passed"], "plus": ["wrong", "passed"]},
        "error": None,
    }
    assert [line["task_id"] for line in lines] == ["Mbpp/2", "Mbpp/1", "1", "1", "Mbpp/1", "Mbpp/1"]
    assert [line["status"] for line in lines] == ["passed", "partial", "passed", "failed", "error", "timeout"]
    assert "SyntaxError" in lines[4]["error"]
    assert lines[5]["error"]
    assert summary.samples == 6
    assert summary.samples_per_task == (1, 5)
    # Three of five samples of task 1 fail the base tests, one more the plus tests.
    assert summary.base == {"pass@1": pytest.approx((2 / 5 + 1) / 2)}
    assert summary.plus == {"pass@1": pytest.approx((1 / 5 + 1) / 2)}
    assert summary.statuses == {"passed": 2, "partial": 1, "failed": 1, "error": 1, "timeout": 1}


def test_a_task_without_a_sample_counts_as_failed_and_is_named(mbpp: Benchmark, tmp_path: Path) -> None:
    _, summary = judge_rows(mbpp, tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}])
    assert summary.missing == ("Mbpp/2",)
    assert summary.base == {"pass@1": 0.5}


def test_pass_at_10_needs_ten_samples_of_every_sampled_task(mbpp: Benchmark, tmp_path: Path) -> None:
    right, wrong = {"task_id": "Mbpp/1", "solution": ADD}, {"task_id": "Mbpp/1", "solution": "def add(a, b): return 0"}
    _, summary = judge_rows(mbpp, tmp_path / "samples.jsonl", [right, *[wrong] * 9])
    assert summary.base == {"pass@1": pytest.approx(0.05), "pass@10": 0.5}


def test_solutions_are_judged_as_they_are(mbpp: Benchmark, tmp_path: Path) -> None:
    rows = [
        # As for EvalPlus: no imports are supplied, a failing check at the end fails the import, a cut end is an error.
        {"task_id": "Mbpp/1", "solution": "def add(a, b):\n    return math.floor(a + b)\n"},
        {"task_id": "Mbpp/1", "solution": ADD + "assert add(1, 1) == 3\n"},
        {"task_id": "Mbpp/1", "solution": ADD + "print(add(1,"},
        {"task_id": "Mbpp/1", "solution": "class Solution:\n    def add(self, a, b):\n        return a + b\n"},
        # A whole chat answer is no Python: its code is looked for.
        {"task_id": "Mbpp/1", "solution": f"Here it is:\n```python\n{ADD}```\nDone."},
        {"task_id": "Mbpp/1", "solution": "```\nnothing here\n```"},
    ]
    lines, _ = judge_rows(mbpp, tmp_path / "samples.jsonl", rows)
    assert [line["base_status"] for line in lines] == ["fail", "fail", "fail", "fail", "pass", "fail"]
    assert lines[5]["error"].startswith("syntax error: ")


def test_completions_follow_the_prompt(tmp_path: Path) -> None:
    row = {
        "task_id": "HumanEval/0",
        "prompt": 'def add(a: int, b: int) -> int:\n    """Add them."""\n',
        "canonical_solution": "    return a + b\n",
        "entry_point": "add",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n",
    }
    benchmark = load_benchmark("humaneval", path=write(tmp_path / "he.jsonl", [row]))
    rows = [
        {"task_id": "HumanEval/0", "completion": "    return a + b\n"},
        {"task_id": "HumanEval/0", "completion": "    return a or 3\n"},
        {"task_id": "HumanEval/0", "completion": "```python\nreturn a + b\n```"},
    ]
    lines, summary = judge_rows(benchmark, tmp_path / "samples.jsonl", rows)
    assert [line["base_status"] for line in lines] == ["pass", "fail", "pass"]
    assert [line["plus_status"] for line in lines] == [None] * 3
    assert summary.plus is None


def test_a_plus_suite_without_inputs_passes_where_the_code_loads(tmp_path: Path) -> None:
    benchmark = load_benchmark("mbpp_plus", path=write(tmp_path / "plus.jsonl", [PLUS_ROW]))
    rows = [
        {"task_id": "Mbpp/793", "solution": "def last(xs, x):\n    return 0\n"},
        {"task_id": "Mbpp/793", "solution": "def last(xs, x:\n"},
        {"task_id": "Mbpp/793", "solution": "def first(xs, x):\n    return 0\n"},
        {"task_id": "Mbpp/793", "solution": "def last(xs, x):\n    raise ValueError\n"},
    ]
    lines, _ = judge_rows(benchmark, tmp_path / "samples.jsonl", rows)
    assert [line["base_status"] for line in lines] == ["fail"] * 4
    assert [line["plus_status"] for line in lines] == ["pass", "fail", "fail", "pass"]
    assert {tuple(line["tests"]["plus"]) for line in lines} == {()}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{oops", "not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        ('{"solution": "x"}', "key 'task_id' must be text, found NoneType"),
        ('{"task_id": "Mbpp/3", "solution": "x"}', "unknown task id 'Mbpp/3' of mbpp (ids look like 'Mbpp/1')"),
        ('{"task_id": "Mbpp/1"}', "expected key 'solution' or 'completion'"),
        ('{"task_id": "Mbpp/1", "solution": ["x"]}', "key 'solution' must be text, found list"),
    ],
)
def test_a_broken_line_is_one_error_before_anything_is_judged(
    mbpp: Benchmark, tmp_path: Path, line: str, said: str
) -> None:
    path = write(tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}, "", line])
    output = io.StringIO()
    with pytest.raises(TaskError) as caught:
        check_samples(mbpp, path, output=output)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert output.getvalue() == ""


def test_other_unusable_files_are_named(mbpp: Benchmark, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"none\.jsonl: cannot be read: No such file"):
        check_samples(mbpp, tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="holds no samples"):
        check_samples(mbpp, write(tmp_path / "empty.jsonl", ["", "  "]))
    (tmp_path / "latin.jsonl").write_bytes(b'{"task_id": "Mbpp/1"}\n"\xe9"\n')
    with pytest.raises(TaskError, match=r"line [12]: "):
        check_samples(mbpp, tmp_path / "latin.jsonl")


def test_gzipped_samples_and_many_chunks(mbpp: Benchmark, tmp_path: Path) -> None:
    rows = [{"task_id": "Mbpp/2", "solution": f"def half(a):\n    return a / {2 + n % 2}"} for n in range(300)]
    path = tmp_path / "samples.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    output = io.StringIO()
    told: list[tuple[str, int, int]] = []
    summary = check_samples(mbpp, path, output=output, on_progress=lambda *what: told.append(what))
    statuses = [json.loads(line)["base_status"] for line in output.getvalue().splitlines()]
    assert statuses == ["pass", "fail"] * 150
    assert summary.base["pass@100"] == pytest.approx(0.5)
    assert [done for what, done, _ in told if what == "samples"] == [0, 128, 256, 300]


def test_the_command(tmp_path: Path) -> None:
    data = write(tmp_path / "mbpp.jsonl", [*MBPP_ROWS, MBPP_ROWS[0] | {"task_id": 3, "test_list": []}])
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}])
    output = tmp_path / "verdicts.jsonl"
    arguments = ["check", "--benchmark", "mbpp", "--data", str(data), "--samples", str(samples)]
    result = CliRunner().invoke(app, [*arguments, "--output", str(output), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert "pass@1 on base tests: 0.5000 (n = 1, 2 tasks)" in result.stdout
    assert "counted as failed for want of a sample (1): Mbpp/2" in result.stdout
    assert "3: no tests: no assert of test_list calls a function" in result.stdout
    assert json.loads(output.read_text())["base_status"] == "pass"
    result = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(result.stdout)
    assert found["base"] == {"pass@1": 0.5}
    assert found["missing"] == ["Mbpp/2"]
    assert found["left_out"] == [{"task_id": "3", "reason": "no tests: no assert of test_list calls a function"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--benchmark", "humanevil"], "unknown benchmark 'humanevil'; allowed are humaneval"),
        (["--benchmark", "custom"], "benchmark 'custom' needs a YAML or JSON-lines file with your tasks: --data FILE"),
        (["--benchmark", "mbpp", "--isolation", "none"], "--isolation 'none' is not allowed"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}])
    command = ["check", "--samples", str(samples), *arguments]
    with pytest.raises(SystemExit) as caught:
        run(lambda: app(command, standalone_mode=False))
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("promptrl: ")
    assert said in " ".join(error.split())
    assert "Traceback" not in error


@pytest.mark.parametrize("which", ["samples", "data", "link to the data"])
def test_verdicts_are_not_written_over_what_they_are_made_from(mbpp: Benchmark, tmp_path: Path, which: str) -> None:
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}])
    link = tmp_path / "link.jsonl"
    link.symlink_to(mbpp.source)
    output = {"samples": samples, "data": mbpp.source, "link to the data": link}[which]
    before = output.read_text()
    with pytest.raises(TaskError, match="cannot be written over"):
        run_check("mbpp", samples, output=output, data=mbpp.source)
    assert output.read_text() == before


def test_a_broken_line_leaves_earlier_verdicts_alone(mbpp: Benchmark, tmp_path: Path) -> None:
    output = tmp_path / "verdicts.jsonl"
    output.write_text("earlier\n")
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}, "{oops"])
    with pytest.raises(TaskError, match="line 2: not valid JSON"):
        run_check("mbpp", samples, output=output, data=mbpp.source)
    assert output.read_text() == "earlier\n"
    write(samples, [{"task_id": "Mbpp/1", "solution": ADD}])
    run_check("mbpp", samples, output=output, data=mbpp.source)
    assert json.loads(output.read_text())["status"] == "passed"
    assert {path.name for path in tmp_path.iterdir()} == {"mbpp.jsonl", "samples.jsonl", "verdicts.jsonl"}


def test_only_the_first_of_many_missing_tasks_are_named(tmp_path: Path) -> None:
    rows = [
        {"id": f"task {n}", "prompt": f"Give {n}.", "entry_point": "f", "tests": [f"assert f() == {n}"]}
        for n in range(1, 31)
    ]
    data = write(tmp_path / "tasks.jsonl", rows)
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "task 3", "solution": "def f(): return 3"}])
    arguments = ["check", "--benchmark", "custom", "--data", str(data), "--samples", str(samples)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "want of a sample (29): task 1, task 2, task 4, " in result.stdout
    assert "task 11 and 19 more (--json names all)" in result.stdout
    assert "task 12" not in result.stdout
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert len(found["missing"]) == 29


def test_of_solution_and_completion_the_solution_counts(mbpp: Benchmark, tmp_path: Path) -> None:
    # As in EvalPlus, which does not look at the completion then.
    wrong = "def add(a, b):\n    return 9\n"
    rows = [
        {"task_id": "Mbpp/1", "completion": wrong, "solution": ADD},
        {"task_id": "Mbpp/1", "completion": ADD, "solution": wrong},
    ]
    lines, _ = judge_rows(mbpp, tmp_path / "samples.jsonl", rows)
    assert [line["base_status"] for line in lines] == ["pass", "fail"]


def test_a_folder_that_is_not_there_is_not_made(mbpp: Benchmark, tmp_path: Path) -> None:
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}])
    output = tmp_path / "verdcits" / "verdicts.jsonl"
    with pytest.raises(TaskError, match=r"verdicts\.jsonl: cannot be written: there is no folder .*verdcits$"):
        run_check("mbpp", samples, output=output, data=mbpp.source)
    assert not output.parent.exists()


@pytest.mark.parametrize("output", ["/dev/full", "folder", "file/verdicts.jsonl"])
def test_an_output_that_cannot_be_written_is_one_sentence(mbpp: Benchmark, tmp_path: Path, output: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}])
    with pytest.raises(TaskError, match=r"(full|folder|verdicts.jsonl): cannot be written: "):
        run_check("mbpp", samples, output=tmp_path / output, data=mbpp.source)


def command(*arguments: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    program = "import sys; from promptrl.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, "check", *arguments], stderr=subprocess.PIPE, **streams)


def test_a_full_standard_output_is_one_sentence(mbpp: Benchmark, tmp_path: Path) -> None:
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "Mbpp/1", "solution": ADD}])
    with Path("/dev/full").open("w") as full:
        done = command("--benchmark", "mbpp", "--data", str(mbpp.source), "--samples", str(samples), stdout=full)
    assert done.returncode == 2
    assert done.stderr.decode() == "promptrl: standard output: cannot be written: No space left on device\n"


def test_samples_from_a_pipe_are_read_once(mbpp: Benchmark, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"task_id": "Mbpp/1", "solution": ADD}) + "\n" for _ in range(200)).encode()
    arguments = ["--benchmark", "mbpp", "--data", str(mbpp.source), "--samples", "/dev/stdin", "--json"]
    done = command(*arguments, input=lines, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 200
    done = command(*arguments, input=lines + b"{oops\n", stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("promptrl: /dev/stdin, line 201: not valid JSON")


def test_an_exact_id_comes_before_a_number(tmp_path: Path) -> None:
    rows = [
        {"id": name, "prompt": f"Give {name}.", "entry_point": "f", "tests": [f"assert f() == {name!r}"]}
        for name in ("1", "hard/1", "easy/2", "hard/2", "hard/3")
    ]
    benchmark = load_benchmark("custom", path=write(tmp_path / "tasks.jsonl", rows))
    samples = [
        {"task_id": name, "solution": f"def f(): return {answer!r}"}
        for name, answer in (("1", "1"), ("hard/1", "hard/1"), (1, "1"), ("3", "hard/3"), ("easy/2", "easy/2"))
    ]
    lines, _ = judge_rows(benchmark, tmp_path / "samples.jsonl", samples)
    assert [line["status"] for line in lines] == ["passed"] * 5
    with pytest.raises(TaskError, match=r"line 1: task id '2' may be 'easy/2' or 'hard/2'$"):
        judge_rows(benchmark, tmp_path / "samples.jsonl", [{"task_id": 2, "solution": "def f(): return 2"}])


@pytest.fixture(scope="module")
def cases_dir() -> Path:
    """The folder of real answers with the verdicts of EvalPlus 0.3.1 that PROMPTRL_CASES_DIR names."""
    if not (folder := os.environ.get("PROMPTRL_CASES_DIR")):
        pytest.skip("PROMPTRL_CASES_DIR is not set; samples_*.jsonl with verdicts_*.jsonl are needed")
    return Path(folder)


def disagreements(benchmark: Benchmark, cases: Path, name: str, tmp_path: Path, every: int) -> list[str]:
    """Samples whose verdicts differ from those given; of the files, every so many-th line."""
    samples = (cases / f"samples_{name}.jsonl").read_text(encoding="utf-8").splitlines()[::every]
    verdicts = (cases / f"verdicts_{name}.jsonl").read_text(encoding="utf-8").splitlines()[::every]
    lines, _ = judge_rows(benchmark, tmp_path / "samples.jsonl", list(samples))
    wrong = []
    for line, verdict in zip(lines, map(json.loads, verdicts), strict=True):
        got = {key: line[key] for key in ("task_id", "base_status", "plus_status")}
        if got != verdict:
            wrong.append(f"{got} but EvalPlus says {verdict}")
    assert len(lines) == len(samples) > 0
    return wrong


@pytest.mark.parametrize("name", ["humaneval_plus", "mbpp_plus"])
def test_a_part_of_the_verdicts_is_that_of_evalplus(name: str, data_dir: Path, cases_dir: Path, tmp_path: Path) -> None:
    benchmark = load_benchmark(name, path=data_dir / str(BENCHMARKS[name]))
    for file in sorted(cases_dir.glob(f"samples_{name}_*.jsonl")):
        part = file.stem.removeprefix("samples_")
        assert disagreements(benchmark, cases_dir, part, tmp_path, every=8) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval_plus", "mbpp_plus"])
def test_every_verdict_is_that_of_evalplus(name: str, data_dir: Path, cases_dir: Path, tmp_path: Path) -> None:
    benchmark = load_benchmark(name, path=data_dir / str(BENCHMARKS[name]))
    files = sorted(cases_dir.glob(f"samples_{name}_*.jsonl"))
    assert files
    for file in files:
        assert disagreements(benchmark, cases_dir, file.stem.removeprefix("samples_"), tmp_path, every=1) == []


def canonical_failures(benchmark: Benchmark) -> list[str]:
    settings = check_settings()
    tasks = resolve_expected(benchmark.tasks, data_sha256=benchmark.sha256, settings=settings, cache_dir=cache_dir())
    candidates = [
        Candidate(task.canonical_solution, task, suite) for task in tasks for suite in (task.base, task.plus) if suite
    ]
    with Judge(settings) as judge:
        verdicts = judge.judge(candidates)
    return [
        f"{candidate.task.task_id} {candidate.suite.name}: {verdict.error or verdict.status}"
        for candidate, verdict in zip(candidates, verdicts, strict=True)
        if verdict.status is not Status.PASSED
    ]


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_every_canonical_solution_passes_its_asserts(name: str, data_dir: Path) -> None:
    assert canonical_failures(load_benchmark(name, path=data_dir / str(BENCHMARKS[name]))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval_plus", "mbpp_plus"])
def test_every_canonical_solution_passes_its_inputs(name: str, data_dir: Path) -> None:
    assert canonical_failures(load_benchmark(name, path=data_dir / str(BENCHMARKS[name]))) == []
