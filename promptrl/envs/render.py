"""A step as text: what the action did to the prompt, what the tests said, what it paid."""

from __future__ import annotations

import difflib
import re
from typing import Final

from promptrl.errors import ConfigError
from promptrl.refinement.episode import Episode, Step

RENDER_MODES: Final = ["human", "ansi"]


def check_render_mode(render_mode: str | None) -> str | None:
    """The render mode itself; ConfigError for one that does not exist."""
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ConfigError(f"render_mode is {render_mode!r}; allowed are {', '.join(RENDER_MODES)} or None")
    return render_mode


def word_diff(before: str, after: str) -> str:
    """The words that went as `[-words-]` and those that came as `{+words+}`, in the running text."""
    old, new = (re.findall(r"\s+|\S+", text) for text in (before, after))
    pieces = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        gone, come = "".join(old[i1:i2]), "".join(new[j1:j2])
        if tag == "equal":
            pieces.append(gone)
            continue
        pieces += [f"[-{gone}-]"] if gone else []
        pieces += [f"{{+{come}+}}"] if come else []
    return "".join(pieces)


def render_step(episode: Episode, step: Step | None) -> str:
    """One step as text, or the prompt that an episode begins with."""
    if step is None:
        return f"{episode.task.task_id}  not yet answered\n{episode.prompt.render()}"
    before = episode.steps[step.index - 1].prompt if step.index else episode.original
    verdict = step.verdict
    return (
        f"{episode.task.task_id}  step {step.index + 1}/{episode.horizon}  {step.action}"
        f"  {verdict.status.value} {verdict.tests_passed}/{verdict.tests_total}  reward {step.reward:+.2f}"
        + (f"  ({step.note})" if step.note else "")
        + f"\n{word_diff(before.instruction, step.prompt.instruction)}"
    )
