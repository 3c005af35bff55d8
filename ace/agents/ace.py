"""The ACE agent: act with the planner on the learned model, learn from prioritised segments."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ace import replay
from ace.agents import planning
from ace.agents.contract import Agent
from ace.method import learner, losses, model, score
from ace.method.model import cast
from ace.method.types import Batch, Lane, LearnerState, Metrics, Params
from ace.planners import Context
from ace.settings import keys
from ace.settings.config import Config
from ace.settings.presets import REPAIRS, task_settings


class Memory(NamedTuple):
    """What the agent keeps for the next step of an episode."""

    plan: Any  # the planner's memory
    horizon: jax.Array  # working horizon, fixed when the episode began
    belief: jax.Array  # [D]


def memory(config: Config, action_size: int) -> Memory:
    """Memory before the first step; its content is never read at the first step of an episode."""
    return Memory(
        plan=planning.planner_of(config).init(config, action_size),
        horizon=jnp.zeros((), jnp.int32),
        belief=jnp.zeros(config.net.belief),
    )


def act(
    lane: Lane,
    acting: Params,
    memory: Memory,
    obs: jax.Array,
    first: jax.Array,
    agent_step: jax.Array,
    key: jax.Array,
    train: bool,
) -> tuple[jax.Array, Memory]:
    """Plan one action from an observation [O]; the horizon is fixed when an episode begins."""
    config = lane.config
    params = cast(config, acting["params"])
    norms = model.planning_norms(config, params, acting["stats"])
    noise_key, plan_key = jax.random.split(key)
    horizon = jnp.where(first, planning.working_horizon(config, agent_step), memory.horizon)
    z = model.encode(params, model.normalise(config, acting["stats"], obs))
    b = None  # zero
    if config.parity.carry_belief:
        b = jnp.where(first, 0.0, memory.belief).astype(z.dtype)
    noise = planning.draw(config, lane.action_mask, noise_key)
    proposals, known = score.propose(config, params, norms, z, b, horizon, noise.proposals)

    def rate(actions: jax.Array, proposed: slice, call: int) -> jax.Array:
        """The value of every sequence. The proposals were rolled out when they were made; only the
        policy's noise at their end is new."""
        first, count = proposed.start, proposed.stop - proposed.start
        ends = jax.tree.map(lambda x: x[:count], known)
        if count < actions.shape[1]:
            rest = jnp.concatenate([actions[:, :first], actions[:, proposed.stop :]], 1)
            found = score.follow(config, params, norms, z, b, rest, horizon)
            ends = jax.tree.map(
                lambda x, k: jnp.concatenate([x[:first], k, x[first:]]), found, ends
            )
        return score.value(config, params, ends, horizon, noise.ends[call])

    def policy() -> jax.Array:
        return model.policy(params, z)

    context = Context(first, horizon, agent_step, lane.action_mask, lane.constants, policy)
    action, plan = planning.search(lane, rate, proposals, memory.plan, context, plan_key, train)
    belief = memory.belief
    if config.parity.carry_belief:
        belief = model.believe(params, z, action, b).astype(jnp.float32)
    return action, Memory(plan, horizon, belief)


def act_policy(lane: Lane, acting: Params, obs: jax.Array) -> jax.Array:
    """The policy's mean action for an observation [..., O]."""
    params = cast(lane.config, acting["params"])
    z = model.encode(params, model.normalise(lane.config, acting["stats"], obs))
    return model.policy(params, z) * lane.action_mask


def value(lane: Lane, acting: Params, obs: jax.Array, action: jax.Array) -> jax.Array:
    """What the smaller critic expects from observations [..., O] and actions [..., A]: [...]."""
    params = cast(lane.config, acting["params"])
    z = model.encode(params, model.normalise(lane.config, acting["stats"], obs))
    return model.smallest(model.value(params, z, action))


def prediction_error(lane: Lane, acting: Params, obs: jax.Array, action: jax.Array) -> jax.Array:
    """The similarity loss of segments, obs [N, H+1, O] and action [N, H, A]: rolled out with the
    statistics of their own batch, against the online encoder; summed over H, mean over N."""
    params = cast(lane.config, acting["params"])
    obs = model.normalise(lane.config, acting["stats"], obs.swapaxes(0, 1))
    action = action.swapaxes(0, 1)
    each = jnp.ones(action.shape[:2])  # every step counts, and counts alike
    batch = Batch(obs, action, each, each, each, each[0], each[0])
    z, _, _ = learner.rollout(lane.config, params, batch)
    target = model.encode(params, obs)[1:]
    prediction, _ = model.predict_train(params, z[1:].reshape(-1, z.shape[-1]))
    return losses.similarity(prediction.reshape(target.shape), target, each).mean()


def update(
    lane: Lane,
    state: LearnerState,
    store: replay.Replay,
    agent_step: jax.Array,
    active: jax.Array,
) -> tuple[LearnerState, replay.Replay, Metrics]:
    """Sample, learn, write priorities; a lane that is not active stays as it is."""
    c = lane.config
    key = jax.random.fold_in(keys.key(lane.seed, "update", state.update_step), 0)
    batch = replay.sample(store, c.replay, key, c.learn.batch, c.plan.horizon)
    state, priority, metrics = learner.update(lane, state, batch, agent_step, active)
    store = replay.set_priorities(store, c.replay, batch.index, priority, active, batch.weight)
    return state, store, metrics


def footprint(config: Config, sizes: tuple[int, int]) -> dict[str, int]:
    """Bytes that a lane needs at least."""
    n, p, learn = config.net, config.plan, config.learn
    obs, action = sizes
    inputs = n.belief + 2 * n.latent + n.latent + 2 * (n.latent + action) + n.latent
    weights = (obs + n.latent) * n.encoder + 3 * n.belief * (n.latent + action + n.belief)
    weights += n.mlp * (inputs + 4 * n.mlp + n.latent + action)
    width = n.belief + n.latent + n.mlp
    rows = learn.batch * (p.horizon + 1)
    candidates = config.eval_episodes * planning.candidates(config) * p.horizon
    number = 2 if config.precision == "bf16" else 4
    return {
        "the networks with their optimiser (net.*)": 4 * 4 * weights,
        "the activations of an update (learn.batch, plan.horizon, net.*)": 6
        * number
        * rows
        * width,
        "the replayed observations of an update (learn.batch)": 4 * rows * (obs + action),
        "the candidates of an evaluation's plans (plan.population, eval_episodes)": number
        * candidates
        * (width + action),
    }


AGENT = Agent(
    init=learner.init,
    pad=learner.pad,
    act=act,
    update=update,
    metrics=(
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
        "saturated",
        "capped",
        "clipped",
        "policy_clipped",
        "latent_gap",
        "skipped_updates",
    ),
    act_policy=act_policy,
    value=value,
    prediction_error=prediction_error,
    plays=("agent", "policy"),
    memory=memory,
    segment=lambda config: config.plan.horizon,
    acting_part=lambda state: {"params": state.params, "stats": state.stats},
    constants=planning.constants,
    check=planning.check,
    footprint=footprint,
    sections=(
        *("net", "learn", "replay", "repair", *planning.READS, "plan.running_reward"),
        *(f"parity.{name}" for name in ("reward_input", "model_time_decay", "carry_belief")),
        *(f"parity.{name}" for name in ("importance", "policy_delay", "bc_weight")),
        "parity.novelty_updates_stats",
    ),
    defaults=REPAIRS,
    task_defaults=task_settings,
    presets=("paper", "released"),
    added=r"\bstats\.(obs|steps)\."
    r"|^metrics\.(saturated|capped|clipped|policy_clipped|latent_gap)$",
)
