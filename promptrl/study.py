"""Several runs of one experiment as one thing: seeds, protocols, rewards and states, each in a run folder of its own.

A study's folder holds `study.json` and, per protocol, `<protocol>/<reward>-seed<k>/` with a trained agent and its
evaluation, and `<protocol>/baselines-seed<k>/` with the methods that learn nothing, which no reward changes. The agent
of a richer state than the prompt lies in `<protocol>/<reward>-<state>-seed<k>/`. Each is an ordinary run folder. What
is finished is recognised and never run again, what was interrupted is gone on with, and more seeds, protocols, rewards,
states or methods may be added later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, Final

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from promptrl.atomic import write_atomically
from promptrl.config import Config, load_config, parse_config
from promptrl.errors import PromptRLError, RunError
from promptrl.evaluation.curves import t_interval
from promptrl.experiment import BASELINES, TRAINING, run_baselines, run_experiment
from promptrl.run_folder import RUNS_DIR, RunFolder, read_json
from promptrl.side_by_side import run_side_by_side
from promptrl.workbench import Workbench

TRAINED: Final = ("ppo",)
"""The methods that are trained, once per protocol, reward and seed."""
SEEDLESS: Final = frozenset({"direct"})
"""Methods without chance: a greedy answer to the task's own prompt is the same for every seed."""

STUDY_FILE: Final = "study.json"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study; `reward` and `state` are None where they change nothing."""

    path: Path
    protocol: str
    reward: str | None
    seed: int
    config: Config
    state: str | None = None

    @property
    def purpose(self) -> dict[str, str]:
        return BASELINES if self.reward is None else TRAINING

    def check(self) -> bool:
        """Whether the run has begun.

        Raises:
            RunError: when its folder holds another run.
        """
        begun = (self.path / "config.yaml").exists()
        add = self.reward is None
        RunFolder.check(self.config, self.path, resume=begun, purpose=self.purpose, may_add_methods=add)
        return begun

    @property
    def finished(self) -> bool:
        """Whether all of its methods have been evaluated."""
        if not (self.path / "summary.json").exists():
            return False
        found = {result["method"] for result in read_json(self.path / "summary.json").get("evaluation", ())}
        return set(self.config.evaluation.methods) <= found


class Study:
    """The runs of a configuration over seeds, protocols, rewards and states.

    Args:
        config: what each run does but for these; its section `study` gives the lists that are unset here.
        output: the study's folder.
        seeds: distinct.
        protocols: of `paper` and `held_out`.
        rewards: of `shaped` and `binary`.
        states: of those of `promptrl.refinement.state`.
        make_workbench: makes the parts of the first run; the others share them where they can.

    Raises:
        ConfigError: when a list holds what the configuration does not allow.
    """

    def __init__(
        self,
        config: Config,
        output: Path,
        *,
        seeds: Sequence[int] | None = None,
        protocols: Sequence[str] | None = None,
        rewards: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        make_workbench: Callable[[Config], Workbench] = Workbench,
    ) -> None:
        given = {"seeds": seeds, "protocols": protocols, "rewards": rewards, "states": states}
        lists = {**config.study.model_dump(), **{name: value for name, value in given.items() if value is not None}}
        checked = parse_config({**config.model_dump(mode="json"), "study": lists}, "the study").study
        self.config = config
        self.output = output
        self.seeds = checked.seeds or (config.seed,)
        self.protocols = checked.protocols or (config.environment.protocol,)
        self.rewards = checked.rewards or (config.environment.reward,)
        self.states = checked.states or (config.environment.state,)
        self._at_once = checked.at_once
        self._make_workbench = make_workbench

    def runs(self) -> list[PlannedRun]:
        """All runs, in the order in which they are made: per protocol the baselines, then the agents."""
        methods = self.config.evaluation.methods
        planned: list[PlannedRun] = []
        for protocol in self.protocols:
            folder = self.output / protocol
            for seed in self.seeds:
                own = [m for m in methods if m not in TRAINED and (m not in SEEDLESS or seed == self.seeds[0])]
                path = folder / f"baselines-seed{seed}"
                if own := [*_stored_methods(path), *(m for m in own if m not in _stored_methods(path))]:
                    planned.append(PlannedRun(path, protocol, None, seed, self._config(protocol, seed, own)))
            trained = [m for m in methods if m in TRAINED]
            for reward, state, seed in product(self.rewards, self.states, self.seeds) if trained else ():
                # The method's own state needs no name, so that a richer one may come later.
                path = folder / (f"{reward}-seed{seed}" if state == "prompt" else f"{reward}-{state}-seed{seed}")
                config = self._config(protocol, seed, trained, {"reward": reward, "state": state})
                planned.append(PlannedRun(path, protocol, reward, seed, config, state))
        return planned

    def run(
        self, *, resume: bool = True, console: Console | None = None, go_on: str = "the same command"
    ) -> list[Path]:
        """Make every run that is missing or unfinished.

        Args:
            resume: whether the folder may hold a study already.
            console: where progress goes; standard output where unset.
            go_on: how to go on after Ctrl-C, for the sentence that says so.

        Returns:
            The run folders, in the order of `runs`.

        Raises:
            RunError: when the folder holds something else, or a run in it had another configuration.
        """
        console = console or Console()
        runs = self.runs()
        self._check_folder(resume)
        begun = [run.check() for run in runs]  # all of them, before the first takes its hours
        self._write_plan()
        workbench = self._make_workbench(runs[0].config)
        try:
            together: list[tuple[str, PlannedRun, bool]] = []
            for number, run in enumerate(runs):
                name = str(run.path.relative_to(self.output))
                state = "finished already" if run.finished else "goes on" if begun[number] else "begins"
                console.print(f"[{number + 1}/{len(runs)}] {name} {state}", highlight=False, markup=False)
                if run.finished:
                    continue
                if self._at_once > 1:
                    together.append((name, run, begun[number]))
                    continue
                workbench = workbench.with_config(run.config)
                make = run_baselines if run.reward is None else run_experiment
                make(run.config, run.path, resume=begun[number], console=console, workbench=workbench)
            if together:
                make_workbench = self._make_workbench
                run_side_by_side(together, self._at_once, workbench, make_workbench=make_workbench, console=console)
        except KeyboardInterrupt:
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                f"stopped; what was made is kept, {go_on} goes on with it"
            )
            raise
        finally:
            workbench.close()
        return [run.path for run in runs]

    def _config(
        self, protocol: str, seed: int, methods: Sequence[str], training: Mapping[str, str] | None = None
    ) -> Config:
        values = self.config.model_dump(mode="json")
        environment = {**values["environment"], "protocol": protocol, **(training or {})}
        evaluation = {**values["evaluation"], "methods": list(methods)}
        # Without the study's own lists, which may grow later and change nothing in this run; nor does PPO's part change
        # what the methods do that learn nothing.
        neutral: dict[str, Any] = {"study": {}} if training else {"study": {}, "ppo": {}}
        changed = {"seed": seed, "environment": environment, "evaluation": evaluation, **neutral}
        return parse_config({**values, **changed}, "the study")

    def _check_folder(self, resume: bool) -> None:
        path = self.output
        if (path / STUDY_FILE).exists():
            if not resume:
                raise RunError(f"{path} already holds a study; use --resume to go on with it, or another --output")
        elif path.exists() and (not path.is_dir() or any(not p.name.startswith(".") for p in path.iterdir())):
            raise RunError(f"{path} exists and holds no study; give another --output")

    def _write_plan(self) -> None:
        plan: dict[str, Any] = {
            "name": self.config.name,
            "seeds": list(self.seeds),
            "protocols": list(self.protocols),
            "rewards": list(self.rewards),
            "states": list(self.states),
            "methods": list(self.config.evaluation.methods),
        }
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            RunFolder(self.output).write_json(STUDY_FILE, plan)
        except OSError as error:
            raise RunError(f"{self.output} cannot be written ({error.strerror})") from error


def _stored_methods(path: Path) -> tuple[str, ...]:
    """The methods that a folder of baselines was made with, which stay in it."""
    stored = path / "config.yaml"
    with suppress(PromptRLError):  # what is wrong with it is said when the run is checked
        return load_config(stored).evaluation.methods if stored.is_file() else ()
    return ()


def run_seeds(
    config: Config,
    seeds: Sequence[int],
    output: Path | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
    make_workbench: Callable[[Config], Workbench] = Workbench,
) -> Path:
    """One experiment with several seeds; leaves `seeds.md` and `seeds.csv` with mean scores over them.

    Args:
        config: of each run, with its own protocol and reward.
        seeds: distinct.
        output: the study's folder; a new one under `runs/` where unset.
        resume: go on with what `output` holds.
        console: where progress and the table go; standard output where unset.
        make_workbench: as in `Study`.

    Returns:
        The study's folder.
    """
    console = console or Console()
    if output is None:
        if resume:
            raise RunError("--resume needs --output with the folder of the runs to go on with")
        output = RUNS_DIR / f"{config.name}-seeds-{datetime.now():%Y%m%d-%H%M%S}"
    environment = config.environment
    study = Study(
        config,
        output,
        seeds=seeds,
        protocols=[environment.protocol],
        rewards=[environment.reward],
        states=[environment.state],
        make_workbench=make_workbench,
    )
    study.run(resume=resume, console=console, go_on=f"--resume --output {output}")
    table, caption = score_table(study.runs()), score_caption(config)
    write_scores(table, output / "seeds.md", caption)
    print_scores(table, caption, console)
    return output


def score_table(runs: Sequence[PlannedRun]) -> pd.DataFrame:
    """The scores of finished runs over seeds, a row per protocol, method and reward.

    Columns: `protocol`, `method`, `reward` (empty for methods that learn nothing), `seeds`, `n` (test tasks), and for
    `strict` and `soft` the mean in [0, 1] and the ends of its t interval over seeds (missing for a single one).

    Raises:
        RunError: when a run's results cannot be read.
    """
    rows = []
    for run in runs:
        for result in read_json(run.path / "summary.json").get("evaluation", ()):
            key = {"protocol": run.protocol, "method": result["method"], "reward": run.reward or ""}
            rows.append({**key, "n": result["n"], "strict": result["strict"], "soft": result["soft"]})
    frame = pd.DataFrame(rows, columns=["protocol", "method", "reward", "n", "strict", "soft"])
    table = []
    for (protocol, method, reward), group in frame.groupby(["protocol", "method", "reward"], sort=False):
        row = {"protocol": protocol, "method": method, "reward": reward, "seeds": len(group), "n": group["n"].iloc[0]}
        for score in ("strict", "soft"):
            interval = t_interval([float(value) for value in group[score]])
            row |= {score: group[score].mean(), f"{score}_low": interval.low, f"{score}_high": interval.high}
        table.append(row)
    return pd.DataFrame(table)


_HEADER: Final = ("protocol", "method", "reward", "seeds", "n", "Strict Pass@1 %", "Soft Pass@1 %")


def write_scores(table: pd.DataFrame, path: Path, caption: str) -> None:
    """Write a `score_table` as Markdown to `path` and with all digits as CSV beside it."""
    lines = ["| " + " | ".join(_HEADER) + " |", "| --- | --- | --- |" + " ---: |" * 4]
    lines += ["| " + " | ".join(cells) + " |" for cells in _cells(table)]
    with write_atomically(path) as temporary:
        temporary.write_text("\n".join([*lines, "", caption, ""]), encoding="utf-8")
    with write_atomically(path.with_suffix(".csv")) as temporary:
        table.to_csv(temporary, index=False)


def print_scores(table: pd.DataFrame, caption: str, console: Console) -> None:
    """A `score_table` on a terminal."""
    shown = Table(caption=caption, caption_justify="left", box=box.SIMPLE, padding=(0, 1))
    for number, column in enumerate(_HEADER):
        shown.add_column(column, justify="left" if number < 3 else "right", no_wrap=True)
    for cells in _cells(table):
        shown.add_row(*cells)
    Console(file=console.file, width=max(console.width, 105)).print(shown)


def _cells(table: pd.DataFrame) -> list[list[str]]:
    return [
        [row["protocol"], row["method"], row["reward"] or "–", str(row["seeds"]), str(row["n"])]
        + [_with_interval(row, score) for score in ("strict", "soft")]
        for row in table.to_dict("records")
    ]


def _with_interval(row: dict[Any, Any], score: str) -> str:
    mean, low, high = (100 * row[key] for key in (score, f"{score}_low", f"{score}_high"))
    return f"{mean:.2f}" if pd.isna(low) else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def score_caption(config: Config) -> str:
    """What a reader has to know to read a table of scores over seeds."""
    return (
        f"{config.benchmark}, model {config.model.name}, at most "
        f"{config.evaluation.budget.attempts or config.environment.horizon} attempts per task; mean over seeds with "
        "its 95 % t interval, n test tasks each; a method without chance or a single seed has no interval"
    )
