"""A comparison's tables as Markdown, CSV and LaTeX (booktabs); n and counts stand beside every rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from promptrl.evaluation.comparison import Block, Comparison, Entry, Pair
from promptrl.evaluation.grids import (
    DASH,
    Cell,
    Grid,
    csv_text,
    interval_text,
    number_text,
    p_value_text,
    percent_text,
    ratio_text,
    render,
    signed_text,
)
from promptrl.evaluation.run_folders import TRAINED
from promptrl.evaluation.statistics import CONFIDENCE, EXACT_BELOW, RESAMPLES, Interval

_MARKS: Final = ((0.001, "***"), (0.01, "**"), (0.05, "*"))


Row = TypeVar("Row", Entry, Pair)
Column = tuple[str, Callable[[Row], Cell]]


def table(comparison: Comparison, fmt: str) -> str:
    """The main table: methods by blocks, with scores, intervals and costs."""
    if fmt == "csv":
        return csv_text([_entry_row(block, entry) for block in comparison.blocks for entry in block.entries])
    grids = [grid for block in comparison.blocks for grid in _main_grids(block, apart=fmt == "tex")]
    return render([*_summary_grids(comparison), *grids, *_overall_grids(comparison)], fmt)


def pairs_table(comparison: Comparison, fmt: str) -> str:
    """McNemar's test and the differences for every pair of methods."""
    if fmt == "csv":
        rows = [row for block in comparison.blocks for pair in block.pairs for row in _pair_rows(block, pair)]
        return csv_text(rows, _PAIR_COLUMNS)
    return render([grid for block in comparison.blocks for grid in _pairs_grids(block, apart=fmt == "tex")], fmt)


def _main_grids(block: Block, *, apart: bool) -> list[Grid]:
    """Scores and costs of a block, in one table or, for a page that is not wide, apart."""
    several = any(len(entry.seeds) > 1 for entry in block.entries)
    capped = any(entry.capped for entry in block.entries)
    best_strict = _best(entry.strict for entry in block.entries)
    best_soft = _best(entry.soft for entry in block.entries)

    def number(value: Callable[[Entry], float | None], digits: int = 0) -> Callable[[Entry], Cell]:
        return lambda entry: Cell(number_text(value(entry), digits))

    first: list[Column[Entry]] = [("method", lambda e: Cell(e.label)), ("n", lambda e: Cell(str(e.n)))]
    scores: list[Column[Entry]] = [
        ("solved", lambda e: Cell(", ".join(map(str, e.solved)))),
        (
            "Strict Pass@1 %",
            lambda e: Cell(percent_text(e.strict), e.strict >= best_strict, _mark(block.p_against_reference(e.label))),
        ),
        ("95 %", lambda e: Cell(interval_text(e.strict_interval))),
        ("Soft Pass@1 %", lambda e: Cell(percent_text(e.soft), e.soft >= best_soft)),
        ("95 %", lambda e: Cell(interval_text(e.soft_interval))),
    ]
    if several:
        scores += [
            ("IQM Strict %", lambda e: Cell(percent_text(e.strict_iqm))),
            ("over seeds 95 %", lambda e: Cell(interval_text(e.strict_iqm_interval))),
            ("IQM Soft %", lambda e: Cell(percent_text(e.soft_iqm))),
            ("over seeds 95 %", lambda e: Cell(interval_text(e.soft_iqm_interval))),
        ]
    scores += [("misled %", lambda e: Cell(percent_text(e.misled)))]
    costs: list[Column[Entry]] = [("capped", number(lambda e: e.capped))] if capped else []
    costs += [
        ("attempts", number(lambda e: e.attempts)),
        ("model calls", number(lambda e: e.model_calls)),
        ("tokens in", number(lambda e: e.tokens_in)),
        ("tokens out", number(lambda e: e.tokens_out)),
        ("seconds", number(lambda e: e.seconds)),
        ("tokens per solved", number(lambda e: e.tokens_per_solved)),
        ("seconds per solved", number(lambda e: e.seconds_per_solved, 1)),
    ]
    about, notes, spent = _about(block), _score_notes(block, several), _cost_notes(several, capped)
    if apart:
        parts = [
            ([*first, *scores], [about, *notes], "scores"),
            ([*first, *costs], [f"Costs: {about}", *spent], "costs"),
        ]
    else:
        parts = [([*first, *scores, *costs], [about, *notes, *spent], "table")]
    return [
        Grid(
            title=str(block.key),
            columns=tuple(name for name, _ in columns),
            rows=tuple(tuple(make(entry) for _, make in columns) for entry in block.entries),
            caption=". ".join(sentences) + ".",
            label=f"tab:{kind}-{block.key.slug}",
        )
        for columns, sentences, kind in parts
    ]


def _about(block: Block) -> str:
    """What was compared, on what and under which rules."""
    seeds = sorted({seed for entry in block.entries for seed in entry.seeds})
    rewards = list(dict.fromkeys(entry.reward for entry in block.entries if entry.method in TRAINED))
    paid = f", trained with the {' and the '.join(rewards)} reward" if rewards else ""
    return (
        f"{block.key.benchmark}, n = {len(block.task_ids)} held-out tasks, protocol {block.key.protocol}, at most "
        f"{block.horizon} attempts per task, model {block.key.backbone}, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}{paid}"
    )


def _score_notes(block: Block, several: bool) -> list[str]:
    level, draws = f"{100 * CONFIDENCE:.0f} %", f"({RESAMPLES} draws)"
    intervals = f"Intervals hold {level}: Wilson's for Strict, bootstrap over tasks {draws} for Soft"
    if several:
        intervals += (
            ", and for both a bootstrap over tasks of the means over seeds where a row has several seeds. Solved is "
            "given per seed, rates are means over seeds. IQM: interquartile mean over seeds, bootstrap over seeds"
        )
    return [
        intervals,
        "Bold: the highest of its column, which need not be significantly higher",
        f"Stars: McNemar against {block.reference}, Holm-adjusted over all pairs of this table, "
        "* p < 0.05, ** p < 0.01, *** p < 0.001",
        "misled: the answer passes the reward tests and fails report tests",
    ]


def _cost_notes(several: bool, capped: bool) -> list[str]:
    notes = ["capped: tasks that a cap on calls, tokens or seconds ended"] if capped else []
    if several:
        notes.append("Costs are means over seeds")
    return [
        *notes,
        "Calls and tokens include rewriting; seconds are model time as first spent, answers from the cache in full",
    ]


def _summary_grids(comparison: Comparison) -> list[Grid]:
    """Strict / Soft of every method in every block, where there is more than one block."""
    if len(comparison.blocks) < 2:
        return []
    labels = list(dict.fromkeys(entry.label for block in comparison.blocks for entry in block.entries))
    rows = []
    for label in labels:
        cells = [Cell(label)]
        for block in comparison.blocks:
            entry = next((entry for entry in block.entries if entry.label == label), None)
            best = _best(entry.strict for entry in block.entries)
            text = f"{percent_text(entry.strict)} / {percent_text(entry.soft)}" if entry else DASH
            mark = _mark(block.p_against_reference(label)) if entry else ""
            cells.append(Cell(text, entry is not None and entry.strict >= best, mark))
        rows.append(tuple(cells))
    counts = "; ".join(f"{block.key}: n = {len(block.task_ids)}" for block in comparison.blocks)
    return [
        Grid(
            title="Strict / Soft Pass@1 %",
            columns=("method", *(f"{b.key.benchmark}, {b.key.backbone}, {b.key.protocol}" for b in comparison.blocks)),
            rows=tuple(rows),
            caption=f"Strict / Soft Pass@1 in percent. Bold and stars are by Strict, as in the tables below. {counts}.",
            label="tab:summary",
        )
    ]


def _overall_grids(comparison: Comparison) -> list[Grid]:
    if not comparison.overall:
        return []
    return [
        Grid(
            title="Over all blocks of a protocol",
            columns=("method", "protocol", "blocks", "seeds", "IQM Strict %", "95 %", "IQM Soft %", "95 %"),
            rows=tuple(
                (
                    Cell(row.label),
                    Cell(row.protocol),
                    Cell(str(row.blocks)),
                    Cell(str(row.seeds)),
                    Cell(percent_text(row.strict_iqm)),
                    Cell(interval_text(row.strict_interval)),
                    Cell(percent_text(row.soft_iqm)),
                    Cell(interval_text(row.soft_interval)),
                )
                for row in comparison.overall
            ),
            caption="Interquartile means over runs and blocks; the bootstrap draws runs within each block.",
            label="tab:overall",
        )
    ]


def _pairs_grids(block: Block, *, apart: bool) -> list[Grid]:
    """Tests and differences of a block's pairs, in one table or, for a page that is not wide, apart."""
    several = any(len(row.runs) > 1 for row in block.series)
    first: list[Column[Pair]] = [
        ("pair", lambda p: Cell(f"{p.first} vs {p.second}")),
        ("n", lambda p: Cell(str(len(block.task_ids)))),
    ]
    tests: list[Column[Pair]] = [
        ("only first", lambda p: Cell(str(p.test.only_first))),
        ("only second", lambda p: Cell(str(p.test.only_second))),
        ("test", lambda p: Cell(p.test.test)),
        ("p", lambda p: Cell(p_value_text(p.test.p_value))),
        ("p (Holm)", lambda p: Cell(p_value_text(p.p_holm), bold=p.p_holm < 0.05)),
        ("odds ratio", lambda p: Cell(ratio_text(p.test.odds_ratio))),
        ("Cohen's g", lambda p: Cell(signed_text(p.test.cohens_g, 2))),
    ]
    differences: list[Column[Pair]] = [
        ("Δ Strict, points", lambda p: Cell(signed_text(100 * p.strict_difference, 2))),
        ("95 %", lambda p: Cell(interval_text(p.strict_interval))),
        ("Δ Soft, points", lambda p: Cell(signed_text(100 * p.soft_difference, 2))),
        ("95 %", lambda p: Cell(interval_text(p.soft_interval))),
    ]
    on = f"on the same {len(block.task_ids)} tasks ({block.key})"
    tested = (
        f"McNemar's test {on}: exact below {EXACT_BELOW} discordant pairs, chi-squared with continuity correction from "
        f"there on; Holm over the {len(block.pairs)} pairs, bold below 0.05"
    )
    differ = f"first less second, in percentage points, with paired bootstrap intervals over tasks ({RESAMPLES} draws)"
    votes = (
        " With several seeds a task counts as solved where more than half of a method's seeds solve it (at a tie, "
        "where the first does); pairs.csv has the test of every single seed too."
        if several
        else ""
    )
    if apart:
        parts = [
            ([*first, *tests], f"{tested}.{votes}", "pairs"),
            ([*first, *differences], f"Differences {on}: {differ}.", "differences"),
        ]
    else:
        parts = [([*first, *tests, *differences], f"{tested}. Differences are {differ}.{votes}", "pairs")]
    return [
        Grid(
            title=str(block.key),
            columns=tuple(name for name, _ in columns),
            rows=tuple(tuple(make(pair) for _, make in columns) for pair in block.pairs),
            caption=caption,
            label=f"tab:{kind}-{block.key.slug}",
        )
        for columns, caption, kind in parts
    ]


def _entry_row(block: Block, entry: Entry) -> dict[str, object]:
    return {
        "benchmark": block.key.benchmark,
        "backbone": block.key.backbone,
        "protocol": block.key.protocol,
        "horizon": block.horizon,
        "method": entry.label,
        "reward": entry.reward if entry.method in TRAINED else None,
        "seeds": " ".join(map(str, entry.seeds)),
        "n": entry.n,
        "solved": " ".join(map(str, entry.solved)),
        "strict": entry.strict,
        **_ends("strict", entry.strict_interval),
        "soft": entry.soft,
        **_ends("soft", entry.soft_interval),
        "strict_iqm": entry.strict_iqm,
        **_ends("strict_iqm", entry.strict_iqm_interval),
        "soft_iqm": entry.soft_iqm,
        **_ends("soft_iqm", entry.soft_iqm_interval),
        "some_step_solved": entry.some_step_solved,
        "misled": entry.misled,
        "capped": entry.capped,
        "attempts": entry.attempts,
        "model_calls": entry.model_calls,
        "cached_calls": entry.cached_calls,
        "tokens_in": entry.tokens_in,
        "tokens_out": entry.tokens_out,
        "seconds": entry.seconds,
        "tokens_per_solved": entry.tokens_per_solved,
        "seconds_per_solved": entry.seconds_per_solved,
        "reference": block.reference,
        "p_holm_against_reference": block.p_against_reference(entry.label),
    }


_PAIR_COLUMNS: Final = (
    *("benchmark", "backbone", "protocol", "first", "second", "seed", "n"),
    *("both", "only_first", "only_second", "neither", "test", "p", "p_holm", "odds_ratio", "cohens_g"),
    *("strict_difference", "strict_difference_low", "strict_difference_high"),
    *("soft_difference", "soft_difference_low", "soft_difference_high"),
)
"""Of `_pair_rows`: a block of one method has no pairs, and its file the head all the same."""


def _pair_rows(block: Block, pair: Pair) -> list[dict[str, object]]:
    """The row of the pair, with seed `all`, and one for each seed that both have."""
    rows: list[dict[str, object]] = []
    for seed, test, p_holm in [
        ("all", pair.test, pair.p_holm),
        *((str(single.seed), single.test, single.p_holm) for single in pair.per_seed),
    ]:
        whole = seed == "all"
        rows.append(
            {
                "benchmark": block.key.benchmark,
                "backbone": block.key.backbone,
                "protocol": block.key.protocol,
                "first": pair.first,
                "second": pair.second,
                "seed": seed,
                "n": len(block.task_ids),
                "both": test.both,
                "only_first": test.only_first,
                "only_second": test.only_second,
                "neither": test.neither,
                "test": test.test,
                "p": test.p_value,
                "p_holm": p_holm,
                "odds_ratio": test.odds_ratio,
                "cohens_g": test.cohens_g,
                "strict_difference": pair.strict_difference if whole else None,
                **_ends("strict_difference", pair.strict_interval if whole else None),
                "soft_difference": pair.soft_difference if whole else None,
                **_ends("soft_difference", pair.soft_interval if whole else None),
            }
        )
    return rows


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    return {f"{name}_low": interval.low if interval else None, f"{name}_high": interval.high if interval else None}


def _mark(p_value: float | None) -> str:
    return "" if p_value is None else next((mark for bound, mark in _MARKS if p_value < bound), "")


def _best(scores: Iterable[float]) -> float:
    """The least that counts as the highest: sums in another order differ in their last digits."""
    return max(scores) - 1e-9
