"""The base class of every settings group; each room declares its own group, `promptrl.config` joins them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable, and refuses unknown keys, so that a misspelt key is an error and not a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
