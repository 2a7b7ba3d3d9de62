"""One experiment from end to end: a run folder, training, evaluation on held-out tasks, table and picture.

A run folder holds `config.yaml` (resolved), `purpose.json`, `versions.json`, `splits.json` (the ids on each side
and what was left out), `train.jsonl`, `training.json`, `agent.zip`, `checkpoint.json` with its zip, `tensorboard/`,
`evaluation/<method>.jsonl`, `summary.json`, `table.md` and `learning_curve.png`; where validation ran also
`validation.jsonl` and `best_agent.zip`.
"""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from stable_baselines3 import PPO

from promptrl.config import Config
from promptrl.evaluation.plots import learning_curve
from promptrl.evaluation.records import RecordFile, read_records, step_record
from promptrl.evaluation.runner import MethodResult, evaluate
from promptrl.evaluation.tables import markdown_table, print_table
from promptrl.methods import MethodContext, make_method
from promptrl.methods.base import check_method
from promptrl.methods.ppo import kept_agent, train
from promptrl.methods.validation import Validator, validation_subset
from promptrl.progress import progress_bar
from promptrl.refinement.budget import CAPS, MeteredModel
from promptrl.refinement.episode import Episode, Step
from promptrl.run_folder import RunFolder, read_json
from promptrl.workbench import Workbench

TRAINING: Final = {"command": "train"}
BASELINES: Final = {"command": "baselines"}
"""The purposes of a training run's folder, and of one that holds methods without an agent."""
_PACKAGES: Final = (
    "promptrl", "torch", "transformers", "gymnasium", "stable_baselines3", "sentence-transformers", "numpy", "pydantic"
)  # fmt: skip


def run_experiment(
    config: Config,
    output: Path | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
    workbench: Workbench | None = None,
) -> Path:
    """Train an agent, evaluate every configured method on the test tasks, and leave all in the run folder.

    PPO is evaluated with the agent that `ppo.keep` names; `summary.json` says which that was.

    Args:
        config: what to do.
        output: the run folder; a new one under `runs/` where unset.
        resume: go on with the run that `output` holds.
        console: where progress and the table go; standard output where unset.
        workbench: parts of this configuration that other runs share; they stay open.

    Returns:
        The run folder.
    """
    console = console or Console()
    started = time.monotonic()
    folder = RunFolder.check(config, output, resume=resume, purpose=TRAINING)
    with run_workbench(folder, config, TRAINING, console, workbench) as parts:
        training = _train(folder, parts, resume=resume, console=console)
        policy = kept_agent(folder.path, config.ppo)
        results = evaluate_methods(folder.path / "evaluation", parts, policy=policy, console=console)
        learning_curve(read_records(folder.path / "train.jsonl"), folder.path / "learning_curve.png")
        wall = {"wall_seconds": round(time.monotonic() - started, 1), "resumed": resume}
        agent = {"file": policy.name, "steps": PPO.load(policy, device="cpu").num_timesteps}
        _write_results(folder, parts, results, console, training=training, agent=agent, **wall)
    return folder.path


def run_training(
    config: Config,
    output: Path | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
    workbench: Workbench | None = None,
) -> Path:
    """Train and validate alone, and leave the agents in the run folder; arguments as in `run_experiment`.

    The test tasks are not touched, so that any number of these can be compared to choose a configuration. Resuming
    the folder with `run_experiment` evaluates the agent.
    """
    console = console or Console()
    folder = RunFolder.check(config, output, resume=resume, purpose=TRAINING)
    with run_workbench(folder, config, TRAINING, console, workbench) as parts:
        _train(folder, parts, resume=resume, console=console)
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
    with run_workbench(folder, config, purpose, console) as workbench:
        results = evaluate_methods(
            folder.path / "evaluation", workbench, policy=policy, console=console, methods=[method]
        )
        _write_results(folder, workbench, results, console)
    return folder.path


def run_baselines(
    config: Config,
    output: Path | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
    workbench: Workbench | None = None,
) -> Path:
    """Run every configured method on the test tasks, none of which may need an agent; arguments as in `run_experiment`.

    A folder that is resumed may be given further methods; those that it holds are not run again.

    Raises:
        ConfigError: when one of the methods needs an agent.
    """
    console = console or Console()
    if "ppo" in config.evaluation.methods:
        make_method("ppo", MethodContext(config.environment.actions, config.seed))  # says that it needs an agent
    folder = RunFolder.check(config, output, resume=resume, purpose=BASELINES, may_add_methods=True)
    with run_workbench(folder, config, BASELINES, console, workbench) as parts:
        results = evaluate_methods(folder.path / "evaluation", parts, policy=None, console=console)
        _write_results(folder, parts, results, console)
    return folder.path


@contextmanager
def run_workbench(
    folder: RunFolder, config: Config, purpose: dict[str, str], console: Console, shared: Workbench | None = None
) -> Iterator[Workbench]:
    """A workbench for a run whose folder is made once everything that the run needs has been found.

    Where the run is one of several that share their parts, whoever made those closes them and says how to go on.
    """
    workbench = shared or Workbench(config)
    try:
        workbench.find_files()
        folder.make(config, purpose)
        console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
        folder.write_json("versions.json", versions(workbench))
        _write_splits(folder, workbench, console)
        yield workbench
    except KeyboardInterrupt:
        if shared is None and (folder.path / "config.yaml").exists():
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                f"stopped; what was made is kept, go on with --resume --output {folder.path}"
            )
        raise
    finally:
        if shared is None:
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
                    batch_size=config.evaluation.at_once,
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
        f"model {model.label} ({precision}), seed {config.seed}; calls and tokens "
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

    def seconds() -> dict[str, float]:
        spent = dict(env.engine.seconds)
        if validator:
            spent["validation"] = sum(validator.engine.seconds.values())
        return {phase: earlier.get(phase, 0.0) + part for phase, part in spent.items()}

    def state() -> dict[str, Any]:
        return {
            "size": records.size,
            "numbers": {str(k): v for k, v in numbers.items()},
            "counted": counted,
            "seconds": seconds(),
            "wall_seconds": earlier_wall + time.monotonic() - started,
        }

    def restore(stored: dict[str, Any]) -> None:
        nonlocal counted, earlier, earlier_wall
        records.truncate(stored["size"])
        earlier, earlier_wall = stored["seconds"], stored["wall_seconds"]
        numbers.update({int(k): v for k, v in stored["numbers"].items()})
        counted = stored["counted"]

    env = workbench.vector_env("train", on_step=keep)
    validator = _validator(workbench)
    started = time.monotonic()
    try:
        with progress_bar("train PPO", config.ppo.total_timesteps, console, unit="steps") as advance:
            agent = train(
                env,
                config.ppo,
                folder.path,
                seed=config.seed,
                validator=validator,
                resume=resume,
                on_progress=lambda done, total, figures: advance(done, figures),
                records_state=state,
                restore_records=restore,
            )
    finally:
        records.close()
        env.close()
    steps = agent.num_timesteps
    done = read_json(folder.path / "training.json") if (folder.path / "training.json").exists() else {}
    if done.get("steps") == steps:  # nothing was left to train: what was measured then stays
        return done
    wall = earlier_wall + time.monotonic() - started
    share = {phase: round(spent / wall, 4) for phase, spent in seconds().items()}
    share["ppo_and_rest"] = round(1 - sum(seconds().values()) / wall, 4)
    summary = {
        "steps": steps,
        "stopped_early": steps < config.ppo.total_timesteps,
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


def _validator(workbench: Workbench) -> Validator | None:
    """What validates during training; None where that is off or the benchmark's split has no validation tasks."""
    config = workbench.config
    if not config.ppo.eval_freq or not workbench.splits.validation:
        return None
    return Validator(
        workbench.engine(),
        validation_subset(workbench.tasks("validation"), config.ppo.eval_tasks),
        seed=config.seed,
        state=config.environment.state,
        deterministic=config.evaluation.deterministic,
        batch_size=config.evaluation.at_once,
    )


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
