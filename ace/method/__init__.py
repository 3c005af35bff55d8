"""The paper in plain JAX, for one lane: networks, targets, losses, one update.

Nothing here knows what device it runs on.
"""
