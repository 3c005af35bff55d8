"""A run: collecting, evaluating, saving, continuing, recording."""
