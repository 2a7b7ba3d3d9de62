"""A user's own tasks: the documented example runs, and every mistake is one sentence with file, row and key."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import yaml

from promptrl.errors import TaskError
from promptrl.execution import Candidate, Judge, Status
from promptrl.tasks import AssertTest, CallTest, StdinTest, Task, load_benchmark

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_tasks.yaml"


@pytest.fixture(scope="module")
def example() -> dict[str, Task]:
    return dict(load_benchmark("custom", path=EXAMPLE).by_id)


def test_the_example_passes_its_own_tests(example: dict[str, Task], judge: Judge) -> None:
    candidates = [
        Candidate(task.canonical_solution, task, suite)
        for task in example.values()
        for suite in (task.base, task.plus)
        if suite is not None
    ]
    assert len(candidates) == 6
    assert [verdict.status for verdict in judge.judge(candidates)] == [Status.PASSED] * 6


def test_wrong_answers_to_the_example_fail(example: dict[str, Task], judge: Judge) -> None:
    wrong = {
        "slugify": "def slugify(title):\n    return title.lower()\n",
        "mean_and_spread": "def mean_and_spread(numbers):\n    return (0.15, 0.1)\n",
        "running_total": "print(6)\n",
    }
    verdicts = judge.judge([Candidate(wrong[name], task, task.base) for name, task in example.items()])
    assert [verdict.status for verdict in verdicts] == [Status.FAILED] * 3


def test_what_the_example_becomes(example: dict[str, Task]) -> None:
    slugify, spread, total = example.values()
    assert slugify.contract == "assert slugify('Hello, World') == 'hello-world'"
    assert slugify.metadata["visible_tests"] == 1
    assert slugify.base.tests[0] == CallTest(("Hello, World",), "hello-world", float_leaves=True)
    assert slugify.plus is not None
    assert isinstance(slugify.plus.tests[2], AssertTest)
    assert spread.contract.startswith("def mean_and_spread")
    assert spread.metadata["visible_tests"] == 0
    assert spread.plus is not None
    assert [test.atol for test in (*spread.base, *spread.plus) if isinstance(test, CallTest)] == [1e-9] * 3 + [0.001]
    assert spread.base.tests[0] == CallTest(([1.0, 2.0, 3.0],), [2.0, 2.0], atol=1e-9, float_leaves=True)
    assert total.style == "stdin"
    assert total.entry_point is None
    assert total.base.tests == (StdinTest("1\n2\n3\n", "1\n3\n6\n"),)


def test_json_lines_hold_the_same_tasks(example: dict[str, Task], tmp_path: Path) -> None:
    rows = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["tasks"]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert load_benchmark("custom", path=path).tasks == tuple(example.values())


TASK = {"id": "add", "prompt": "Add.", "entry_point": "add", "tests": ["assert add(1, 2) == 3"]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test": []}, "key 'test': unknown key, did you mean 'tests'?"),
        ({"ident": "x", "id": None}, "key 'ident': unknown key; allowed are id, prompt, contract, entry_point"),
        ({"tests": [{"args": [1, 2], "expcted": 3}]}, "item 1, key 'expcted': unknown key, did you mean 'expected'?"),
        ({"tests": [{"stdin": "1", "stdou": "1"}]}, "key 'tests', item 1, key 'stdou': unknown key, did you mean 'std"),
        ({"tests": ["assert add(1, 2) == 3", {"args": 1, "expected": 3}]}, "item 2, key 'args': input should be a val"),
        ({"tests": [7]}, "key 'tests', item 1: must be an assert as text, {args, expected} or {stdin, stdout}, given"),
        ({"prompt": None}, "key 'prompt': input should be a valid string"),
        ({"prompt": "  "}, "key 'prompt': string should have at least 1 character"),
        ({"tests": []}, "key 'tests': list should have at least 1 item"),
        ({"tests": ["assert addition(1, 2) == 3"]}, "key 'tests': no test calls 'add', the entry_point"),
        ({"tests": ["# nothing"]}, "key 'tests', item 1: never calls 'add'"),
        ({"tests": ["def test():\n    assert add(1, 2) == 3"]}, "item 1: holds no assert that could fail because of"),
        ({"tests": ["class Test:\n    def test(self):\n        assert add(1, 2) == 3"]}, "item 1: holds no assert"),
        ({"tests": ["if False:\n    assert add(1, 2) == 3"]}, "item 1: holds no assert"),
        ({"tests": ["assert (add(1, 2) == 3, 'message')"]}, "key 'tests', item 1: asserts a tuple"),
        ({"report_tests": ["assert 1 == 1"]}, "key 'report_tests', item 1: never calls 'add'"),
        ({"tests": ["assert len([1]) == 1"]}, "item 1: never calls 'add'"),
        ({"tests": ["assert add(1, 2) == 3", "assert add(1"]}, "key 'tests', item 2: assert 1 is not Python"),
        ({"tests": [{"args": [1, 2]}]}, "key 'tests', item 1, key 'expected': field required"),
        ({"tests": [{"stdin": "1", "stdout": "1"}]}, "tests 1 must be an assert or {args, expected}"),
        ({"entry_point": None}, "tests 1 must be {stdin, stdout}"),
        ({"entry_point": None, "style": "function"}, "style 'function' needs entry_point"),
        ({"entry_point": "not a name"}, "key 'entry_point': string should match pattern"),
        ({"atol": -1}, "key 'atol': input should be greater than or equal to 0, given '-1'"),
        ({"style": "class"}, "key 'style': input should be 'function' or 'stdin'"),
    ],
)
def test_every_mistake_is_one_sentence(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "tasks.yaml"
    row = {key: value for key, value in (TASK | change).items() if value is not None or key == "prompt"}
    path.write_text(yaml.safe_dump([TASK | {"id": "first"}, row]), encoding="utf-8")
    with pytest.raises(TaskError) as caught:
        load_benchmark("custom", path=path)
    message = str(caught.value)
    named = " (id 'add')" if "id" in row else ""
    assert re.match(re.escape(f"{path}, task 2{named}, line ") + r"\d+: ", message)
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "tasks.yaml",
            "# mine\ntasks:\n- id: add\n  prompt: Add.\n  entrypoint: add\n  tests:\n  - assert add(1, 2) == 3\n",
            "task 1 (id 'add'), line 5: key 'entrypoint'",
        ),
        (
            "tasks.yml",
            "- id: add\n  prompt: Add.\n  entry_point: add\n  tests:\n\n"
            "  - assert add(1, 2) == 3\n  - args: [1]\n    exp: 3\n",
            "task 1 (id 'add'), line 8: key 'tests', item 2, key 'exp'",
        ),
        (
            "tasks.yaml",
            "\nid: add\nprompt: Add.\nentry_point: add\ntests: []\n",
            "task 1 (id 'add'), line 5: key 'tests'",
        ),
        ("tasks.jsonl", json.dumps(TASK) + "\n\n" + json.dumps(TASK | {"x": 1}), "line 3 (id 'add'): key 'x'"),
    ],
)
def test_the_line_of_a_mistake_counts_from_1(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TaskError) as caught:
        load_benchmark("custom", path=path)
    assert str(caught.value).startswith(f"{path}, {said}: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a list of tasks"),
        ("[]", "holds no tasks"),
        ("tasks: {a: 1}", "expected a list of tasks"),
        ("a: [", "not valid YAML"),
        ("tests:\n  - assert f(1) == {1: 2, 2: 3}\n", "a text that holds ': ' needs quotes around it"),
        ("- 1", "task 1"),
        (yaml.safe_dump([TASK, TASK]), "task 2: key 'id': 'add' is already the id of task 1"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TaskError, match=r"tasks\.yaml") as caught:
        load_benchmark("custom", path=path)
    assert said in str(caught.value)


def test_one_task_alone_needs_no_list(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(TASK), encoding="utf-8")
    assert [task.task_id for task in load_benchmark("custom", path=path).tasks] == ["add"]


FORMS = {
    "test function that is called": (
        "def test():\n    assert f(1) == 2\ntest()",
        "def f(x): return 2",
        "def f(x): return 3",
    ),
    "method that is called": (
        "class T:\n    def t(self):\n        assert f(1) == 2\nT().t()",
        "def f(x): return 2",
        "def f(x): return 3",
    ),
    "main guard": ('if __name__ == "__main__":\n    assert f(1) == 2', "def f(x): return 2", "def f(x): return 3"),
    "call that prepares": (
        "f(1)\nassert size() == 1",
        "xs = []\ndef f(x): xs.append(x)\ndef size(): return len(xs)",
        "def f(x): pass\ndef size(): return 0",
    ),
    "seed": (
        f"import random\nrandom.seed(5)\nassert f() == {random.Random(5).random()!r}",
        "import random\ndef f(): return random.random()",
        "import random\ndef f(): return random.random() / 2",
    ),
    "called twice": (
        "f()\nassert f() == 2\nassert f() == 3",
        "n = 0\ndef f():\n    global n\n    n += 1\n    return n",
        "def f(): return 2",
    ),
    "argument changed in place": (
        "xs = [3, 1]\nassert f(xs) is None\nassert xs == [1, 3]",
        "def f(xs): xs.sort()",
        "def f(xs): pass",
    ),
    "expected error": (
        "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
        "def f(x): raise ValueError",
        "def f(x): return x",
    ),
    "sum over a loop": (
        "total = 0\nfor x in (1, 2):\n    total += f(x)\nassert total == 3",
        "def f(x): return x",
        "def f(x): return 2 * x",
    ),
    "nested floats": ("assert f(0.1) == [[0.3]]", "def f(x): return [[x + 0.2]]", "def f(x): return [[x + 0.21]]"),
    "floats in a dict": (
        "assert f(0.1) == {'a': (0.3, 'b')}",
        "def f(x): return {'a': (x + 0.2, 'b')}",
        "def f(x): return {'a': (x + 0.2, 'c')}",
    ),
}


@pytest.mark.parametrize(("source", "right", "wrong"), FORMS.values(), ids=FORMS.keys())
def test_a_test_tells_right_from_wrong(tmp_path: Path, judge: Judge, source: str, right: str, wrong: str) -> None:
    path = tmp_path / "tasks.yaml"
    row = {"id": "t", "prompt": "Do it.", "entry_point": "f", "tests": [source]}
    path.write_text(yaml.safe_dump([row]), encoding="utf-8")
    task = load_benchmark("custom", path=path).tasks[0]
    verdicts = judge.judge([Candidate(code, task, task.base) for code in (right, wrong)])
    assert [verdict.status is Status.PASSED for verdict in verdicts] == [True, False]


def test_what_the_prompt_shows_is_the_test(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    sources = [
        "assert f(1)", "assert not f(2)", "assert set(f(3)) == {1}", "assert abs(f(4) - 1) < 0.5",
        "assert abs(f(5) - 1) <= 0.5", "xs = [1]\nassert f(xs) == 1",
    ]  # fmt: skip
    row = {"id": "t", "prompt": "Do it.", "entry_point": "f", "tests": sources, "show_tests": 6, "atol": 0.1}
    path.write_text(yaml.safe_dump([row]), encoding="utf-8")
    assert load_benchmark("custom", path=path).tasks[0].contract == "\n".join(sources)
