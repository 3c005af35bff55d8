"""The networks of the method: encoder h, recurrent dynamics f with projector g, reward r, twin
critics Q, policy pi and predictor q. Written for one lane; `[...]` stands for any batch axes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.method import nets
from ace.method.types import Params
from ace.settings.config import Config, LearnConfig


def init(rng: nets.Rng, config: Config, obs_size: int, action_size: int) -> tuple[Params, Params]:
    """Parameters and running batch-norm statistics of one lane, as NumPy arrays (1.2, 1.4)."""
    n = config.net
    reward_in = n.belief
    if config.parity.reward_input == "all":
        reward_in = n.latent + n.belief + action_size
    params = {
        "encoder": {
            "in": nets.linear_init(rng, obs_size, n.encoder),
            "norm": nets.norm_init(n.encoder),
            "out": nets.linear_init(rng, n.encoder, n.latent),
        },
        "cell": nets.gru_init(rng, n.latent + action_size, n.belief),
        "projector": _norm_mlp_init(rng, n.belief, n.mlp, n.latent),
        "predictor": _norm_mlp_init(rng, n.latent, n.mlp, n.latent),
        "reward": _mlp_init(rng, reward_in, n.mlp, 1, zero=True),
        "value": jax.tree.map(
            lambda *q: np.stack(q),
            *[_critic_init(rng, n.latent + action_size, n.mlp) for _ in range(2)],
        ),
        "policy": _mlp_init(rng, n.latent, n.mlp, action_size),
    }
    stats = {"projector": nets.stats_init(n.mlp), "predictor": nets.stats_init(n.mlp)}
    return params, stats


def _mlp_init(rng: nets.Rng, n_in: int, width: int, n_out: int, zero: bool = False) -> Params:
    return {
        "in": nets.linear_init(rng, n_in, width),
        "mid": nets.linear_init(rng, width, width),
        "out": nets.linear_init(rng, width, n_out, zero=zero),
    }


def _norm_mlp_init(rng: nets.Rng, n_in: int, width: int, n_out: int) -> Params:
    return {
        "in": nets.linear_init(rng, n_in, width),
        "norm": nets.norm_init(width),
        "out": nets.linear_init(rng, width, n_out),
    }


def _critic_init(rng: nets.Rng, n_in: int, width: int) -> Params:
    norms = {"norm_in": nets.norm_init(width), "norm_mid": nets.norm_init(width)}
    return _mlp_init(rng, n_in, width, 1, zero=True) | norms


def pad(params: Params, obs_size: int, action_size: int) -> Params:
    """Zero rows and columns for padded observation and action dimensions.

    Padded inputs are always zero, so these weights get no gradient and never move: a padded lane
    computes what the unpadded one does. Actions stand last in every input.
    """

    def grow(w: np.ndarray, axis: int, extra: int) -> np.ndarray:
        widths = [(0, 0)] * w.ndim
        widths[axis] = (0, extra)
        return np.pad(w, widths)

    more_obs = obs_size - params["encoder"]["in"]["w"].shape[0]
    more_actions = action_size - params["policy"]["out"]["w"].shape[1]
    params = jax.tree.map(lambda x: x, params)  # new containers, same arrays
    params["encoder"]["in"]["w"] = grow(params["encoder"]["in"]["w"], 0, more_obs)
    params["cell"]["wi"] = grow(params["cell"]["wi"], 0, more_actions)
    params["value"]["in"]["w"] = grow(params["value"]["in"]["w"], 1, more_actions)
    params["policy"]["out"]["w"] = grow(params["policy"]["out"]["w"], 1, more_actions)
    params["policy"]["out"]["b"] = grow(params["policy"]["out"]["b"], 0, more_actions)
    if params["reward"]["in"]["w"].shape[0] > params["cell"]["wh"].shape[0]:
        params["reward"]["in"]["w"] = grow(params["reward"]["in"]["w"], 0, more_actions)
    return params


def _join(size: int, *parts: jax.Array) -> jax.Array:
    """Concatenate features in the type of the first part, and zeros up to a size."""
    joined = jnp.concatenate([p.astype(parts[0].dtype) for p in parts], -1)
    return jnp.pad(joined, [(0, 0)] * (joined.ndim - 1) + [(0, size - joined.shape[-1])])


def encode(params: Params, obs: jax.Array) -> jax.Array:
    """z = h(s): [..., O] -> [..., latent]."""
    p = params["encoder"]
    # All digits of the input count here: observations are not normalised, and what is rounded off
    # before a sum is lost.
    with jax.default_matmul_precision("highest"):
        x = nets.dense_layer_norm(p["in"], p["norm"], obs, "elu", p["out"]["w"].dtype)
    return nets.linear(p["out"], x)


def believe(params: Params, z: jax.Array, action: jax.Array, b: jax.Array | None) -> jax.Array:
    """b' = f(z, a, b); a belief that is not given is zero."""
    p = params["cell"]
    return nets.ln_gru(p, _join(p["wi"].shape[-2], z, action), b)


def no_belief(params: Params, z: jax.Array) -> jax.Array | None:
    """The belief before anything has happened: zeros. On a GPU none at all, which saves a product;
    elsewhere the product costs less than compiling the first step by itself."""
    if nets.on_gpu():
        return None
    return jnp.zeros((*z.shape[:-1], params["cell"]["wh"].shape[-2]), z.dtype)


def project(params: Params, stats: Params, b: jax.Array) -> jax.Array:
    """z' = g(b') with running statistics, for acting."""
    p = params["projector"]
    x = nets.batch_norm_elu(p["norm"], stats["projector"], nets.linear(p["in"], b))
    return nets.linear(p["out"], x)


def project_train(params: Params, b: jax.Array) -> tuple[jax.Array, Params]:
    """z' = g(b') with batch statistics over axis -2, which are returned too."""
    return _norm_mlp_train(params["projector"], b)


def predict_train(params: Params, z: jax.Array) -> tuple[jax.Array, Params]:
    """q(z'): the prediction that is compared with the target encoding; batch statistics."""
    return _norm_mlp_train(params["predictor"], z)


def _norm_mlp_train(p: Params, x: jax.Array) -> tuple[jax.Array, Params]:
    x, batch = nets.dense_batch_norm(p["in"], p["norm"], x)
    return nets.linear(p["out"], x), batch


def reward(params: Params, z: jax.Array, b: jax.Array, action: jax.Array, b_next: jax.Array):
    """r(z, a, b): the new belief holds all three (D1), unless the head was built for them."""
    p = params["reward"]
    size = p["in"]["w"].shape[-2]
    if size > b_next.shape[-1]:
        latent = size - b.shape[-1] - action.shape[-1]  # less than z has where that is widened
        x = _join(size, z[..., :latent], b, action)
    else:
        x = b_next
    return nets.dense_head(p["mid"], None, p["out"], nets.dense_elu(p["in"], x))


def value(params: Params, z: jax.Array, action: jax.Array) -> jax.Array:
    """Q1 and Q2 of (z, a): [2, ...], float32."""
    p = params["value"]
    x = _join(p["in"]["w"].shape[-2], z, action)
    x = nets.twin_layer_norm(p["in"], p["norm_in"], x, "tanh")
    return jax.vmap(nets.dense_head)(p["mid"], p["norm_mid"], p["out"], x)


def policy(params: Params, z: jax.Array) -> jax.Array:
    """mu(z) in [-1, 1]: [..., A], float32."""
    p = params["policy"]
    return jnp.tanh(nets.dense_out(p["mid"], p["out"], nets.dense_elu(p["in"], z)))


def noisy_policy(params: Params, learn: LearnConfig, z: jax.Array, eps: jax.Array) -> jax.Array:
    """pi(z): the mean plus clipped noise, kept inside the box by a straight-through clamp (1.5)."""
    noise = jnp.clip(learn.smoothing_std * eps, -learn.smoothing_clip, learn.smoothing_clip)
    action = policy(params, z) + noise
    edge = 1 - 1e-6
    return action + jax.lax.stop_gradient(jnp.clip(action, -edge, edge) - action)


def move(params: Params, stats: Params, z, b, actions: jax.Array, t: Any) -> tuple:
    """Latents z' and beliefs b' after step t of actions [H, N, A], for acting."""
    cell, projector = params["cell"], params["projector"]
    fused = nets.move(cell, projector, stats["projector"], z, b, actions, t)
    if fused:
        return fused
    z = jnp.broadcast_to(z, (actions.shape[1], z.shape[-1]))
    b = believe(params, z, actions[t], b)
    return project(params, stats, b), b


def imagine(
    params: Params, stats: Params, z: jax.Array, b: jax.Array | None, actions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Latents and beliefs [H, N, .] after every step of N sequences [H, N, A] from one latent and
    one belief, for acting; a belief that is not given is zero."""

    def step(carry: tuple, t: Any) -> tuple[tuple, tuple]:
        after = move(params, stats, carry[0], carry[1], actions, t)
        return after, after

    start = _repeat(params, z, b, actions.shape[1])
    if nets.on_gpu():  # one latent may stand for all there
        start = z[None], start[1]
    return nets.scan(step, start, np.arange(actions.shape[0]))[1]


def imagine_policy(
    params: Params,
    stats: Params,
    learn: LearnConfig,
    z: jax.Array,
    b: jax.Array | None,
    eps: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The actions [H, N, A] that the noisy policy takes in the model, and what `imagine` gives."""

    def step(carry: tuple, eps: jax.Array) -> tuple[tuple, tuple]:
        z, b = carry
        action = noisy_policy(params, learn, z, eps)
        z, b = move(params, stats, z, b, action[None], 0)
        return (z, b), (action, z, b)

    return nets.scan(step, _repeat(params, z, b, eps.shape[1]), eps)[1]


def _repeat(params: Params, z: jax.Array, b: jax.Array | None, count: int) -> tuple:
    """A latent and a belief for so many candidates."""
    start = z, no_belief(params, z) if b is None else b
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, x.shape[-1])), start)


def action_normal(key: jax.Array, shape: tuple[int, ...], mask: jax.Array) -> jax.Array:
    """Normal draws [*shape, A], zero on padded actions.

    The action axis is drawn first, so that a real dimension gets the same numbers whatever the
    padding is.
    """
    # By itself: where it is used, in the middle of wider rows, a GPU would take longer to draw it.
    eps = jax.lax.optimization_barrier(jax.random.normal(key, (mask.shape[0], *shape)))
    return jnp.moveaxis(eps * jnp.reshape(mask, (-1, *(1,) * len(shape))), 0, -1)
