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


def value(
    q: jax.Array, target: jax.Array, weight: jax.Array, width: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Both critics' squared errors [B], linear above `width`, and the absolute ones [B] that become
    priorities."""
    error = jnp.abs(q - target)  # [2, H, B]
    inside = jnp.minimum(error, width)
    loss = jnp.sum((2 * error - inside) * inside * weight, (0, 1))
    return loss, jnp.sum(error * weight, (0, 1))


def policy(value: jax.Array, mask: jax.Array) -> jax.Array:
    """Minus the value, summed over the H+1 latents and averaged over the batch (3.4)."""
    return -jnp.sum(jnp.mean(value * mask, -1))
