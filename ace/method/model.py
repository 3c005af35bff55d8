"""The networks of the method: encoder h, recurrent dynamics f with projector g, reward r, twin
critics Q, policy pi and predictor q. Written for one lane; `[...]` stands for any batch axes."""

import jax
import jax.numpy as jnp
import numpy as np

from ace.method import nets
from ace.method.noise import normal
from ace.method.replaceable import replaceable
from ace.method.types import Params
from ace.settings.config import Config, LearnConfig

DTYPES = {"f32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.bfloat16}


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


def axes(config: Config) -> nets.Axes:
    """The axes of parameters that run over observations, latents and actions; actions last."""
    obs, action = ("obs", None), ("action", None)
    latent, belief = ("latent", config.net.latent), ("belief", config.net.belief)
    found: dict[tuple[str, ...], tuple] = {
        ("encoder", "in", "w"): (-2, (obs,)),
        ("cell", "wi"): (-2, (latent, action)),
        ("predictor", "in", "w"): (-2, (latent,)),
        ("value", "in", "w"): (-2, (latent, action)),
        ("policy", "in", "w"): (-2, (latent,)),
    }
    if config.parity.reward_input == "all":
        found["reward", "in", "w"] = (-2, (latent, belief, action))
    for leaf in ("w", "b"):
        found["policy", "out", leaf] = (-1, (action,))
        for name in ("encoder", "projector", "predictor"):
            found[name, "out", leaf] = (-1, (latent,))
    return found


def cast(config: Config, params: Params) -> Params:
    """Parameters in the types that an update or a plan computes with."""
    return nets.cast(params, DTYPES[config.precision], axes(config))


def join(*parts: jax.Array) -> jax.Array:
    """Concatenate features in the type of the first part."""
    return jnp.concatenate([p.astype(parts[0].dtype) for p in parts], -1)


def encode(params: Params, obs: jax.Array) -> jax.Array:
    """z = h(s): [..., O] -> [..., latent]."""
    p = params["encoder"]
    # Multiply in full precision: observations are not normalised, so rounding them before the sum
    # can erase differences that matter.
    with jax.default_matmul_precision("highest"):
        x = nets.dense_layer_norm(p["in"], p["norm"], obs, "elu", p["out"]["w"].dtype)
    return nets.linear(p["out"], x)


def believe(params: Params, z: jax.Array, action: jax.Array, b: jax.Array | None) -> jax.Array:
    """b' = f(z, a, b); a belief of None is zero."""
    return nets.ln_gru(params["cell"], join(z, action), b)


@replaceable
def no_belief(params: Params, z: jax.Array) -> jax.Array | None:
    """The belief at the start of a rollout: zeros."""
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
    """r(z, a, b), from the new belief, which depends on all three, or from z, a, b (D1)."""
    p = params["reward"]
    x = b_next if p["in"]["w"].shape[-2] == b_next.shape[-1] else join(z, b, action)
    return nets.dense_head(p["mid"], None, p["out"], nets.dense_elu(p["in"], x))


def value(params: Params, z: jax.Array, action: jax.Array) -> jax.Array:
    """Q1 and Q2 of (z, a): [2, ...], float32."""
    p = params["value"]
    x = nets.twin_layer_norm(p["in"], p["norm_in"], join(z, action), "tanh")
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


@replaceable
def imagine(
    params: Params, stats: Params, z: jax.Array, b: jax.Array | None, actions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Latents and beliefs [H, N, .] after every step of N sequences [H, N, A] from one latent and
    one belief, for acting; a belief of None is zero."""

    def step(carry: tuple, action: jax.Array) -> tuple[tuple, tuple]:
        z, b = carry
        after = move(params, stats, z, b, action)
        return after, after

    return nets.scan(step, repeat(params, z, b, actions.shape[1]), actions)[1]


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
        z, b = move(params, stats, z, b, action)
        return (z, b), (action, z, b)

    return nets.scan(step, repeat(params, z, b, eps.shape[1]), eps)[1]


@replaceable
def move(params: Params, stats: Params, z, b, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Latents z' and beliefs b' [N, .] after actions [N, A], for acting."""
    b = believe(params, z, action, b)
    return project(params, stats, b), b


def repeat(params: Params, z: jax.Array, b: jax.Array | None, count: int) -> tuple:
    """A latent and a belief, repeated for `count` candidates."""
    start = z, no_belief(params, z) if b is None else b
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, x.shape[-1])), start)


def action_normal(key: jax.Array, shape: tuple[int, ...], mask: jax.Array) -> jax.Array:
    """Normal draws [*shape, A], zero on padded actions.

    The action axis is drawn first, so that a real dimension gets the same numbers whatever the
    padding is.
    """
    eps = normal(key, (mask.shape[0], *shape))
    return jnp.moveaxis(eps * jnp.reshape(mask, (-1, *(1,) * len(shape))), 0, -1)
