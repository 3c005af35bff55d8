"""Export of the agent of one lane, as functions that need JAX but no training code. Each is a file
of named arrays, a StableHLO function that takes them, and a JSON that describes inputs and
outputs."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export

from ace.envs import get_spec
from ace.run import checkpoint
from ace.settings.config import ConfigError
from ace.tools.trained import Arrays, TrainedAgent

FORMAT = 2
PLATFORMS = ("cpu", "cuda")


def export_agent(agent: TrainedAgent, out: Path) -> list[str]:
    """Write what the agent plays in evaluations to a new folder; returns their names."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists; export to a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as beside:
        folder = Path(beside) / "new"
        folder.mkdir()
        for who in agent.program.agent.plays:
            WRITERS[who](agent, folder)
        if out.exists():
            out.rmdir()
        os.replace(folder, out)
    return list(agent.program.agent.plays)


def about(agent: TrainedAgent) -> dict[str, Any]:
    """The part of the JSON that is the same for both functions."""
    ones = (1.0,) * agent.setup.sizes[1]
    low, high = get_spec(agent.task).action_bounds or (tuple(-x for x in ones), ones)
    return {
        "format": FORMAT,
        "agent": agent.program.agent_name,
        "task": agent.task,
        "seed": agent.seed,
        "agent_step": agent.agent_step,
        "action_repeat": agent.setup.config.action_repeat,
        "action_low": low,
        "action_high": high,
        "precision": agent.setup.config.precision,
        "jax": jax.__version__,
        "platforms": list(PLATFORMS),
    }


def write_policy(agent: TrainedAgent, folder: Path) -> None:
    """Write the policy, a function from observations to actions."""
    obs_size, action_size = agent.setup.sizes
    batch = jax_export.symbolic_shape("batch")
    write(
        agent,
        folder / "policy",
        agent.policy_function,
        (jax.ShapeDtypeStruct((*batch, obs_size), jnp.float32),),
        {
            "inputs": {"obs": ["batch", "float32", obs_size]},
            "outputs": {"action": ["batch", "float32", action_size]},
        },
    )


def write_agent(agent: TrainedAgent, folder: Path) -> None:
    """Write the agent as it acts in evaluations, from memory and observation to an action."""
    obs_size, action_size = agent.setup.sizes
    shapes = {name: [x.dtype.name, *x.shape] for name, x in agent.fresh.items()}
    scalars = {"first": "bool", "seed": "uint32", "count": "int32"}
    write(
        agent,
        folder / "agent",
        agent.agent_function,
        (
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), agent.fresh),
            jax.ShapeDtypeStruct((obs_size,), jnp.float32),
            *(jax.ShapeDtypeStruct((), kind) for kind in scalars.values()),
        ),
        {
            "inputs": {
                "memory": shapes,
                "obs": ["float32", obs_size],
                **{name: [kind] for name, kind in scalars.items()},
            },
            "outputs": {"action": ["float32", action_size], "memory": shapes},
        },
    )


WRITERS = {"agent": write_agent, "policy": write_policy}


def write(
    agent: TrainedAgent, stem: Path, function: Callable, inputs: tuple, more: dict[str, Any]
) -> None:
    """Write one function as NAME.safetensors, NAME.stablehlo and NAME.json."""

    def whole(given: Arrays, *args: Any) -> Any:
        return function({**agent.arrays, **given}, *args)

    # Keep only arrays that the function uses: the policy needs neither critics nor model.
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(_numbers(x.shape), x.dtype), inputs)
    kept = _lower(whole, agent.arrays, one).module_kept_var_idx
    names = sorted(agent.arrays)  # the order in which a dict is flattened
    needed = {name: agent.arrays[name] for i, name in enumerate(names) if i in kept}
    data = bytes(_lower(whole, needed, inputs).serialize())
    arrays, code = stem.with_suffix(".safetensors"), stem.with_suffix(".stablehlo")
    content = {
        **about(agent),
        **more,
        "arrays": {name: [str(x.dtype), *x.shape] for name, x in needed.items()},
        "files": {
            arrays.name: checkpoint.write_arrays(arrays, needed),
            code.name: checkpoint.write_bytes(code, data),
        },
    }
    text = json.dumps(content, indent=2, default=int)
    checkpoint.write_bytes(stem.with_suffix(".json"), text.encode())


def _numbers(shape: tuple) -> tuple[int, ...]:
    """A shape with 1 for every symbolic dimension."""
    return tuple(n if isinstance(n, int) else 1 for n in shape)


def _lower(function: Callable, arrays: Arrays, inputs: tuple) -> jax_export.Exported:
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    return jax_export.export(jax.jit(function), platforms=PLATFORMS)(like, *inputs)
