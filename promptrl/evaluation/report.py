"""The HTML report: every episode of one or several runs in one file that any browser opens, without a network.

The page is a template (`report_page/`) and one island of JSON. Nothing from models or data is ever written as HTML: the
island holds neither `<`, `>` nor `&`, the page's script makes text nodes alone, and a content security policy lets no
other script run and nothing be loaded. The table comes first; an episode is drawn when it is opened.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from promptrl.atomic import write_atomically
from promptrl.errors import RunError
from promptrl.evaluation.metrics import answer_index
from promptrl.evaluation.records import Record, misfit, read_records
from promptrl.evaluation.run_folders import read_mapping, record_files

_PAGE: Final = files("promptrl.evaluation") / "report_page"
_MARK: Final = "<!-- made by promptrl report -->"
_NEEDED: Final = frozenset({"method", "task_id", "episode", "step", "action", "prompt", "pass_rate", "reward"})


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the page says of a run besides its episodes: a label, unique among the runs, and (name, value) pairs."""

    label: str
    facts: tuple[tuple[str, str], ...] = ()


def write_report(records: Sequence[Record], path: Path, *, title: str, runs: Sequence[RunFacts] = ()) -> int:
    """Write the page of some episodes.

    Args:
        records: of steps, as `step_record` makes them. A key `run` tells runs apart, `benchmark` benchmarks, and
            `training` marks episodes of training; all three may be missing.
        path: the file; an earlier report there is replaced.
        title: stands at the head of the page.
        runs: what to say of the runs that the records name.

    Returns:
        How many episodes the page holds.

    Raises:
        RunError: when there are no records, one lacks a key, or the file is no report or cannot be written.
    """
    data = report_data(records, title=title, runs=runs)
    page = render_page(data, title)
    try:
        if path.exists() and _MARK not in path.open("rb").read(200).decode("utf-8", "replace"):
            raise RunError(f"{path} exists and is no report; give another --output")
        with write_atomically(path) as temporary:
            temporary.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror or error})") from error
    return len(data["episodes"])


def report_runs(folders: Sequence[Path], output: Path | None = None, *, training: bool = False) -> tuple[Path, int]:
    """What `promptrl report` does.

    Args:
        folders: run folders, or files of records.
        output: the page; unset, `report.html` in the run folder, or here where there are several.
        training: whether the episodes of training are shown too; they are in any case where a run has no others.

    Returns:
        The page's path, and how many episodes it holds.

    Raises:
        RunError: when a folder holds no records, or the page cannot be written.
    """
    labels = run_labels(folders)
    try:
        records = [
            {**record, "run": label}
            for folder, label in zip(folders, labels, strict=True)
            for record in _run_records(folder, training)
        ]
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read ({error.strerror})") from error
    if output is None:
        output = folders[0] / "report.html" if len(folders) == 1 and folders[0].is_dir() else Path("report.html")
    runs = [RunFacts(label, _facts(folder)) for folder, label in zip(folders, labels, strict=True)]
    return output, write_report(records, output, title=f"promptrl: {', '.join(labels)}", runs=runs)


def run_labels(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its last part, or as many of its last parts as tell it from the others."""
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise RunError("a run folder is given twice; give each once")
    labels = []
    for own in parts:
        length = 1
        while sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        labels.append(Path(*own[-length:]).as_posix())
    return labels


def report_data(records: Sequence[Record], *, title: str = "", runs: Sequence[RunFacts] = ()) -> dict[str, Any]:
    """What the page holds, as plain data.

    Long texts are kept once, in `texts`, and named by their index; outcomes of tests are [outcome, count] pairs.

    Raises:
        RunError: when there are no records, or one lacks a key.
    """
    if not records:
        raise RunError("there are no episodes to report on")
    for record in records:
        if lacking := sorted(_NEEDED - record.keys()):
            raise RunError(f"a record of task {record.get('task_id')!r} has no {', '.join(lacking)}; it is no step")
        if wrong := misfit(record):
            raise RunError(f"a record of task {record['task_id']!r} is not as docs/records.md has it: {wrong}")
    texts = _Texts()
    # A run's own comes first: under another protocol or request the same task has another prompt.
    originals: dict[tuple[object, ...], str] = {}
    for record in records:
        if record["step"] == 0 and record["action"] == "direct":
            task = (record.get("benchmark"), record["task_id"])
            originals.setdefault((record.get("run"), *task), record["prompt"])
            originals.setdefault(task, record["prompt"])
    episodes = []
    for steps in _grouped(records):
        first = steps[0]
        answer = steps[answer_index([step["pass_rate"] for step in steps])]
        rate = answer["pass_rate"] if answer.get("report_pass_rate") is None else answer["report_pass_rate"]
        task = (first.get("benchmark"), first["task_id"])
        original = originals.get((first.get("run"), *task), originals.get(task))
        episodes.append(
            {
                "run": first.get("run"),
                "method": first["method"] + (", training" if first.get("training") else ""),
                "training": bool(first.get("training")),
                "benchmark": first.get("benchmark"),
                "seed": first.get("seed"),
                "task": first["task_id"],
                "episode": first["episode"],
                "original": None if original is None else texts.index(original),
                "solved": _solved(answer["pass_rate"], rate, ended=_ended(steps[-1])),
                "rate": _number(rate),
                "reward": _number(math.fsum(step["reward"] for step in steps)),
                "tokens": sum(_tokens(step, "tokens_in") + _tokens(step, "tokens_out") for step in steps),
                "answer": answer["step"],
                "capped": steps[-1].get("capped"),
                "steps": [_step(step, texts) for step in steps],
            }
        )
    return {
        "title": title,
        "runs": [{"label": run.label, "facts": [list(fact) for fact in run.facts]} for run in runs],
        "texts": texts.all,
        "episodes": episodes,
    }


def render_page(data: Mapping[str, Any], title: str) -> str:
    """The page: the template with its parts; what comes from records stands in it as ASCII."""
    parts = {name: (_PAGE / f"page.{name}").read_text("utf-8") for name in ("html", "css", "js")}
    values = {
        "mark": _MARK,
        "title": html.escape(title.replace("\0", "\ufffd")).encode("ascii", "xmlcharrefreplace").decode(),
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_source(parts['css'])}; "
        f"script-src {_source(parts['js'])}",
        "style": parts["css"],
        "script": parts["js"],
        "data": island(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], parts["html"])


def island(data: object) -> str:
    """Data as JSON that can stand inside a script element: ASCII alone, without `<`, `>` and `&`."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _source(text: str) -> str:
    """What a content security policy calls an inline style or script with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Texts:
    """Texts by number; equal ones have one."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def index(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.all)
            self.all.append(text)
        return self._numbers[text]


def _grouped(records: Iterable[Record]) -> list[list[Record]]:
    """The records of each episode, in the order of their steps; episodes in the order of their first records."""
    groups: dict[tuple[object, ...], dict[int, Record]] = {}
    for record in records:
        key = tuple(record.get(name) for name in ("run", "training", "method", "seed", "env", "episode", "task_id"))
        groups.setdefault(key, {})[record["step"]] = record
    return [[steps[number] for number in sorted(steps)] for steps in groups.values()]


def _step(record: Record, texts: _Texts) -> dict[str, Any]:
    # How each came out, how many in a row, and for tests of one's own the name and what was said.
    tests: list[list[Any]] = [[outcome, len(list(same))] for outcome, same in groupby(record.get("tests") or ())]
    if named := record.get("outcomes"):
        tests = [[test["outcome"], 1, test["name"], test["detail"]] for test in named]
    code, answer = record.get("code"), record.get("answer")
    return {
        "step": record["step"],
        "action": record["action"],
        "draw": record.get("draw"),
        "prompt": texts.index(record["prompt"]),
        "code": None if code is None else texts.index(code),
        "answer": None if answer is None else texts.index(answer),
        "status": record.get("status"),
        "error": record.get("error"),
        "note": record.get("note"),
        "rate": _number(record["pass_rate"]),
        "report": _number(record.get("report_pass_rate")),
        "tests": tests,
        "reward": _number(record["reward"]),
        "in": _tokens(record, "tokens_in"),
        "out": _tokens(record, "tokens_out"),
        "calls": (record.get("model_calls") or 0) + (record.get("rewrite_calls") or 0),
        "cached": (record.get("cached") or 0) + (record.get("rewrite_cached") or 0),
        "cut": record.get("finish_reason") == "length",
    }


def _tokens(record: Record, key: str) -> int:
    return int((record.get(key) or 0) + (record.get(f"rewrite_{key}") or 0))


def _ended(step: Record) -> bool:
    return bool(step.get("terminated") or step.get("truncated") or step.get("last"))


def _solved(reward_rate: float, report_rate: float, *, ended: bool) -> str:
    """`yes`; `misled` where the reward tests pass and the report tests do not; `no`; `unfinished`."""
    if report_rate == 1.0:
        return "yes"
    if reward_rate == 1.0:
        return "misled"
    return "no" if ended else "unfinished"


def _number(value: float | None) -> float | None:
    """A number that JSON has a form for."""
    return value if value is not None and math.isfinite(value) else None


def _run_records(folder: Path, training: bool) -> Iterator[Record]:
    if folder.is_file():
        yield from read_records(folder)
        return
    config = _mapping(folder / "config.yaml")
    listed = _at(config, "evaluation", "methods")
    ranks = {str(name): number for number, name in enumerate(listed if isinstance(listed, list) else ())}
    files = record_files(folder / "evaluation") if (folder / "evaluation").is_dir() else []
    evaluated = sorted(files, key=lambda path: (ranks.get(path.stem, len(ranks)), path.stem))
    trained = folder / "train.jsonl"
    if (folder / "sampling").is_dir():
        raise RunError(f"{folder} holds a sampling sweep, which has no episodes; its table is {folder / 'table.md'}")
    if not evaluated and not trained.is_file():
        raise RunError(f"{folder} holds no episodes: there is neither evaluation/*.jsonl nor train.jsonl in it")
    benchmark = config.get("benchmark")
    about = {"benchmark": None if benchmark is None else str(benchmark)}
    for path in evaluated:
        yield from ({**record, **about} for record in read_records(path))
    if trained.is_file() and (training or not evaluated):
        # What a run trains on may be another benchmark's tasks, which the records do not say.
        yield from ({**record, "training": True} for record in read_records(trained))


def _facts(folder: Path) -> tuple[tuple[str, str], ...]:
    """What the files of a run folder say of it; nothing where they are not there."""
    config = _mapping(folder / "config.yaml")
    quantization = _at(config, "model", "quantization")
    summary, versions = _mapping(folder / "summary.json"), _mapping(folder / "versions.json")
    pairs = (
        ("benchmark", config.get("benchmark")),
        ("protocol", _at(config, "environment", "protocol")),
        ("attempts per task", _at(config, "environment", "horizon")),
        ("reward", _at(config, "environment", "reward")),
        ("model", _at(config, "model", "name")),
        ("precision", _at(config, "model", "dtype") if quantization == "none" else quantization),
        ("seed", config.get("seed")),
        ("commit", versions.get("commit")),
        ("command", summary.get("command")),
    )
    return tuple((name, str(value)) for name, value in pairs if value is not None)


def _mapping(path: Path) -> dict[str, Any]:
    """A JSON or YAML file's mapping; an empty one where there is none: it only adds to what the page says."""
    try:
        return read_mapping(path)
    except RunError:
        return {}


def _at(mapping: Mapping[str, Any], *keys: str) -> Any:
    value: Any = mapping
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
