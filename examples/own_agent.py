"""An agent of your own, the smallest there is: it acts at random, and learning only counts. It has
everything that the program needs all the same. With this folder on PYTHONPATH:

    ace train probe/point --preset debug --import own_agent --agent monkey --monkey.reach 0.5
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ace.agents import Agent, register
from ace.settings.config import settings


@settings
@dataclass(frozen=True)
class MonkeyConfig:
    """Its own section of the settings: floats may differ between the lanes of one program."""

    reach: float = 1.0
    """Largest action that it takes."""


def init(config: Any, seed: int, sizes: tuple[int, int]) -> dict[str, Any]:
    """All that learning changes, as a tree of arrays."""
    return {"updates": np.zeros((), np.int32)}


def act(lane, acting, memory, obs, first, agent_step, key, train):
    """A random action [A]; padded dimensions stay zero."""
    action = jax.random.uniform(key, lane.action_mask.shape, minval=-1.0, maxval=1.0)
    return lane.config.own.reach * action * lane.action_mask, memory


def update(lane, state, replay, agent_step, active):
    """Count the update, if this lane has a turn."""
    state = {"updates": state["updates"] + active}
    return state, replay, {"updates": state["updates"]}


register(
    "monkey",
    Agent(
        init=init,
        pad=lambda config, state, sizes: state,  # nothing depends on the sizes
        act=act,
        update=update,
        metrics=("updates",),
        settings=MonkeyConfig,
        sections=("learn",),  # --learn.updates-per-step sets how often it counts
    ),
)
