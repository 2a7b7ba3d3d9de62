"""promptrl: learn to refine the prompt of a frozen code model until its code passes the tests.

Importing it registers `promptrl/PromptRefinement-v0` with Gymnasium and loads no model.
"""

import os

# Torch's threads otherwise spin while they wait for each other. Beside any other busy process (a judge at work, a
# second run) that costs several times the work itself; asleep they cost nothing measurable. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from gymnasium.envs.registration import register

__version__ = "0.1.0"

register(
    id="promptrl/PromptRefinement-v0",
    entry_point="promptrl.workbench:make_env",
    vector_entry_point="promptrl.workbench:make_vector_env",
    # Seeds fix all that the environment draws; but `info["cached"]` turns true when an answer is asked for
    # again, and in low precision a model's greedy answer can depend on what else is in its batch.
    nondeterministic=True,
)
