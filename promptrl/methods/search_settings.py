"""The settings of the searching methods, apart from them, so that a configuration is checked without loading torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from promptrl.settings import Settings

Share = Annotated[float, Field(gt=0, le=1)]


class EpicSettings(Settings):
    """The evolutionary search after EPiC (arXiv 2408.11198); the defaults are the authors' where no note says more."""

    population: int | None = Field(
        None, ge=2, description="prompts of a generation; where unset 5 from a budget of 10 attempts on, below it 3"
    )
    mutator: Literal["words", "model"] = Field("words", description="similar words, or a rewrite by the language model")
    variant_temperature: float = Field(0.9, ge=0, description="of the first population's variants")
    mutation_temperature: float = Field(0.8, ge=0, description="of rewrites by the language model")
    top_p: float = Field(1.0, gt=0, le=1)
    max_words: int = Field(120, ge=10, description="asked for in a rewrite")
    max_new_tokens: int = Field(224, ge=16, description="longest rewrite; what is cut off loses its last sentence")
    word_rate: float = Field(0.25, gt=0, le=1, description="probability that a word which has candidates is exchanged")
    candidates: int = Field(10, ge=1, description="most candidates of a word, the most similar first")
    accept_first: Share = Field(1.0, description="fitness at which the unchanged prompt is good enough")
    accept_generation: Share = Field(1.0, description="fitness at which a finished generation is good enough")


class ReflexionSettings(Settings):
    """The loop after Reflexion (arXiv 2303.11366); the defaults are the authors' where no note says more."""

    memory: int = Field(1, ge=1, le=3, description="reflections that the next attempt is shown, the latest last")
    temperature: float = Field(0.2, ge=0, description="of reflections")
    top_p: float = Field(1.0, gt=0, le=1)
    max_new_tokens: int = Field(128, ge=16, description="longest reflection; what is cut off loses its last sentence")
    shown_tests: int = Field(3, ge=1, description="most passed and most failed reward tests that feedback lists")


class MethodSettings(Settings):
    """The searching methods' settings, `methods` in the configuration."""

    epic: EpicSettings = EpicSettings()
    reflexion: ReflexionSettings = ReflexionSettings()
