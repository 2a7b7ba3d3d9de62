"""A search for PPO's hyperparameters with Optuna: short trainings, compared on the validation tasks.

    pip install 'promptrl[examples]'
    python examples/optuna_search.py --config mbpp_plus_small.yaml --trials 12 --output runs/search

Each trial is a run folder; the test tasks are never touched. All trials are kept in `search.db`: the same command goes
on with them, and a trial that was interrupted is tried again. `optuna-dashboard sqlite:///runs/search/search.db` shows
them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from rich.console import Console

from promptrl.cli import run
from promptrl.config import Config, load_config, parse_config
from promptrl.errors import ConfigError
from promptrl.experiment import run_training
from promptrl.methods.validation import VALIDATION_FILE, read_validation
from promptrl.workbench import Workbench

METRICS = ("strict", "soft", "mean_return")


def search_space(trial: optuna.Trial) -> dict[str, Any]:
    """The values of `ppo` that are searched; small, so that a dozen trials say something."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        "ent_coef": trial.suggest_float("ent_coef", 1e-4, 1e-1, log=True),
        "n_epochs": trial.suggest_categorical("n_epochs", [4, 8, 16]),
        "gamma": trial.suggest_categorical("gamma", [0.9, 0.99, 1.0]),
    }


def search(
    config: Config,
    output: Path,
    *,
    trials: int,
    metric: str = "strict",
    console: Console | None = None,
    make_workbench: Callable[[Config], Workbench] = Workbench,
) -> optuna.Study:
    """Run trials until `trials` are complete; what is compared is the best validation of each (its kept agent)."""
    if not config.ppo.eval_freq:
        raise ConfigError("a search needs validation; ppo.eval_freq is 0, set it to the steps between validations")
    output.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{output / 'search.db'}"
    study = optuna.create_study(study_name=config.name, storage=storage, load_if_exists=True, direction="maximize")
    # A sampler that begins anew with the same seed would propose the first trials again.
    study.sampler = optuna.samplers.TPESampler(seed=config.seed + len(study.trials))
    for trial in study.get_trials(states=[TrialState.RUNNING]):  # of a process that was killed
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    workbench = make_workbench(config)
    try:
        if not workbench.splits.validation:
            raise ConfigError(
                "a search needs validation tasks, and the configuration's split has none; set n_validation"
            )

        def objective(trial: optuna.Trial) -> float:
            nonlocal workbench
            values = config.model_dump(mode="json")
            trial_config = parse_config({**values, "ppo": {**values["ppo"], **search_space(trial)}})
            workbench = workbench.with_config(trial_config)
            folder = output / f"trial-{trial.number}"
            try:
                run_training(trial_config, folder, console=console, workbench=workbench)
            except KeyboardInterrupt:
                study.enqueue_trial(trial.params)
                raise
            best = max(read_validation(folder / VALIDATION_FILE), key=lambda result: result.rank)
            trial.set_user_attr("steps", best.steps)
            return float(getattr(best, metric))

        complete = len(study.get_trials(states=[TrialState.COMPLETE]))
        study.optimize(objective, n_trials=max(0, trials - complete))
    finally:
        workbench.close()
    return study


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, and print the best values as options of `promptrl train`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="mbpp_plus_small.yaml")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--trials", type=int, default=12, help="complete trials in all, earlier ones counted")
    parser.add_argument("--metric", choices=METRICS, default="strict")
    parser.add_argument("--output", type=Path, default=Path("runs/search"))
    options = parser.parse_args(arguments)
    config = load_config(options.config, options.overrides)
    study = search(config, options.output, trials=options.trials, metric=options.metric)
    print(f"best of {len(study.trials)} trials: validation {options.metric} {study.best_value:.3f}")
    print(" ".join(f"--set ppo.{name}={value}" for name, value in study.best_params.items()))


if __name__ == "__main__":
    run(main)
