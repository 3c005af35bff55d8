"""The lanes of a program before they are stacked: the task and settings of each, and whether they
can share a program."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

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


def check_compatible(setups: Sequence[LaneSetup]) -> None:
    """Lanes of one program must agree in every setting that shapes it."""
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


def _per_lane(config: Config, name: str) -> bool:
    paths = jax.tree_util.tree_flatten_with_path(config)[0]
    return name in {".".join(str(k.name) for k in path) for path, _ in paths}
