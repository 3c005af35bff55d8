"""The cross-entropy method as in TD-MPC (2.4): start wide, sample the same number of sequences in
every iteration, add the policy's proposals, keep the elites, refit. Unlike iCEM it reuses no
elites and never evaluates the mean itself."""

import jax
import jax.numpy as jnp

from ace.method.noise import noise_maps
from ace.planners.contract import Context, Planner, Score
from ace.planners.sequences import (
    READS,
    check_elites,
    draw_noise,
    elite_weights,
    execute,
    fit,
    sample,
    select_elites,
    shift,
)
from ace.settings.config import Config, PlanConfig

INIT_STD = 2.0  # at the start of each plan: most samples lie at the bounds of the actions


def proposal_count(plan: PlanConfig) -> int:
    """Policy sequences in every iteration."""
    return int(plan.policy_fraction * plan.population)


def init(config: Config, action_size: int) -> jax.Array:
    """The mean [H, A] before the first plan; never read at the first step of an episode."""
    return jnp.zeros((config.plan.horizon, action_size))


def plan(
    config: Config,
    score: Score,
    proposals: jax.Array,
    memory: jax.Array,
    x: Context,
    key: jax.Array,
    train: bool,
) -> tuple[jax.Array, jax.Array]:
    """The action to take now and the mean, from which the next plan starts."""
    p, n, m = config.plan, config.plan.population, proposal_count(config.plan)
    floor = p.std_ramp.at(p.min_std, x.agent_step, config.seed_steps)
    fraction = p.policy_ramp.at(p.policy_fraction, x.agent_step, config.seed_steps)
    noise, act_noise, pick = draw_noise(x, key, [n] * p.iterations)
    mean = jnp.where(x.first, 0.0, shift(memory, x.horizon, p.mean_tail))
    std = jnp.full_like(mean, jnp.clip(INIT_STD, floor, p.max_std))
    allowed = jnp.arange(n + m) < n + jnp.floor(fraction * n)

    for i in range(p.iterations):
        candidates = jnp.concatenate([sample(mean, std, noise[i]), proposals[:, :m]], axis=1)
        values = score(candidates, slice(n, n + m), i)
        best, values = select_elites(values, allowed, p.elites)
        chosen = candidates[:, best]
        weights = elite_weights(values, p.temperature)
        fitted, std = fit(chosen, weights, floor, p.max_std)
        mean = p.momentum * mean + (1 - p.momentum) * fitted

    action = execute(config, train, pick, chosen, weights, mean, std[0] * act_noise)
    return action * x.mask, mean


PLANNER = Planner(
    init=init,
    plan=plan,
    proposals=lambda config: proposal_count(config.plan),
    calls=lambda config: (
        [config.plan.population + proposal_count(config.plan)] * config.plan.iterations
    ),
    constants=lambda config: noise_maps(config.plan.horizon, config.plan.noise_beta),
    reads=READS,
    check=check_elites,
)
