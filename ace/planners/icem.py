"""Policy-guided iCEM (Algorithm 1): sample around a mean with colored noise, add the policy's
proposals and the best sequences found so far, keep the elites, refit, repeat."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.method.noise import noise_maps, normal
from ace.planners.contract import Context, Planner, Score
from ace.settings.config import Config, PlanConfig


class PlanMemory(NamedTuple):
    """What the planner hands to itself at the next step of an episode."""

    mean: jax.Array  # [H, A]
    elites: jax.Array  # [H, R, A] best first


def populations(plan: PlanConfig) -> list[int]:
    """Sampled sequences per iteration: shrinking by psi, never below twice the elites (2.5)."""
    sizes = [plan.population]
    for _ in range(plan.iterations - 1):
        sizes.append(max(2 * plan.elites, int(sizes[-1] / plan.population_decay)))
    return sizes


def proposal_counts(plan: PlanConfig) -> list[int]:
    """Policy sequences per iteration."""
    if plan.variant == "policy_first":
        return [plan.population] + [0] * (plan.iterations - 1)
    return [int(plan.policy_fraction * n) for n in populations(plan)]


def reuse_count(plan: PlanConfig) -> int:
    """Elites that are carried on."""
    return int(plan.elite_reuse * plan.elites)


def init(config: Config, action_size: int) -> PlanMemory:
    """Memory before the first plan; its content is never read at the first step of an episode."""
    h, r = config.plan.horizon, reuse_count(config.plan)
    return PlanMemory(jnp.zeros((h, action_size)), jnp.zeros((h, r, action_size)))


def plan(
    config: Config,
    score: Score,
    proposals: jax.Array,
    memory: PlanMemory,
    x: Context,
    key: jax.Array,
    train: bool,
) -> tuple[jax.Array, PlanMemory]:
    """The action to take now and the memory for the next step."""
    p, parity = config.plan, config.parity
    sizes = list(zip(populations(p), proposal_counts(p), strict=True))
    if p.variant == "policy_first":
        sizes[0] = (0, sizes[0][1])
    reuse = memory.elites.shape[1]
    std_floor = p.std_ramp.at(p.min_std, x.agent_step, config.seed_steps)
    policy_fraction = p.policy_ramp.at(p.policy_fraction, x.agent_step, config.seed_steps)
    colored_noise, act_noise, pick = draw_noise(x, key, [*(n for n, _ in sizes), reuse])
    mean = jnp.where(x.first, 0.0, shift(memory.mean, x.horizon))
    std = jnp.full_like(mean, p.init_std)
    elites = shift(memory.elites, x.horizon)
    if parity.elite_tail == "sample" and reuse:
        fresh = sample(mean, std, colored_noise[-1])
        is_tail = jnp.arange(p.horizon) == x.horizon - 1
        elites = jnp.where(is_tail[:, None, None], fresh, elites)
    reusable = ~x.first

    for i, (n, m) in enumerate(sizes):
        drawn = sample(mean, std, colored_noise[i])
        candidates = jnp.concatenate([drawn, proposals[:, :m], elites], axis=1)
        proposed = slice(n, n + m)
        if i == p.iterations - 1:
            candidates = candidates.at[:, 0].set(mean)
            proposed = proposed if n else slice(0, 0)  # the mean stands in the first one's place
        allowed = jnp.ones(candidates.shape[1], bool)
        allowed = allowed.at[n + m :].set(reusable)
        if p.variant == "mixed" and m:
            taken = jnp.arange(m) < jnp.floor(policy_fraction * n)
            allowed = allowed.at[n : n + m].set(taken)
        values = score(candidates, proposed, i)
        best, values = select_elites(values, allowed, p.elites)
        chosen = candidates[:, best]
        weights = elite_weights(values, p.temperature)
        first_floor = parity.first_std_floor and i == 0
        floor = jnp.maximum(std_floor, p.init_std) if first_floor else std_floor
        fitted, std = fit(chosen, weights, floor, p.max_std)
        mean = p.momentum * mean + (1 - p.momentum) * fitted
        elites = chosen[:, :reuse]
        reusable = reusable | parity.elites_at_first

    action = choose(p.select if train else p.select_eval, pick, chosen, weights, mean)
    if train:
        action = action + p.act_noise * std[0] * act_noise
    if parity.clip_action:
        action = jnp.clip(action, -1.0, 1.0)
    return action * x.mask, PlanMemory(mean, elites)


def shift(sequence: jax.Array, horizon: jax.Array) -> jax.Array:
    """One step on in time, the last working row repeated."""
    rows = jnp.minimum(jnp.arange(sequence.shape[0]) + 1, jnp.maximum(horizon - 1, 0))
    return sequence[rows]


def draw_noise(x: Context, key: jax.Array, counts: list[int]):
    """Noise of one plan: colored [H, n, A] for each count, white [A] for the action, and a uniform
    number. All in one draw, since many small ones cost more to compile and to launch; and action
    by action, so that padding leaves the real dimensions' numbers alone.
    """
    noise_map = x.constants[x.horizon]  # [H, H]
    horizon, total = noise_map.shape[0], sum(counts)
    normal_key, uniform_key = jax.random.split(key)
    eps = normal(normal_key, (x.mask.shape[0], total * horizon + 1)) * x.mask[:, None]
    steps = eps[:, :-1].reshape(eps.shape[0], total, horizon).T
    # Sums instead of a matrix product: one so thin costs more than these where the noise is used.
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
    """exp(temperature * (v - v_max)), summing to one; a sequence without a value weighs nothing."""
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


PLANNER = Planner(
    init=init,
    plan=plan,
    proposals=lambda config: max(proposal_counts(config.plan)),
    constants=lambda config: noise_maps(config.plan.horizon, config.plan.noise_beta),
)
