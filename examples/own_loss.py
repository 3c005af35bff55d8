"""A loss of your own: ACE whose policy learns, besides all that ACE learns, to act alike in
successive states. It has a gradient step of its own after each of ACE's, so nothing of the package
changes. With this folder on PYTHONPATH:

    ace train probe/point --preset debug --import own_loss --agent smooth --smooth.weight 10
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ace import replay
from ace.agents import AGENTS, register
from ace.method import learner, model
from ace.settings import keys
from ace.settings.config import settings

ACE = AGENTS["ace"]


@settings
@dataclasses.dataclass(frozen=True)
class SmoothConfig:
    """Its own section of the settings."""

    weight: float = 1.0
    """Weight of the loss, in units of the policy's learning rate; 0 is ACE itself."""


def smoothness(policy, lane, state, batch) -> jax.Array:
    """Mean squared change of the policy's action from one state of a segment to the next."""
    config = lane.config
    params = model.cast(config, state.params | policy)
    z = model.encode(params, model.normalise(config, state.stats, batch.obs))
    action = model.policy(params, z) * lane.action_mask  # [H+1, B, A]
    return jnp.mean(jnp.square(action[1:] - action[:-1]).sum(-1) * batch.mask)


def update(lane, state, store, agent_step, active) -> tuple[Any, replay.Replay, dict[str, Any]]:
    """ACE's update, then a step down the slope of this loss, on a batch of its own."""
    c = lane.config
    # ACE's update folds 0 and 1 into the same key.
    key = jax.random.fold_in(keys.key(lane.seed, "update", state.update_step), 2)
    batch = replay.sample(store, c.replay, key, c.learn.batch, c.plan.horizon)
    state, store, metrics = ACE.update(lane, state, store, agent_step, active)
    policy = {"policy": state.params["policy"]}
    loss, slope = jax.value_and_grad(smoothness)(policy, lane, state, batch)
    rate = c.own.weight * c.learn.policy_learning_rate
    moved = jax.tree.map(lambda p, g: p - rate * g, policy, slope)
    policy = learner.where_tree(active & jnp.isfinite(loss), moved, policy)
    return state._replace(params=state.params | policy), store, metrics | {"smoothness": loss}


metrics = (*ACE.metrics, "smoothness")
register("smooth", dataclasses.replace(ACE, update=update, metrics=metrics, settings=SmoothConfig))
