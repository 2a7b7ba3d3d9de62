"""One experiment from end to end: a run folder, training, evaluation on held-out tasks, table and picture.

A run folder holds `config.yaml` (resolved), `purpose.json`, `versions.json`, `splits.json` (the ids on each side
and what was left out), `train.jsonl`, `training.json`, `agent.zip`, `checkpoint.json` with its zip, `tensorboard/`,
`evaluation/<method>.jsonl`, `summary.json`, `table.md` and `learning_curve.png`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from promptrl.atomic import write_atomically
from promptrl.config import Config, load_config
from promptrl.errors import RunError
from promptrl.evaluation.plots import learning_curve
from promptrl.evaluation.records import RecordFile, read_records, step_record
from promptrl.evaluation.runner import MethodResult, evaluate
from promptrl.evaluation.tables import markdown_table, print_table
from promptrl.methods import MethodContext, make_method
from promptrl.methods.base import check_method
from promptrl.methods.ppo import train
from promptrl.progress import progress_bar
from promptrl.refinement.budget import CAPS, MeteredModel
from promptrl.refinement.episode import Episode, Step
from promptrl.workbench import Workbench

RUNS_DIR: Final = Path("runs")
_PACKAGES: Final = (
    "promptrl", "torch", "transformers", "gymnasium", "stable_baselines3", "sentence-transformers", "numpy", "pydantic"
)  # fmt: skip


class RunFolder:
    """The folder of one run; made once, and only ever gone on with by the same configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def check(cls, config: Config, output: Path | None, *, resume: bool, purpose: dict[str, str]) -> RunFolder:
        """The folder that a run may use, which is not made yet.

        Args:
            config: the run's configuration.
            output: the folder; a new one under `runs/` where unset.
            resume: whether `output` holds the run to go on with.
            purpose: what else decides the results, besides the configuration (the method, the policy's hash).

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
            differing = [
                *_differences(_read_json(output / "purpose.json"), purpose),
                *_differences(load_config(stored).model_dump(), config.model_dump()),
            ]
            if differing:
                raise RunError(
                    f"{output} was made with another configuration ({'; '.join(differing)}); use another --output"
                )
        elif resume:
            raise RunError(f"{output} holds no run to resume (there is no config.yaml in it)")
        elif output.exists() and (not output.is_dir() or any(output.iterdir())):
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


def run_experiment(
    config: Config, output: Path | None = None, *, resume: bool = False, console: Console | None = None
) -> Path:
    """Train an agent, evaluate every configured method on the test tasks, and leave all in the run folder.

    Args:
        config: what to do.
        output: the run folder; a new one under `runs/` where unset.
        resume: go on with the run that `output` holds.
        console: where progress and the table go; standard output where unset.

    Returns:
        The run folder.
    """
    console = console or Console()
    started = time.monotonic()
    purpose = {"command": "train"}
    folder = RunFolder.check(config, output, resume=resume, purpose=purpose)
    with _workbench(folder, config, purpose, console) as workbench:
        training = _train(folder, workbench, resume=resume, console=console)
        results = evaluate_methods(
            folder.path / "evaluation", workbench, policy=folder.path / "agent.zip", console=console
        )
        learning_curve(read_records(folder.path / "train.jsonl"), folder.path / "learning_curve.png")
        wall = {"wall_seconds": round(time.monotonic() - started, 1), "resumed": resume}
        _write_results(folder, workbench, results, console, training=training, **wall)
    return folder.path


def run_evaluation(
    config: Config,
    method: str,
    output: Path | None = None,
    *,
    policy: Path | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> Path:
    """Run one method on the test tasks; the run folder holds its records, `summary.json` and `table.md`."""
    console = console or Console()
    check_method(method)
    if method == "ppo":  # refuse early an agent that cannot act here
        make_method(method, MethodContext(config.environment.actions, config.seed, policy))
    purpose = {"command": "evaluate", "method": method}
    if policy is not None:
        purpose["policy_sha256"] = hashlib.sha256(policy.read_bytes()).hexdigest()
    folder = RunFolder.check(config, output, resume=resume, purpose=purpose)
    with _workbench(folder, config, purpose, console) as workbench:
        results = evaluate_methods(
            folder.path / "evaluation", workbench, policy=policy, console=console, methods=[method]
        )
        _write_results(folder, workbench, results, console)
    return folder.path


@contextmanager
def _workbench(folder: RunFolder, config: Config, purpose: dict[str, str], console: Console) -> Iterator[Workbench]:
    """A workbench for a run whose folder is made once everything that the run needs has been found."""
    workbench = Workbench(config)
    try:
        workbench.find_files()
        folder.make(config, purpose)
        console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
        folder.write_json("versions.json", versions(workbench))
        _write_splits(folder, workbench, console)
        yield workbench
    except KeyboardInterrupt:
        if (folder.path / "config.yaml").exists():
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                f"stopped; what was made is kept, go on with --resume --output {folder.path}"
            )
        raise
    finally:
        workbench.close()


def evaluate_methods(
    folder: Path, workbench: Workbench, *, policy: Path | None, console: Console, methods: Sequence[str] | None = None
) -> list[MethodResult]:
    """Run methods on the test tasks, each into its own file of `folder`; finished tasks are not run again."""
    config, results = workbench.config, []
    for name in methods or config.evaluation.methods:
        meter = MeteredModel(workbench.rewriter)
        engine = workbench.engine(meter)
        budget = config.evaluation.budget
        context = MethodContext(
            engine.actions,
            config.seed,
            policy,
            config.evaluation.deterministic,
            rewriter=meter,
            vectors=workbench.encoder,
            settings=config.methods,
            attempts=budget.attempts or config.environment.horizon,
            protocol=config.environment.protocol,
        )
        tasks = workbench.tasks("test")
        with progress_bar(f"evaluate {name}", len(tasks), console, unit="tasks") as advance:
            results.append(
                evaluate(
                    make_method(name, context),
                    engine,
                    tasks,
                    folder / f"{name}.jsonl",
                    seed=config.seed,
                    budget=budget,
                    meter=meter,
                    state=config.environment.state,
                    batch_size=config.evaluation.batch_size,
                    resume=True,
                    on_progress=lambda done, total, advance=advance: advance(done, {}),  # type: ignore[misc]
                )
            )
    return results


def table_caption(config: Config, results: Sequence[MethodResult]) -> str:
    """What a reader has to know to read the table."""
    episode, model, budget = config.environment, config.model, config.evaluation.budget
    caps = "".join(f", {cap:g} {kind}" for kind in CAPS[1:] if (cap := budget.cap(kind)))
    precision = model.dtype if model.quantization == "none" else model.quantization
    n = results[0].n if results else 0
    return (
        f"{config.benchmark}, {n} held-out tasks, protocol {episode.protocol}, at most "
        f"{budget.attempts or episode.horizon} attempts{caps} per task, {episode.reward} reward, "
        f"model {model.name} ({precision}), seed {config.seed}; calls and tokens "
        "include rewriting, seconds are model time as first spent (answers from the cache count in full)"
    )


def versions(workbench: Workbench) -> dict[str, Any]:
    """What the run was made with: packages, commit, machine, model fingerprint and data hashes."""
    return {
        "python": platform.python_version(),
        "packages": {package: version(package) for package in _PACKAGES},
        "commit": _commit(),
        "machine": {"processor": platform.processor() or platform.machine(), "system": platform.platform(terse=True)},
        "model_fingerprint": workbench.coder.fingerprint,
        "data_sha256": dict(workbench.splits.sha256),
    }


def _train(folder: RunFolder, workbench: Workbench, *, resume: bool, console: Console) -> dict[str, Any]:
    config = workbench.config
    records = RecordFile(folder.path / "train.jsonl")
    if not (folder.path / "checkpoint.json").exists():
        records.truncate(0)
    numbers: dict[int, int] = {}  # per sub-environment the number of its running episode
    counted = 0
    earlier: dict[str, float] = {}  # seconds of the sessions before this one
    earlier_wall = 0.0

    def keep(env_index: int, episode: Episode, step: Step) -> None:
        nonlocal counted
        if step.index == 0:
            numbers[env_index] = counted
            counted += 1
        record = step_record(episode, step, method="ppo", seed=config.seed, episode_number=numbers[env_index])
        records.append({**record, "env": env_index})

    def state() -> dict[str, Any]:
        return {
            "size": records.size,
            "numbers": {str(k): v for k, v in numbers.items()},
            "counted": counted,
            "seconds": {phase: earlier.get(phase, 0.0) + spent for phase, spent in env.engine.seconds.items()},
            "wall_seconds": earlier_wall + time.monotonic() - started,
        }

    def restore(stored: dict[str, Any]) -> None:
        nonlocal counted, earlier, earlier_wall
        records.truncate(stored["size"])
        earlier, earlier_wall = stored["seconds"], stored["wall_seconds"]
        numbers.update({int(k): v for k, v in stored["numbers"].items()})
        counted = stored["counted"]

    env = workbench.vector_env("train", on_step=keep)
    started = time.monotonic()
    try:
        with progress_bar("train PPO", config.ppo.total_timesteps, console, unit="steps") as advance:
            agent = train(
                env,
                config.ppo,
                folder.path,
                seed=config.seed,
                resume=resume,
                on_progress=lambda done, total, figures: advance(done, figures),
                records_state=state,
                restore_records=restore,
            )
    finally:
        records.close()
        env.close()
    steps = agent.num_timesteps
    done = _read_json(folder.path / "training.json") if (folder.path / "training.json").exists() else {}
    if done.get("steps") == steps:  # nothing was left to train: what was measured then stays
        return done
    wall = earlier_wall + time.monotonic() - started
    seconds = {phase: earlier.get(phase, 0.0) + spent for phase, spent in env.engine.seconds.items()}
    share = {phase: round(spent / wall, 4) for phase, spent in seconds.items()}
    share["ppo_and_rest"] = round(1 - sum(seconds.values()) / wall, 4)
    summary = {
        "steps": steps,
        "wall_seconds": round(wall, 1),
        "steps_per_second": round(steps / wall, 3),
        "share": share,
    }
    folder.write_json("training.json", summary)
    shares = ", ".join(f"{phase} {100 * part:.1f} %" for phase, part in share.items())
    console.print(
        f"trained {steps} steps in {wall:.0f} s, {steps / wall:.2f} steps/s: {shares}", highlight=False, soft_wrap=True
    )
    return summary


def _write_splits(folder: RunFolder, workbench: Workbench, console: Console) -> None:
    splits = workbench.splits
    folder.write_json(
        "splits.json",
        {
            **{name: [task.task_id for task in getattr(splits, name)] for name in ("train", "validation", "test")},
            "left_out": [asdict(row) for row in splits.left_out],
        },
    )
    console.print(
        f"tasks: {len(splits.train)} to train on, {len(splits.test)} held out for the table, "
        f"{len(splits.left_out)} left out (splits.json says why)",
        highlight=False,
        soft_wrap=True,
    )


def _write_results(
    folder: RunFolder, workbench: Workbench, results: Sequence[MethodResult], console: Console, **more: Any
) -> None:
    caption = table_caption(workbench.config, results)
    folder.write("table.md", markdown_table(results, caption))
    folder.write_json(
        "summary.json",
        {
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "config": workbench.config.model_dump(mode="json"),
            "versions": versions(workbench),
            "evaluation": [asdict(result) for result in results],
            **more,
        },
    )
    print_table(results, caption, console)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys in which two (nested) mappings differ, with both values."""
    return [f"{key}: {a!r} there, {b!r} now" for key, a, b in _walk(old, new)]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({type(error).__name__}); use another --output") from error
    return value if isinstance(value, dict) else {}


def _walk(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _walk(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)
    elif old != new:
        yield prefix, old, new


def _commit() -> str | None:
    """The commit of the code that runs, with "+changes" where the work tree differs; None outside its checkout."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != root:
            return None
        return git("describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None
