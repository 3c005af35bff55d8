"""The agent file of a run: the acting part of its learners, for evaluation and export."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ace.engine.program import Program
from ace.run import checkpoint
from ace.settings.config import ConfigError

AGENT_FILE = "agent.safetensors"


def save_agents(folder: Path, acting: Any, agent_step: int) -> None:
    """Write the acting part of all lanes to the run folder."""
    checkpoint.write_arrays(folder / AGENT_FILE, named(jax.device_get(acting), agent_step))


def load_agents(folder: Path, program: Program) -> tuple[Any, int]:
    """The saved acting part, as a tree, and the agent step at which it was saved."""
    path = folder / AGENT_FILE
    if not path.exists():
        raise checkpoint.CheckpointError(
            f"{path} is missing; train the run to its first evaluation"
        )
    like = {"acting": program.acting_shapes(), "agent_step": np.int32(0)}
    wanted = named(**like)
    arrays = checkpoint.read_arrays(path, checkpoint.nbytes_of(like))
    arrays = checkpoint.with_added(arrays, wanted, program.agent.added)
    found = checkpoint.fit(arrays, like, path, list(wanted))
    return found["acting"], int(found["agent_step"])


def named(acting: Any, agent_step: Any) -> dict[str, Any]:
    """The arrays of the file: those of the acting part by their own paths, and the agent step."""
    arrays = checkpoint.named_arrays(acting)
    if "" in arrays:  # it is a single array
        arrays = {"acting": arrays[""]}
    if "agent_step" in arrays:
        raise ConfigError("the agent file keeps its own `agent_step`; rename the agent's array")
    return arrays | {"agent_step": np.int32(agent_step)}


def check_arrays(program: Program, capacity: int) -> None:
    """Refuse an agent whose arrays could not be saved and read again."""
    program.check_types()
    checkpoint.named_arrays(program.shapes(capacity))
    named(program.acting_shapes(), 0)
