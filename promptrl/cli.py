"""The `promptrl` command: thin doors over the package, one function per command."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from promptrl.assets.commands import assets_app
from promptrl.doctor import doctor
from promptrl.errors import PromptRLError

app = typer.Typer(
    name="promptrl",
    help="Learn to refine the prompt of a frozen code model until its code passes the tests.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(assets_app, name="assets")
app.command("doctor")(doctor)


def main() -> None:
    """Run the command line; an error a user can mend ends in one sentence and exit code 2."""
    try:
        app()
    except PromptRLError as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(f"promptrl: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("promptrl: stopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
