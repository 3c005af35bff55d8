"""The value of an action sequence in the learned model (2.1): the sum of its predicted rewards and
the novelty-aware value of its last latent."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ace.method import model
from ace.method.replaceable import replaceable
from ace.method.types import Params
from ace.settings.config import Config


class Ends(NamedTuple):
    """Where sequences of actions lead in the model."""

    rewards: jax.Array  # [N] discounted sum over the working horizon
    latent: jax.Array  # [N, latent] after it


def propose(
    config: Config,
    params: Params,
    norms: Params,
    z: jax.Array,
    b: jax.Array | None,
    horizon: jax.Array,
    eps: jax.Array,
) -> tuple[jax.Array, Ends]:
    """Sequences [H, M, A] that the policy with noise `eps` [H, M, A] takes in the model, and where
    they lead."""
    if not eps.shape[1]:
        return eps, Ends(eps[0, :, 0], jnp.zeros((0, z.shape[-1]), z.dtype))
    actions, z_next, b_next = model.imagine_policy(config, params, norms, z, b, eps)
    return actions, _ends(config, params, z, b, actions, z_next, b_next, horizon)


@replaceable
def follow(
    config: Config,
    params: Params,
    norms: Params,
    z: jax.Array,
    b: jax.Array | None,
    actions: jax.Array,
    horizon: jax.Array,
) -> Ends:
    """Where sequences [H, N, A] lead.

    All H steps are rolled out; the working horizon only selects the steps that count.
    """
    z_next, b_next = model.imagine(config, params, norms, z, b, actions)
    return _ends(config, params, z, b, actions, z_next, b_next, horizon)


def _ends(config, params, z, b, actions, z_next, b_next, horizon) -> Ends:
    b = jnp.zeros_like(b_next[0, 0]) if b is None else b
    z_before, b_before = (
        jnp.concatenate([jnp.broadcast_to(x, (1, *after.shape[1:])), after[:-1]])
        for x, after in ((z, z_next), (b, b_next))
    )
    rewards = model.reward(params, z_before, b_before, actions, b_next)
    t = jnp.arange(actions.shape[0])[:, None]
    rewards = jnp.sum(jnp.where(t < horizon, config.learn.discount**t * rewards, 0.0), 0)
    return Ends(rewards, z_next[horizon - 1])


def value(
    config: Config, params: Params, ends: Ends, horizon: jax.Array, eps: jax.Array
) -> jax.Array:
    """phi = sum_{t<h} gamma^t r(z_t, a_t, b_t) + gamma^h Q(z_h, pi(z_h)): [N] (2.1).

    `eps` [N, A] is the noise of the policy at the end. Without a terminal value the sum alone.
    """
    if not config.plan.terminal_value:
        return ends.rewards
    q = terminal_value(config, params, ends.latent, eps)
    return ends.rewards + config.learn.discount**horizon * q


@replaceable
def terminal_value(config: Config, params: Params, z: jax.Array, eps: jax.Array) -> jax.Array:
    """Q(z, pi(z)) of latents [N, latent], with the policy's noise `eps` [N, A]: [N]; of the smaller
    critic in the paper."""
    q = model.value(params, z, model.noisy_policy(params, config.learn, z, eps))
    return model.between(q, config.repair.pessimism)
