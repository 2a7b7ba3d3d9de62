"""The folder of one run: made once, checked before anything is loaded, gone on with by the same configuration only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from promptrl.atomic import write_atomically
from promptrl.config import Config, load_config
from promptrl.errors import RunError

RUNS_DIR: Final = Path("runs")


class RunFolder:
    """The folder of one run; made once, and only ever gone on with by the same configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def check(
        cls,
        config: Config,
        output: Path | None,
        *,
        resume: bool,
        purpose: dict[str, str],
        may_add_methods: bool = False,
    ) -> RunFolder:
        """The folder that a run may use, which is not made yet.

        Args:
            config: the run's configuration.
            output: the folder; a new one under `runs/` where unset.
            resume: whether `output` holds the run to go on with.
            purpose: what else decides the results, besides the configuration (the method, the policy's hash).
            may_add_methods: whether the configuration may evaluate more methods than the run to resume did.

        Raises:
            RunError: when `output` holds a run and `resume` is not set, when there is nothing to resume, or
                when the run to resume had another configuration or purpose (the differing keys are named).
        """
        if output is None:
            if resume:
                raise RunError("--resume needs --output with the folder of the run to go on with")
            output = RUNS_DIR / f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
        stored = output / "config.yaml"
        if stored.exists():
            if not resume:
                raise RunError(f"{output} already holds a run; use --resume to go on with it, or another --output")
            old, new = load_config(stored).model_dump(), config.model_dump()
            if may_add_methods and set(old["evaluation"]["methods"]) <= set(new["evaluation"]["methods"]):
                old["evaluation"]["methods"] = new["evaluation"]["methods"]
            differing = [*_differences(read_json(output / "purpose.json"), purpose), *_differences(old, new)]
            if differing:
                raise RunError(
                    f"{output} was made with another configuration ({'; '.join(differing)}); use another --output"
                )
        elif resume:
            raise RunError(f"{output} holds no run to resume (there is no config.yaml in it)")
        elif output.exists() and (not output.is_dir() or not _barely_begun(output)):
            raise RunError(f"{output} exists and is not an empty folder; give another --output")
        return cls(output)

    def make(self, config: Config, purpose: dict[str, str]) -> None:
        """Make the folder, unless it is there.

        Raises:
            RunError: when it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for left_over in self.path.glob(".*.partial*"):  # of a process that was killed while writing
                left_over.unlink()
            if not (self.path / "config.yaml").exists():
                self.write_json("purpose.json", purpose)
            self.write("config.yaml", config.to_yaml())
        except OSError as error:
            raise RunError(f"{self.path} cannot be written ({error.strerror})") from error

    def write(self, name: str, text: str) -> None:
        with write_atomically(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _barely_begun(folder: Path) -> bool:
    """Whether a folder holds nothing but what a run writes before its configuration."""
    return all(path.name == "purpose.json" or ".partial" in path.suffixes for path in folder.iterdir())


def read_json(path: Path) -> dict[str, Any]:
    """A run folder's file of JSON; empty where it holds no mapping.

    Raises:
        RunError: when it cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({type(error).__name__}); use another --output") from error
    return value if isinstance(value, dict) else {}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys in which two (nested) mappings differ, with both values."""
    return [f"{key}: {a!r} there, {b!r} now" for key, a, b in _walk(old, new)]


def _walk(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _walk(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)
    elif old != new:
        yield prefix, old, new
