"""Soft actor-critic and two methods that are settings of it. No model, no planner, no memory: it
learns from single transitions, with an ensemble of critics, a squashed Gaussian policy and a
temperature that holds the policy's entropy at a target (https://arxiv.org/abs/1812.05905). REDQ has
more critics, a random few of them in the target (https://arxiv.org/abs/2101.05982); SR-SAC makes
more updates and begins anew after many of them (https://openreview.net/forum?id=OpC-9aBBVJe).
Networks and settings are those of public runs: denisyarats/pytorch_sac, watchernyu/REDQ and
proceduralia/high_replay_ratio_continuous_control (docs/agents.md). All compute in float32;
`precision` sets only that of the matrix products."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.agents.contract import OFF_POLICY, Agent, Sizes
from ace.agents.rare import only_if
from ace.method import nets
from ace.method.learner import adam_init, optimise, where_tree
from ace.method.model import action_normal, smallest
from ace.method.types import Batch, Lane, Metrics, Params
from ace.settings import keys
from ace.settings.config import Config, ConfigError, settings

PARTS = ("critics", "policy", "temperature")  # each with an optimiser of its own
POLICY_METRICS = ("policy_loss", "temperature_loss", "entropy", "policy_grad_norm")


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
    log_std_bounds: Literal["tanh", "clip"] = "tanh"
    """How it is kept between them: by a tanh, or cut off."""
    init_gain: float = 1.0
    """Scale of the orthogonal weights at the start; those of the deviation's head have scale 1."""
    critics: int = 2
    """Number of critics."""
    target_critics: int = 2
    """Critics, drawn at random for each update, whose smallest value is in the target."""
    policy_value: Literal["min", "mean"] = "min"
    """The policy climbs the smallest critic, or the mean of all."""
    policy_delay: int = 1
    """Updates of the critics for each update of policy and temperature."""
    reset_every: int = 0
    """Updates after which networks, optimisers and temperature begin anew; 0: never."""


@settings
@dataclass(frozen=True)
class RedqConfig(SacConfig):
    """Settings of REDQ besides the common ones."""

    init_temperature: float = 1.0
    temperature_learning_rate: float = 3e-4
    target_entropy: float = -0.5
    log_std_min: float = -20.0
    log_std_bounds: Literal["tanh", "clip"] = "clip"
    critics: int = 10
    policy_value: Literal["min", "mean"] = "mean"
    policy_delay: int = 20


@settings
@dataclass(frozen=True)
class SrsacConfig(SacConfig):
    """Settings of SR-SAC besides the common ones."""

    init_temperature: float = 1.0
    temperature_learning_rate: float = 3e-4
    target_entropy: float = -0.5
    log_std_min: float = -10.0
    init_gain: float = math.sqrt(2)
    reset_every: int = 2_560_000


def check(config: Config) -> None:
    """Refuse settings that cannot work; the agent's name stands before the dot."""
    own = config.own
    name = type(own).__name__.removesuffix("Config").lower()
    if not own.init_temperature > 0:
        raise ConfigError(f"{name}.init_temperature is {own.init_temperature}; it must be above 0")
    if not own.log_std_min <= own.log_std_max:
        raise ConfigError(f"{name}.log_std_min is larger than {name}.log_std_max; lower it")
    if not 1 <= own.target_critics <= own.critics:
        raise ConfigError(
            f"{name}.target_critics is {own.target_critics}; it must be from 1 to "
            f"{name}.critics ({own.critics})"
        )
    if own.policy_delay < 1:
        raise ConfigError(f"{name}.policy_delay is {own.policy_delay}; it must be at least 1")
    if own.reset_every < 0:
        raise ConfigError(f"{name}.reset_every is {own.reset_every}; give 0 for no resets")


# Networks. They are drawn on the host for a new run and on the device for a reset, by the same
# functions.

Draw = Callable[..., list[Any]]
"""(masks, masks, ...): for each sequence of masks an orthogonal matrix with `net.mlp` columns and a
row for every entry of the masks, zero where the mask is zero."""


def new(config: Config, seed: int, sizes: Sizes) -> Params:
    """Parameters of a new run, as NumPy arrays: orthogonal weights, zero biases."""
    rng = np.random.default_rng(keys.host_seed(seed, "init"))

    def draw(*matrices: Sequence[np.ndarray]) -> list[np.ndarray]:
        rows = [sum(map(len, masks)) for masks in matrices]
        return [nets.orthogonal(rng, count, config.net.mlp) for count in rows]

    obs, action = (np.ones(size, bool) for size in sizes)
    critics = [_critic(draw, config, obs, action) for _ in range(config.own.critics)]
    return {
        "critics": jax.tree.map(lambda *q: np.stack(q), *critics),
        "policy": _policy(draw, config, obs, action),
        "temperature": {"log": np.float32(math.log(config.own.init_temperature))},
    }


def anew(lane: Lane, count: jax.Array) -> Params:
    """Parameters after a number of resets, as `new` draws them; padded entries are zero."""
    config, base = lane.config, keys.key(lane.seed, "init", count)
    masks = lane.obs_mask, lane.action_mask

    def draw(i: jax.Array | int) -> Draw:
        return functools.partial(orthogonal, jax.random.fold_in(base, i), config.net.mlp)

    return {
        "critics": jax.vmap(lambda i: _critic(draw(i), config, *masks))(
            jnp.arange(config.own.critics)
        ),
        "policy": _policy(draw(config.own.critics), config, *masks),
        "temperature": {"log": jnp.log(config.own.init_temperature)},
    }


def orthogonal(key: jax.Array, width: int, *matrices: Sequence[Any]) -> list[jax.Array]:
    """A `Draw` on the device, of products alone: decompositions can hang under `vmap` on a CPU."""
    masks = [mask for rows in matrices for mask in rows]
    # A key for every row: real rows get the same numbers whatever the padding is.
    rows = jnp.concatenate([2**16 * i + jnp.arange(len(m)) for i, m in enumerate(masks)])
    row = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), (width,)))(rows)
    row *= jnp.concatenate(masks)[:, None]
    ends = np.cumsum([sum(map(len, rows)) for rows in matrices])[:-1]
    found = [x / jnp.linalg.norm(x) for x in jnp.split(row, ends)]

    def step(_: Any, found: list) -> list:
        return [1.5 * x - 0.5 * x @ (x.T @ x) for x in found]

    # Newton's iteration takes all singular values but zeros to 1. They lie in (0, 1] at first and
    # grow by half in a round: 60 rounds are enough down to 1e-9.
    with jax.default_matmul_precision("highest"):
        return jax.lax.fori_loop(0, 60, step, found)


def _critic(draw: Draw, config: Config, obs: Any, action: Any) -> Params:
    gain = config.own.init_gain
    first, mid, out = draw([obs, action], [np.ones(config.net.mlp, bool)], [np.ones(1, bool)])
    return {  # the first layer is split: observations and actions are padded separately
        "obs": _layer(gain * first[: len(obs)]),
        "action": {"w": gain * first[len(obs) :]},
        "mid": _layer(gain * mid),
        "out": _layer(gain * out.T),
    }


def _policy(draw: Draw, config: Config, obs: Any, action: Any) -> Params:
    gain, size = config.own.init_gain, len(action)
    heads, first, mid = draw([action, action], [obs], [np.ones(config.net.mlp, bool)])
    return {
        "in": _layer(gain * first),
        "mid": _layer(gain * mid),
        "mean": _layer(gain * heads[:size].T),
        "log_std": _layer(heads[size:].T),
    }


def _layer(w: Any) -> Params:
    return {"w": w, "b": np.zeros(w.shape[-1], np.float32)}


def pad(config: Config, state: Any, sizes: Sizes) -> Any:
    """The same state for larger observations and actions, whose new entries are always zero."""
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
    """All critics' values of (s, a): [N, ...]."""

    def one(p: Params) -> jax.Array:
        x = jax.nn.relu(nets.linear(p["obs"], obs) + action @ p["action"]["w"])
        return nets.linear(p["out"], jax.nn.relu(nets.linear(p["mid"], x))).squeeze(-1)

    return jax.vmap(one)(p)


def gaussian(own: SacConfig, p: Params, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and log deviation [..., A] of the policy before squashing, the latter between its
    bounds."""
    x = jax.nn.relu(nets.linear(p["in"], obs))
    x = jax.nn.relu(nets.linear(p["mid"], x))
    log_std, low, high = nets.linear(p["log_std"], x), own.log_std_min, own.log_std_max
    if own.log_std_bounds == "clip":
        log_std = jnp.clip(log_std, low, high)
    else:
        log_std = low + (high - low) * (0.5 * (jnp.tanh(log_std) + 1))
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


# State and acting


class SacState(NamedTuple):
    """All that learning changes."""

    params: Params  # critics [N, ...], policy, logarithm of the temperature
    target: Params  # moving average of the critics
    opt: tuple[Any, ...]  # in the order of PARTS
    update_step: jax.Array
    skipped: jax.Array  # updates left out because a gradient was not finite


def init(config: Config, seed: int, sizes: Sizes) -> SacState:
    """A fresh agent."""
    params = new(config, seed, sizes)
    opt = adam_init(config.learn, *({name: params[name]} for name in PARTS))
    none: Any = np.zeros((), np.int32)
    return SacState(params, {"critics": params["critics"]}, opt, none, none)


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


# Losses


def target_of(
    lane: Lane, state: SacState, batch: Batch, eps: jax.Array, chosen: jax.Array | None
) -> jax.Array:
    """Soft value targets [B]: the smallest of the chosen target critics at a fresh next action."""
    next_obs, policy = batch.obs[1], gaussian(lane.config.own, state.params["policy"], batch.obs[1])
    action, log = squashed(*policy, eps, lane.action_mask)
    critics = state.target["critics"]
    if chosen is not None:
        critics = jax.tree.map(lambda x: jnp.asarray(x)[chosen], critics)
    alpha = jnp.exp(state.params["temperature"]["log"])
    soft = smallest(value(critics, next_obs, action)) - alpha * log
    return batch.reward[0] + lane.config.learn.discount * batch.continues[0] * soft


def critic_loss(part: Params, batch: Batch, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Squared distance of all critics from the targets y [B]; also their values [N, B]."""
    q = value(part["critics"], batch.obs[0], batch.action[0])
    return jnp.mean(batch.weight * batch.mask[0] * jnp.square(q - y).sum(0)), q


def policy_loss(
    part: Params, lane: Lane, rest: Params, batch: Batch, eps: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """alpha log pi(a|s) - Q(s, a) at fresh actions, Q the smallest critic or their mean; also the
    log-probabilities [B]. `rest` are critics and temperature."""
    own, obs = lane.config.own, batch.obs[0]
    action, log = squashed(*gaussian(own, part["policy"], obs), eps, lane.action_mask)
    q = value(rest["critics"], obs, action)
    q = smallest(q) if own.policy_value == "min" else q.mean(0)
    return jnp.mean(batch.mask[0] * (jnp.exp(rest["temperature"]["log"]) * log - q)), log


def temperature_loss(part: Params, lane: Lane, log: jax.Array) -> jax.Array:
    """alpha (entropy - target): lowers alpha of a policy that is more random than it should be."""
    target = lane.config.own.target_entropy * lane.action_mask.sum()
    return jnp.exp(part["temperature"]["log"]) * jnp.mean(-log - target)


# Updates


def update(
    lane: Lane, state: SacState, store: replay.Replay, agent_step: jax.Array, active: jax.Array
) -> tuple[SacState, replay.Replay, Metrics]:
    """Reset the networks if due, sample, learn, write priorities; a lane that is not active stays
    as it is."""
    c, own = lane.config, lane.config.own
    if own.reset_every:
        state = reset(lane, state, active)
    key = keys.key(lane.seed, "update", state.update_step)
    batch = replay.sample(store, c.replay, jax.random.fold_in(key, 0), c.learn.batch, 1)
    eps = action_normal(jax.random.fold_in(key, 1), (2, c.learn.batch), lane.action_mask)
    chosen = None
    if own.target_critics < own.critics:
        order = jax.random.permutation(jax.random.fold_in(key, 2), own.critics)
        chosen = order[: own.target_critics]
    state, error, metrics = learn(lane, state, batch, eps, active, chosen)
    # All priorities stay 1, and sampling uniform, unless `replay.priority_power` is raised.
    store = replay.set_priorities(store, c.replay, batch.index, error, active, batch.weight)
    return state, store, metrics


def reset(lane: Lane, state: SacState, active: jax.Array) -> SacState:
    """A fresh agent if `reset_every` updates were made since the last one; the counters go on."""
    every = lane.config.own.reset_every
    due = active & (state.update_step > 0) & (state.update_step % every == 0)

    def fresh(before: tuple) -> tuple:
        count, _, _, opt = before
        params = anew(lane, count)
        # The count changes, or XLA would draw the parameters before the loop, in every update.
        return count + 1, params, {"critics": params["critics"]}, jax.tree.map(jnp.zeros_like, opt)

    before = state.update_step // every, state.params, state.target, state.opt
    _, params, target, opt = only_if(due, fresh, before)
    return state._replace(params=params, target=target, opt=opt)


def learn(
    lane: Lane,
    state: SacState,
    batch: Batch,
    eps: jax.Array,
    active: jax.Array,
    chosen: jax.Array | None = None,
) -> tuple[SacState, jax.Array, Metrics]:
    """One gradient step of the critics, then of the policy through them and of the temperature, if
    it is their turn; also the critics' errors [B]. eps [2, B, A] are the draws for the next actions
    and for these, `chosen` the critics in the target, all if None.

    If the critics' gradient is not finite, only the counters change; if the policy's or the
    temperature's is not, that part stays unchanged.
    """
    own, rates = lane.config.own, lane.config.learn
    y = target_of(lane, state, batch, eps[0], chosen)
    part = {"critics": state.params["critics"]}
    (q_loss, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(part, batch, y)
    critics, q_opt, norm, moved = optimise(
        rates, rates.learning_rate, grads, state.opt[0], part, active
    )

    turn = moved & ((state.update_step + 1) % own.policy_delay == 0)
    missing: Metrics = {name: jnp.full((), jnp.nan) for name in POLICY_METRICS}
    rest = {name: state.params[name] for name in PARTS[1:]}
    before = Improved(rest, state.opt[1:], missing, jnp.array(True))
    climb = functools.partial(improve, lane, critics, batch, eps[1], turn)
    after = climb(before) if own.policy_delay == 1 else only_if(turn, climb, before)

    copy = moved & (state.update_step % rates.target_period == 0)
    keep = rates.target_momentum
    target = jax.tree.map(lambda t, p: keep * t + (1 - keep) * p, state.target, critics)
    resets = state.update_step // own.reset_every if own.reset_every else jnp.zeros(())
    left_out = (active & ~jnp.isfinite(norm)) | (turn & ~after.finite)
    metrics = {
        "critic_loss": q_loss,
        "q": q.mean(),
        "target": y.mean(),
        "temperature": jnp.exp(state.params["temperature"]["log"]),
        "grad_norm": norm,
        "skipped_updates": state.skipped.astype(jnp.float32),
        "resets": resets.astype(jnp.float32),
        **after.metrics,
    }
    state = SacState(
        params=critics | after.params,
        target=where_tree(copy, target, state.target),
        opt=(q_opt, *after.opt),
        update_step=state.update_step + active,
        skipped=state.skipped + left_out,
    )
    return state, jnp.abs(q - y).mean(0), metrics


class Improved(NamedTuple):
    """Parameters, optimisers and metrics after an update of the policy."""

    params: Params  # policy and temperature
    opt: tuple[Any, ...]  # of both
    metrics: Metrics
    finite: jax.Array


def improve(
    lane: Lane, critics: Params, batch: Batch, eps: jax.Array, turn: jax.Array, before: Improved
) -> Improved:
    """One gradient step of the policy through the new critics, then of the temperature."""
    rates = lane.config.learn
    policy, temperature = ({name: before.params[name]} for name in PARTS[1:])
    (pi_loss, log), grads = jax.value_and_grad(policy_loss, has_aux=True)(
        policy, lane, critics | temperature, batch, eps
    )
    rate = rates.policy_learning_rate
    policy, pi_opt, pi_norm, _ = optimise(rates, rate, grads, before.opt[0], policy, turn)
    a_loss, grads = jax.value_and_grad(temperature_loss)(temperature, lane, log)
    rate = lane.config.own.temperature_learning_rate
    temperature, a_opt, a_norm, _ = optimise(rates, rate, grads, before.opt[1], temperature, turn)
    numbers = (pi_loss, a_loss, -log.mean(), pi_norm)
    return Improved(
        policy | temperature,
        (pi_opt, a_opt),
        dict(zip(POLICY_METRICS, numbers, strict=True)),
        jnp.isfinite(pi_norm) & jnp.isfinite(a_norm),
    )


def footprint(config: Config, sizes: Sizes) -> dict[str, int]:
    """Bytes that a lane needs at least."""
    obs, action = sizes
    width, batch, count = config.net.mlp, config.learn.batch, config.own.critics
    critics = count * width * (obs + action + width + 1)
    policy = width * (obs + width + 2 * action)
    return {
        "the networks with their optimiser (net.mlp)": 4 * (4 * critics + 3 * policy),
        "the activations of an update (learn.batch, net.mlp)": 4 * batch * count * 6 * width,
        "the replayed transitions of an update (learn.batch)": 4 * batch * (2 * obs + action),
    }


METRICS = (
    *("critic_loss", "policy_loss", "temperature_loss", "q", "target", "entropy", "temperature"),
    *("grad_norm", "policy_grad_norm", "skipped_updates"),
)


def agent(own: type[SacConfig], defaults: Mapping[str, Any], *more: str) -> Agent:
    """An agent of this file: a class of settings, defaults of common ones, additional metrics."""
    shared = {  # no clipping, uniform replay, no burst of updates after the seed phase
        "precision": "f32",
        "learn.seed_updates": 0.0,
        "learn.grad_clip": 1e9,
        "learn.target_momentum": 0.995,
        "replay.priority_power": 0.0,
        "replay.importance_power": 0.0,
    }
    return Agent(
        init=init,
        pad=pad,
        act=act,
        update=update,
        metrics=(*METRICS, *more),
        act_policy=act_policy,
        plays=("policy",),
        check=check,
        acting_part=lambda state: {"policy": state.params["policy"]},
        footprint=footprint,
        settings=own,
        sections=("net.mlp", *OFF_POLICY, "learn.target_momentum", "learn.target_period", "replay"),
        defaults={**shared, **defaults},
    )


AGENT = agent(
    SacConfig,
    {
        "net.mlp": 1024,
        "learn.batch": 1024,
        "learn.learning_rate": 1e-4,
        "learn.policy_learning_rate": 1e-4,
        "learn.target_period": 2,
    },
)
_MANY_UPDATES = {  # of REDQ and SR-SAC
    "net.mlp": 256,
    "learn.batch": 256,
    "learn.learning_rate": 3e-4,
    "learn.policy_learning_rate": 3e-4,
    "learn.target_period": 1,
}
REDQ = agent(RedqConfig, _MANY_UPDATES | {"learn.updates_per_step": 20})
SRSAC = agent(
    SrsacConfig, _MANY_UPDATES | {"seed_steps": 10_000, "learn.updates_per_step": 16}, "resets"
)
