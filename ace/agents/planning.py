"""What agents that act with a planner share: the working horizon, the policy's noise in a plan, and
the call of the planner with a score that is checked."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.method.model import action_normal
from ace.method.types import Lane
from ace.planners import PLANNERS, Context, Planner, Score
from ace.settings.config import Config, ConfigError

READS = ("plan.planner", "plan.horizon", "plan.horizon_ramp", "plan.terminal_value")
"""Settings of plans that the agent reads and not its planner: for `Agent.sections`."""


def planner_of(config: Config) -> Planner:
    """The planner that the settings name."""
    return PLANNERS[config.plan.planner]


def constants(config: Config) -> Any:
    """The planner's constants, as `Agent.constants`."""
    return planner_of(config).constants(config)


def check(config: Config) -> None:
    """Refuse a working horizon that does not begin inside the plan."""
    start, horizon = config.plan.horizon_ramp.start, config.plan.horizon
    if not 1 <= start <= horizon:
        raise ConfigError(
            f"plan.horizon_ramp.start ({start:g}) must lie between 1 and plan.horizon ({horizon}); "
            "set it, as in --plan.horizon-ramp.start 1"
        )


def candidates(config: Config) -> int:
    """The most sequences that a plan rates at once."""
    return max(planner_of(config).calls(config), default=0)


def working_horizon(config: Config, agent_step: jax.Array) -> jax.Array:
    """Steps of a plan that count; they grow along the ramp up to H."""
    p = config.plan
    h = p.horizon_ramp.at(p.horizon, agent_step, config.seed_steps)
    return jnp.floor(h + 1e-4).astype(jnp.int32)  # rounding may leave the ramp's end just below H


class Noise(NamedTuple):
    """The policy's noise in one plan."""

    proposals: jax.Array  # [H, M, A]
    ends: list[jax.Array]  # [N, A] for each call of the score


def draw(config: Config, mask: jax.Array, key: jax.Array) -> Noise:
    """All of the policy's noise in one plan, from one draw: many small ones are slower."""
    planner, horizon = planner_of(config), config.plan.horizon
    counts = [horizon * planner.proposals(config), *planner.calls(config)]
    eps = action_normal(key, (sum(counts),), mask)
    proposals, *ends = jnp.split(eps, np.cumsum(counts)[:-1])
    return Noise(proposals.reshape(horizon, -1, mask.shape[0]), ends)


def search(
    lane: Lane, score: Score, proposals: jax.Array, memory: Any, context: Context, key, train: bool
) -> tuple[jax.Array, Any]:
    """The planner's action and memory; refuses a planner that breaks its contract."""
    config, planner = lane.config, planner_of(lane.config)
    calls = list(planner.calls(config))

    def checked(actions: jax.Array, proposed: slice, call: int) -> jax.Array:
        if actions.shape[1:2] != tuple(calls[call : call + 1]):
            raise ValueError(
                f"the planner {config.plan.planner!r} rates {actions.shape[1]} sequences in call "
                f"{call}, but its `calls` says {calls}"
            )
        return score(actions, proposed, call)

    return planner.plan(config, checked, proposals, memory, context, key, train)
