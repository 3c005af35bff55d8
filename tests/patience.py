"""How long tests wait for something that must happen. A busy machine may need minutes for what
usually takes a moment, so the limit is only there to end a test in which something hangs.
`faulthandler_timeout` in pyproject.toml ends those that wait without a limit."""

import time
from collections.abc import Callable

PATIENCE = 600.0  # seconds


def until(happens: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s in vain"
        time.sleep(0.01)
