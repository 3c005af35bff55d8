"""The file of a run that holds what acting needs of its learners, for evaluation and export."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ace.engine.packing import Packed
from ace.engine.program import Program
from ace.run import checkpoint

AGENT_FILE = "agent.safetensors"


def agent_part(learner: Any) -> dict[str, Any]:
    """What acting needs of a learner."""
    return {"params": learner.params, "stats": learner.stats}


def save_agents(folder: Path, program: Program, learner: Packed, agent_step: int) -> None:
    """Write the agents of all lanes to the run folder."""
    part = agent_part(program.learner_tree(learner))
    tree = jax.device_get(part) | {"agent_step": np.int32(agent_step)}
    checkpoint.write_arrays(folder / AGENT_FILE, checkpoint.named_arrays(tree))


def load_agents(folder: Path, program: Program) -> tuple[Packed, int]:
    """The learners with saved agents put in, and the agent step at which they were saved."""
    path = folder / AGENT_FILE
    learner = jax.device_get(program.learner_tree(program.init_learner()))
    if not path.exists():
        raise checkpoint.CheckpointError(
            f"{path} is missing; train the run to its first evaluation"
        )
    like = agent_part(learner) | {"agent_step": np.int32(0)}
    found = checkpoint.fit(checkpoint.read_arrays(path, checkpoint.nbytes_of(like)), like, path)
    agent_step = int(found.pop("agent_step"))
    return jax.device_put(program.learners.pack(learner._replace(**found))), agent_step
