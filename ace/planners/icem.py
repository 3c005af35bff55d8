"""Policy-guided iCEM (Algorithm 1): sample around a mean with colored noise, add the policy's
proposals and the best sequences found so far, keep the elites, refit, repeat."""

from typing import NamedTuple

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
from ace.settings.config import Config, ConfigError, PlanConfig


class PlanMemory(NamedTuple):
    """What the planner keeps for the next step of an episode."""

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


def sizes(plan: PlanConfig) -> list[tuple[int, int]]:
    """Sampled and policy sequences per iteration."""
    counts = list(zip(populations(plan), proposal_counts(plan), strict=True))
    if plan.variant == "policy_first":
        counts[0] = (0, counts[0][1])
    return counts


def reuse_count(plan: PlanConfig) -> int:
    """Elites that are carried over."""
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
    counts = sizes(p)
    reuse = memory.elites.shape[1]
    std_floor = p.std_ramp.at(p.min_std, x.agent_step, config.seed_steps)
    policy_fraction = p.policy_ramp.at(p.policy_fraction, x.agent_step, config.seed_steps)
    colored_noise, act_noise, pick = draw_noise(x, key, [*(n for n, _ in counts), reuse])
    mean = jnp.where(x.first, 0.0, shift(memory.mean, x.horizon, p.mean_tail))
    std = jnp.full_like(mean, p.init_std)
    elites = shift(memory.elites, x.horizon)
    if parity.elite_tail == "sample" and reuse:
        fresh = sample(mean, std, colored_noise[-1])
        is_tail = jnp.arange(p.horizon) == x.horizon - 1
        elites = jnp.where(is_tail[:, None, None], fresh, elites)
    reusable = ~x.first

    for i, (n, m) in enumerate(counts):
        drawn = sample(mean, std, colored_noise[i])
        candidates = jnp.concatenate([drawn, proposals[:, :m], elites], axis=1)
        proposed = slice(n, n + m)
        if i == p.iterations - 1:
            candidates = candidates.at[:, 0].set(mean)
            proposed = proposed if n else slice(0, 0)  # the mean replaced the first proposal
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

    action = execute(config, train, pick, chosen, weights, mean, std[0] * act_noise)
    return action * x.mask, PlanMemory(mean, elites)


def check(config: Config) -> None:
    """Refuse settings that leave too few sequences."""
    check_elites(config)
    decay = config.plan.population_decay
    if decay < 1:
        raise ConfigError(f"plan.population_decay is {decay}; it must be at least 1")


PLANNER = Planner(
    init=init,
    plan=plan,
    proposals=lambda config: max(proposal_counts(config.plan)),
    calls=lambda config: [sum(counts) + reuse_count(config.plan) for counts in sizes(config.plan)],
    constants=lambda config: noise_maps(config.plan.horizon, config.plan.noise_beta),
    reads=(
        *READS,
        *(f"plan.{name}" for name in ("variant", "population_decay", "elite_reuse", "init_std")),
        *(f"parity.{name}" for name in ("elite_tail", "elites_at_first", "first_std_floor")),
    ),
    check=check,
)
