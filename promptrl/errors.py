"""The errors a user can cause or meet, each shown as one sentence and never as a traceback."""

from __future__ import annotations


class PromptRLError(Exception):
    """Base of every error that the command line prints as one sentence and ends with exit code 2."""


class ConfigError(PromptRLError):
    """A configuration key, type or value that is not allowed; the message names all three."""


class AssetError(PromptRLError):
    """A file of weights or data that is missing, unreachable or does not match its sha256."""


class TaskError(PromptRLError):
    """A benchmark row, sample or split that cannot be used; the message names the row and why."""


class SandboxError(PromptRLError):
    """The sandbox itself cannot be set up or broke: never the fault of a candidate."""


class ModelError(PromptRLError):
    """A model that cannot be loaded or reached: never scored as a wrong answer."""


class RunError(PromptRLError):
    """A run folder that cannot be written, resumed or compared."""
