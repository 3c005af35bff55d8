"""Errors that the user can fix, in one line each."""

import re

NO_MEMORY = (
    "the device has no memory left; train fewer lanes, lower --learn.batch or --replay.capacity, "
    "or stop the other program on the card (XLA_PYTHON_CLIENT_MEM_FRACTION sets the share that "
    "this one may take)"
)
# Of a simulator that crashed; its last line, the error, is what the text before it says, too.
TRACEBACK = re.compile(
    r"^(?:Traceback \(most recent call last\):\n(?:[ \t].*\n)*|The above exception|During handling)"
    r".*\n?",
    re.MULTILINE,
)


def explained(error: Exception) -> str | None:
    """What the user can do about an error, in one line; None if it is a bug of ours."""
    from ace.envs import EnvError, TaskError
    from ace.run.checkpoint import CheckpointError
    from ace.settings.config import ConfigError

    if isinstance(error, MemoryError):
        return f"this machine lacks the memory for that ({error}); use smaller numbers"
    if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
        return NO_MEMORY
    if isinstance(error, ConfigError | TaskError | EnvError | CheckpointError | OSError):
        # Other packages write several lines.
        return " ".join(TRACEBACK.sub("", str(error)).split())
    return None
