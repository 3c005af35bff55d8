"""What the critics regress to: the novelty reward and the lambda-weighted target."""

import jax
import jax.numpy as jnp

from ace.method.types import Moments
from ace.settings.config import LearnConfig


def similarity_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """2 - 2 cos: squared distance of the two vectors scaled to unit length (3.2)."""
    p, t = prediction.astype(jnp.float32), target.astype(jnp.float32)
    p = p * jax.lax.rsqrt(jnp.sum(p * p, -1, keepdims=True) + 1e-12)
    t = t * jax.lax.rsqrt(jnp.sum(t * t, -1, keepdims=True) + 1e-12)
    return 2 - 2 * jnp.sum(p * t, -1)


def init_moments() -> Moments:
    """Mean 0, variance 1, and almost no weight."""
    return Moments(jnp.zeros(()), jnp.ones(()), jnp.float32(1e-4))


def merge_moments(
    moments: Moments, error: jax.Array, mask: jax.Array, learn: LearnConfig
) -> Moments:
    """Fold one batch of prediction errors into the running moments.

    Cumulative: the batch joins with count 1 by the parallel-variance rule, so that every update
    of the run weighs the same (4.2). EMA: mean and mean square decay (D30).
    """
    n = mask.sum()
    mean = jnp.sum(error * mask) / n
    var = jnp.sum(jnp.square(error - mean) * mask) / jnp.maximum(n - 1, 1)
    if learn.novelty_moments == "ema":
        # The first batch replaces the starting values, which are arbitrary.
        keep = jnp.where(moments.count < 1, 0.0, learn.novelty_ema)
        square = keep * (moments.var + moments.mean**2) + (1 - keep) * (var + mean**2)
        new_mean = keep * moments.mean + (1 - keep) * mean
        return Moments(new_mean, jnp.maximum(square - new_mean**2, 0.0), moments.count + 1)
    delta, total = mean - moments.mean, moments.count + 1
    m2 = moments.var * moments.count + var + delta**2 * moments.count / total
    return Moments(moments.mean + delta / total, m2 / total, total)


def novelty_reward(
    error: jax.Array, mask: jax.Array, moments: Moments, learn: LearnConfig
) -> jax.Array:
    """r^i, in [0, 1] if scaled: how far the error lies above its running mean (4.2, 4.3)."""
    excess = jnp.maximum((error - moments.mean) * jax.lax.rsqrt(moments.var + 1e-12), 0.0) * mask
    novelty = jnp.where(excess > 0, jnp.maximum(excess, 1e-12) ** learn.novelty_power, 0.0)
    share = learn.novelty_scale_by_max
    return novelty / (share * (novelty.max() + 1e-6) + (1 - share))


def lambda_targets(
    reward: jax.Array,
    next_value: jax.Array,
    continues: jax.Array,
    mask: jax.Array,
    discount: jax.Array | float,
    td_lambda: jax.Array | float,
) -> jax.Array:
    """G_t = r_t + gamma c_t [(1 - lambda) V_{t+1} + lambda G_{t+1}], G_H = V_H; all [H, ...] (3.3).

    `next_value[t]` is the value of the state after step t. Where the segment ends early, the last
    real step bootstraps from the value alone.
    """
    next_mask = jnp.concatenate([mask[1:], jnp.ones_like(mask[:1])])

    def backwards(g_next: jax.Array, x: tuple) -> tuple[jax.Array, jax.Array]:
        r, v, c, m = x
        lam = td_lambda * m
        g = r + discount * c * ((1 - lam) * v + lam * g_next)
        return g, g

    xs = (reward, next_value, continues, next_mask)
    return jax.lax.scan(backwards, next_value[-1], xs, reverse=True, unroll=True)[1]
