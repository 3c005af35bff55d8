"""Hindsight: sampled segments as if the goal had been what their episode reached later on.

A task with a goal in its observations declares how observation and reward follow from a goal. A
sampled segment gets, with some probability, the goal that its episode achieved at a later step; one
goal for the whole segment, so that nothing in it jumps. The stored steps stay as they are."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ace.method.types import Batch

BLOCK = 64  # slots that are searched together for the end of an episode
KEY = 0x4E1  # makes the key of the goals from that of the segments


class Goal(Protocol):
    """What must be known of a task's goal: where it lies, and the reward that follows from it."""

    @property
    def achieved(self) -> tuple[int, int]:
        """Start and stop of the achieved goal in an observation."""
        ...

    @property
    def desired(self) -> tuple[int, int]:
        """Start and stop of the desired goal."""
        ...

    @property
    def rule(self) -> Callable[[Any, Any, Any], Any]:
        """(jax.numpy, achieved [..., G], desired [..., G]): rewards [...] of an env step."""
        ...


@jax.tree_util.register_static
@dataclass(frozen=True)
class Hindsight:
    """The goal of a program's tasks; no array, so it is part of the compiled functions."""

    goal: Goal
    relabel: Callable[[Any, jax.Array, jax.Array, ModuleType], jax.Array]
    """(goal, observations, desired goals, jax.numpy): the observations with these goals."""
    repeat: int
    """Env steps of an agent step, each of which is rewarded."""


def steps_left(final: jax.Array, start: jax.Array, cursor: jax.Array) -> jax.Array:
    """Steps from slots `start` [B] to the last observation of their episodes: [B].

    That is the next slot of the ring marked in `final` [C] or, in the running episode, `cursor`.
    """
    capacity = final.shape[0]
    slots = jnp.arange(-(-capacity // BLOCK) * BLOCK)
    ends = jnp.where(jnp.pad(final, (0, slots.size - capacity)), slots, 2 * capacity)
    ends = ends.reshape(-1, BLOCK)
    here = ends[start // BLOCK]  # [B, BLOCK]
    inside = jnp.where(here > start[:, None], here, 2 * capacity).min(-1)
    first = jax.lax.cummin(ends.min(-1), reverse=True)  # at or after the beginning of a block
    later = jnp.append(first[1:], 2 * capacity)[start // BLOCK]
    end = jnp.minimum(inside, later)
    end = jnp.where(end < capacity, end, first[0] + capacity)  # once around the ring
    return jnp.minimum(end - start, (cursor - start) % capacity)


def look_back(
    hindsight: Hindsight,
    batch: Batch,
    obs: jax.Array,
    left: jax.Array,
    share: jax.Array | float,
    key: jax.Array,
) -> Batch:
    """Give a `share` of the segments a goal that was achieved at one of the `left` [B] steps after
    their start, each with the same chance; `obs` [C, O] are the observations of the ring."""
    goal = hindsight.goal
    which, when = jax.random.split(jax.random.fold_in(key, KEY))
    chosen = jax.random.uniform(which, left.shape) < share
    step = 1 + jax.random.randint(when, left.shape, 0, jnp.maximum(left, 1))
    reached = obs[(batch.index + step) % obs.shape[0], slice(*goal.achieved)]
    seen = hindsight.relabel(goal, batch.obs, reached, jnp)
    after = seen[1:]
    reward = goal.rule(jnp, after[..., slice(*goal.achieved)], after[..., slice(*goal.desired)])
    return batch._replace(
        obs=jnp.where(chosen[:, None], seen, batch.obs),
        reward=jnp.where(chosen, hindsight.repeat * reward * batch.mask, batch.reward),
    )
