"""The settings of a study, apart from it, so that a configuration is checked without loading torch."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from promptrl.refinement.engine import TestProtocol
from promptrl.refinement.reward import RewardName
from promptrl.refinement.state import StateName
from promptrl.settings import Settings

Seed = Annotated[int, Field(ge=0, lt=2**31)]


class StudySettings(Settings):
    """Several runs of one experiment, `study` in the configuration; each list that is unset has its own one value."""

    seeds: tuple[Seed, ...] | None = Field(None, description="the configuration's seed where unset")
    protocols: tuple[TestProtocol, ...] | None = Field(None, description="environment.protocol where unset")
    rewards: tuple[RewardName, ...] | None = Field(None, description="environment.reward where unset")
    states: tuple[StateName, ...] | None = Field(None, description="environment.state where unset")
    at_once: int = Field(1, ge=1, description="runs made at once, a process each, that one model answers together")

    @field_validator("seeds", "protocols", "rewards", "states")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if values is not None and (not values or len(set(values)) != len(values)):
            raise ValueError("needs at least one value, and each once")
        return values
