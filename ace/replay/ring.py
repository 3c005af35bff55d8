"""Prioritised replay of H-step segments, on the device, for one lane.

Steps are stored in order in a ring. A slot holds an observation with its action and reward; each
episode ends with a slot that holds only its final observation. A segment can start at a slot once H
steps from there are stored or the episode has ended; steps past the end are masked. So a segment
never crosses the end of an episode, and every state starts one.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.method.types import Batch, Transition
from ace.replay.hindsight import Hindsight, look_back, steps_left
from ace.replay.tree import Tree, build_tree, draw_leaves, largest, set_leaves, total
from ace.settings.config import ReplayConfig

STEPS = ("obs", "action", "reward", "terminated", "final")  # fields with one row for each slot


@jax.tree_util.register_static
@dataclass(frozen=True)
class Length:
    """A number of steps that is part of the compiled functions."""

    steps: int


class Replay(NamedTuple):
    """The stored steps of one lane."""

    obs: jax.Array  # [C, O]
    action: jax.Array  # [C, A]
    reward: jax.Array  # [C]
    terminated: jax.Array  # [C]
    final: jax.Array  # [C] slot that holds only the last observation of an episode
    tree: Tree  # priority ** alpha of each start, 0 where no segment starts
    cursor: jax.Array  # slot of the observation to act on next
    length: jax.Array  # steps of the running episode
    stored: jax.Array  # slots in use
    segment: Length  # of the longest segments that can be drawn
    hindsight: Hindsight | None = None  # how segments get other goals; None: they never do


def init(
    capacity: int,
    obs: jax.Array,
    action_size: int,
    segment: int = 1,
    hindsight: Hindsight | None = None,
) -> Replay:
    """An empty replay of segments of so many steps, which holds the first observation of the
    run."""
    zeros = jnp.zeros
    empty = jax.eval_shape(build_tree, jax.ShapeDtypeStruct((capacity,), jnp.float32))
    return Replay(
        obs=zeros((capacity, obs.shape[-1])).at[0].set(obs),
        action=zeros((capacity, action_size)),
        reward=zeros(capacity),
        terminated=zeros(capacity, bool),
        final=zeros(capacity, bool),
        tree=jax.tree.map(lambda x: zeros(x.shape), empty),
        cursor=zeros((), jnp.int32),
        length=zeros((), jnp.int32),
        stored=jnp.ones((), jnp.int32),
        segment=Length(segment),
        hindsight=hindsight,
    )


def size_in_bytes(capacity: int, obs_size: int, action_size: int) -> int:
    """Bytes that `init` will allocate for one lane."""
    shapes = jax.eval_shape(lambda: init(capacity, jnp.zeros(obs_size), action_size))
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def capacity_for(steps: int, max_episode_steps: int | None, fixed_length: bool) -> int:
    """Slots for a whole run of `steps`: one more per episode, which may be as short as a step."""
    if fixed_length and max_episode_steps:
        return steps + steps // max_episode_steps + 2
    return 2 * steps + 2


def add(replay: Replay, step: Transition) -> Replay:
    """Store one transition; new segments get the largest priority of all (1 if there is none)."""
    capacity, horizon = replay.obs.shape[0], replay.segment.steps
    here = replay.cursor
    after = (here + 1) % capacity  # slot of the next observation, the final one if done
    cursor = jnp.where(step.done, (here + 2) % capacity, after)
    length = replay.length + 1

    back = jnp.arange(horizon)  # steps that may become starts now, counted back from this one
    begins = (back < length) & (step.done | (back == horizon - 1))
    top = largest(replay.tree)
    fresh = jnp.where(begins, jnp.where(top > 0, top, 1.0), 0.0)
    starts = jnp.where(begins, (here - back) % capacity, after)
    # The slots ahead may hold old starts that this step overwrites.
    index = jnp.concatenate([jnp.stack([after, cursor]), starts])
    tree = set_leaves(replay.tree, index, jnp.concatenate([jnp.zeros(2), fresh]))
    return Replay(
        obs=replay.obs.at[after].set(step.final_obs).at[cursor].set(step.obs),
        action=replay.action.at[here].set(step.action),
        reward=replay.reward.at[here].set(step.reward),
        terminated=replay.terminated.at[here].set(step.terminated),
        final=replay.final.at[here].set(False).at[after].set(step.done).at[cursor].set(False),
        tree=tree,
        cursor=cursor,
        length=jnp.where(step.done, 0, length),
        stored=jnp.minimum(replay.stored + 1 + step.done, capacity),
        segment=replay.segment,
        hindsight=replay.hindsight,
    )


def drop(replay: Replay, dropped: jax.Array) -> Replay:
    """Remove the running episode if `dropped`; the newest observation begins the next one."""
    capacity = replay.obs.shape[0]
    begin = (replay.cursor - replay.length) % capacity
    gone = dropped & ((jnp.arange(capacity) - begin) % capacity <= replay.length)

    def clear(x: jax.Array) -> jax.Array:
        return jnp.where(gone.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x)

    kept = clear(replay.tree.sums[0][:capacity])
    tree = jax.tree.map(lambda a, b: jnp.where(dropped, a, b), build_tree(kept), replay.tree)
    obs, newest = clear(replay.obs), replay.obs[replay.cursor]
    return Replay(
        obs=obs.at[begin].set(jnp.where(dropped, newest, obs[begin])),
        action=clear(replay.action),
        reward=clear(replay.reward),
        terminated=clear(replay.terminated),
        final=clear(replay.final),
        tree=tree,
        cursor=jnp.where(dropped, begin, replay.cursor),
        length=jnp.where(dropped, 0, replay.length),
        stored=replay.stored - jnp.where(dropped, jnp.minimum(replay.length, capacity - 1), 0),
        segment=replay.segment,
        hindsight=replay.hindsight,
    )


def sample(replay: Replay, config: ReplayConfig, key: jax.Array, batch: int, horizon: int) -> Batch:
    """Draw segments by priority, with importance weights (3.1), and a share of them with goals that
    were reached later (3.10). They may be shorter than those that the replay was made for."""
    if horizon > replay.segment.steps:
        raise ValueError(
            f"segments of {horizon} steps, from a replay of segments of {replay.segment.steps}: "
            f"let the agent's `segment` return at least {horizon}"
        )
    start = draw_leaves(replay.tree, jax.random.uniform(key, (batch,)))
    probability = replay.tree.sums[0][start] / total(replay.tree)
    weight = (replay.stored * jnp.maximum(probability, 1e-30)) ** -config.importance_power
    weight = weight / weight.max()

    capacity = replay.obs.shape[0]
    offsets = jnp.arange(horizon + 1)[:, None]
    ended = replay.final[(start + offsets) % capacity]
    passed = jnp.cumsum(ended, 0) > 0  # [H+1, B] at or past the final observation
    first_end = jnp.where(passed[-1], jnp.argmax(passed, 0), horizon)
    slots = (start + jnp.minimum(offsets, first_end)) % capacity
    mask = (~passed[:-1]).astype(jnp.float32)
    steps = slots[:-1]
    found = Batch(
        obs=replay.obs[slots],
        action=replay.action[steps] * mask[..., None],
        reward=replay.reward[steps] * mask,
        continues=1.0 - replay.terminated[steps],
        mask=mask,
        weight=weight,
        index=start,
    )
    if replay.hindsight is None:
        return found
    left = steps_left(replay.final, start, replay.cursor)
    return look_back(replay.hindsight, found, replay.obs, left, config.hindsight, key)


def ages(replay: Replay) -> jax.Array:
    """Slots [C] between each slot and the newest observation's, whose age is 0."""
    capacity = replay.obs.shape[0]
    return (replay.cursor - jnp.arange(capacity)) % capacity


def steps_in_store(replay: Replay) -> jax.Array:
    """Which slots [C] hold a step: an observation with its action and reward."""
    age = ages(replay)
    return (age > 0) & (age < replay.stored) & ~replay.final


def forget(replay: Replay, factor: jax.Array | float, floor: jax.Array | float) -> Replay:
    """The same replay with priorities that fall by a factor with every step of age, down to a
    share of themselves: to sample from, while priorities are written to the original."""
    capacity = replay.obs.shape[0]
    share = jnp.maximum(factor ** ages(replay).astype(jnp.float32), floor)
    return replay._replace(tree=build_tree(replay.tree.sums[0][:capacity] * share))


def set_priorities(
    replay: Replay,
    config: ReplayConfig,
    index: jax.Array,
    priority: jax.Array,
    active: jax.Array,
    found: Any = (),
) -> Replay:
    """Write the new priorities of sampled segments, unless the lane is inactive.

    `found` holds arrays that read the old tree: the barrier computes them first, so that the tree
    can be updated in place.
    """
    value = (priority + config.priority_floor) ** config.priority_power
    value = jnp.where(active & jnp.isfinite(value), value, replay.tree.sums[0][index])
    tree, value, _ = jax.lax.optimization_barrier((replay.tree, value, found))
    return replay._replace(tree=set_leaves(tree, index, value))
