"""Exported samples get from `promptrl check` the verdicts that the records have."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from promptrl.cli import app
from promptrl.errors import RunError
from promptrl.evaluation.check import check_samples
from promptrl.evaluation.export import export_samples, self_sufficient
from promptrl.evaluation.outcomes import answers
from promptrl.evaluation.records import read_records
from promptrl.evaluation.runner import evaluate
from promptrl.execution import Judge, SandboxSettings
from promptrl.methods import MethodContext, make_method
from promptrl.models.base import GenerationRequest
from promptrl.tasks import Benchmark
from tests.evaluation.studies import make_config
from tests.scripted import half_right, make_engine, make_task, number_of, right, wrong

TASKS = tuple(make_task(number, plus=True) for number in range(1, 9))
CODES = {
    1: right(1),
    2: half_right(2),
    3: wrong(3),
    4: "There is no code here.",
    5: "class Solution:\n    def add_5(self, x: int) -> int:\n        return x + 5",
    6: "def add_6(x: int) -> List[int]:\n    return reduce(lambda a, b: a + b, [x, math.ceil(5.5)])",
    7: "from __future__ import annotations\nimport operator as op\ndef add_7(x):\n    return op.add(x, 7)",
    8: "def add_8(x):\n    return eval('math.floor(8.5)') + x if x < 50 else 0",
}


def scripted(request: GenerationRequest) -> str:
    """Task 2 gets half right first and wrong then, so that the answer is not the last step."""
    number = number_of(request)
    return wrong(number) if number == 2 and request.draw else CODES[number]


@pytest.fixture
def run_dir(judge: Judge, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    engine = make_engine(scripted, judge, horizon=2, protocol="held_out")
    method = make_method("repeat-direct", MethodContext(("direct", "lexical", "semantic"), 0))
    evaluate(method, engine, TASKS, folder / "evaluation" / "repeat-direct.jsonl", seed=0)
    (folder / "config.yaml").write_text(make_config().to_yaml())
    (folder / "versions.json").write_text("{}")
    return folder


def test_a_round_trip_has_the_same_verdicts(run_dir: Path, tmp_path: Path) -> None:
    assert export_samples(run_dir, "repeat-direct", tmp_path / "samples.jsonl") == len(TASKS)
    verdicts = StringIO()
    benchmark = Benchmark("scripted", TASKS, "0" * 64, tmp_path)
    strict = SandboxSettings(workers=2, forgiving=False, import_time_limit=1.0)
    summary = check_samples(benchmark, tmp_path / "samples.jsonl", output=verdicts, settings=strict)
    judged = {line["task_id"]: line for line in map(json.loads, verdicts.getvalue().splitlines())}
    chosen = answers(read_records(run_dir / "evaluation" / "repeat-direct.jsonl"))
    assert list(judged) == [task.task_id for task in TASKS]
    assert set(judged) == set(chosen)
    for task_id, record in chosen.items():
        assert judged[task_id]["pass_rate"] == record["report_pass_rate"], task_id
        assert judged[task_id]["tests"]["base"] == record["tests"], task_id
        assert (judged[task_id]["base_status"] == "pass") == (record["pass_rate"] == 1.0), task_id
    assert [chosen[f"Scripted/{n}"]["report_pass_rate"] for n in (1, 2, 5, 6, 7)] == [1.0, 0.4, 1.0, 1.0, 1.0]
    solved = sum(record["report_pass_rate"] == 1.0 for record in chosen.values())
    assert summary.plus == {"pass@1": pytest.approx(solved / len(TASKS))}


def test_samples_have_the_fields_of_the_field(run_dir: Path, tmp_path: Path) -> None:
    export_samples(run_dir, "repeat-direct", tmp_path / "new" / "samples.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "new" / "samples.jsonl").read_text().splitlines()]
    assert all(set(line) == {"task_id", "solution"} for line in lines)
    assert lines[0]["solution"] == right(1) + "\n"
    assert lines[3]["solution"] == ""


def test_what_the_judge_supplied_is_written_down_and_nothing_else() -> None:
    for code in (right(1), "import math\ndef f(x):\n    return math.pi", "def f(re):\n    return re", "not python ("):
        assert self_sufficient(code) == code
    assert self_sufficient(CODES[6]).splitlines()[:3] == [
        "import math",
        "from functools import reduce",
        "from typing import List",
    ]
    assert self_sufficient(CODES[5]).splitlines()[-1] == "add_5 = Solution().add_5"
    assert self_sufficient(CODES[8]).splitlines()[0] == "import math"
    future = "from __future__ import annotations\r\nx = math.pi"
    assert self_sufficient(future) == "from __future__ import annotations\nimport math\nx = math.pi"
    assert self_sufficient("def f():\n    return math.pi\nimport math").startswith("import math\n")


def test_bad_input_is_told_in_one_sentence(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no evaluation of 'ppo'; it has repeat-direct"):
        export_samples(run_dir, "ppo", tmp_path / "s.jsonl")
    with pytest.raises(RunError, match="lies among the records of the run"):
        export_samples(run_dir, "repeat-direct", run_dir / "evaluation" / "s.jsonl")
    with pytest.raises(RunError, match="is no run folder"):
        export_samples(tmp_path, "ppo", tmp_path / "s.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        export_samples(run_dir, "repeat-direct", tmp_path / "file" / "s.jsonl")


def test_samples_are_written_over_samples_and_over_nothing_else(run_dir: Path, tmp_path: Path) -> None:
    export_samples(run_dir, "repeat-direct", tmp_path / "s.jsonl")
    written = (tmp_path / "s.jsonl").read_bytes()
    export_samples(run_dir, "repeat-direct", tmp_path / "s.jsonl")
    assert (tmp_path / "s.jsonl").read_bytes() == written
    (run_dir / "train.jsonl").write_text('{"schema": 1, "task_id": "a"}\n')
    for name in ("config.yaml", "train.jsonl"):
        before = (run_dir / name).read_bytes()
        with pytest.raises(RunError, match=f"{name} exists and is no file of samples; give another --output"):
            export_samples(run_dir, "repeat-direct", run_dir / name)
        assert (run_dir / name).read_bytes() == before


def test_the_command(run_dir: Path, tmp_path: Path) -> None:
    arguments = ["export", str(run_dir), "--method", "repeat-direct", "--output", str(tmp_path / "s.jsonl")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "8 samples written to" in result.output
