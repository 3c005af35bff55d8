"""MR.Q (https://arxiv.org/abs/2501.16142), and DR.Q (https://arxiv.org/abs/2605.11711), which is
settings of it. No planner and no memory: a deterministic policy and two critics, as in TD3, that
read what an encoder makes of states and actions. The encoder alone learns to predict next latents,
rewards and terminations some steps ahead; critics and policy never change it. Every `period`
updates the target networks are copied anew, and the encoder makes as many updates at once. Networks
and numbers are those of the public runs (docs/agents.md). All compute in float32; `precision` sets
only that of the matrix products."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ace import replay
from ace.agents.contract import OFF_POLICY, Agent, Sizes
from ace.agents.mrq.config import DrqConfig, MrqConfig, check
from ace.agents.mrq.networks import combine, encode, pad, predict, raw_policy, two_hot, value
from ace.agents.mrq.networks import init as new
from ace.agents.rare import only_if
from ace.method import nets
from ace.method.learner import adam_init, optimise
from ace.method.model import action_normal, smallest
from ace.method.types import Batch, Lane, Metrics, Params
from ace.settings import keys
from ace.settings.config import Config, LearnConfig

PARTS = ("encoder", "critics", "policy")  # each with an optimiser of its own
ENCODER_METRICS = ("dynamics_loss", "reward_loss", "done_loss", "contrast_loss")
ENCODER_METRICS += ("encoder_grad_norm",)
LEAST_PRIORITY = 1.0  # smaller errors are raised to this (LAP)


class MrqState(NamedTuple):
    """All that learning changes."""

    params: Params  # encoder, critics [2, ...], policy
    target: Params  # what they were at the last multiple of `period` updates
    opt: tuple[Any, ...]  # in the order of PARTS
    scale: jax.Array  # [2] mean absolute reward that critics and target critics count in
    told: Metrics  # metrics of the encoder: means over its last `period` updates
    update_step: jax.Array  # of critics and policy
    skipped: jax.Array  # updates left out because a gradient was not finite


def init(config: Config, seed: int, sizes: Sizes) -> MrqState:
    """A fresh agent."""
    params = new(np.random.default_rng(keys.host_seed(seed, "init")), config, sizes)
    opt = adam_init(config.learn, *({name: params[name]} for name in PARTS))
    none: Any = np.zeros((), np.int32)
    told: Any = {name: np.zeros((), np.float32) for name in ENCODER_METRICS}
    scale: Any = np.zeros(2, np.float32)
    return MrqState(params, params, opt, scale, told, none, none)


def act(
    lane: Lane,
    acting: Params,
    memory: tuple,
    obs: jax.Array,
    first: jax.Array,
    agent_step: jax.Array,
    key: jax.Array,
    train: bool,
) -> tuple[jax.Array, tuple]:
    """The policy's action, in training with noise."""
    action = act_policy(lane, acting, obs)
    if train:
        eps = action_normal(key, (), lane.action_mask)
        action = jnp.clip(action + lane.config.own.exploration_std * eps, -1.0, 1.0)
    return action, memory


def act_policy(lane: Lane, acting: Params, obs: jax.Array) -> jax.Array:
    """The policy's action for an observation [..., O]."""
    raw = raw_policy(acting["policy"], encode(acting["encoder"], obs))
    return jnp.tanh(raw) * lane.action_mask


def expected(lane: Lane, acting: Params, obs: jax.Array, action: jax.Array) -> jax.Array:
    """The return that the smaller critic expects from [..., O] and [..., A]: [...]."""
    both = combine(acting["encoder"], encode(acting["encoder"], obs), action)
    return smallest(value(acting["critics"], both)) * unit(lane, acting["scale"][0])


def unit(lane: Lane, scale: jax.Array) -> jax.Array:
    """What critics count in: the mean absolute reward, or 1 as long as there is none."""
    return jnp.where(scale > 0, scale, 1.0) if lane.config.own.scale_rewards else jnp.ones(())


def update(
    lane: Lane, state: MrqState, store: replay.Replay, agent_step: jax.Array, active: jax.Array
) -> tuple[MrqState, replay.Replay, Metrics]:
    """Refresh targets and encoder if it is time; sample, learn, write priorities. A lane that is
    not active stays as it is."""
    c, own = lane.config, lane.config.own
    # Priorities do not change meanwhile, so encoder and critics sample from the same replay.
    recent = store
    if own.forgetting < 1:
        recent = replay.forget(store, own.forgetting, own.forgetting_floor)
    turn = active & (state.update_step % own.period == 0)
    state = only_if(turn, functools.partial(refresh, lane, recent), state)
    key = keys.key(lane.seed, "update", state.update_step)
    batch = replay.sample(
        recent, c.replay, jax.random.fold_in(key, 0), c.learn.batch, own.return_steps
    )
    eps = action_normal(jax.random.fold_in(key, 1), (c.learn.batch,), lane.action_mask)
    state, error, metrics = learn(lane, state, batch, eps, active)
    priority = jnp.maximum(error, LEAST_PRIORITY)
    store = replay.set_priorities(store, c.replay, batch.index, priority, active, batch.weight)
    return state, store, metrics


# The encoder


def refresh(lane: Lane, store: replay.Replay, state: MrqState) -> MrqState:
    """Copy all networks to their targets, take the mean reward in store as the unit of the critics,
    then make `period` updates of the encoder, each of a batch of its own."""
    c, own = lane.config, lane.config.own
    real = replay.steps_in_store(store)
    mean = jnp.sum(jnp.where(real, jnp.abs(store.reward), 0.0)) / jnp.maximum(real.sum(), 1)
    # Until there was a reward, critics have learned nothing in any unit: they begin with this one.
    before = jnp.where(state.scale[0] > 0, state.scale[0], mean)
    state = state._replace(target=state.params, scale=jnp.stack([mean, before]))
    ends = jnp.any(real & store.terminated)
    key = jax.random.fold_in(keys.key(lane.seed, "update", state.update_step), 2)

    def step(i: jax.Array, carry: tuple) -> tuple:
        part, opt, told, skipped = carry
        batch = replay.sample(
            store, c.replay, jax.random.fold_in(key, i), c.learn.batch, own.horizon
        )
        part, opt, found, moved = improve_encoder(lane, state.target, part, opt, batch, ends)
        return part, opt, jax.tree.map(jnp.add, told, found), skipped + ~moved

    nothing = jax.tree.map(jnp.zeros_like, state.told)
    carry = {"encoder": state.params["encoder"]}, state.opt[0], nothing, state.skipped
    part, opt, told, skipped = jax.lax.fori_loop(0, own.period, step, carry)
    return state._replace(
        params=state.params | part,
        opt=(opt, *state.opt[1:]),
        told=jax.tree.map(lambda x: x / own.period, told),
        skipped=skipped,
    )


def improve_encoder(
    lane: Lane, target: Params, part: Params, opt: Any, batch: Batch, ends: jax.Array
) -> tuple[Params, Any, Metrics, jax.Array]:
    """One gradient step of the encoder: its parameters, optimiser and losses, and whether the step
    was made."""
    c = lane.config
    target_z = encode(target["encoder"], batch.obs[1:])
    grads, found = jax.grad(encoder_loss, has_aux=True)(part, c, batch, target_z, ends)
    part, opt, norm, moved = optimise(
        unclipped(c.learn), c.own.encoder_learning_rate, grads, opt, part, jnp.array(True)
    )
    return part, opt, found | {"encoder_grad_norm": norm}, moved


def encoder_loss(
    part: Params, config: Config, batch: Batch, target_z: jax.Array, ends: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Losses of next latents, rewards and terminations along the rollout from the first state,
    each step from the latent that was predicted; `target_z` [H, B, latent] are the latents of the
    target encoder, `ends` says whether terminations are learned. Steps past an end do not count."""
    own, rates, encoder = config.own, config.learn, part["encoder"]

    def step(z: jax.Array, action: jax.Array) -> tuple[jax.Array, tuple]:
        found = predict(encoder, combine(encoder, z, action))
        return found[0], found

    _, (z, logits, done) = nets.scan(step, encode(encoder, batch.obs[0]), batch.action)
    log = jax.nn.log_softmax(logits)
    losses = {
        "dynamics_loss": jnp.square(z - target_z).mean(-1),
        "reward_loss": -jnp.sum(two_hot(batch.reward) * log, -1),
        "done_loss": jnp.where(ends, jnp.square(done - (1 - batch.continues)), 0.0),
        "contrast_loss": jnp.zeros_like(done),
    }
    if own.contrast_weight:
        losses["contrast_loss"] = contrast(z, target_z, own.contrast_temperature)
    weights = rates.similarity_weight, rates.reward_weight, own.done_weight, own.contrast_weight
    summed = {name: jnp.sum(batch.mask * x, 0) for name, x in losses.items()}  # [B]
    total = sum(w * x for w, x in zip(weights, summed.values(), strict=True))
    return jnp.mean(batch.weight * total), {name: x.mean() for name, x in summed.items()}


def contrast(z: jax.Array, target_z: jax.Array, temperature: jax.Array) -> jax.Array:
    """InfoNCE of predicted latents [H, B, latent] at every step: how well the cosine tells the
    segment's own target latent from those of the other segments: [H, B]."""

    def direction(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))

    cosine = jnp.einsum("hbl,hcl->hbc", direction(z), direction(target_z))
    log = jax.nn.log_softmax(cosine / temperature)
    return -jnp.diagonal(log, axis1=-2, axis2=-1)


# Critics and policy


def learn(
    lane: Lane, state: MrqState, batch: Batch, eps: jax.Array, active: jax.Array
) -> tuple[MrqState, jax.Array, Metrics]:
    """One gradient step of the critics, then of the policy through them; also the larger of the
    critics' absolute errors [B]. eps [B, A] is the noise of the target policy.

    If the critics' gradient is not finite, only the counters change; if the policy's is not, the
    policy stays unchanged.
    """
    rates, encoder = lane.config.learn, state.params["encoder"]
    y = target_of(lane, state, batch, eps)
    z = encode(encoder, batch.obs[0])
    both = combine(encoder, z, batch.action[0])

    def critic_loss(part: Params) -> tuple[jax.Array, jax.Array]:
        q = value(part["critics"], both)
        return jnp.mean(batch.weight * optax.losses.huber_loss(q, y[None])), q

    part = {"critics": state.params["critics"]}
    (q_loss, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(part)
    critics, q_opt, norm, moved = optimise(
        rates, rates.learning_rate, grads, state.opt[1], part, active
    )
    part = {"policy": state.params["policy"]}
    (pi_loss, action), grads = jax.value_and_grad(policy_loss, has_aux=True)(
        part, lane, encoder, critics["critics"], z
    )
    rate = rates.policy_learning_rate
    policy, pi_opt, pi_norm, _ = optimise(unclipped(rates), rate, grads, state.opt[2], part, moved)

    finite, counted = jnp.isfinite(norm) & jnp.isfinite(pi_norm), unit(lane, state.scale[0])
    saturated = (jnp.abs(action) > 0.99) * lane.action_mask
    metrics = {
        **state.told,
        "critic_loss": q_loss,
        "policy_loss": pi_loss,
        "q": q.mean() * counted,
        "target": y.mean() * counted,
        "reward_scale": counted,
        "saturated": saturated.sum(-1).mean() / lane.action_mask.sum(),
        "grad_norm": norm,
        "policy_grad_norm": pi_norm,
        "skipped_updates": state.skipped.astype(jnp.float32),
    }
    state = state._replace(
        params=state.params | critics | policy,
        opt=(state.opt[0], q_opt, pi_opt),
        update_step=state.update_step + active,
        skipped=state.skipped + (active & ~finite),
    )
    return state, jnp.abs(q - y).max(0), metrics


def target_of(lane: Lane, state: MrqState, batch: Batch, eps: jax.Array) -> jax.Array:
    """Values [B] in units of the critics: the rewards of the segment, then what the smaller target
    critic, which has a unit of its own, expects where it ends, unless the environment did."""
    rates, target, real = lane.config.learn, state.target, batch.mask
    t = jnp.arange(len(real), dtype=jnp.float32)[:, None]
    rewards = jnp.sum(rates.discount**t * real * batch.reward, 0)
    ahead = rates.discount ** real.sum(0) * jnp.where(real > 0, batch.continues, 1.0).prod(0)

    z = encode(target["encoder"], batch.obs[-1])
    noise = jnp.clip(rates.smoothing_std * eps, -rates.smoothing_clip, rates.smoothing_clip)
    action = jnp.clip(jnp.tanh(raw_policy(target["policy"], z)) + noise, -1.0, 1.0)
    q = smallest(value(target["critics"], combine(target["encoder"], z, action * lane.action_mask)))
    now, then = (unit(lane, scale) for scale in state.scale)
    return (rewards + ahead * then * q) / now


def policy_loss(
    part: Params, lane: Lane, encoder: Params, critics: Params, z: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Minus the mean of both critics at the policy's actions in latents [B, latent], and a little
    for outputs far from zero; also the actions. The gradient passes through the encoder."""
    raw, mask = raw_policy(part["policy"], z), lane.action_mask
    action = nets.tanh(raw) * mask
    far = jnp.mean(jnp.square(raw * mask).sum(-1)) / mask.sum()
    q = value(critics, combine(encoder, z, action))
    return lane.config.own.action_penalty * far - q.mean(), action


def unclipped(rates: LearnConfig) -> LearnConfig:
    """The optimiser of encoder and policy: only the critics' gradients are clipped."""
    return replace(rates, grad_clip=1e9)


def footprint(config: Config, sizes: Sizes) -> dict[str, int]:
    """Bytes that a lane needs at least."""
    obs, action = sizes
    n, own, batch = config.net, config.own, config.learn.batch
    encoder = n.encoder * (obs + 3 * n.latent + 2 * n.encoder + own.embedding)
    encoder += action * own.embedding + n.latent * (n.latent + 66)
    critics = 2 * n.mlp * (n.latent + 2 * n.mlp + 1)
    policy = n.mlp * (n.latent + n.mlp + action)
    # A step of the rollout keeps what two layers and their norms gave.
    rollout = own.horizon * batch * (4 * n.encoder + 2 * n.latent)
    return {
        "the networks with their optimiser (net.*)": 16 * (encoder + critics + policy),
        "the activations of an update (learn.batch, net.*)": 4 * rollout,
        "the replayed segments of an update (learn.batch)": 4
        * batch
        * own.horizon
        * (obs + action),
    }


METRICS = (
    *("dynamics_loss", "reward_loss", "critic_loss", "policy_loss", "q", "target", "saturated"),
    *("encoder_grad_norm", "grad_norm", "policy_grad_norm", "skipped_updates"),
)


def task_defaults(task: str) -> Mapping[str, Any]:
    """The action repeat of the public runs on the control suite."""
    return {"action_repeat": 2} if task.startswith("dmc/") else {}


def agent(own: type[MrqConfig], defaults: Mapping[str, Any], *more: str) -> Agent:
    """An agent of this file: a class of settings, defaults of common ones, additional metrics."""
    shared = {  # of the public runs, where they differ from ACE's
        "precision": "f32",
        "seed_steps": 10_000,
        "net.latent": 512,
        "net.mlp": 512,
        "learn.batch": 256,
        "learn.learning_rate": 3e-4,
        "learn.policy_learning_rate": 3e-4,
        "learn.seed_updates": 0.0,
        "learn.similarity_weight": 1.0,
        "learn.reward_weight": 0.1,
        "learn.smoothing_std": 0.2,
        "learn.smoothing_clip": 0.3,
        "replay.priority_power": 0.4,
        "replay.priority_floor": 0.0,
        "replay.importance_power": 0.0,
        "replay.hindsight": 0.0,
    }
    return Agent(
        init=init,
        pad=pad,
        act=act,
        update=update,
        metrics=(*METRICS, *more),
        act_policy=act_policy,
        value=expected,
        plays=("policy",),
        check=lambda config: check(config.own),
        segment=lambda config: max(config.own.horizon, config.own.return_steps),
        acting_part=lambda state: state.params | {"scale": state.scale},
        footprint=footprint,
        settings=own,
        sections=(
            *(f"net.{name}" for name in ("latent", "mlp", "encoder")),
            *OFF_POLICY,
            *(f"learn.{name}" for name in ("similarity_weight", "reward_weight")),
            *(f"learn.{name}" for name in ("smoothing_std", "smoothing_clip")),
            "replay",
        ),
        defaults={**shared, **defaults},
        task_defaults=task_defaults,
    )


AGENT = agent(
    MrqConfig,
    {"net.encoder": 512, "learn.weight_decay": 1e-4, "learn.grad_clip": 20.0},
    *("done_loss", "reward_scale"),
)
DRQ = agent(
    DrqConfig,
    {"net.encoder": 750, "learn.weight_decay": 0.01, "learn.grad_clip": 1e9},
    "contrast_loss",
)
