"""The networks of the method: encoder h, recurrent dynamics f with projector g, reward r, twin
critics Q, policy pi and predictor q. Written for one lane; `[...]` stands for any batch axes."""

import functools

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
        "reward": _mlp_init(rng, reward_in, n.mlp, 1, zero=True, norms=config.repair.norms),
        "value": jax.tree.map(
            lambda *q: np.stack(q),
            *[_mlp_init(rng, n.latent + action_size, n.mlp, 1, True, True) for _ in range(2)],
        ),
        "policy": _mlp_init(rng, n.latent, n.mlp, action_size, norms=config.repair.norms),
    }
    # A residual model begins as the identity: it adds nothing to a latent.
    out = params["projector"]["out"]
    out["w"] = (out["w"] * (1 - config.repair.residual)).astype(np.float32)
    # As large as the product it is added to, for observations of unit variance.
    spread = config.repair.first_bias * np.sqrt(obs_size / n.encoder)
    bias = spread * rng.spawn(1)[0].standard_normal(n.encoder)
    params["encoder"]["in"]["b"] = bias.astype(np.float32)
    stats = {
        "projector": nets.stats_init(n.mlp),
        "predictor": nets.stats_init(n.mlp),
        "steps": nets.stats_init(config.plan.horizon, n.mlp),
        "obs": nets.stats_init(obs_size) | {"count": np.float32(0)},
    }
    return params, stats


def _mlp_init(
    rng: nets.Rng, n_in: int, width: int, n_out: int, zero: bool = False, norms: bool = False
) -> Params:
    layers = {
        "in": nets.linear_init(rng, n_in, width),
        "mid": nets.linear_init(rng, width, width),
        "out": nets.linear_init(rng, width, n_out, zero=zero),
    }
    if norms:
        layers |= {"norm_in": nets.norm_init(width), "norm_mid": nets.norm_init(width)}
    return layers


def _norm_mlp_init(rng: nets.Rng, n_in: int, width: int, n_out: int) -> Params:
    return {
        "in": nets.linear_init(rng, n_in, width),
        "norm": nets.norm_init(width),
        "out": nets.linear_init(rng, width, n_out),
    }


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
        ("obs", "mean"): (-1, (obs,)),  # of the statistics
        ("obs", "var"): (-1, (obs,)),
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


def normalise(config: Config, stats: Params, obs: jax.Array) -> jax.Array:
    """Observations [..., O] with the running mean and deviation taken out, as far as
    `repair.normalise` says."""
    share, moments = config.repair.normalise, stats["obs"]
    return (obs - share * moments["mean"]) * (moments["var"] + 1e-4) ** (-0.5 * share)


def fold_obs(moments: Params, obs: jax.Array) -> Params:
    """Running moments after a batch of observations [B, O]: over all batches at first, over about
    the last 10,000 later."""
    count = moments["count"] + 1
    weight = jnp.maximum(1 / count, 1e-4)
    delta = obs.mean(0) - moments["mean"]
    square = obs.var(0) + (1 - weight) * jnp.square(delta)
    mean = moments["mean"] + weight * delta
    var = moments["var"] + weight * (square - moments["var"])
    return {"mean": mean, "var": var, "count": count}


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


def planning_norms(config: Config, params: Params, stats: Params) -> Params:
    """The projector's norm at every step of a plan, by running statistics: [H, width]."""
    p, share = params["projector"], config.repair.step_stats
    used = jax.tree.map(
        lambda own, common: share * own + (1 - share) * common, stats["steps"], stats["projector"]
    )
    return nets.folded_norm(p["in"], p["norm"], used)


def project(params: Params, norm: Params, b: jax.Array) -> jax.Array:
    """z' = g(b') with the norm of one step of a plan, for acting."""
    p = params["projector"]
    return nets.linear(p["out"], nets.folded_norm_elu(p["in"], norm, b))


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
    return nets.dense_head(p["mid"], p.get("norm_mid"), p["out"], _first(p, x))


def value(params: Params, z: jax.Array, action: jax.Array) -> jax.Array:
    """Q1 and Q2 of (z, a): [2, ...], float32."""
    p = params["value"]
    x = nets.twin_layer_norm(p["in"], p["norm_in"], join(z, action), "tanh")
    return jax.vmap(nets.dense_head)(p["mid"], p["norm_mid"], p["out"], x)


def smallest(q: jax.Array) -> jax.Array:
    """The smallest of critics [N, ...]: [...]."""
    # Select by comparison: the gradient of `min` divides by the number of values equal to the
    # result, which is zero if XLA computes them twice with different rounding.
    return functools.reduce(lambda a, b: jnp.where(a <= b, a, b), list(q))


def between(q: jax.Array, pessimism: jax.Array | float) -> jax.Array:
    """The smaller of two critics [2, ...] (1), their mean (0), or between: [...]."""
    return pessimism * smallest(q) + (1 - pessimism) * q.mean(0)


def raw_policy(params: Params, z: jax.Array) -> jax.Array:
    """The policy's output before its tanh: [..., A], float32."""
    p = params["policy"]
    x = _first(p, z)
    if "norm_mid" in p:
        return nets.linear_f32(p["out"], nets.dense_layer_norm(p["mid"], p["norm_mid"], x, "elu"))
    return nets.dense_out(p["mid"], p["out"], x)


def _first(p: Params, x: jax.Array) -> jax.Array:
    if "norm_in" in p:
        return nets.dense_layer_norm(p["in"], p["norm_in"], x, "elu")
    return nets.dense_elu(p["in"], x)


def policy(params: Params, z: jax.Array) -> jax.Array:
    """mu(z) in [-1, 1]: [..., A], float32."""
    return nets.tanh(raw_policy(params, z))


def noisy_policy(params: Params, learn: LearnConfig, z: jax.Array, eps: jax.Array) -> jax.Array:
    """pi(z): the mean plus clipped noise."""
    return perturb(learn, policy(params, z), eps)


def perturb(learn: LearnConfig, mean: jax.Array, eps: jax.Array) -> jax.Array:
    """Actions plus clipped noise, kept inside the box by a straight-through clamp (1.5)."""
    noise = jnp.clip(learn.smoothing_std * eps, -learn.smoothing_clip, learn.smoothing_clip)
    action = mean + noise
    edge = 1 - 1e-6
    return action + jax.lax.stop_gradient(jnp.clip(action, -edge, edge) - action)


@replaceable
def imagine(
    config: Config,
    params: Params,
    norms: Params,
    z: jax.Array,
    b: jax.Array | None,
    actions: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Latents and beliefs [H, N, .] after every step of N sequences [H, N, A] from one latent and
    one belief, for acting; a belief of None is zero. `norms` are those of `planning_norms`."""

    def step(carry: tuple, x: tuple) -> tuple[tuple, tuple]:
        (z, b), (action, norm) = carry, x
        after = move(config, params, norm, z, b, action)
        return after, after

    return nets.scan(step, repeat(params, z, b, actions.shape[1]), (actions, norms))[1]


def imagine_policy(
    config: Config,
    params: Params,
    norms: Params,
    z: jax.Array,
    b: jax.Array | None,
    eps: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The actions [H, N, A] that the noisy policy takes in the model, and what `imagine` gives."""

    def step(carry: tuple, x: tuple) -> tuple[tuple, tuple]:
        (z, b), (eps, norm) = carry, x
        action = noisy_policy(params, config.learn, z, eps)
        z, b = move(config, params, norm, z, b, action)
        return (z, b), (action, z, b)

    return nets.scan(step, repeat(params, z, b, eps.shape[1]), (eps, norms))[1]


@replaceable
def move(
    config: Config, params: Params, norm: Params, z, b, action: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Latents z' and beliefs b' [N, .] after actions [N, A], for acting."""
    b = believe(params, z, action, b)
    return add_to(config, z, project(params, norm, b)), b


def add_to(config: Config, z: jax.Array, change: jax.Array) -> jax.Array:
    """The latent after a step from z, as far as `repair.residual` says."""
    return change + (config.repair.residual * z).astype(change.dtype)


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
