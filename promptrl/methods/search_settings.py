"""The settings of the searching methods, apart from them, so that a configuration is checked without loading torch."""

from __future__ import annotations

from promptrl.settings import Settings


class MethodSettings(Settings):
    """The searching methods' settings, `methods` in the configuration."""
