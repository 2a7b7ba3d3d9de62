"""promptrl: learn to refine the prompt of a frozen code model until its code passes the tests.

Importing it registers `promptrl/PromptRefinement-v0` with Gymnasium and loads no model.
"""

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
