"""Exported agents, measurements and figures, made from runs and programs."""
