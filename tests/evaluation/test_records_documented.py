"""docs/records.md names every field that is written, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

from promptrl.envs.vector_env import PromptRefinementVectorEnv
from promptrl.evaluation.records import SCHEMA_VERSION, Record, RecordFile, step_record
from promptrl.evaluation.runner import evaluate
from promptrl.execution import Judge, Outcome, Status
from promptrl.methods import MethodContext, make_method
from promptrl.refinement.episode import Episode, Step
from tests.evaluation.studies import record
from tests.scripted import half_right, make_engine, make_task, number_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "records.md"
TYPES = {
    "integer": int,
    "text": str,
    "text or null": (str, type(None)),
    "number": (int, float),
    "number or null": (int, float, type(None)),
    "boolean": bool,
    "list of text": list,
}


def documented() -> dict[str, str]:
    """The type of each field, as the documentation has it."""
    table = DOCS.read_text().split("| field | type | meaning |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([a-z ]+?) \|", table, re.MULTILINE))


def evaluated(judge: Judge, path: Path) -> list[Record]:
    engine = make_engine(lambda request: half_right(number_of(request)), judge, horizon=3)
    method = make_method("random-hybrid", MethodContext(("direct", "lexical", "semantic"), seed=3))
    evaluate(method, engine, [make_task(n, plus=True) for n in range(4)], path, seed=3)
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(judge: Judge) -> list[Record]:
    records: list[Record] = []

    def keep(env_index: int, episode: Episode, step: Step) -> None:
        made = step_record(episode, step, method="ppo", seed=0, episode_number=0)
        records.append({**made, "env": env_index})

    engine = make_engine(lambda request: half_right(number_of(request)), judge)
    env = PromptRefinementVectorEnv(engine, [make_task(1)], num_envs=2, on_step=keep)
    env.reset(seed=0)
    env.step(np.array([0, 2]))
    env.close()
    return records


def test_every_field_is_documented_with_its_type_and_every_documented_field_is_written(
    judge: Judge, tmp_path: Path
) -> None:
    fields = documented()
    records = [*evaluated(judge, tmp_path / "e.jsonl"), *trained(judge)]
    assert {key for line in records for key in line} == set(fields)
    assert f"schema version {SCHEMA_VERSION}" in DOCS.read_text()
    for line in records:
        for key, value in line.items():
            wanted = TYPES[fields[key]]
            assert isinstance(value, wanted), (key, value)
            assert wanted is bool or not isinstance(value, bool), (key, value)


def test_the_documented_outcomes_and_statuses_are_all_there_are() -> None:
    text = DOCS.read_text()
    for field, names in (("status", Status), ("tests", Outcome)):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{field}` "))
        assert set(re.findall(r"`(\w+)`", row)) - {field} == {str(name) for name in names}


def test_the_readers_tests_use_the_same_fields(judge: Judge, tmp_path: Path) -> None:
    written = {key for line in evaluated(judge, tmp_path / "e.jsonl") for key in line}
    assert set(record("direct", "T/0", 0, 0, ("direct", 1.0, 1.0), last=True)) == written


def test_a_run_is_read_by_pandas_as_it_was_written(judge: Judge, tmp_path: Path) -> None:
    records = evaluated(judge, tmp_path / "e.jsonl")
    frame = pd.read_json(tmp_path / "e.jsonl", lines=True)
    assert list(frame["task_id"]) == [line["task_id"] for line in records]
    assert frame["pass_rate"].tolist() == [line["pass_rate"] for line in records]
    assert frame["tests"].tolist() == [line["tests"] for line in records]
    assert frame["code"].tolist() == [line["code"] for line in records]
    assert int(frame["last"].fillna(0).sum()) == frame["task_id"].nunique() == 4
    # An answer's text stays text, whatever it looks like.
    file = RecordFile(tmp_path / "odd.jsonl")
    file.append({"schema": 1, "answer": "007"}, {"schema": 1, "answer": "1e5"})
    file.close()
    assert pd.read_json(tmp_path / "odd.jsonl", lines=True, dtype=False)["answer"].tolist() == ["007", "1e5"]
