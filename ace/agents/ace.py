"""The ACE agent: act with the planner on the learned model, learn from prioritised segments."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ace import planners, replay
from ace.method import learner, model, nets
from ace.method.learner import cast, init, ramp
from ace.method.types import Lane, LearnerState, Metrics, Params, PlanMemory
from ace.planners import PlanInput, init_memory
from ace.planners.icem import proposal_counts
from ace.settings.config import Config

__all__ = ["METRICS", "act", "act_policy", "init", "init_memory", "update"]

METRICS = (
    "similarity_loss",
    "reward_loss",
    "value_loss",
    "policy_loss",
    "q",
    "target",
    "novelty",
    "novelty_error",
    "novelty_weight",
    "grad_norm",
    "policy_grad_norm",
    "skipped_updates",
)


def act(
    lane: Lane,
    state: LearnerState,
    memory: PlanMemory,
    obs: jax.Array,
    first: jax.Array,
    agent_step: jax.Array,
    key: jax.Array,
    train: bool,
) -> tuple[jax.Array, PlanMemory]:
    """Plan one action from an observation [O]; the horizon is fixed when an episode begins."""
    config, p = lane.config, lane.config.plan
    params = cast(config, state.params)
    propose_key, plan_key = jax.random.split(key)
    begin = _horizon(config, agent_step)
    horizon = jnp.where(first, begin, memory.horizon)
    z = model.encode(params, obs)
    b = None  # zero
    if config.parity.carry_belief:
        b = jnp.where(first, 0.0, memory.belief).astype(z.dtype)

    def ramped(r, final):
        return ramp(r, final, agent_step, config.seed_steps)

    proposals, known = propose(lane, params, state.stats, z, b, horizon, propose_key)

    def score(actions: jax.Array, eps: jax.Array, proposed: slice) -> jax.Array:
        # Where a proposal leads is known from its making; only the noise at its end is new.
        first, count = proposed.start, proposed.stop - proposed.start
        ends = jax.tree.map(lambda x: x[:count], known)
        if count < actions.shape[1]:
            rest = jnp.concatenate([actions[:, :first], actions[:, proposed.stop :]], 1)
            found = follow(config, params, state.stats, z, b, rest, horizon)
            ends = jax.tree.map(
                lambda x, k: jnp.concatenate([x[:first], k, x[first:]]), found, ends
            )
        return evaluate(config, params, ends, horizon, eps)

    given = PlanInput(
        proposals=proposals,
        first=first,
        horizon=horizon,
        std_floor=ramped(p.std_ramp, p.min_std),
        policy_fraction=ramped(p.policy_ramp, p.policy_fraction),
        noise_map=lane.noise_map[horizon],
        mask=lane.action_mask,
        key=plan_key,
    )
    action, memory = planners.plan(config, score, memory, given, train)
    if config.parity.carry_belief:
        memory = memory._replace(belief=model.believe(params, z, action, b).astype(jnp.float32))
    return action, memory


def _horizon(config: Config, agent_step: jax.Array) -> jax.Array:
    h = ramp(config.plan.horizon_ramp, config.plan.horizon, agent_step, config.seed_steps)
    return jnp.floor(h + 1e-4).astype(jnp.int32)  # the ramp's end may fall short by rounding


class Ends(NamedTuple):
    """Where sequences of actions lead in the model."""

    rewards: jax.Array  # [N] discounted sum over the working horizon
    latent: jax.Array  # [N, latent] after it


def propose(
    lane: Lane,
    params: Params,
    stats: Params,
    z: jax.Array,
    b: jax.Array | None,
    horizon: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, Ends]:
    """Sequences [H, M, A] that the noisy policy takes in the model, and where they lead."""
    config = lane.config
    count = max(proposal_counts(config.plan))
    if not count:
        nothing = jnp.zeros((config.plan.horizon, 0, lane.action_mask.shape[0]))
        return nothing, Ends(nothing[0, :, 0], jnp.zeros((0, z.shape[-1]), z.dtype))
    eps = model.action_normal(key, (config.plan.horizon, count), lane.action_mask)
    actions, z_next, b_next = model.imagine_policy(params, stats, config.learn, z, b, eps)
    return actions, _ends(config, params, z, b, actions, z_next, b_next, horizon)


def follow(
    config: Config,
    params: Params,
    stats: Params,
    z: jax.Array,
    b: jax.Array | None,
    actions: jax.Array,
    horizon: jax.Array,
) -> Ends:
    """Where sequences [H, N, A] lead.

    All H steps are rolled out; the working horizon only selects what counts.
    """
    count, actions = actions.shape[1], _round(actions, 1)
    z_next, b_next = model.imagine(params, stats, z, b, actions)
    ends = _ends(config, params, z, b, actions, z_next, b_next, horizon)
    return jax.tree.map(lambda x: x[:count], ends)


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


def evaluate(
    config: Config, params: Params, ends: Ends, horizon: jax.Array, eps: jax.Array
) -> jax.Array:
    """phi = sum_{t<h} gamma^t r(z_t, a_t, b_t) + gamma^h min Q(z_h, pi(z_h)): [N] (2.1)."""
    learn, count = config.learn, eps.shape[0]
    z, eps = _round(ends.latent, 0), _round(eps, 0)
    value = model.value(params, z, model.noisy_policy(params, learn, z, eps)).min(0)
    return ends.rewards + learn.discount**horizon * value[:count]


def _round(x: jax.Array, axis: int) -> jax.Array:
    """On a GPU, zeros up to a round number of rows: otherwise every product pads its input with a
    kernel more."""
    if not nets.on_gpu():
        return x
    widths = [(0, -n % nets.ROUND if i == axis else 0) for i, n in enumerate(x.shape)]
    return jnp.pad(x, widths)


def act_policy(lane: Lane, state: LearnerState, obs: jax.Array) -> jax.Array:
    """The policy's mean action for an observation [..., O]."""
    params = cast(lane.config, state.params)
    return model.policy(params, model.encode(params, obs)) * lane.action_mask


def update(
    lane: Lane,
    state: LearnerState,
    store: replay.Replay,
    agent_step: jax.Array,
    active: jax.Array,
) -> tuple[LearnerState, replay.Replay, Metrics]:
    """Sample, learn, write priorities; a lane that is not active or has no data stays as it is."""
    config = lane.config
    active = active & (replay.total(store.tree) > 0)
    batch = learner.draw(lane, state, store)
    state, priority, metrics = learner.update(lane, state, batch, agent_step, active)
    store = replay.set_priorities(store, config.replay, batch.index, priority, active, batch.weight)
    return state, store, metrics
