"""The four losses of the update. Each takes what the networks gave and returns numbers per segment
(or a scalar for the policy); weights, clipping and gradients belong to the learner."""

import jax
import jax.numpy as jnp

from ace.method.targets import similarity_error


def similarity(prediction: jax.Array, target: jax.Array, weight: jax.Array) -> jax.Array:
    """Sum over time of the cosine distance between predicted and observed next latents: [B]."""
    return jnp.sum(similarity_error(prediction, target) * weight, 0)


def reward(prediction: jax.Array, reward: jax.Array, weight: jax.Array) -> jax.Array:
    """Sum over time of the squared error of the environment's reward: [B]."""
    return jnp.sum(jnp.square(prediction - reward) * weight, 0)


def value(q: jax.Array, target: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both critics' squared errors [B], and the absolute ones [B] that become priorities."""
    error = q - target  # [2, H, B]
    squared = jnp.sum(jnp.square(error) * weight, (0, 1))
    absolute = jnp.sum(jnp.abs(error) * weight, (0, 1))
    return squared, absolute


def policy(q: jax.Array, mask: jax.Array) -> jax.Array:
    """Minus the smaller critic, summed over the H+1 latents and averaged over the batch (3.4)."""
    # Not by `min`: its gradient divides by how many are equal to it, which is none if the compiler
    # rounds them differently in two places.
    smaller = jnp.where(q[0] <= q[1], q[0], q[1])
    return -jnp.sum(jnp.mean(smaller * mask, -1))
