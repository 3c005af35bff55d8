"""TD-MPC (https://arxiv.org/abs/2203.04955): a latent model without memory, learned by predicting
its own next latents, rewards and values, and a cross-entropy search in it whose sequences end in a
value. Networks and numbers are those of the public code (nicklashansen/tdmpc); docs/agents.md lists
them and what differs here. ACE began from this method, so most parts are shared with it."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.agents import planning, told
from ace.agents.contract import OFF_POLICY, Agent, Sizes
from ace.agents.told import cast
from ace.method import losses, targets
from ace.method.learner import adam_init, move_target, optimise, split
from ace.method.model import action_normal, noisy_policy, policy, smallest
from ace.method.types import Batch, Lane, Metrics, Params
from ace.planners import Context
from ace.settings import keys
from ace.settings.config import Config


class TdmpcState(NamedTuple):
    """All that learning changes."""

    params: Params
    target: Params  # moving averages of encoder and critics
    opt: tuple[Any, ...]  # of the model with its critics, and of the policy
    update_step: jax.Array
    skipped: jax.Array  # updates left out because a gradient was not finite


class Memory(NamedTuple):
    """What the agent keeps for the next step of an episode."""

    plan: Any  # the planner's memory
    horizon: jax.Array  # working horizon, fixed when the episode began


def init(config: Config, seed: int, sizes: Sizes) -> TdmpcState:
    """A fresh agent."""
    rng = np.random.default_rng(keys.host_seed(seed, "init"))
    params = told.init(rng, config, *sizes)
    none: Any = np.zeros((), np.int32)
    target = {name: params[name] for name in ("encoder", "value")}
    return TdmpcState(params, target, adam_init(config.learn, *split(params)), none, none)


def memory(config: Config, action_size: int) -> Memory:
    """Memory before the first step; its content is never read at the first step of an episode."""
    return Memory(planning.planner_of(config).init(config, action_size), jnp.zeros((), jnp.int32))


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
    params = cast(config, acting)
    noise_key, plan_key = jax.random.split(key)
    horizon = jnp.where(first, planning.working_horizon(config, agent_step), memory.horizon)
    z = told.encode(params, obs)
    noise = planning.draw(config, lane.action_mask, noise_key)
    proposals = noise.proposals
    if proposals.size:
        proposals = told.imagine_policy(params, config.learn, z, proposals)

    def score(actions: jax.Array, proposed: slice, call: int) -> jax.Array:
        return plan_value(config, params, z, actions, horizon, noise.ends[call])

    def policy_now() -> jax.Array:
        return policy(params, z)

    context = Context(first, horizon, agent_step, lane.action_mask, lane.constants, policy_now)
    action, plan = planning.search(lane, score, proposals, memory.plan, context, plan_key, train)
    return action, Memory(plan, horizon)


def plan_value(
    config: Config,
    params: Params,
    z: jax.Array,
    actions: jax.Array,
    horizon: jax.Array,
    eps: jax.Array,
) -> jax.Array:
    """sum_{t<h} gamma^t R(z_t, a_t) + gamma^h min Q(z_h, pi(z_h)) of sequences [H, N, A]: [N].

    All H steps are rolled out; the working horizon h only selects the steps that count. `eps`
    [N, A] is the noise of the policy at the end.
    """
    gamma, count = config.learn.discount, actions.shape[1]
    z = told.imagine(params, jnp.broadcast_to(z, (count, z.shape[-1])), actions)
    t = jnp.arange(actions.shape[0])[:, None]
    rewards = jnp.where(t < horizon, gamma**t * told.reward(params, z[:-1], actions), 0.0)
    if not config.plan.terminal_value:
        return rewards.sum(0)
    end = z[horizon]
    q = smallest(told.critics(params, end, noisy_policy(params, config.learn, end, eps)))
    return rewards.sum(0) + gamma**horizon * q


def act_policy(lane: Lane, acting: Params, obs: jax.Array) -> jax.Array:
    """The policy's mean action for an observation [..., O]."""
    params = cast(lane.config, acting)
    return policy(params, told.encode(params, obs)) * lane.action_mask


def value(lane: Lane, acting: Params, obs: jax.Array, action: jax.Array) -> jax.Array:
    """What the smaller critic expects from observations [..., O] and actions [..., A]: [...]."""
    params = cast(lane.config, acting)
    return smallest(told.critics(params, told.encode(params, obs), action))


def update(
    lane: Lane, state: TdmpcState, store: replay.Replay, agent_step: jax.Array, active: jax.Array
) -> tuple[TdmpcState, replay.Replay, Metrics]:
    """Sample, learn, write priorities; a lane that is not active stays as it is."""
    c = lane.config
    key = keys.key(lane.seed, "update", state.update_step)
    batch = replay.sample(
        store, c.replay, jax.random.fold_in(key, 0), c.learn.batch, c.plan.horizon
    )
    shape = (2, c.plan.horizon + 1, c.learn.batch)
    eps = action_normal(jax.random.fold_in(key, 1), shape, lane.action_mask)
    state, priority, metrics = learn(lane, state, batch, eps, active)
    store = replay.set_priorities(store, c.replay, batch.index, priority, active, batch.weight)
    return state, store, metrics


def learn(
    lane: Lane, state: TdmpcState, batch: Batch, eps: jax.Array, active: jax.Array
) -> tuple[TdmpcState, jax.Array, Metrics]:
    """One gradient step of the model with its critics, then of the policy through them; also the
    priorities [B]. eps [2, H+1, B, A] is the policy's noise in the targets and in its own loss.

    If the model's gradient is not finite, only the counters change; if the policy's is not, the
    policy stays unchanged.
    """
    config, rates = lane.config, lane.config.learn
    params, target = cast(config, state.params), cast(config, state.target)
    target_z, y = targets_of(config, params, target, batch, eps[0, 1:])

    model_params, policy_params = split(state.params)
    grads, aux = jax.grad(model_loss, has_aux=True)(model_params, config, batch, target_z, y)
    grads = jax.tree.map(lambda g: g / config.plan.horizon, grads)
    new_model, model_opt, norm, moved = optimise(
        rates, rates.learning_rate, grads, state.opt[0], model_params, active
    )
    policy_loss, policy_grads = jax.value_and_grad(policy_loss_of)(
        policy_params, config, new_model, aux["z"], batch, eps[1]
    )
    new_policy, policy_opt, policy_norm, _ = optimise(
        rates, rates.policy_learning_rate, policy_grads, state.opt[1], policy_params, moved
    )

    new, before = new_model | new_policy, state
    finite = jnp.isfinite(norm) & jnp.isfinite(policy_norm)
    state = TdmpcState(
        params=new,
        target=move_target(rates, before.update_step, before.target, new, moved),
        opt=(model_opt, policy_opt),
        update_step=before.update_step + active,
        skipped=before.skipped + (active & ~finite),
    )
    metrics = {
        **{k: aux[k] for k in ("consistency_loss", "reward_loss", "value_loss", "q", "capped")},
        "policy_loss": policy_loss,
        "target": y.mean(),
        "grad_norm": norm,
        "policy_grad_norm": policy_norm,
        "skipped_updates": before.skipped.astype(jnp.float32),
    }
    return state, aux["priority"], metrics


def targets_of(
    config: Config, params: Params, target: Params, batch: Batch, eps: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What the rollout is compared with: the target encoder's latents [H, B, latent] of the next
    observations, and y = r + gamma min Q'(z', pi(z')) [H, B] with z' = h(s') of the encoder as it
    is."""
    learn = config.learn
    z_next, target_z = (told.encode(p, batch.obs)[1:] for p in (params, target))
    next_value = smallest(told.critics(target, z_next, noisy_policy(params, learn, z_next, eps)))
    y = targets.lambda_targets(
        batch.reward, next_value, batch.continues, batch.mask, learn.discount, learn.td_lambda
    )
    return target_z, y


def time_weights(config: Config, mask: jax.Array) -> jax.Array:
    """rho^t of the real steps: as `mask` [T, B]."""
    return mask * config.learn.time_decay ** jnp.arange(mask.shape[0], dtype=jnp.float32)[:, None]


def model_loss(
    model_params: Params, config: Config, batch: Batch, target_z: jax.Array, y: jax.Array
) -> tuple[jax.Array, dict]:
    """Consistency, reward and value losses along the rollout from z_0 = h(s_0), all with rho^t."""
    learn, params = config.learn, cast(config, model_params)
    z = told.imagine(params, told.encode(params, batch.obs[0]), batch.action)
    weight = time_weights(config, batch.mask)
    apart = jnp.square(z[1:].astype(jnp.float32) - target_z.astype(jnp.float32))
    # Not a mean: a latent may be padded with zeros (`method.nets.Axes`).
    c = jnp.sum(weight * apart.sum(-1) / config.net.latent, 0)
    r = losses.reward(told.reward(params, z[:-1], batch.action), batch.reward, weight)
    q = told.critics(params, z[:-1], batch.action)
    v, absolute = losses.value(q, y, weight, math.inf)
    capped = jnp.mean(v > learn.loss_clip)
    c, r, v = (jnp.minimum(x, learn.loss_clip) for x in (c, r, v))
    total = learn.similarity_weight * c + learn.reward_weight * r + learn.value_weight * v
    aux = {
        "z": z,
        "priority": jnp.minimum(absolute, learn.loss_clip),
        "consistency_loss": c.mean(),
        "reward_loss": r.mean(),
        "value_loss": v.mean(),
        "q": q.mean(),
        "capped": capped,
    }
    return jnp.mean(batch.weight * total), aux


def policy_loss_of(
    policy_params: Params,
    config: Config,
    new_model: Params,
    z: jax.Array,
    batch: Batch,
    eps: jax.Array,
) -> jax.Array:
    """Minus the smaller updated critic at the policy's noisy action, summed with rho^t over the
    H+1 latents of the rollout, which get no gradient."""
    params = cast(config, policy_params)
    frozen = cast(config, {"value": new_model["value"]})
    z = jax.lax.stop_gradient(z)
    q = smallest(told.critics(frozen, z, noisy_policy(params, config.learn, z, eps)))
    mask = jnp.concatenate([jnp.ones_like(batch.mask[:1]), batch.mask])
    return losses.policy(q, time_weights(config, mask))


def footprint(config: Config, sizes: Sizes) -> dict[str, int]:
    """Bytes that a lane needs at least."""
    n, p = config.net, config.plan
    obs, action = sizes
    both = n.latent + action
    model = (obs + n.latent) * n.encoder + n.mlp * (2 * both + 2 * n.mlp + n.latent + 1)
    critics = 2 * n.mlp * (both + n.mlp + 1)
    policy = n.mlp * (both + n.mlp)
    rows = config.learn.batch * (p.horizon + 1)
    candidates = config.eval_episodes * planning.candidates(config) * p.horizon
    number = 2 if config.precision == "bf16" else 4
    return {
        "the networks with their optimiser (net.*)": 4 * (3 * (model + critics + policy) + critics),
        "the activations of an update (learn.batch, plan.horizon, net.*)": 6
        * number
        * rows
        * (n.latent + n.mlp),
        "the replayed observations of an update (learn.batch)": 4 * rows * (obs + action),
        "the candidates of an evaluation's plans (plan.population, eval_episodes)": number
        * candidates
        * (n.latent + action),
    }


# Action repeat of the public runs, and what else they change: larger searches and latents.
_TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"action_repeat": 8},
    "dog": {
        "action_repeat": 2,
        "net.latent": 100,
        "plan.iterations": 8,
        "learn.batch": 2048,
        "learn.learning_rate": 3e-4,
        "learn.policy_learning_rate": 3e-4,
    },
    "finger": {"action_repeat": 2},
    "humanoid": {"action_repeat": 2, "net.latent": 100, "plan.iterations": 12},
    "walker": {"action_repeat": 2},
}


def task_defaults(task: str) -> Mapping[str, Any]:
    """What the public runs set per domain of the control suite."""
    family, _, name = task.partition("/")
    if family != "dmc":
        return {}
    return {"action_repeat": 4} | _TASKS.get(name.partition("-")[0], {})


AGENT = Agent(
    init=init,
    pad=told.pad,
    act=act,
    update=update,
    metrics=(
        "consistency_loss",
        "reward_loss",
        "value_loss",
        "policy_loss",
        "q",
        "target",
        "grad_norm",
        "policy_grad_norm",
        "capped",
        "skipped_updates",
    ),
    act_policy=act_policy,
    value=value,
    plays=("agent", "policy"),
    memory=memory,
    segment=lambda config: config.plan.horizon,
    acting_part=lambda state: state.params,
    constants=planning.constants,
    check=planning.check,
    footprint=footprint,
    sections=(
        *(f"net.{name}" for name in ("latent", "mlp", "encoder")),
        *planning.READS,
        *OFF_POLICY,
        *(f"learn.{name}" for name in ("td_lambda", "time_decay", "loss_clip")),
        *(f"learn.{name}_weight" for name in ("similarity", "reward", "value")),
        *(f"learn.{name}" for name in ("smoothing_std", "smoothing_clip")),
        *(f"learn.{name}" for name in ("target_momentum", "target_period")),
        "replay",
    ),
    defaults={  # of the public runs, where they differ from ACE's
        "precision": "f32",
        "plan.planner": "cem",
        "plan.horizon": 5,
        "plan.horizon_ramp.start": 1.0,
        "plan.population": 512,
        "plan.elites": 64,
        "plan.policy_fraction": 0.05,
        "plan.noise_beta": 0.0,
        "plan.mean_tail": "zero",
        "learn.td_lambda": 0.0,
        "learn.similarity_weight": 2.0,
        "replay.hindsight": 0.0,
    },
    task_defaults=task_defaults,
)
