"""Faster forms of the method's functions for a GPU, each of the same signature as the plain one.

Three things make them faster. Fused kernels (`engine.kernels`) do the work between two matrix
products in one pass through memory. Loops over the horizon are unrolled into one graph. Matrix
dimensions are padded with zeros to multiples of 16, the tile size of the tensor cores; otherwise
every product would launch a kernel to pad its input. `replaced` puts the functions of `TABLE` in
the place of the plain ones.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ace.engine import kernels
from ace.method import learner, model, nets, noise, score
from ace.method.types import Params
from ace.settings.config import Config, LearnConfig

ROUND = 16  # matrix dimensions are padded to multiples of this
SMALL = 8192  # leaves of at most so many elements are concatenated for the optimiser


def grow(x: jax.Array, axis: int, size: int) -> jax.Array:
    """x with zeros appended along an axis, up to a size."""
    if x.shape[axis] == size:
        return x  # a pad of nothing would still be traced, lowered and optimised away
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths)


def rounded(size: int) -> int:
    """The next multiple of 16."""
    return size + -size % ROUND


def product(w: jax.Array, x: jax.Array, multiply: Callable = jnp.matmul) -> jax.Array:
    """x W, where x may lack the columns for which W was padded with zero rows.

    Leading axes are flattened into one: for a gradient that sums over two, XLA would transpose.
    """
    return multiply(grow(x, -1, w.shape[-2]).reshape(-1, w.shape[-2]), w)


def apply(w: jax.Array, x: jax.Array, multiply: Callable = jnp.matmul) -> jax.Array:
    """`product`, with the leading axes of x kept."""
    return product(w, x, multiply).reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def product_f32(x: jax.Array, w: jax.Array) -> jax.Array:
    """x W, accumulated and returned in float32; gradients have the type of x."""
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


def _product_forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple]:
    return product_f32(x, w), (x, w)


def _product_backward(kept: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    dy = dy.astype(x.dtype)  # else the gradient of x, a wide array, would be float32 in memory
    return dy @ w.T, x.T @ dy


product_f32.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def product_split(x: jax.Array, w: jax.Array) -> jax.Array:
    """x W of float32 arrays as one bfloat16 product, each number split into two bfloat16 parts: the
    factors keep sixteen bits instead of eight, and only the result is rounded to bfloat16. A GPU
    is slow at float32 products."""
    (x, x_rest), (w, w_rest) = _halves(x), _halves(w)
    left, right = jnp.concatenate([x, x_rest, x], -1), jnp.concatenate([w, w, w_rest], -2)
    size = rounded(left.shape[-1])
    return jnp.matmul(grow(left, -1, size), grow(right, -2, size))  # accumulated in float32


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    # `reduce_precision`, because XLA removes a conversion to bfloat16 and back.
    head = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return head.astype(jnp.bfloat16), (x - head).astype(jnp.bfloat16)


def _split_forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple]:
    return product_split(x, w), (x, w)


def _split_backward(kept: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    parts = jnp.matmul(jnp.concatenate(_halves(x), -1).T, dy, preferred_element_type=jnp.float32)
    dx = jnp.matmul(dy, w.T.astype(dy.dtype), preferred_element_type=jnp.float32)
    return dx, parts[: w.shape[0]] + parts[w.shape[0] :]


product_split.defvjp(_split_forward, _split_backward)


def linear(p: Params, x: jax.Array) -> jax.Array:
    """x W + b."""
    y = apply(p["w"], x)
    return y + p["b"].astype(y.dtype)


def linear_f32(p: Params, x: jax.Array) -> jax.Array:
    """x W + b in float32, with gradients in the type of x."""
    return apply(p["w"], x, product_f32) + p["b"]


def bias_norm_act(
    act: str, b: jax.Array, norm: Params | None, x: jax.Array, dtype: Any
) -> jax.Array:
    """Bias, norm and activation in one kernel."""
    if not kernels.fits(kernels.rows, math.prod(x.shape[:-1]), x.shape[-1]):
        return nets.bias_norm_act.plain(act, b, norm, x, dtype)
    y: Any = kernels.bias_norm_act(act, norm is not None, dtype, *_row_args(b, norm, x))
    return y.reshape(x.shape)


def _row_args(b: jax.Array, norm: Params | None, x: jax.Array) -> tuple[jax.Array, ...]:
    """Rows, their bias, and scale and bias of the norm; without a norm the kernel ignores both."""
    norm = norm or {"scale": b, "bias": b}
    return x.reshape(-1, x.shape[-1]), b, norm["scale"], norm["bias"]


def dense_elu(p: Params, x: jax.Array) -> jax.Array:
    """A narrow layer: one kernel if no gradient is taken, else a product and a fused activation."""
    flat = x.reshape(-1, x.shape[-1])
    if kernels.fits(kernels.layers, *flat.shape, p["b"].shape[-1], x.dtype):
        return _widen(p, flat).reshape(*x.shape[:-1], -1)
    return _dense_elu(p, x)


def _dense_elu(p: Params, x: jax.Array) -> jax.Array:
    return bias_norm_act("elu", p["b"], None, apply(p["w"], x), x.dtype)


@jax.custom_vjp
def _widen(p: Params, x: jax.Array) -> jax.Array:
    return kernels.layers.widen(x, p["w"], p["b"])


_widen.defvjp(functools.partial(jax.vjp, _dense_elu), lambda back, d: back(d))


def dense_out(p: Params, out: Params, x: jax.Array) -> jax.Array:
    """The activation and the narrow product after it: one kernel if no gradient is taken."""
    y = apply(p["w"], x)
    flat, width = y.reshape(-1, y.shape[-1]), out["b"].shape[-1]
    slim = rounded(width)
    if kernels.fits(kernels.layers, flat.shape[0], slim, flat.shape[1], y.dtype):
        padded = {"w": grow(out["w"], -1, slim), "b": jnp.zeros(slim)}
        found = _narrow({"b": p["b"]}, padded, flat)
        return found[:, :width].reshape(*y.shape[:-1], -1) + out["b"]
    return _dense_out(p, out, y)


def _dense_out(p: Params, out: Params, y: jax.Array) -> jax.Array:
    return linear_f32(out, bias_norm_act("elu", p["b"], None, y, y.dtype))


@jax.custom_vjp
def _narrow(p: Params, out: Params, y: jax.Array) -> jax.Array:
    return kernels.layers.narrow(y, p["b"], out["w"])


_narrow.defvjp(functools.partial(jax.vjp, _dense_out), lambda back, d: back(d))


def dense_layer_norm(
    p: Params, norm: Params, x: jax.Array, act: str, dtype: Any = None
) -> jax.Array:
    """Product, norm and activation; float32 inputs with bf16 results use `product_split`."""
    split = dtype == jnp.bfloat16 and x.dtype == jnp.float32
    y = apply(p["w"], x, product_split if split else jnp.matmul)
    return bias_norm_act(act, p["b"], norm, y, dtype or x.dtype)


def twin_layer_norm(p: Params, norm: Params, x: jax.Array, act: str) -> jax.Array:
    """One matrix product for all layers, if the kernel that splits its result fits: one product per
    layer would copy their common input."""
    width = p["b"].shape[-1]
    if not kernels.fits(kernels.rows, math.prod(x.shape[:-1]), width):
        return nets.twin_layer_norm.plain(p, norm, x, act)
    w = jnp.moveaxis(p["w"], 0, 1)
    y = product(w.reshape(w.shape[0], -1), x)
    params = p["b"], norm["scale"], norm["bias"]
    out: Any = kernels.bias_norm_act(act, True, x.dtype, y, *params)
    return out.reshape(-1, *x.shape[:-1], width)


def dense_head(p: Params, norm: Params | None, out: Params, x: jax.Array) -> jax.Array:
    """Bias, norm, activation and the product with a single column in one kernel."""
    y = apply(p["w"], x)
    if not kernels.fits(kernels.rows, math.prod(y.shape[:-1]), y.shape[-1]):
        return linear_f32(out, bias_norm_act("elu", p["b"], norm, y, y.dtype)).squeeze(-1)
    q: Any = kernels.head("elu", norm is not None, *_row_args(p["b"], norm, y), out["w"][:, 0])
    return q.reshape(y.shape[:-1]) + out["b"]


def dense_batch_norm(p: Params, norm: Params, x: jax.Array) -> tuple[jax.Array, Params]:
    """Statistics, norm and activation from one read of the product."""
    x = apply(p["w"], x)
    if kernels.fits(kernels.columns, *x.shape[-2:]):
        groups = x.reshape(-1, *x.shape[-2:])
        found: Any = kernels.batch_norm_elu(norm["scale"], norm["bias"], groups)
        y, mean, var = (v.reshape(*x.shape[:-2], *v.shape[1:]) for v in found)
    else:
        y, mean, var = nets.batch_normed_elu(norm["scale"], norm["bias"], x)
    return y, {"mean": mean.squeeze(-2) + p["b"], "var": var.squeeze(-2)}


def ln_gru(p: Params, x: jax.Array, b: jax.Array | None) -> jax.Array:
    """One matrix product for input and belief, with separate columns for the candidate's two parts,
    and one kernel for the gates."""
    wi, wh, norm = p["wi"], p["wh"], p["norm"]
    width = wh.shape[0]
    if b is not None:
        x = grow(x, -1, wi.shape[-2])
        (wi, new_i), (wh, new_h) = (jnp.split(w, [2 * width], -1) for w in (wi, wh))
        none = jnp.zeros_like(new_h), jnp.zeros_like(new_i)
        rows = [wi, new_i, none[1]], [wh, none[0], new_h]
        wi = jnp.concatenate([jnp.concatenate(row, -1) for row in rows])
        x = jnp.concatenate([x, b], -1)
    g = apply(wi, x)
    if kernels.fits(kernels.gru, math.prod(g.shape[:-1]), width):
        flat = (y if y is None else y.reshape(-1, y.shape[-1]) for y in (g, b))
        new: Any = kernels.gru_gates(*flat, norm["scale"], norm["bias"])
        return new.reshape(*g.shape[:-1], width)
    parts = jnp.split(g, g.shape[-1] // width, -1)
    return nets.gru_gates(parts, b, norm["scale"], norm["bias"])


def scan(step: Callable, carry: Any, xs: Any) -> tuple[Any, Any]:
    """A scan unrolled into one graph; the first carry may hold None."""
    outs = []
    for t in range(jax.tree.leaves(xs)[0].shape[0]):
        carry, out = step(carry, jax.tree.map(lambda x, t=t: x[t], xs))
        outs.append(out)
    return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *outs)


def round_latent(size: int) -> int:
    """The padded size: up to 128 a power of two, as the kernels need, above it a multiple of 16."""
    return max(ROUND, 1 << (size - 1).bit_length()) if size <= 128 else rounded(size)


def cast(params: Params, dtype: Any, axes: nets.Axes) -> Params:
    """The plain cast, with every weight that makes or reads a latent padded to `round_latent`."""

    def widen(path: tuple, x: jax.Array) -> jax.Array:
        axis, parts = axes.get(nets.path_names(path), (0, ()))
        if "latent" not in [name for name, _ in parts]:
            return x
        known = sum(size or 0 for _, size in parts)
        sizes = [x.shape[axis] - known if size is None else size for _, size in parts]
        if len(parts) == 1:
            return grow(x, axis, round_latent(sizes[0]))
        # Concatenate weights and padding at once: padding afterwards launches another kernel.
        pieces = []
        for piece, (name, _), size in zip(
            jnp.split(x, np.cumsum(sizes)[:-1], axis), parts, sizes, strict=True
        ):
            pieces.append(piece)
            if name == "latent":
                pieces.append(_zeros(x, axis, round_latent(size) - size))
        used = sum(piece.shape[axis] for piece in pieces)
        return jnp.concatenate([*pieces, _zeros(x, axis, -used % ROUND)], axis)

    return jax.tree_util.tree_map_with_path(widen, nets.cast.plain(params, dtype, axes))


def _zeros(like: jax.Array, axis: int, size: int) -> jax.Array:
    shape = list(like.shape)
    shape[axis] = size
    return jnp.zeros(shape, like.dtype)


def normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Normal draws in their own kernel: fused into a wider consumer, XLA draws them more slowly."""
    return jax.lax.optimization_barrier(noise.normal.plain(key, shape))


def no_belief(params: Params, z: jax.Array) -> None:
    """None for a belief of zeros: its matrix product is skipped."""
    return None


def imagine(
    config: Config,
    params: Params,
    norms: Params,
    z: jax.Array,
    b: jax.Array | None,
    actions: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """All steps in one graph, one kernel each, which reads its step's actions from the whole array;
    the first step takes one latent for all sequences."""
    start = z[None], model.repeat(params, z, b, actions.shape[1])[1]

    def step(carry: tuple, x: tuple) -> tuple[tuple, tuple]:
        (z, b), (t, norm) = carry, x
        after = _move(config, params, norm, z, b, actions, t)
        return after, after

    return scan(step, start, (np.arange(actions.shape[0]), norms))[1]


def move(
    config: Config, params: Params, norm: Params, z, b, action: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A step of the model in one kernel."""
    return _move(config, params, norm, z, b, action[None], 0)


def _move(config: Config, params: Params, norm: Params, z, b, actions: jax.Array, t: Any) -> tuple:
    cell, p = params["cell"], params["projector"]
    size = cell["wi"].shape[-2] - z.shape[-1]
    sizes = (actions.shape[1], z.shape[-1], size, cell["wh"].shape[0], p["out"]["w"].shape[0])
    if not kernels.fits(kernels.dynamics, *sizes, z.dtype):
        z = jnp.broadcast_to(z, (actions.shape[1], z.shape[-1]))
        return model.move.plain(config, params, norm, z, b, actions[t])
    gates = cell["wi"], cell["wh"], cell["norm"]["scale"], cell["norm"]["bias"]
    projector = p["in"]["w"], norm["scale"], norm["shift"], p["out"]["w"], p["out"]["b"]
    return kernels.dynamics.step(z, actions, t, b, config.repair.residual, *gates, *projector)


def round_rows(x: jax.Array, axis: int) -> jax.Array:
    """x padded with zeros along an axis to a multiple of 16."""
    return grow(x, axis, rounded(x.shape[axis]))


def follow(
    config: Config,
    params: Params,
    norms: Params,
    z: jax.Array,
    b: jax.Array | None,
    actions: jax.Array,
    horizon: jax.Array,
) -> score.Ends:
    """Where sequences lead; their number is padded to a multiple of 16."""
    ends = score.follow.plain(config, params, norms, z, b, round_rows(actions, 1), horizon)
    return jax.tree.map(lambda x: x[: actions.shape[1]], ends)


def terminal_value(config: Config, params: Params, z: jax.Array, eps: jax.Array) -> jax.Array:
    """The value of latents; their number is padded to a multiple of 16."""
    plain = score.terminal_value.plain
    return plain(config, params, round_rows(z, 0), round_rows(eps, 0))[: z.shape[0]]


def optimise(
    learn: LearnConfig, rate: Any, grads: Params, opt: Any, params: Params, active: jax.Array
) -> tuple[Params, Any, jax.Array, jax.Array]:
    """One optimiser step with all small leaves as one vector: each leaf would launch kernels."""
    clip, moments, *rest = opt
    decays = jax.tree.map(lambda p, d: np.full(p.shape, d), params, learner.matrices(params))
    # Keep the concatenation out of the reductions' fusions: fused with it, XLA runs a reduction
    # over rows on one thread.
    apart = jax.lax.optimization_barrier
    grads = jax.tree.map(lambda g: apart(g) if g.size <= SMALL else g, grads)
    given = grads, moments.mu, moments.nu, params, decays
    gathered, mu, nu, old, decays = map(gather_small, given)
    old_moments = moments._replace(mu=mu, nu=nu)
    optimiser: Any = learner.adam(learn, rate, decays)
    changes, (_, new_moments, *_) = optimiser.update(gathered, (clip, old_moments, *rest), old)
    norm = optax.tree.norm(gathered)
    moved = active & jnp.isfinite(norm)
    new: Any = optax.apply_updates(old, changes)  # type: ignore[arg-type]
    new, moments = learner.where_tree(moved, (new, new_moments), (old, old_moments))
    mu, nu = (spread_small(x, params) for x in (moments.mu, moments.nu))
    return spread_small(new, params), (clip, moments._replace(mu=mu, nu=nu), *rest), norm, moved


def gather_small(tree: Any) -> list[Any]:
    """The large leaves of a tree, then all small ones as one vector."""
    leaves = jax.tree.leaves(tree)
    join = np.concatenate if isinstance(leaves[0], np.ndarray) else jnp.concatenate
    small = [x.reshape(-1) for x in leaves if x.size <= SMALL]
    return [x for x in leaves if x.size > SMALL] + ([join(small)] if small else [])


def spread_small(gathered: list[Any], like: Any) -> Any:
    """The inverse of `gather_small`, for a tree with the structure and shapes of `like`."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([x.size for x in leaves if x.size <= SMALL])
    small = iter(jnp.split(gathered[-1], ends[:-1]) if len(ends) else ())
    large = iter(gathered)
    found = [next(small if x.size <= SMALL else large).reshape(x.shape) for x in leaves]
    return jax.tree.unflatten(structure, found)


def move_target(
    learn: LearnConfig, update_step: jax.Array, target: Params, params: Params, moved: jax.Array
) -> Params:
    """The moving average of all small leaves as one vector."""
    old = {"all": gather_small(target)}
    new = {"all": gather_small({name: params[name] for name in target})}
    flat = learner.move_target.plain(learn, update_step, old, new, moved)
    return spread_small(flat["all"], target)


TABLE: dict[str, Callable] = {
    nets.linear.name: linear,
    nets.linear_f32.name: linear_f32,
    nets.bias_norm_act.name: bias_norm_act,
    nets.dense_elu.name: dense_elu,
    nets.dense_out.name: dense_out,
    nets.dense_layer_norm.name: dense_layer_norm,
    nets.twin_layer_norm.name: twin_layer_norm,
    nets.dense_head.name: dense_head,
    nets.dense_batch_norm.name: dense_batch_norm,
    nets.ln_gru.name: ln_gru,
    nets.scan.name: scan,
    nets.cast.name: cast,
    noise.normal.name: normal,
    model.no_belief.name: no_belief,
    model.imagine.name: imagine,
    model.move.name: move,
    score.follow.name: follow,
    score.terminal_value.name: terminal_value,
    learner.optimise.name: optimise,
    learner.move_target.name: move_target,
}
