"""promptrl: learn to refine the prompt of a frozen code model until its code passes the tests.

Importing it registers `promptrl/PromptRefinement-v0` with Gymnasium and loads no model.
"""

import os
from typing import TYPE_CHECKING, Any

# Torch's threads otherwise spin while they wait for each other. Beside any other busy process (a judge at work, a
# second run) that costs several times the work itself; asleep they cost nothing measurable. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from gymnasium.envs.registration import register

if TYPE_CHECKING:
    from promptrl.refining import Budget, HoldOut, Refinement, refine, task_from_prompt, task_from_stub

__version__ = "0.1.0"
__all__ = ["Budget", "HoldOut", "Refinement", "refine", "task_from_prompt", "task_from_stub"]


def __getattr__(name: str) -> Any:
    """Load what refines only when it is asked for: importing the package stays quick."""
    if name not in __all__:
        raise AttributeError(f"module 'promptrl' has no attribute {name!r}")
    from promptrl import refining

    return getattr(refining, name)


register(
    id="promptrl/PromptRefinement-v0",
    entry_point="promptrl.workbench:make_env",
    vector_entry_point="promptrl.workbench:make_vector_env",
    # Seeds fix all that the environment draws; but `info["cached"]` turns true when an answer is asked for
    # again, and in low precision a model's greedy answer can depend on what else is in its batch.
    nondeterministic=True,
)
