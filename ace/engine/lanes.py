"""The lanes of a program before they are stacked: the task and settings of each, and whether they
can share a program."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.envs import Goal, get_spec, relabel
from ace.envs.explain import explain
from ace.replay import Hindsight
from ace.settings.config import Config, ConfigError, flatten


class LaneSetup(NamedTuple):
    """One lane: its task, seed and settings, and the sizes of its task."""

    task: str
    seed: int
    config: Config
    sizes: tuple[int, int]  # observation, action


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one structure stacked along a leading lane axis."""
    # NumPy drops weak types: a weakly typed leaf would make every function compile twice.
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def like(tree: Any, *axes: int) -> Any:
    """Shapes and types of a tree, with leading axes added."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*axes, *np.shape(x)), np.asarray(x).dtype), tree
    )


def check_compatible(setups: Sequence[LaneSetup]) -> None:
    """Lanes of one program must agree in every setting that shapes it, and in the goal of their
    tasks if they use hindsight."""
    hindsight_of(setups)
    first = setups[0]
    structure = jax.tree.structure(first.config)
    for other in setups[1:]:
        if jax.tree.structure(other.config) == structure:
            continue
        a, b = flatten(first.config), flatten(other.config)
        names = [n for n in a if a[n] != b[n] and not _per_lane(first.config, n)]
        raise ConfigError(
            f"lanes {first.task} and {other.task} differ in {', '.join(names)}, which shapes the "
            "program; train them in separate runs or set the same value for both"
        )


def hindsight_of(setups: Sequence[LaneSetup]) -> Hindsight | None:
    """What the replay must know for the lanes that use hindsight; None if there are none."""
    using = [setup for setup in setups if setup.config.replay.hindsight > 0]
    if not using:
        return None
    goals = {setup.task: _goal_of(setup.task) for setup in using}
    (first, goal), *others = goals.items()
    for task, other in others:
        if other != goal:
            raise ConfigError(
                f"tasks {first} and {task} have different goals or rules of reward, and hindsight "
                "needs one for all lanes; train them in separate runs, or set --replay.hindsight 0"
            )
    return Hindsight(goal, relabel, using[0].config.action_repeat)


@functools.cache
def _goal_of(task: str) -> Goal:
    """The goal of a task; its rule must give on the device what it gives with NumPy."""
    goal = get_spec(task).goal
    if goal is None:
        raise ConfigError(
            f"task {task} declares no goal, which hindsight would need; set --replay.hindsight 0, "
            "or declare one (docs/extend.md)"
        )
    advice = "write it for NumPy and JAX (docs/extend.md), or set --replay.hindsight 0"
    rng, width = np.random.default_rng(0), goal.desired[1] - goal.desired[0]
    tried = rng.normal(size=(2, 3, 40, width)).astype(np.float32)
    tried[1] = tried[0] + np.linspace(0, 0.5, 40)[:, None] * tried[1]  # from reached to far away
    try:
        there = np.asarray(jax.jit(functools.partial(goal.rule, jnp))(*tried))
        with np.errstate(all="ignore"):
            here = goal.rule(np, *tried)
    except Exception as error:
        found = f"fails with JAX ({explain(error)})"
        raise ConfigError(f"the rule of task {task} {found}; {advice}") from error
    if there.shape != np.shape(here) or not np.allclose(here, there, 1e-3, 1e-4, equal_nan=True):
        raise ConfigError(f"the rule of task {task} gives other rewards with JAX; {advice}")
    return goal


def _per_lane(config: Config, name: str) -> bool:
    paths = jax.tree_util.tree_flatten_with_path(config)[0]
    return name in {".".join(str(k.name) for k in path) for path, _ in paths}
