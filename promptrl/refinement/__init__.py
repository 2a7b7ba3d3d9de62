"""The refinement of prompts: operators, episodes, rewards, states, and the engine that advances them in batches."""
