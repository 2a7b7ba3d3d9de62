"""Every benchmark's own file becomes tasks; rows that cannot are left out, named and counted."""

from __future__ import annotations

import ast
import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from promptrl.errors import ConfigError, TaskError
from promptrl.tasks import (
    BENCHMARKS,
    DEFERRED,
    AssertTest,
    Benchmark,
    CallTest,
    Comparison,
    load_benchmark,
)
from promptrl.tasks.mbpp_types import restore_arguments


@pytest.fixture(scope="session")
def load(data_dir: Path):  # type: ignore[no-untyped-def]
    loaded: dict[str, Benchmark] = {}

    def by_name(name: str) -> Benchmark:
        if name not in loaded:
            filename = "apps_sample.jsonl" if name == "apps" else BENCHMARKS[name]
            assert filename is not None
            loaded[name] = load_benchmark(name, path=data_dir / filename)
        return loaded[name]

    return by_name


@pytest.mark.parametrize(
    ("name", "tasks", "base", "plus"),
    [
        ("humaneval", 164, 1133, 0),
        ("humaneval_plus", 164, 1570, 122_683),
        ("mbpp", 974, 2922, 16),
        ("mbpp_plus", 378, 1174, 39_841),
        ("apps", 10, 213, 0),
    ],
)
def test_every_row_is_a_task(load, name: str, tasks: int, base: int, plus: int) -> None:  # type: ignore[no-untyped-def]
    benchmark = load(name)
    assert benchmark.left_out == ()
    assert len(benchmark.tasks) == len(benchmark.by_id) == tasks
    assert sum(len(task.base) for task in benchmark.tasks) == base
    assert sum(len(task.plus) for task in benchmark.tasks if task.plus) == plus
    for task in benchmark.tasks:
        assert task.benchmark == name
        assert task.instruction.strip()
        assert task.contract.strip()
        assert "\r" not in task.text + task.canonical_solution + task.setup


def test_the_data_is_known_by_its_content(load, data_dir: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    unpacked = tmp_path / "he.jsonl"
    unpacked.write_bytes(gzip.decompress((data_dir / "HumanEval.jsonl.gz").read_bytes()))
    assert load_benchmark("humaneval", path=unpacked).sha256 == load("humaneval").sha256


@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus"])
def test_instruction_and_contract_hold_all_of_a_humaneval_prompt(load, name: str) -> None:  # type: ignore[no-untyped-def]
    for task in load(name).tasks:
        whole = Counter(re.findall(r"\S+", re.sub(r"\"\"\"|'''", " ", task.stub)))
        parts = Counter(re.findall(r"\S+", re.sub(r"\"\"\"|'''", " ", task.text)))
        assert whole <= parts, (task.task_id, whole - parts)
        assert f"def {task.entry_point}(" in task.contract
        assert ">>>" not in task.instruction
        assert task.stub in task.canonical_solution
        ast.parse(task.canonical_solution)
        ast.parse(task.contract + "\n    pass\n")


@pytest.mark.parametrize("name", ["mbpp", "mbpp_plus"])
def test_an_mbpp_prompt_shows_its_text_and_one_assert(load, name: str) -> None:  # type: ignore[no-untyped-def]
    for task in load(name).tasks:
        assert task.metadata["visible_tests"] == 1
        assert "assert " not in task.instruction
        assert task.contract.count("assert ") == 1
        assert f"{task.entry_point}" in task.contract


def test_humaneval_checks_are_one_test_an_assert(load) -> None:  # type: ignore[no-untyped-def]
    benchmark = load("humaneval")
    whole = {task.task_id for task in benchmark.tasks if task.metadata["whole_asserts"]}
    assert whole == {f"HumanEval/{number}" for number in (32, 33, 37, 38, 44, 50, 53, 151)}
    assert benchmark.by_id["HumanEval/2"].base.tests[1] == CallTest((1.33,), 0.33, Comparison.BELOW, 1e-6)
    assert benchmark.by_id["HumanEval/61"].base.tests[0] == CallTest(("()",), True, Comparison.TRUTH)
    loop = benchmark.by_id["HumanEval/32"].base.tests[0]
    assert isinstance(loop, AssertTest)
    assert "def poly" in loop.setup
    assert "find_zero(" in loop.source
    assert "candidate" not in loop.source
    assert benchmark.by_id["HumanEval/10"].entry_point == "make_palindrome"


def test_special_comparisons(load) -> None:  # type: ignore[no-untyped-def]
    def ids(name: str, comparison: Comparison) -> set[int]:
        return {
            int(task.task_id.split("/")[1]) for task in load(name).tasks if task.base.tests[0].comparison is comparison
        }

    assert ids("humaneval_plus", Comparison.POLYNOMIAL_ROOT) == {32}
    assert ids("mbpp_plus", Comparison.SET) == {2, 7, 111, 140, 232, 579, 769}
    assert ids("mbpp_plus", Comparison.NOT_NONE) == {737, 787, 794}
    surface = load("mbpp_plus").by_id["Mbpp/581"]
    assert surface.base.tests[0] == CallTest((3, 4), DEFERRED, alternatives=(35,))
    digits = load("mbpp_plus").by_id["Mbpp/558"].base.tests[1]
    assert digits.alternatives == (6,)
    assert load("mbpp_plus").by_id["Mbpp/56"].entry_point == "check"
    assert load("mbpp_plus").by_id["Mbpp/793"].plus is None


def test_the_types_that_json_lost_come_back() -> None:
    assert restore_arguments(2)([[3, 4], [5]]) == ((3, 4), (5,))
    assert restore_arguments(63)([[[1, 2], [3]]]) == ([(1, 2), (3,)],)
    assert restore_arguments(75)([[[1, 2]], 3]) == ([(1, 2)], 3)
    assert restore_arguments(106)([[1], [2, 3]]) == ([1], (2, 3))
    assert restore_arguments(115)([[[1, 2], []]]) == ([{1, 2}, {}],)
    assert restore_arguments(124)(["0", "1j"]) == (0.0, 1j)
    assert restore_arguments(252)(["(1+2j)"]) == (1 + 2j,)
    assert restore_arguments(259)([[[1, 2]], [[3, 4]]]) == (((1, 2),), ((3, 4),))
    assert restore_arguments(278)([[1, [2, 3]]]) == ((1, (2, 3)),)
    assert restore_arguments(307)([[1, []], 1, 50]) == ((1, []), 1, 50)
    assert restore_arguments(580)([[1, [2, [3]]]]) == ((1, (2, (3,))),)
    assert restore_arguments(722)([{"a": [1, 2]}, 6]) == ({"a": (1, 2)}, 6)
    assert restore_arguments(3)([[1, [2]]]) == ([1, [2]],)


def test_the_types_are_those_of_evalplus(data_dir: Path) -> None:
    mbpp = pytest.importorskip("evalplus.data.mbpp", reason="evalplus is not installed")
    for line in gzip.decompress((data_dir / "MbppPlus-v0.2.0.jsonl.gz").read_bytes()).decode().splitlines():
        row = json.loads(line)
        restore = restore_arguments(int(row["task_id"].split("/")[1]))
        inputs = row["base_input"] + (row["plus_input"] or [])
        for args, wanted in zip(inputs, mbpp.mbpp_deserialize_inputs(row["task_id"], inputs), strict=True):
            assert repr(restore(args)) == repr(tuple(wanted)), row["task_id"]


def test_setup_code_that_needs_the_answer_runs_after_it(load) -> None:  # type: ignore[no-untyped-def]
    task = load("mbpp").by_id["Mbpp/367"]
    test = task.base.tests[0]
    assert isinstance(test, AssertTest)
    assert test.setup.startswith("root = Node(1)")
    assert task.setup == ""
    assert task.contract.startswith("root = Node(1)")


ROW = {
    "task_id": 1,
    "text": "Add.",
    "code": "def add(a, b):\r\n    return a + b",
    "test_list": ["assert add(1, 2) == 3"],
}
HUMAN_EVAL_ROW = {
    "task_id": "X/1",
    "prompt": 'def add(a, b):\n    """Add."""\n',
    "canonical_solution": "    return a + b\n",
    "entry_point": "add",
    "test": "def check(candidate):\n    assert True\n",
}


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("mbpp", ROW | {"test_list": []}, "no tests"),
        ("mbpp", ROW | {"test_list": ["   ", "# nothing"]}, "no tests"),
        ("mbpp", ROW | {"test_list": ["assert True"]}, "no tests"),
        ("mbpp", ROW | {"test_list": ["assert add(1"]}, "not Python"),
        ("mbpp", ROW | {"test_list": "assert add(1, 2) == 3"}, "list of texts"),
        ("mbpp", ROW | {"text": None}, "'text'"),
        ("mbpp", ROW | {"text": " "}, "empty"),
        ("humaneval", HUMAN_EVAL_ROW, "no tests"),
        ("humaneval", HUMAN_EVAL_ROW | {"test": "x = 1"}, "no function check"),
        ("humaneval", HUMAN_EVAL_ROW | {"prompt": "def add(a, b"}, "Python"),
        ("humaneval_plus", HUMAN_EVAL_ROW | {"base_input": [], "plus_input": [[1, 2]], "atol": 0}, "no tests"),
        ("mbpp_plus", HUMAN_EVAL_ROW | {"base_input": [], "plus_input": {}, "atol": 0}, "no tests"),
        ("mbpp_plus", HUMAN_EVAL_ROW | {"base_input": [1], "plus_input": [], "atol": 0}, "argument lists"),
        ("mbpp_plus", HUMAN_EVAL_ROW | {"base_input": [[1, 2]], "plus_input": [], "atol": -1}, "atol"),
        ("apps", {"problem_id": 1, "question": "Q", "input_output": "{not json"}, "not valid JSON"),
        ("apps", {"problem_id": 1, "question": "Q", "input_output": ""}, "no tests"),
        ("apps", {"problem_id": 1, "question": "Q", "input_output": '{"inputs": [], "outputs": []}'}, "no tests"),
    ],
)
def test_a_row_without_tests_is_left_out_and_named(
    tmp_path: Path, name: str, row: dict[str, object], reason: str
) -> None:
    good: dict[str, dict[str, object]] = {
        "mbpp": ROW,
        "humaneval": HUMAN_EVAL_ROW | {"test": "def check(c):\n    assert c(1, 2) == 3\n"},
        "humaneval_plus": HUMAN_EVAL_ROW | {"base_input": [[1, 2]], "plus_input": [[3, 4]], "atol": 0},
        "mbpp_plus": HUMAN_EVAL_ROW | {"prompt": '"""\nAdd.\nassert add(1, 2) == 3\n"""\n', "base_input": [[1, 2]]},
        "apps": {"problem_id": 0, "question": "Q", "input_output": '{"inputs": ["1"], "outputs": ["1"]}'},
    }
    path = tmp_path / "rows.jsonl"
    key = "problem_id" if name == "apps" else "task_id"
    rows = [good[name] | {key: 7 if name in ("apps", "mbpp") else "X/7"}, row]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    benchmark = load_benchmark(name, path=path)
    assert len(benchmark.tasks) == 1
    assert [left.task_id for left in benchmark.left_out] == [str(row[key])]
    assert reason in benchmark.left_out[0].reason


def test_a_file_of_unusable_rows_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mbpp.jsonl"
    path.write_text(json.dumps(ROW | {"test_list": []}) + "\n", encoding="utf-8")
    with pytest.raises(TaskError, match="no usable row of mbpp; the first was left out because: no tests"):
        load_benchmark("mbpp", path=path)


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown benchmark 'humanevil'; allowed are humaneval, humaneval_plus"):
        load_benchmark("humanevil")
    with pytest.raises(ConfigError, match="benchmark 'custom' needs a YAML or JSON-lines file"):
        load_benchmark("custom")
    with pytest.raises(TaskError, match=r"nowhere.jsonl: cannot be read: No such file"):
        load_benchmark("mbpp", path=tmp_path / "nowhere.jsonl")
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps(ROW) + "\n{oops\n", encoding="utf-8")
    with pytest.raises(TaskError, match=r"broken.jsonl, line 2: not valid JSON"):
        load_benchmark("mbpp", path=path)
    path.write_bytes(b"\x1f\x8bnot gzip")
    with pytest.raises(TaskError, match="cannot be read"):
        load_benchmark("mbpp", path=path)


def test_an_id_that_comes_twice_is_taken_once(tmp_path: Path) -> None:
    path = tmp_path / "mbpp.jsonl"
    path.write_text((json.dumps(ROW) + "\n") * 2, encoding="utf-8")
    benchmark = load_benchmark("mbpp", path=path)
    assert len(benchmark.tasks) == 1
    assert "line 2 repeats the id" in benchmark.left_out[0].reason
    assert "\r" not in benchmark.tasks[0].canonical_solution
