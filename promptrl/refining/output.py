"""What a refinement leaves in its folder, and the word diff that people read."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from rich.text import Text

from promptrl.atomic import write_atomically
from promptrl.errors import RunError
from promptrl.refining.result import SCHEMA_VERSION, Refinement

RESULT: Final = "refinement.json"
_STYLES: Final = {"-": "red strike", "+": "green bold"}


def write_folder(folder: Path, refinement: Refinement, facts: dict[str, Any]) -> None:
    """Write `best.py`, `best_prompt.txt` and `refinement.json`; each is whole or as it was.

    Args:
        folder: Made where it is missing.
        refinement: What has come of the task so far.
        facts: Further keys of `refinement.json`.

    Raises:
        RunError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(".*.partial*"):  # of a process that was killed while writing
            left_over.unlink()
        if refinement.code is not None:
            _write(folder / "best.py", refinement.code.rstrip("\n") + "\n")
        _write(folder / "best_prompt.txt", refinement.prompt.rstrip("\n") + "\n")
        _write(folder / RESULT, json.dumps({**facts, **refinement.to_dict()}, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror or error})") from error


def _write(path: Path, text: str) -> None:
    with write_atomically(path) as temporary:
        # A lone surrogate in a model's answer is no valid UTF-8; it is written as an escape instead.
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def read_result(folder: Path) -> dict[str, Any] | None:
    """The `refinement.json` of a folder, None where there is none or it is of another schema."""
    try:
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA_VERSION else None


def check_output(folder: Path, *, resume: bool) -> None:
    """Refuse a folder that holds something else, or results that nobody asked to go on with.

    Raises:
        RunError: naming the folder.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give another --output")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    holds_results = (folder / RESULT).exists() or (folder / "summary.json").exists() or any(folder.glob(f"*/{RESULT}"))
    if not holds_results:
        raise RunError(f"{folder} exists and is not an empty folder; give another --output")
    if not resume:
        raise RunError(f"{folder} already holds a refinement; use --resume to go on with it, or another --output")


Piece = tuple[Literal["", "-", "+"], str]


def word_diff(before: str, after: str) -> Iterator[Piece]:
    """The pieces of two texts, word by word: kept (""), left out ("-") and put in ("+")."""
    old, new = re.findall(r"\s+|\w+|[^\w\s]", before), re.findall(r"\s+|\w+|[^\w\s]", after)
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            yield "", "".join(old[i:j])
            continue
        if j > i:
            yield "-", "".join(old[i:j])
        if m > k:
            yield "+", "".join(new[k:m])


def diff_text(before: str, after: str, *, colour: bool) -> Text:
    """The word diff for people: in colours, or as `[-left out-]` and `{+put in+}`."""
    text = Text()
    for sign, piece in word_diff(before, after):
        if not sign:
            text.append(piece)
        elif colour:
            text.append(piece, _STYLES[sign])
        else:
            text.append(f"[-{piece}-]" if sign == "-" else f"{{+{piece}+}}")
    return text
