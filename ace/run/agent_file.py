"""The agent file of a run: the acting part of its learners, for evaluation and export."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ace.engine.program import Program
from ace.run import checkpoint

AGENT_FILE = "agent.safetensors"


def save_agents(folder: Path, acting: Any, agent_step: int) -> None:
    """Write the acting part of all lanes to the run folder."""
    tree = {"acting": jax.device_get(acting), "agent_step": np.int32(agent_step)}
    checkpoint.write_arrays(folder / AGENT_FILE, _flat(checkpoint.named_arrays(tree)))


def load_agents(folder: Path, program: Program) -> tuple[Any, int]:
    """The saved acting part, as a tree, and the agent step at which it was saved."""
    path = folder / AGENT_FILE
    if not path.exists():
        raise checkpoint.CheckpointError(
            f"{path} is missing; train the run to its first evaluation"
        )
    like = {"acting": program.acting_shapes(), "agent_step": np.int32(0)}
    wanted = _flat(checkpoint.named_arrays(like))
    arrays = checkpoint.read_arrays(path, checkpoint.nbytes_of(like))
    arrays = checkpoint.with_added(arrays, wanted, program.agent.added)
    found = checkpoint.fit(arrays, like, path, list(wanted))
    return found["acting"], int(found["agent_step"])


def _flat(arrays: dict[str, Any]) -> dict[str, Any]:
    """Names without a prefix: `params.encoder.in.w`, not `acting.params.encoder.in.w`."""
    return {name.removeprefix("acting.") or "acting": x for name, x in arrays.items()}
