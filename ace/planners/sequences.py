"""What planners that refit a Gaussian over action sequences share: noise, elites, the refit and the
choice of the action."""

import jax
import jax.numpy as jnp
import numpy as np

from ace.method.noise import normal
from ace.planners.contract import Context
from ace.settings.config import Config, ConfigError

READS = (
    *(f"plan.{name}" for name in ("iterations", "population", "elites", "temperature", "momentum")),
    *(f"plan.{name}" for name in ("policy_fraction", "policy_ramp", "noise_beta", "mean_tail")),
    *(f"plan.{name}" for name in ("min_std", "max_std", "std_ramp")),
    *(f"plan.{name}" for name in ("select", "select_eval", "act_noise")),
    "parity.clip_action",
)
"""Settings that all of them read, for `Planner.reads`."""


def check_elites(config: Config) -> None:
    """Refuse more elites than sequences."""
    p = config.plan
    if p.population < p.elites:
        raise ConfigError(
            f"plan.population ({p.population}) is smaller than plan.elites ({p.elites}); "
            "raise the population or lower the elites"
        )


def shift(sequence: jax.Array, horizon: jax.Array, tail: str = "repeat") -> jax.Array:
    """A sequence one step later in time, the last step of the working horizon repeated or zero."""
    t, last = jnp.arange(sequence.shape[0]), jnp.maximum(horizon - 1, 0)
    moved = sequence[jnp.minimum(t + 1, last)]
    if tail == "zero":
        moved = jnp.where((t < last).reshape(-1, *[1] * (moved.ndim - 1)), moved, 0.0)
    return moved


def draw_noise(x: Context, key: jax.Array, counts: list[int]):
    """Noise of one plan, from one draw: colored [H, n, A] for each count, white [A] for the action,
    and a uniform number. The action axis comes first, so that padding does not change the draws of
    real dimensions.
    """
    noise_map = x.constants[x.horizon]  # [H, H]
    horizon, total = noise_map.shape[0], sum(counts)
    normal_key, uniform_key = jax.random.split(key)
    eps = normal(normal_key, (x.mask.shape[0], total * horizon + 1)) * x.mask[:, None]
    steps = eps[:, :-1].reshape(eps.shape[0], total, horizon).T
    # The matrix product noise_map @ steps, written as a sum over its few columns.
    colored = sum(noise_map[:, t, None, None] * steps[t] for t in range(horizon))
    return (
        jnp.split(colored, np.cumsum(counts)[:-1], axis=1),
        eps[:, -1],
        jax.random.uniform(uniform_key),
    )


def sample(mean: jax.Array, std: jax.Array, noise: jax.Array) -> jax.Array:
    """clip(mean + std * colored noise): [H, n, A]."""
    return jnp.clip(mean[:, None] + std[:, None] * noise, -1.0, 1.0)


def select_elites(values: jax.Array, allowed: jax.Array, count: int):
    """Indices and values of the best sequences, best first; non-finite values rank last."""
    ranked = jnp.where(allowed & jnp.isfinite(values), values, -jnp.inf)
    values, best = jax.lax.top_k(ranked, count)
    return best, values


def elite_weights(values: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """exp(temperature * (v - v_max)), summing to one; a value of -inf weighs zero."""
    top = jnp.where(jnp.isfinite(values[0]), values[0], 0.0)
    weights = jnp.exp(temperature * (values - top))
    return weights / (weights.sum() + 1e-9)


def fit(chosen: jax.Array, weights: jax.Array, floor: jax.Array, ceiling: jax.Array | float):
    """Weighted mean and clamped deviation of the elites: [H, A] each."""
    w = weights[:, None]
    mean = jnp.sum(w * chosen, 1)
    var = jnp.sum(w * jnp.square(chosen - mean[:, None]), 1)
    return mean, jnp.clip(jnp.sqrt(var), floor, ceiling)


def choose(how: str, pick: jax.Array, chosen: jax.Array, weights: jax.Array, mean: jax.Array):
    """The first action of a sampled elite, of the best one, or of the mean (D6)."""
    if how == "best":
        return chosen[0, 0]
    if how == "mean":
        return mean[0]
    index = jnp.sum(jnp.cumsum(weights) <= pick * weights.sum())
    return chosen[0, jnp.minimum(index, weights.shape[0] - 1)]


def execute(
    config: Config,
    train: bool,
    pick: jax.Array,
    chosen: jax.Array,
    weights: jax.Array,
    mean: jax.Array,
    noise: jax.Array,
) -> jax.Array:
    """The action [A] to take: chosen from the elites, with noise while training (D6, D13)."""
    p = config.plan
    action = choose(p.select if train else p.select_eval, pick, chosen, weights, mean)
    if train:
        action = action + p.act_noise * noise
    return jnp.clip(action, -1.0, 1.0) if config.parity.clip_action else action
