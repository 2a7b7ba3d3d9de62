"""`promptrl refine` and `promptrl.refine` with a scripted model: what they leave, say, and how they end."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import promptrl
import promptrl.refining
from promptrl.cli import main
from promptrl.config import load_config
from promptrl.models.base import GenerationRequest
from promptrl.refining.session import choose_method
from promptrl.workbench import Workbench
from tests.scripted import HashingEncoder, ScriptedModel

STUB = '''\
def half(xs):
    """Return the sum of the `xs`, halved.

    >>> half([2])
    1.0
    """
    raise NotImplementedError
'''
TESTS = """\
import pytest
from halving import half

@pytest.mark.parametrize("xs, wanted", [([2], 1.0), ([4], 2.0), ([], 0.0), ([8], 4.0)])
def test_half(xs, wanted):
    assert half(xs) == wanted
"""
RIGHT = "def half(xs):\n    return reduce(lambda a, b: a + b, xs, 0) / 2"
NEARLY = "def half(xs):\n    return xs[0] / 2"
WRONG = "def half(xs):\n    return None"

Answer = Callable[[int, GenerationRequest], str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a problem, in which the command runs."""
    (tmp_path / "halving.py").write_text(STUB)
    (tmp_path / "test_halving.py").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PROMPTRL_CACHE_DIR", str(tmp_path / ".cache"))
    return tmp_path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], ScriptedModel]:
    """Have every workbench ask this model: it is told how often it was asked before."""

    def use(answer: Answer) -> ScriptedModel:
        asked = iter(range(10**6))
        model = ScriptedModel(lambda request: answer(next(asked), request))

        class Scripted(Workbench):
            @cached_property
            def coder(self) -> ScriptedModel:
                return model

            @cached_property
            def rewriter(self) -> ScriptedModel:
                return ScriptedModel(lambda request: " Add up the `xs` and halve the result.")

            @cached_property
            def encoder(self) -> HashingEncoder:  # type: ignore[override]
                return HashingEncoder()

        monkeypatch.setattr("promptrl.workbench.Workbench", Scripted)
        monkeypatch.setattr("promptrl.refining.Workbench", Scripted)
        return model

    return use


@pytest.fixture
def refine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the command; returns its exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(
            sys, "argv", ["promptrl", "refine", "--set", "sandbox.workers=1", "--set", "cache=false", *arguments]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


STUB_AND_TESTS = ("--stub", "halving.py", "--tests", "test_halving.py", "--output", "out")
SEMANTIC = ("--set", "environment.actions=[semantic]", "--set", "operators.semantic.similarity_floor=-1")


def result(folder: str = "out") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "refinement.json").read_text())
    return found


def test_what_a_refinement_leaves_and_says(
    here: Path, script: Callable[[Answer], ScriptedModel], refine: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    script(lambda n, request: [WRONG, NEARLY, RIGHT][n])
    assert refine(*STUB_AND_TESTS, *SEMANTIC, "--report") == 0
    spec = importlib.util.spec_from_file_location("best", here / "out" / "best.py")
    assert spec is not None
    assert spec.loader is not None
    best = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(best)
    assert best.half([3, 5]) == 4.0
    assert (
        (here / "out" / "best_prompt.txt")
        .read_text()
        .startswith(
            "Return the sum of the `xs`, halved. In other words: add up the `xs` and halve the result.\n\ndef half("
        )
    )
    found = result()
    assert (found["solved"], found["stopped"], found["best_step"], found["method"]) == (
        True, "solved", 2, "random-hybrid"
    )  # fmt: skip
    assert [step["pass_rate"] for step in found["steps"]] == [0.0, 0.75, 1.0]
    assert [step["action"] for step in found["steps"]] == ["semantic"] * 3
    assert found["steps"][1]["outcomes"][2] == {
        "name": "test_halving.py::test_half[xs2-0.0]",
        "outcome": "exception",
        "detail": "line 2: IndexError: list index out of range",
    }
    assert (found["calls"], found["tokens_in"], found["tokens_out"]) == (6, 60, 30)
    assert found["caps"] == {"attempts": 10, "calls": None, "tokens": None, "seconds": None}
    page = (here / "out" / "report.html").read_text()
    assert "test_halving.py::test_half[xs2-0.0]" in page
    assert "line 2: IndexError: list index out of range" in page
    out, err = capfd.readouterr()
    lines = err.strip().splitlines()
    assert lines[0].startswith("method: random-hybrid (no --method or --policy was given")
    assert lines[1:] == [
        "step 1/10  semantic  0/4 tests, best 0/4 tests",
        "step 2/10  semantic  3/4 tests, best 3/4 tests; rewrite changed nothing; prompt kept",
        "step 3/10  semantic  4/4 tests, best 4/4 tests; rewrite changed nothing; prompt kept",
    ]
    assert "4 of 4 tests pass at step 3 of 3; all tests pass" in out
    assert "halved{+. In other words: add up the `xs` and halve the result+}." in out
    assert "written: out/best.py" in out


def test_not_solved_is_exit_code_1_and_the_best_is_kept(
    here: Path, script: Callable[[Answer], ScriptedModel], refine: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    script(lambda n, request: [WRONG, NEARLY, WRONG][n])
    assert refine(*STUB_AND_TESTS, "--method", "repeat-direct", "--steps", "3") == 1
    assert (here / "out" / "best.py").read_text() == NEARLY + "\n"
    out, err = capfd.readouterr()
    assert "3 of 4 tests pass at step 2 of 3; all steps were taken" in out
    assert "test_halving.py::test_half[xs2-0.0]: exception: line 2: IndexError" in out
    assert "the best prompt is the first one, unchanged" in out
    assert err.startswith("method: repeat-direct (--method); at most 3 steps")


def test_tests_held_out_are_reported_and_change_no_exit_code(
    here: Path, script: Callable[[Answer], ScriptedModel], refine: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    model = script(lambda n, request: NEARLY)
    (here / "test_kept.py").write_text("from halving import half\ndef test_kept(): assert half([]) == 0\n")
    tests = TESTS.replace("([], 0.0), ", "")
    (here / "test_halving.py").write_text(tests)
    assert refine(*STUB_AND_TESTS, "--hold-out-tests", "test_kept.py") == 0
    assert "0 of 1 of the tests held out pass" in capfd.readouterr().out
    assert result()["hold_out"] == {
        "passed": 0,
        "total": 1,
        "tests": [
            {
                "name": "test_kept.py::test_kept",
                "outcome": "exception",
                "detail": "line 2: IndexError: list index out of range",
            }
        ],
    }
    assert not any("kept" in request.user for request in model.requests)


@pytest.mark.parametrize(
    ("cap", "said"),
    [
        (("--max-calls", "2"), "capped: --max-calls left no room for another step"),
        (("--max-tokens", "400"), "no answer was asked for; capped: --max-tokens left no room for another step"),
        (("--max-seconds", "0.000001"), "no answer was asked for; capped: --max-seconds were over"),
    ],
)
def test_a_capped_run_says_so(
    here: Path,
    script: Callable[[Answer], ScriptedModel],
    refine: Callable[..., int],
    capfd: pytest.CaptureFixture[str],
    cap: tuple[str, str],
    said: str,
) -> None:
    script(lambda n, request: WRONG)
    assert refine(*STUB_AND_TESTS, "--method", "repeat-direct", "--set", "generation.max_new_tokens=256", *cap) == 1
    assert said in capfd.readouterr().out
    assert result()["stopped"] == cap[0].removeprefix("--max-")


def test_ctrl_c_keeps_the_best_so_far(
    here: Path, script: Callable[[Answer], ScriptedModel], refine: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    def answer(n: int, request: GenerationRequest) -> str:
        if n == 2:
            raise KeyboardInterrupt
        return [NEARLY, WRONG][n]

    script(answer)
    assert refine(*STUB_AND_TESTS, "--method", "repeat-direct") == 130
    assert (here / "out" / "best.py").read_text() == NEARLY + "\n"
    assert (result()["stopped"], len(result()["steps"])) == ("interrupted", 2)
    shown = capfd.readouterr()
    assert "stopped by Ctrl-C" in shown.out
    assert "--resume --output out goes on" in shown.err


def test_ctrl_c_before_the_first_step_says_that_nothing_was_written(
    here: Path,
    script: Callable[[Answer], ScriptedModel],
    refine: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def load(*arguments: object) -> None:
        raise KeyboardInterrupt

    script(lambda n, request: RIGHT)
    monkeypatch.setattr("promptrl.refining.session.make_method", load)
    assert refine(*STUB_AND_TESTS, "--method", "repeat-direct") == 130
    assert "stopped by Ctrl-C before the first step; nothing was written" in capfd.readouterr().err
    assert not (here / "out").exists()


def test_a_text_and_a_task_file(
    here: Path, script: Callable[[Answer], ScriptedModel], refine: Callable[..., int]
) -> None:
    model = script(lambda n, request: RIGHT)
    (here / "task.txt").write_text("Return half of the sum.")
    (here / "plain.py").write_text("assert half([2]) == 1.0\nassert half([4, 4]) == 4.0\n")
    text = ("--prompt-file", "task.txt", "--entry-point", "half", "--tests", "plain.py", "--hold-out", "0.5")
    assert refine(*text, "--method", "direct", "--output", "text") == 0
    assert "Return half of the sum.\n\nDefine a function named `half`." in model.requests[0].user
    assert (result("text")["tests"]["total"], result("text")["hold_out"]["total"]) == (1, 1)
    (here / "task.yaml").write_text(
        "id: h\nprompt: Return half of the sum.\nentry_point: half\ntests: ['assert half([2]) == 1.0']\n"
        "report_tests: ['assert half([6]) == 3.0']\n"
    )
    assert refine("--task", "task.yaml", "--method", "direct", "--output", "yaml") == 0
    assert result("yaml")["hold_out"]["passed"] == 1


def test_many_tasks_and_going_on_with_them(
    here: Path, script: Callable[[Answer], ScriptedModel], refine: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": f"h/{n}", "prompt": f"Half {n}.", "entry_point": "half", "tests": ["assert half([2]) == 1.0"]}
        for n in range(3)
    ]
    (here / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    many = ("--tasks", "tasks.jsonl", "--output", "all", "--method", "repeat-direct", "--steps", "3")
    model = script(lambda n, request: RIGHT if "Half 0" in request.user else WRONG)
    assert refine(*many, "--max-calls", "5") == 1
    summary = json.loads(Path("all/summary.json").read_text())["tasks"]
    assert [(row["task_id"], row["solved"], row["stopped"]) for row in summary] == [
        ("h/0", True, "solved"), ("h/1", False, "calls"), ("h/2", False, "calls")
    ]  # fmt: skip
    assert len(model.requests) == 5
    assert len(model.batches[0]) == 3, "all tasks in one batch"
    assert "1 of 3 tasks solved" in capfd.readouterr().out
    assert refine(*many) == 2
    assert "already holds a refinement" in capfd.readouterr().err
    model = script(lambda n, request: RIGHT)
    assert refine(*many, "--resume") == 0
    assert len(model.requests) == 2, "the finished task is kept"
    out, err = capfd.readouterr()
    assert "1 of 3 tasks were finished before" in err
    assert "3 of 3 tasks solved" in out
    rows[1]["prompt"] = "Half of it."
    (here / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = script(lambda n, request: RIGHT)
    assert refine(*many, "--resume") == 0
    assert ["Half of it." in request.user for request in model.requests] == [True], "what has changed is made again"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "refine needs one of --stub, --task, --prompt-file, --tasks; given none"),
        (("--stub", "halving.py", "--tasks", "."), "given --stub, --tasks"),
        (("--stub", "halving.py"), "--stub needs --tests"),
        (("--prompt-file", "x.txt", "--tests", "test_halving.py"), "--prompt-file needs --entry-point"),
        (("--task", "x.yaml", "--tests", "test_halving.py"), "--task brings its own tests"),
        ((*STUB_AND_TESTS[:4], "--resume"), "--resume needs --output"),
        ((*STUB_AND_TESTS, "--method", "magic"), "method 'magic' is unknown; allowed are direct"),
        ((*STUB_AND_TESTS, "--policy", "none.zip"), "there is no trained agent at none.zip"),
        ((*STUB_AND_TESTS, "--config", "nothing"), "there is no configuration 'nothing'"),
        ((*STUB_AND_TESTS, "--set", "model.nam=x"), "unknown key 'model.nam', did you mean"),
        ((*STUB_AND_TESTS, "--hold-out", "2"), "--hold-out is 2; it is a share of the tests, between 0 and 1"),
        ((*STUB_AND_TESTS, "--max-seconds", "0"), "--max-seconds is 0; it is more than 0"),
        (("--stub", "halving.py", "--tests", "gone.py"), "gone.py: there is no such file or folder"),
        (("--stub", "gone.py", "--tests", "test_halving.py"), "gone.py: cannot be read: No such file or directory"),
        (("--task", "gone.yaml"), "gone.yaml: cannot be read: No such file or directory"),
    ],
)
def test_bad_input_is_one_sentence(
    here: Path,
    script: Callable[[Answer], ScriptedModel],
    refine: Callable[..., int],
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    script(lambda n, request: RIGHT)
    assert refine(*arguments) == 2
    err = capfd.readouterr().err.strip()
    assert err.startswith("promptrl: ")
    assert message in err
    assert "\n" not in err
    assert not (here / "out").exists()


def test_a_folder_with_something_else_is_left_alone(
    here: Path, script: Callable[[Answer], ScriptedModel], refine: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    script(lambda n, request: RIGHT)
    assert refine(*STUB_AND_TESTS[:4], "--output", ".") == 2
    assert "is not an empty folder; give another --output" in capfd.readouterr().err


def test_from_python(here: Path, script: Callable[[Answer], ScriptedModel]) -> None:
    script(lambda n, request: [WRONG, RIGHT, RIGHT][n])
    seen: list[float] = []

    class Watch(promptrl.refining.Progress):
        def stepped(self, run: Any, step: Any) -> None:
            seen.append(step.verdict.pass_rate)

    task = promptrl.task_from_stub("halving.py", "test_halving.py", hold_out=promptrl.HoldOut(share=0.25))
    result = promptrl.refine(task, method="repeat-direct", budget=promptrl.Budget(attempts=2), progress=Watch())
    assert (result.solved, result.stopped, result.best_step, seen) == (True, "solved", 1, [0.0, 1.0])
    assert result.hold_out is not None
    assert (result.hold_out.passed, result.hold_out.total) == (1, 1)
    assert result.code is not None
    assert result.code.startswith("from functools import reduce\n")
    assert not (here / "runs").exists()
    (here / "task.yaml").write_text("{id: h, prompt: Half., entry_point: half, tests: ['assert half([2]) == 1.0']}")
    again = promptrl.refine("task.yaml", method="direct", model="another", seed=7, output="out")
    assert (again.solved, again.model, again.seed) == (True, "another", 7)
    assert result.to_dict()["schema"] == 1
    assert (here / "out" / "refinement.json").exists()


def test_the_five_lines_of_the_documentation(
    here: Path, script: Callable[[Answer], ScriptedModel], capfd: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).resolve().parent.parent
    code = re.search(r"```python\n(.*?)```", (root / "docs" / "refine.md").read_text(), re.DOTALL)
    assert code is not None
    for name in ("rotations.py", "test_rotations.py"):
        shutil.copy(root / "examples" / "refine" / name, here / name)
    script(lambda n, request: "def is_rotation(first, second):\n    return first == second")
    exec(code.group(1), {})
    assert capfd.readouterr().out.startswith("False steps def is_rotation(first, second):")


def test_the_choice_of_a_method(tmp_path: Path) -> None:
    assert choose_method("epic", None).method == "epic"
    (tmp_path / "agent.zip").touch()
    assert choose_method(None, tmp_path / "agent.zip").method == "ppo"


def test_the_configuration_is_rewarded_by_the_tests_that_are_not_held_out() -> None:
    config = load_config("refine.yaml")
    assert (config.environment.protocol, config.environment.horizon) == ("held_out", 10)
    assert (config.model.quantization, config.model.request) == ("int8", "terse")


def test_importing_the_package_loads_none_of_it() -> None:
    code = "import sys, promptrl; assert not {'torch', 'promptrl.refining', 'promptrl.workbench'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'refined'"):
        promptrl.refined  # noqa: B018
