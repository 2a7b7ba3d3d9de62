"""Who chooses the next action: PPO and the baselines."""

from promptrl.methods.base import Method, MethodContext, available_methods, make_method

__all__ = ["Method", "MethodContext", "available_methods", "make_method"]
