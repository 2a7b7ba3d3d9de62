"""The doctor tells what is here, what is missing, and what to do; for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from promptrl import doctor
from promptrl.doctor import Finding
from promptrl.execution import IsolationReport

runner = CliRunner()
app = typer.Typer()
app.command()(doctor.doctor)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTRL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PROMPTRL_DATA_DIR", raising=False)
    monkeypatch.delenv("PROMPTRL_MODEL_DIR", raising=False)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_an_empty_machine_is_told_what_to_fetch() -> None:
    result = runner.invoke(app, ["--json"])
    report = json.loads(result.output)
    assert result.exit_code == 1
    assert report["ok"] is False
    found = {finding["name"]: finding for finding in report["findings"]}
    for name in doctor.QUICKSTART_ASSETS:
        assert found[name]["state"] == "missing"
        assert found[name]["remedy"] == f"promptrl assets get {name}"
    assert found["mbpp_plus"]["state"] == "ok"  # not here, and the quickstart does not need it
    assert found["torch"]["value"][0].isdigit()
    assert found["torch"]["state"] == "ok"


def test_the_page_for_people_marks_what_is_missing() -> None:
    result = runner.invoke(app, [])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("  X minilm"))
    assert lines[at + 1].strip() == "-> promptrl assets get minilm"
    assert lines[-1] == "not ready for the quickstart: see the lines marked X"


def test_nothing_missing_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "examine", lambda: [Finding("models", "toy", "here"), Finding("models", "b", "", "note")]
    )
    result = runner.invoke(app, [])
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "ready for the quickstart"


def test_a_wrong_file_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTRL_DATA_DIR", str(tmp_path))
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(b"other")
    (tmp_path / "mbpp.jsonl").write_bytes(b"other")
    found = by_name(doctor.examine())
    assert found["humaneval"].state == "missing"
    assert "44,877 are expected" in found["humaneval"].value
    assert found["humaneval"].remedy == f"replace or remove {tmp_path / 'HumanEval.jsonl.gz'}"
    assert found["mbpp"].state == "note"


def test_a_folder_that_is_none_is_one_line_among_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTRL_DATA_DIR", str(tmp_path / "absent"))
    found = by_name(doctor.examine())
    assert found["folders"].state == "missing"
    assert "PROMPTRL_DATA_DIR names" in found["folders"].value
    assert found["gymnasium"].state == "ok"


def test_a_broken_sandbox_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise OSError("no namespaces")

    monkeypatch.setattr("promptrl.execution.isolation_level", broken)
    isolation = by_name(doctor.examine())["isolation"]
    assert isolation.state == "missing"
    assert "OSError: no namespaces" in isolation.value


@pytest.mark.parametrize(
    ("level", "state", "remedy"),
    [
        ("namespaces", "ok", ""),
        ("rlimits", "missing", "allow unprivileged user namespaces"),
        ("none", "missing", "mend what the lines below say"),
    ],
)
def test_each_isolation_level(monkeypatch: pytest.MonkeyPatch, level: Any, state: str, remedy: str) -> None:
    report = IsolationReport(level, ("seccomp", "rlimits"), {"landlock": "the kernel is too old"})
    monkeypatch.setattr("promptrl.execution.isolation_level", lambda: report)
    found = by_name(doctor.examine())
    assert found["isolation"].state == state
    assert found["isolation"].remedy.startswith(remedy)
    assert found["in force"].value == "seccomp, rlimits"
    assert found["landlock"].value == "not in force: the kernel is too old"


def test_the_precision_is_the_one_that_the_models_pick() -> None:
    from promptrl.models.settings import ModelSettings
    from promptrl.models.weights import pick_device, pick_dtype

    device = pick_device(ModelSettings())
    dtype = str(pick_dtype(ModelSettings(), device)).removeprefix("torch.")
    assert by_name(doctor.examine())["precision"].value == f"auto means {dtype} on {device}"


def test_a_full_disk_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "QUICKSTART_DISK", 10**18)
    monkeypatch.setattr(doctor, "QUICKSTART_MEMORY", 10**18)
    found = by_name(doctor.examine())
    assert found["free disk"].state == "missing"
    assert found["memory"].state == "note"


@pytest.mark.parametrize(
    ("flags", "expected", "state"),
    [
        ({"avx2", "avx512f", "avx512_bf16"}, "avx2, avx512f, avx512_bf16 (multiplies bfloat16", "ok"),
        ({"avx2", "fpu"}, "avx2 (does not multiply bfloat16", "note"),
        (set(), "none of avx2", "note"),
    ],
)
def test_processor(monkeypatch: pytest.MonkeyPatch, flags: set[str], expected: str, state: str) -> None:
    monkeypatch.setattr(doctor, "cpu_flags", lambda: frozenset(flags))
    processor = by_name(doctor.examine())["processor"]
    assert processor.value.startswith(expected)
    assert processor.state == state


def test_a_container_with_less_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"cpu.max": "50000 100000", "memory.max": "1000000"}
    monkeypatch.setattr(doctor, "_cgroup_value", limits.__getitem__)
    assert doctor.available_cores() == 0.5
    assert doctor.available_memory() == 1_000_000
    limits.update({"cpu.max": "max 100000", "memory.max": "max"})
    assert doctor.available_cores() >= 1
    assert doctor.available_memory() > 10**8
