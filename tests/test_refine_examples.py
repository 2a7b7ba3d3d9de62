"""The examples of `promptrl refine` with the real model: each command of their README, as it stands there.

Which draw is the right one depends on the processor, so only what is certain is asserted of each command. That some
problem is not solved at once, and that some problem is solved, is asserted of all of them together.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

from promptrl.cli import main
from promptrl.execution import Candidate, Judge
from promptrl.models import CodeModel
from promptrl.refining import task_from_prompt, task_from_stub, tasks_from_file
from promptrl.tasks.task import Task
from promptrl.workbench import Workbench

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples" / "refine"
COMMANDS: Final = re.findall(r"^    (promptrl refine .*)$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
pytestmark = pytest.mark.real_model


class _Shared(Workbench):
    """Loads each model once for all commands."""

    models: Final[dict[str, CodeModel]] = {}

    @cached_property
    def coder(self) -> CodeModel:
        key = self.config.model.model_dump_json()
        if key not in self.models:
            self.models[key] = self._model(self.config.model)
        return self.models[key]


def task_of(arguments: list[str], judge: Judge) -> Task:
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    if "--task" in options:
        return tasks_from_file(options["--task"])[0]
    if "--stub" in options:
        return task_from_stub(options["--stub"], options["--tests"], judge=judge)
    return task_from_prompt(options["--prompt-file"], options["--entry-point"], options["--tests"], judge=judge)


def test_there_is_an_example_of_each_form() -> None:
    forms = ("--stub .* --tests test_", "--stub .* --tests [^t]", "--task ", "--prompt-file ")
    assert [sum(bool(re.search(form, command)) for command in COMMANDS) for form in forms] == [1, 1, 1, 1]


def test_an_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = (command for command in COMMANDS if "rotations.py" in command)
    (found,) = run_examples([command], tmp_path, monkeypatch)
    assert (tmp_path / "refine" / "out-0" / "best_prompt.txt").read_text().strip()
    assert 0.0 <= found["steps"][found["best_step"]]["pass_rate"] <= 1.0
    assert "def is_rotation(" in (tmp_path / "refine" / "out-0" / "best.py").read_text()


@pytest.mark.slow
def test_all_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = run_examples(COMMANDS, tmp_path, monkeypatch)
    assert any(found["steps"][0]["pass_rate"] < 1.0 for found in results)
    assert any(found["solved"] for found in results)


def run_examples(commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each command left, after what is certain of it was asserted."""
    shutil.copytree(EXAMPLES, tmp_path / "refine")
    monkeypatch.chdir(tmp_path / "refine")
    monkeypatch.setattr("promptrl.workbench.Workbench", _Shared)
    results: list[dict[str, Any]] = []
    for number, command in enumerate(commands):
        arguments = shlex.split(command)[2:]
        output = Path(f"out-{number}")
        monkeypatch.setattr(sys, "argv", ["promptrl", "refine", *arguments, "--output", str(output)])
        with pytest.raises(SystemExit) as ended:
            main()
        found = json.loads((output / "refinement.json").read_text())
        rates = [step["pass_rate"] for step in found["steps"]]
        assert ended.value.code == (0 if found["solved"] else 1)
        assert found["solved"] == (rates[-1] == 1.0)
        assert found["best_step"] == rates.index(max(rates))
        assert found["stopped"] == ("solved" if found["solved"] else "steps")
        assert 1 <= len(rates) <= 10
        results.append(found)
        with Judge() as judge:
            task = task_of(arguments, judge)
            verdict = judge.judge([Candidate((output / "best.py").read_text(), task, task.base)])[0]
        assert verdict.pass_rate == max(rates), "the file alone does what the answer did"
    return results
