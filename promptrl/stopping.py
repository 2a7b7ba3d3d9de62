"""What signals do to a program that has something to keep."""

from __future__ import annotations

import signal


def stop_once(number: int, frame: object) -> None:
    """A signal handler that does what Ctrl-C does, once: a second signal does not interrupt what is being saved."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
