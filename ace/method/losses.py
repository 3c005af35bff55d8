"""The four losses of the update. Each takes outputs of the networks and returns a number per
segment (or a scalar for the policy); weights, clipping and gradients belong to the learner."""

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
    return -jnp.sum(jnp.mean(smaller(q) * mask, -1))


def smaller(q: jax.Array) -> jax.Array:
    """The smaller of two critics [2, ...]: [...]."""
    # Select by comparison: the gradient of `min` divides by the number of values equal to the
    # result, which is zero if XLA computes them twice with different rounding.
    return jnp.where(q[0] <= q[1], q[0], q[1])
