"""The networks of MR.Q: an encoder of states and of states with actions, critics and a policy, all
of one kind of layer: linear, then a layer norm without parameters, then an activation. Written for
one lane; `[...]` stands for any batch axes."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.agents.contract import Sizes
from ace.method import nets
from ace.method.types import Params
from ace.settings.config import Config

CRITICS = 2
BINS = np.linspace(-10, 10, 65)
BINS = (np.sign(BINS) * np.expm1(np.abs(BINS))).astype(np.float32)  # rewards that logits stand for


def init(rng: nets.Rng, config: Config, sizes: Sizes) -> Params:
    """Xavier's uniform weights for ReLU and zero biases, as NumPy arrays."""
    obs, action = sizes
    n, embedding = config.net, config.own.embedding

    def linear(n_in: int, n_out: int) -> Params:
        bound = math.sqrt(2) * math.sqrt(6 / (n_in + n_out))
        w = rng.uniform(-bound, bound, (n_in, n_out)).astype(np.float32)
        return {"w": w, "b": np.zeros(n_out, np.float32)}

    def mlp(n_in: int, width: int, n_out: int) -> Params:
        return {"in": linear(n_in, width), "mid": linear(width, width), "out": linear(width, n_out)}

    def critic() -> Params:
        return mlp(n.latent, n.mlp, n.mlp) | {"head": linear(n.mlp, 1)}

    return {
        "encoder": {
            "state": mlp(obs, n.encoder, n.latent),
            "action": linear(action, embedding),
            "both": mlp(n.latent + embedding, n.encoder, n.latent),
            "head": linear(n.latent, n.latent + len(BINS) + 1),
        },
        "critics": jax.tree.map(lambda *q: np.stack(q), *[critic() for _ in range(CRITICS)]),
        "policy": mlp(n.latent, n.mlp, action),
    }


def pad(config: Config, state: Any, sizes: Sizes) -> Any:
    """The same state for larger observations and actions, whose new entries are always zero."""
    action = ("action", None)
    axes: dict[tuple[str, ...], tuple] = {
        ("encoder", "state", "in", "w"): (-2, (("obs", None),)),
        ("encoder", "action", "w"): (-2, (action,)),
        ("policy", "out", "w"): (-1, (action,)),
        ("policy", "out", "b"): (-1, (action,)),
    }
    return nets.pad(state, axes, dict(zip(("obs", "action"), sizes, strict=True)))


Activation = Callable[[jax.Array], jax.Array]


def layer(act: Activation, p: Params, x: jax.Array) -> jax.Array:
    """act(layer_norm(x W + b)), the norm without scale and shift."""
    return act(nets.normed(nets.linear(p, x)))


def mlp(act: Activation, p: Params, x: jax.Array) -> jax.Array:
    """Two layers, then a linear one."""
    return nets.linear(p["out"], layer(act, p["mid"], layer(act, p["in"], x)))


def encode(encoder: Params, obs: jax.Array) -> jax.Array:
    """z of a state: [..., O] -> [..., latent]."""
    return nets.elu(nets.normed(mlp(nets.elu, encoder["state"], obs)))


def combine(encoder: Params, z: jax.Array, action: jax.Array) -> jax.Array:
    """What critics and predictions read of a latent and an action: [..., latent]."""
    embedded = nets.elu(nets.linear(encoder["action"], action))
    return mlp(nets.elu, encoder["both"], jnp.concatenate([z, embedded], -1))


def predict(encoder: Params, both: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next latent [..., latent], logits of the reward [..., 65] and whether the environment
    terminates [...], all linear in what `combine` gives."""
    found, latent = nets.linear(encoder["head"], both), both.shape[-1]
    return found[..., :latent], found[..., latent:-1], found[..., -1]


def value(critics: Params, both: jax.Array) -> jax.Array:
    """All critics' values of what `combine` gives: [2, ...]."""

    def one(p: Params) -> jax.Array:
        x = layer(nets.elu, p["out"], layer(nets.elu, p["mid"], layer(nets.elu, p["in"], both)))
        return nets.linear(p["head"], x).squeeze(-1)

    return jax.vmap(one)(critics)


def raw_policy(policy: Params, z: jax.Array) -> jax.Array:
    """The policy's output before its tanh: [..., A]."""
    return mlp(jax.nn.relu, policy, z)


def two_hot(reward: jax.Array) -> jax.Array:
    """Rewards [...] as weights [..., 65] of the two bins around them, whose mean they are; beyond
    the last bin all weight is on that one."""
    reward = jnp.clip(reward, BINS[0], BINS[-1])[..., None]
    below = jnp.clip(jnp.sum(reward >= BINS, -1) - 1, 0, len(BINS) - 2)
    low, high = jnp.asarray(BINS)[below], jnp.asarray(BINS)[below + 1]
    share = (reward[..., 0] - low) / (high - low)
    count = jnp.arange(len(BINS))
    rows = below[..., None], share[..., None]
    return jnp.where(count == rows[0], 1 - rows[1], jnp.where(count == rows[0] + 1, rows[1], 0.0))
