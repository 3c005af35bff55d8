"""An agent on its own: the policy and the planner of one lane as functions that need no training
code, only JAX. Each is a file of named arrays, a StableHLO function that takes them, and a JSON
that says what goes in and what comes out."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from ace.engine import kernels
from ace.engine.packing import Packed
from ace.engine.program import MATMUL, Program
from ace.method.types import Lane, LearnerState, PlanMemory
from ace.run import checkpoint
from ace.run.agent_file import agent_part
from ace.settings.config import ConfigError

FORMAT = 1
PLATFORMS = ("cpu", "cuda")
Arrays = dict[str, Any]


def export_agent(program: Program, index: int, learner: Packed, agent_step: int, out: Path) -> None:
    """Write the policy and the planner of lane `index` to a new folder `out`."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists; export to a new folder")
    setup = program.setups[index]
    lane = program.one_lane(setup)
    mine = jax.tree.map(lambda x: x[index], program.learner_tree(learner))
    agent = Agent(program, lane, mine, setup.sizes, agent_step)
    about = {
        "format": FORMAT,
        "task": setup.task,
        "seed": setup.seed,
        "agent_step": agent_step,
        "action_repeat": setup.config.action_repeat,
        "precision": setup.config.precision,
        "jax": jax.__version__,
        "platforms": list(PLATFORMS),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as beside:
        write_agent(agent, about, Path(beside) / "new")
        if out.exists():
            out.rmdir()
        os.replace(Path(beside) / "new", out)


def write_agent(agent: "Agent", about: dict[str, Any], folder: Path) -> None:
    """Write both functions of an agent."""
    folder.mkdir()
    obs_size, action_size = agent.sizes
    obs, action = ("float32", obs_size), ("float32", action_size)
    batch = jax_export.symbolic_shape("batch")
    agent.write(
        folder / "policy",
        agent.policy,
        (jax.ShapeDtypeStruct((*batch, obs_size), jnp.float32),),
        about | {"inputs": {"obs": ["batch", *obs]}, "outputs": {"action": ["batch", *action]}},
    )
    memory = {name: np.asarray(x) for name, x in agent.memory()._asdict().items()}
    shapes = {name: [x.dtype.name, *x.shape] for name, x in memory.items()}
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), memory)
    scalar = {"first": ["bool"], "seed": ["uint32"], "count": ["int32"]}
    agent.write(
        folder / "planner",
        agent.planner,
        (
            like,
            jax.ShapeDtypeStruct((obs_size,), jnp.float32),
            jax.ShapeDtypeStruct((), jnp.bool_),
            jax.ShapeDtypeStruct((), jnp.uint32),
            jax.ShapeDtypeStruct((), jnp.int32),
        ),
        about
        | {
            "inputs": {"memory": shapes, "obs": obs, **scalar},
            "outputs": {"action": action, "memory": shapes},
        },
    )


class Agent:
    """One lane's trained agent as plain functions of named arrays."""

    def __init__(
        self,
        program: Program,
        lane: Lane,
        learner: LearnerState,
        sizes: tuple[int, int],
        agent_step: int,
    ):
        self.program, self.lane, self.learner = program, lane, learner
        self.sizes, self.agent_step = sizes, agent_step
        self.arrays: Arrays = checkpoint.named_arrays(jax.device_get(agent_part(learner)))

    def _learner(self, arrays: Arrays) -> LearnerState:
        """The learner with its arrays put in."""
        structure = jax.tree.structure(agent_part(self.learner))
        leaves = [arrays[name] for name in self.arrays]
        return self.learner._replace(**jax.tree.unflatten(structure, leaves))

    def _padded(self, obs: jax.Array) -> jax.Array:
        more = self.program.obs_size - self.sizes[0]
        return jnp.pad(obs, [(0, 0)] * (obs.ndim - 1) + [(0, more)])

    def memory(self) -> PlanMemory:
        """The planner's memory before an episode."""
        return self.program.agent.init_memory(self.program.config, self.program.action_size)

    def policy(self, arrays: Arrays, obs: jax.Array) -> jax.Array:
        """The mean action for observations [batch, O]."""
        learner = self._learner(arrays)
        action = self.program.agent.act_policy(self.lane, learner, self._padded(obs))
        return action[..., : self.sizes[1]]

    def planner(
        self,
        arrays: Arrays,
        memory: dict[str, jax.Array],
        obs: jax.Array,
        first: jax.Array,
        seed: jax.Array,
        count: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """A planned action, and the memory for the next step."""
        key = jax.random.fold_in(jax.random.key(seed), count)
        action, after = self.program.agent.act(
            self.lane,
            self._learner(arrays),
            PlanMemory(**memory),
            self._padded(obs),
            first,
            jnp.int32(self.agent_step),
            key,
            train=False,
        )
        return action[: self.sizes[1]], after._asdict()

    def write(self, stem: Path, function: Callable, inputs: tuple, about: dict[str, Any]) -> None:
        """Write one function as NAME.safetensors, NAME.stablehlo and NAME.json."""

        def precise(given: Arrays, *args: Any) -> Any:
            with jax.default_matmul_precision(MATMUL[self.program.config.precision]):
                return function({**self.arrays, **given}, *args)

        # Only what the function uses: the policy needs neither critics nor model.
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(_numbers(x.shape), x.dtype), inputs)
        kept = _lower(precise, self.arrays, one).module_kept_var_idx
        names = sorted(self.arrays)  # the order in which a dict is flattened
        needed = {name: self.arrays[name] for i, name in enumerate(names) if i in kept}
        data = bytes(_lower(precise, needed, inputs).serialize())
        arrays, code = stem.with_suffix(".safetensors"), stem.with_suffix(".stablehlo")
        content = about | {
            "arrays": {name: [str(x.dtype), *x.shape] for name, x in needed.items()},
            "files": {
                arrays.name: checkpoint.write_arrays(arrays, needed),
                code.name: checkpoint.write_bytes(code, data),
            },
        }
        text = json.dumps(content, indent=2, default=int)
        checkpoint.write_bytes(stem.with_suffix(".json"), text.encode())


def _numbers(shape: tuple) -> tuple[int, ...]:
    """A shape with 1 for every dimension that is a symbol."""
    return tuple(n if isinstance(n, int) else 1 for n in shape)


def _lower(function: Callable, arrays: Arrays, inputs: tuple) -> jax_export.Exported:
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    with kernels.plain():  # for any platform, so without a GPU's kernels
        return jax_export.export(jax.jit(function), platforms=PLATFORMS)(like, *inputs)
