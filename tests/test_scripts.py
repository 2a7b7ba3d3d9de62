"""The researcher's scripts: their options, and that a mistake ends in one sentence before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from promptrl.cli import numbers
from promptrl.errors import ConfigError

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def test_numbers_of_an_option() -> None:
    assert numbers("0, 1,2", int, "--seeds") == [0, 1, 2]
    assert numbers("0.5", float, "--thresholds") == [0.5]
    for text in ("", "0,,1", "0,1.5", "a"):
        with pytest.raises(ConfigError, match=r"--seeds .* is not a whole number; give them as in 0,1,2"):
            numbers(text, int, "--seeds")
    with pytest.raises(ConfigError, match="'x' is not a number"):
        numbers("0.5,x", float, "--thresholds")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train_ppo.py", "--seeds", "0,x"], "--seeds '0,x': 'x' is not a whole number"),
        (["ablate_reward.py", "--thresholds", "half"], "--thresholds 'half': 'half' is not a number"),
        (["reproduce_tables.py", "--set", "study.seeds=[1, 1]"], "needs at least one value, and each once"),
    ],
)
def test_a_mistake_ends_in_one_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


STOPPED = """
import os, signal, time
from promptrl.cli import run_function

def work():
    try:
        os.kill(os.getpid(), signal.{})
        time.sleep(60)
    finally:
        {}
        print("kept")

run_function(work)
"""


@pytest.mark.parametrize(
    ("signal", "then"), [("SIGINT", "pass"), ("SIGTERM", "pass"), ("SIGTERM", "os.kill(os.getpid(), signal.SIGTERM)")]
)
def test_a_stopped_job_may_keep_what_it_has(signal: str, then: str) -> None:
    command = [sys.executable, "-c", "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"]
    command[-1] += STOPPED.format(signal, then)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "kept\n"), done.stderr
    assert "Traceback" not in done.stderr
