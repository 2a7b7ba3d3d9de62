"""What one attempt of each action brought, as a table: in the evaluations, and in the training of the agents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from promptrl.evaluation.comparison import Block, Comparison
from promptrl.evaluation.grids import Cell, Grid, csv_text, interval_text, percent_text, render, signed_text
from promptrl.evaluation.records import Record, read_records
from promptrl.evaluation.run_folders import TRAINED
from promptrl.evaluation.series import Series
from promptrl.evaluation.statistics import Interval, wilson_interval

_COLUMNS: Final = (
    "method",
    "part",
    "action",
    "attempt",
    "n",
    "solved",
    "solved %",
    "95 %",
    "gain",
    "same code %",
    "tokens",
)


@dataclass(frozen=True, slots=True)
class ActionEffect:
    """The attempts of one action that were an episode's first, or that came after a failed one.

    Attributes:
        action: its name in the records.
        later: whether an attempt had failed before.
        n: attempts.
        solved: how many passed all reward tests.
        gain: mean pass rate on the reward tests less that of the attempt before; None for first attempts.
        repeated: share whose code the episode had tried before; None for first attempts.
        tokens: mean tokens in and out per attempt, rewriting included.
    """

    action: str
    later: bool
    n: int
    solved: int
    gain: float | None
    repeated: float | None
    tokens: float

    @property
    def interval(self) -> Interval:
        """Wilson's interval of the share solved."""
        return wilson_interval(self.solved, self.n)


def action_effects(runs: Iterable[Iterable[Record]]) -> list[ActionEffect]:
    """What each action brought over all runs given, first attempts before later ones, then by name."""
    attempts: dict[tuple[bool, str], list[tuple[Record, Record | None, bool]]] = {}
    for records in runs:
        before: dict[int, list[Record]] = {}
        for record in records:
            past = before.setdefault(record["episode"], [])
            known = record["code"] is not None and record["code"] in {step["code"] for step in past}
            last = past[-1] if past else None
            attempts.setdefault((bool(past), record["action"]), []).append((record, last, known))
            past.append(record)
            if record["terminated"] or record["truncated"]:
                del before[record["episode"]]
    return [_effect(action, later, made) for (later, action), made in sorted(attempts.items())]


def _effect(action: str, later: bool, made: Sequence[tuple[Record, Record | None, bool]]) -> ActionEffect:
    n = len(made)
    gains = [record["pass_rate"] - last["pass_rate"] for record, last, _ in made if last is not None]
    return ActionEffect(
        action=action,
        later=later,
        n=n,
        solved=sum(record["pass_rate"] == 1.0 for record, _, _ in made),
        gain=sum(gains) / n if later else None,
        repeated=sum(known for _, _, known in made) / n if later else None,
        tokens=sum(
            record[key]
            for record, _, _ in made
            for key in ("tokens_in", "tokens_out", "rewrite_tokens_in", "rewrite_tokens_out")
        )
        / n,
    )


def actions_table(comparison: Comparison, fmt: str) -> str:
    """Per block, method and action what its attempts brought, seeds together; a trained method's training too."""
    parts = [(block, _block_effects(block)) for block in comparison.blocks]
    if fmt == "csv":
        return csv_text([row for block, effects in parts for row in _csv_rows(block, effects)])
    return render([_grid(block, effects) for block, effects in parts], fmt)


def _block_effects(block: Block) -> list[tuple[str, str, ActionEffect]]:
    """(method, part, effect) for each row of the block's table."""
    found = []
    for row in block.series:
        for part, runs in (("evaluation", _evaluations(row)), ("training", _trainings(row))):
            found += [(row.label, part, effect) for effect in action_effects(runs)]
    return found


def _evaluations(row: Series) -> list[Sequence[Record]]:
    return [list(run.records(row.method)) for run in row.runs.values()]


def _trainings(row: Series) -> list[Sequence[Record]]:
    runs = row.runs.values() if row.method in TRAINED else ()
    return [list(read_records(run.training)) for run in runs if run.training]


def _csv_rows(block: Block, effects: Sequence[tuple[str, str, ActionEffect]]) -> list[dict[str, object]]:
    return [
        {
            **{"benchmark": block.key.benchmark, "model": block.key.backbone, "protocol": block.key.protocol},
            **{"method": label, "part": part, "action": effect.action, "attempt": _attempt(effect)},
            **{"n": effect.n, "solved": effect.solved, "gain": effect.gain, "repeated": effect.repeated},
            **{"low": effect.interval.low, "high": effect.interval.high, "tokens": effect.tokens},
        }
        for label, part, effect in effects
    ]


def _grid(block: Block, effects: Sequence[tuple[str, str, ActionEffect]]) -> Grid:
    return Grid(
        title=str(block.key),
        columns=_COLUMNS,
        rows=tuple(tuple(Cell(text) for text in (label, part, *_cells(effect))) for label, part, effect in effects),
        caption=(
            f"{block.key}: what one attempt brought, seeds together. Solved: all reward tests passed, with Wilson's "
            "95 % interval, as if attempts were independent. Gain: mean pass rate less that of the attempt before. "
            "Same code: tried before in the episode. Tokens: mean in and out, rewriting included."
        ),
        label=f"tab:actions-{block.key.slug}",
    )


def _cells(effect: ActionEffect) -> list[str]:
    return [
        *(effect.action, _attempt(effect), str(effect.n), str(effect.solved)),
        *(percent_text(effect.solved / effect.n), interval_text(effect.interval)),
        signed_text(float("nan") if effect.gain is None else effect.gain, 3),
        *(percent_text(effect.repeated), f"{effect.tokens:.0f}"),
    ]


def _attempt(effect: ActionEffect) -> str:
    return "later" if effect.later else "first"
