"""ace: a novelty-aware planner and the off-policy agent that learns with it, on JAX."""

__version__ = "0.1.0"
