"""Soft actor-critic: no model, no planner, no memory. It learns from single transitions, with twin
critics, a squashed Gaussian policy and a temperature that holds the policy's entropy at a target
(https://arxiv.org/abs/1812.05905). Networks and settings are those of the public runs that the
field compares with on the DeepMind Control Suite (denisyarats/pytorch_sac). It computes in
float32; `precision` sets only that of its matrix products."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.agents.contract import Agent, Sizes
from ace.method import nets
from ace.method.learner import adam, choose, optimise
from ace.method.model import action_normal, smaller
from ace.method.types import Batch, Lane, Metrics, Params
from ace.settings import keys
from ace.settings.config import Config, ConfigError, settings

PARTS = ("critics", "policy", "temperature")  # each with an optimiser of its own


@settings
@dataclass(frozen=True)
class SacConfig:
    """Settings of soft actor-critic besides the common ones."""

    init_temperature: float = 0.1
    """alpha at the start: what a nat of entropy is worth, in units of reward."""
    temperature_learning_rate: float = 1e-4
    """Step size of log alpha."""
    target_entropy: float = -1.0
    """Entropy per action dimension, in nats, that the temperature holds the policy at."""
    log_std_min: float = -5.0
    """Smallest logarithm of the policy's standard deviation, before squashing."""
    log_std_max: float = 2.0
    """Largest logarithm of the policy's standard deviation, before squashing."""


class SacState(NamedTuple):
    """All that learning changes."""

    params: Params  # critics [2, ...], policy, logarithm of the temperature
    target: Params  # moving average of the critics
    opt: tuple[Any, ...]  # in the order of PARTS
    update_step: jax.Array
    skipped: jax.Array  # updates left out because a gradient was not finite


def init(config: Config, seed: int, sizes: Sizes) -> SacState:
    """A fresh agent: orthogonal weights, zero biases."""
    own: SacConfig = config.own
    if not own.init_temperature > 0:
        raise ConfigError(f"sac.init_temperature is {own.init_temperature}; it must be above 0")
    if not own.log_std_min <= own.log_std_max:
        raise ConfigError("sac.log_std_min is larger than sac.log_std_max; lower it")
    rng = np.random.default_rng(keys.host_seed(seed, "init"))
    obs, action = sizes
    width = config.net.mlp
    critics = [_critic_init(rng, obs, action, width) for _ in range(2)]
    heads = nets.orthogonal(rng, width, 2 * action)
    params = {
        "critics": jax.tree.map(lambda *q: np.stack(q), *critics),
        "policy": {
            "in": nets.linear_init(rng, obs, width),
            "mid": nets.linear_init(rng, width, width),
            "mean": {"w": heads[:, :action], "b": np.zeros(action, np.float32)},
            "log_std": {"w": heads[:, action:], "b": np.zeros(action, np.float32)},
        },
        "temperature": {"log": np.float32(math.log(own.init_temperature))},
    }

    def zeros(name: str) -> Any:
        empty = jax.eval_shape(adam(config.learn).init, {name: params[name]})
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), empty)

    none: Any = np.zeros((), np.int32)
    target = {"critics": params["critics"]}
    return SacState(params, target, tuple(zeros(name) for name in PARTS), none, none)


def _critic_init(rng: nets.Rng, obs: int, action: int, width: int) -> Params:
    # The first layer is split, so that observations and actions can be padded separately.
    first = nets.orthogonal(rng, obs + action, width)
    return {
        "obs": {"w": first[:obs], "b": np.zeros(width, np.float32)},
        "action": {"w": first[obs:]},
        "mid": nets.linear_init(rng, width, width),
        "out": nets.linear_init(rng, width, 1),
    }


def pad(config: Config, state: SacState, sizes: Sizes) -> SacState:
    """The same agent for larger observations and actions, whose new entries are always zero."""
    obs, action = ("obs", None), ("action", None)
    axes: dict[tuple[str, ...], tuple] = {
        ("critics", "obs", "w"): (-2, (obs,)),
        ("critics", "action", "w"): (-2, (action,)),
        ("policy", "in", "w"): (-2, (obs,)),
    }
    for head in ("mean", "log_std"):
        for leaf in ("w", "b"):
            axes["policy", head, leaf] = (-1, (action,))
    return nets.pad(state, axes, dict(zip(("obs", "action"), sizes, strict=True)))


def value(p: Params, obs: jax.Array, action: jax.Array) -> jax.Array:
    """Q1 and Q2 of (s, a): [2, ...]."""

    def one(p: Params) -> jax.Array:
        x = jax.nn.relu(nets.linear(p["obs"], obs) + action @ p["action"]["w"])
        return nets.linear(p["out"], jax.nn.relu(nets.linear(p["mid"], x))).squeeze(-1)

    return jax.vmap(one)(p)


def gaussian(own: SacConfig, p: Params, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and log deviation [..., A] of the policy before squashing; a tanh keeps the latter
    between its bounds."""
    x = jax.nn.relu(nets.linear(p["in"], obs))
    x = jax.nn.relu(nets.linear(p["mid"], x))
    inside = 0.5 * (jnp.tanh(nets.linear(p["log_std"], x)) + 1)
    log_std = own.log_std_min + (own.log_std_max - own.log_std_min) * inside
    return nets.linear(p["mean"], x), log_std


def squashed(
    mean: jax.Array, log_std: jax.Array, eps: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Actions tanh(u), u = mean + std eps, and their log-probability over the real dimensions."""
    u = mean + jnp.exp(log_std) * eps
    normal = -0.5 * jnp.square(eps) - log_std - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(u)^2), without the cancellation that makes it -inf from |u| = 9 on.
    slope = 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))
    return jnp.tanh(u) * mask, jnp.sum((normal - slope) * mask, -1)


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
    """A sample of the policy in training, its mean in evaluation."""
    mean, log_std = gaussian(lane.config.own, acting["policy"], obs)
    eps = action_normal(key, (), lane.action_mask) if train else jnp.zeros_like(mean)
    return squashed(mean, log_std, eps, lane.action_mask)[0], memory


def act_policy(lane: Lane, acting: Params, obs: jax.Array) -> jax.Array:
    """The policy's mean action for an observation [..., O]."""
    return jnp.tanh(gaussian(lane.config.own, acting["policy"], obs)[0]) * lane.action_mask


def update(
    lane: Lane, state: SacState, store: replay.Replay, agent_step: jax.Array, active: jax.Array
) -> tuple[SacState, replay.Replay, Metrics]:
    """Sample, learn, write priorities; a lane that is not active or has no data stays as it is."""
    c = lane.config
    active = active & (replay.total(store.tree) > 0)
    key = keys.key(lane.seed, "update", state.update_step)
    batch = replay.sample(store, c.replay, jax.random.fold_in(key, 0), c.learn.batch, 1)
    eps = action_normal(jax.random.fold_in(key, 1), (2, c.learn.batch), lane.action_mask)
    state, error, metrics = learn(lane, state, batch, eps, active)
    # All priorities stay 1, and sampling uniform, unless `replay.priority_power` is raised.
    store = replay.set_priorities(store, c.replay, batch.index, error, active, batch.weight)
    return state, store, metrics


def learn(
    lane: Lane, state: SacState, batch: Batch, eps: jax.Array, active: jax.Array
) -> tuple[SacState, jax.Array, Metrics]:
    """One gradient step of the critics, then of the policy through them, then of the temperature;
    also the critics' errors [B]. eps [2, B, A] are the draws for the next actions and for these.

    If the critics' gradient is not finite, only the counters change; if the policy's or the
    temperature's is not, that part stays unchanged.
    """
    own, rates, mask = lane.config.own, lane.config.learn, lane.action_mask
    obs, next_obs = batch.obs
    alpha = jnp.exp(state.params["temperature"]["log"])
    weight = batch.weight * batch.mask[0]

    next_action, next_log = squashed(*gaussian(own, state.params["policy"], next_obs), eps[0], mask)
    next_value = smaller(value(state.target["critics"], next_obs, next_action)) - alpha * next_log
    y = batch.reward[0] + rates.discount * batch.continues[0] * next_value

    def critic_loss(part: Params) -> tuple[jax.Array, tuple]:
        q = value(part["critics"], obs, batch.action[0])
        return jnp.mean(weight * jnp.square(q - y).sum(0)), (q.mean(), jnp.abs(q - y).mean(0))

    def policy_loss(part: Params) -> tuple[jax.Array, jax.Array]:
        action, log = squashed(*gaussian(own, part["policy"], obs), eps[1], mask)
        q = smaller(value(new["critics"], obs, action))
        return jnp.mean(batch.mask[0] * (alpha * log - q)), log

    def temperature_loss(part: Params) -> jax.Array:
        target = own.target_entropy * mask.sum()
        return jnp.exp(part["temperature"]["log"]) * jnp.mean(-log - target)

    def step(name: str, rate: Any, grads: Params, active: jax.Array) -> tuple:
        part = {name: state.params[name]}
        return optimise(rates, rate, grads, state.opt[PARTS.index(name)], part, active)

    def grads(loss: Any, name: str, has_aux: bool = True) -> Any:
        return jax.value_and_grad(loss, has_aux=has_aux)({name: state.params[name]})

    (q_loss, (q, error)), q_grads = grads(critic_loss, "critics")
    new, q_opt, q_norm, moved = step("critics", rates.learning_rate, q_grads, active)
    (pi_loss, log), pi_grads = grads(policy_loss, "policy")
    policy, pi_opt, pi_norm, _ = step("policy", rates.policy_learning_rate, pi_grads, moved)
    alpha_loss, a_grads = grads(temperature_loss, "temperature", has_aux=False)
    rate = own.temperature_learning_rate
    temperature, a_opt, a_norm, _ = step("temperature", rate, a_grads, moved)

    turn = moved & (state.update_step % rates.target_period == 0)
    keep = rates.target_momentum
    target = jax.tree.map(lambda t, p: keep * t + (1 - keep) * p, state.target, new)
    finite = jnp.isfinite(q_norm) & jnp.isfinite(pi_norm) & jnp.isfinite(a_norm)
    state = SacState(
        params=new | policy | temperature,
        target=choose(turn, target, state.target),
        opt=(q_opt, pi_opt, a_opt),
        update_step=state.update_step + active,
        skipped=state.skipped + (active & ~finite),
    )
    metrics = {
        "critic_loss": q_loss,
        "policy_loss": pi_loss,
        "temperature_loss": alpha_loss,
        "q": q,
        "target": y.mean(),
        "entropy": -log.mean(),
        "temperature": alpha,
        "grad_norm": q_norm,
        "policy_grad_norm": pi_norm,
        "skipped_updates": state.skipped.astype(jnp.float32),
    }
    return state, error, metrics


def footprint(config: Config, sizes: Sizes) -> dict[str, int]:
    """Bytes that a lane needs at least."""
    obs, action = sizes
    width, batch = config.net.mlp, config.learn.batch
    critics = 2 * width * (obs + action + width + 1)
    policy = width * (obs + width + 2 * action)
    return {
        "the networks with their optimiser (net.mlp)": 4 * (4 * critics + 3 * policy),
        "the activations of an update (learn.batch, net.mlp)": 4 * batch * 2 * 6 * width,
        "the replayed transitions of an update (learn.batch)": 4 * batch * (2 * obs + action),
    }


AGENT = Agent(
    init=init,
    pad=pad,
    act=act,
    update=update,
    metrics=(
        "critic_loss",
        "policy_loss",
        "temperature_loss",
        "q",
        "target",
        "entropy",
        "temperature",
        "grad_norm",
        "policy_grad_norm",
        "skipped_updates",
    ),
    act_policy=act_policy,
    plays=("policy",),
    acting_part=lambda state: {"policy": state.params["policy"]},
    footprint=footprint,
    settings=SacConfig,
    sections=(
        "net.mlp",
        *(f"learn.{name}" for name in ("batch", "discount", "updates_per_step", "update_mode")),
        *(f"learn.{name}" for name in ("learning_rate", "policy_learning_rate", "grad_clip")),
        *(f"learn.{name}" for name in ("beta1", "beta2", "weight_decay")),
        *(f"learn.{name}" for name in ("target_momentum", "target_period")),
        "replay",
    ),
    defaults={  # of the public runs
        "precision": "f32",
        "net.mlp": 1024,
        "learn.batch": 1024,
        "learn.learning_rate": 1e-4,
        "learn.policy_learning_rate": 1e-4,
        "learn.grad_clip": 1e9,  # no clipping
        "learn.target_momentum": 0.995,
        "learn.target_period": 2,
        "replay.priority_power": 0.0,
        "replay.importance_power": 0.0,
    },
)
