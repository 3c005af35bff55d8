"""TOLD, the networks of TD-MPC: encoder h, latent dynamics d, reward R, twin critics Q and policy
pi, all of them plain MLPs. Written for one lane; `[...]` stands for any batch axes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.agents.contract import Sizes
from ace.method import nets
from ace.method.model import DTYPES, join, noisy_policy
from ace.method.types import Params
from ace.settings.config import Config, LearnConfig


def init(rng: nets.Rng, config: Config, obs: int, action: int) -> Params:
    """Orthogonal weights and zero biases, as NumPy arrays; reward and values begin at zero."""
    n = config.net
    both = n.latent + action
    critics = [
        mlp_init(rng, both, n.mlp, 1, zero=True) | {"norm": nets.norm_init(n.mlp)} for _ in range(2)
    ]
    return {
        "encoder": {
            "in": nets.linear_init(rng, obs, n.encoder),
            "out": nets.linear_init(rng, n.encoder, n.latent),
        },
        "dynamics": mlp_init(rng, both, n.mlp, n.latent),
        "reward": mlp_init(rng, both, n.mlp, 1, zero=True),
        "value": jax.tree.map(lambda *q: np.stack(q), *critics),
        "policy": mlp_init(rng, n.latent, n.mlp, action),
    }


def mlp_init(rng: nets.Rng, n_in: int, width: int, n_out: int, zero: bool = False) -> Params:
    """Two hidden layers of a width, and a last one that may begin at zero."""
    return {
        "in": nets.linear_init(rng, n_in, width),
        "mid": nets.linear_init(rng, width, width),
        "out": nets.linear_init(rng, width, n_out, zero),
    }


def axes(config: Config) -> nets.Axes:
    """The axes of parameters that run over observations, latents and actions; actions last."""
    latent, action = ("latent", config.net.latent), ("action", None)
    found: dict[tuple[str, ...], tuple] = {
        ("encoder", "in", "w"): (-2, (("obs", None),)),
        ("policy", "in", "w"): (-2, (latent,)),
    }
    for name in ("dynamics", "reward", "value"):
        found[name, "in", "w"] = (-2, (latent, action))
    for leaf in ("w", "b"):
        found["encoder", "out", leaf] = (-1, (latent,))
        found["dynamics", "out", leaf] = (-1, (latent,))
        found["policy", "out", leaf] = (-1, (action,))
    return found


def pad(config: Config, state: Any, sizes: Sizes) -> Any:
    """The same agent for larger observations and actions, whose new entries are always zero."""
    return nets.pad(state, axes(config), dict(zip(("obs", "action"), sizes, strict=True)))


def cast(config: Config, params: Params) -> Params:
    """Parameters in the types that an update or a plan computes with."""
    return nets.cast(params, DTYPES[config.precision], axes(config))


def encode(params: Params, obs: jax.Array) -> jax.Array:
    """z = h(s): [..., O] -> [..., latent], with one hidden layer or two; observations are
    multiplied in full precision."""
    p = params["encoder"]
    with jax.default_matmul_precision("highest"):
        x = obs @ p["in"]["w"]
    x = nets.bias_norm_act("elu", p["in"]["b"], None, x, p["out"]["w"].dtype)
    if "mid" in p:
        x = nets.dense_elu(p["mid"], x)
    return nets.linear(p["out"], x)


def move(params: Params, z: jax.Array, action: jax.Array) -> jax.Array:
    """z' = d(z, a): [..., latent]."""
    p = params["dynamics"]
    x = nets.dense_elu(p["in"], join(z, action))
    return nets.linear(p["out"], nets.dense_elu(p["mid"], x))


def reward(params: Params, z: jax.Array, action: jax.Array) -> jax.Array:
    """R(z, a): [...], float32."""
    p = params["reward"]
    return nets.dense_head(p["mid"], None, p["out"], nets.dense_elu(p["in"], join(z, action)))


def critics(params: Params, z: jax.Array, action: jax.Array) -> jax.Array:
    """Q1 and Q2 of (z, a): [2, ...], float32; a layer norm and a tanh after the first layer."""
    p = params["value"]
    x = nets.twin_layer_norm(p["in"], p["norm"], join(z, action), "tanh")
    return jax.vmap(lambda mid, out, x: nets.dense_head(mid, None, out, x))(p["mid"], p["out"], x)


def imagine(params: Params, z: jax.Array, actions: jax.Array) -> jax.Array:
    """Latents [H+1, N, latent] along sequences [H, N, A] from latents [N, latent]."""

    def step(z: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = move(params, z, action)
        return z, z

    return jnp.concatenate([z[None], nets.scan(step, z, actions)[1]])


def imagine_policy(params: Params, learn: LearnConfig, z: jax.Array, eps: jax.Array) -> jax.Array:
    """The actions [H, N, A] that the policy with noise `eps` [H, N, A] takes from one latent."""

    def step(z: jax.Array, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
        action = noisy_policy(params, learn, z, eps)
        return move(params, z, action), action

    return nets.scan(step, jnp.broadcast_to(z, (eps.shape[1], z.shape[-1])), eps)[1]
