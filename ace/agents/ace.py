"""The ACE agent: act with the planner on the learned model, learn from prioritised segments."""

import jax
import jax.numpy as jnp

from ace import learner, model, nets, planners, replay
from ace.config import Config
from ace.learner import cast, init, ramp
from ace.planners import PlanInput, init_memory
from ace.planners.icem import proposal_counts
from ace.types import Lane, LearnerState, Metrics, Params, PlanMemory

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

    def score(actions: jax.Array, eps: jax.Array) -> jax.Array:
        return evaluate_plans(config, params, state.stats, z, b, actions, horizon, eps)

    given = PlanInput(
        proposals=propose(lane, params, state.stats, z, b, propose_key),
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


def propose(
    lane: Lane, params: Params, stats: Params, z: jax.Array, b: jax.Array | None, key: jax.Array
) -> jax.Array:
    """Sequences [H, M, A] that the noisy policy takes in the model."""
    config = lane.config
    count = max(proposal_counts(config.plan))
    eps = model.action_normal(key, (config.plan.horizon, count), lane.action_mask)
    return model.imagine_policy(params, stats, config.learn, z, b, eps)


def evaluate_plans(
    config: Config,
    params: Params,
    stats: Params,
    z: jax.Array,
    b: jax.Array | None,
    actions: jax.Array,
    horizon: jax.Array,
    eps: jax.Array,
) -> jax.Array:
    """phi = sum_{t<h} gamma^t r(z_t, a_t, b_t) + gamma^h min Q(z_h, pi(z_h)): [N] (2.1).

    All H steps are rolled out; the working horizon h only selects what counts.
    """
    learn, plans = config.learn, actions.shape[1]
    count = plans
    if nets.on_gpu():  # a round number: otherwise every product pads its input with a kernel more
        count += -plans % 16
        actions = jnp.pad(actions, ((0, 0), (0, count - plans), (0, 0)))
        eps = jnp.pad(eps, ((0, count - plans), (0, 0)))
    z_next, b_next = model.imagine(params, stats, z, b, actions)
    b = jnp.zeros_like(b_next[0, 0]) if b is None else b
    z_before, b_before = (
        jnp.concatenate([jnp.broadcast_to(x, (1, count, x.shape[-1])), after[:-1]])
        for x, after in ((z, z_next), (b, b_next))
    )
    rewards = model.reward(params, z_before, b_before, actions, b_next)
    t = jnp.arange(actions.shape[0])[:, None]
    running = jnp.sum(jnp.where(t < horizon, learn.discount**t * rewards, 0.0), 0)
    z_end = z_next[horizon - 1]
    action = model.noisy_policy(params, learn, z_end, eps)
    values = running + learn.discount**horizon * model.value(params, z_end, action).min(0)
    return values[:plans]


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
    store = replay.set_priorities(store, config.replay, batch.index, priority, active)
    return state, store, metrics
