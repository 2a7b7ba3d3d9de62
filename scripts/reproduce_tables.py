"""All runs of a study and its tables: `python scripts/reproduce_tables.py --config mbpp_plus_small.yaml`."""

from pathlib import Path
from typing import Annotated

import typer

from promptrl.cli import ConfigOption, SetOption, run_function


def reproduce(
    config: ConfigOption = "mbpp_plus_small.yaml",
    overrides: SetOption = None,
    output: Annotated[Path | None, typer.Option("--output", help="the folder; runs/<name>-study where unset")] = None,
) -> None:
    """Make what the configuration's study is missing, then the tables; the same command goes on after a stop."""
    from promptrl.config import load_config

    settings = load_config(config, overrides or ())  # before torch is loaded, so that a mistake is told at once
    from promptrl.run_folder import RUNS_DIR
    from promptrl.study import Study

    folder = output or RUNS_DIR / f"{settings.name}-study"
    run_dirs = Study(settings, folder).run()
    from promptrl.evaluation.comparison import compare

    compare(run_dirs, folder / "tables")


if __name__ == "__main__":
    run_function(reproduce)
