"""Every setting, the presets and the random keys."""

help_only = False
"""Set by the command before it prints a help text and ends: the settings are then defined without
JAX, whose import takes longer than all the rest."""
