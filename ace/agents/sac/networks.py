"""The networks of SAC: an ensemble of critics and a squashed Gaussian policy. They are drawn on the
host for a new run and on the device for a reset, by the same functions."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.agents.contract import Sizes
from ace.agents.sac.config import SacConfig
from ace.method import nets
from ace.method.types import Lane, Params
from ace.settings import keys
from ace.settings.config import Config

Draw = Callable[..., list[Any]]
"""(masks, masks, ...): for each sequence of masks an orthogonal matrix with `net.mlp` columns and a
row for every entry of the masks, zero where they are."""


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
    width, gain = config.net.mlp, config.own.init_gain
    first, mid, out = draw([obs, action], [np.ones(width, bool)], [np.ones(1, bool)])
    return {  # the first layer is split: observations and actions are padded separately
        "obs": {"w": gain * first[: len(obs)], "b": np.zeros(width, np.float32)},
        "action": {"w": gain * first[len(obs) :]},
        "mid": {"w": gain * mid, "b": np.zeros(width, np.float32)},
        "out": {"w": gain * out.T, "b": np.zeros(1, np.float32)},
    }


def _policy(draw: Draw, config: Config, obs: Any, action: Any) -> Params:
    width, gain, size = config.net.mlp, config.own.init_gain, len(action)
    heads, first, mid = draw([action, action], [obs], [np.ones(width, bool)])
    return {
        "in": {"w": gain * first, "b": np.zeros(width, np.float32)},
        "mid": {"w": gain * mid, "b": np.zeros(width, np.float32)},
        "mean": {"w": gain * heads[:size].T, "b": np.zeros(size, np.float32)},
        "log_std": {"w": heads[size:].T, "b": np.zeros(size, np.float32)},
    }


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
