"""Layers as pairs of plain functions: `*_init` draws parameters with NumPy on the host (a QR under
`vmap` can hang on the CPU backend), the other applies them. Norms compute in float32."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.engine import kernels
from ace.engine.kernels import on_gpu
from ace.method.types import Params

Rng = np.random.Generator
ELU = kernels.ACTIVATIONS["elu"][0]  # in float32
ROUND = 16  # sizes that products like on a GPU are multiples of this


def orthogonal(rng: Rng, n_in: int, n_out: int) -> np.ndarray:
    """A matrix [n_in, n_out] with orthonormal rows or columns, whichever are fewer."""
    rows, cols = max(n_in, n_out), min(n_in, n_out)
    q, r = np.linalg.qr(rng.standard_normal((rows, cols)))
    q = q * np.sign(np.diag(r))  # makes the draw uniform over orthogonal matrices
    return (q if n_in >= n_out else q.T).astype(np.float32)


def linear_init(rng: Rng, n_in: int, n_out: int, zero: bool = False) -> Params:
    """An orthogonal (or zero) weight and a zero bias."""
    w = np.zeros((n_in, n_out), np.float32) if zero else orthogonal(rng, n_in, n_out)
    return {"w": w, "b": np.zeros(n_out, np.float32)}


def linear(p: Params, x: jax.Array) -> jax.Array:
    """x W + b."""
    y = _product(p, x)
    return y + p["b"].astype(y.dtype)


def linear_f32(p: Params, x: jax.Array) -> jax.Array:
    """x W + b in float32, whatever the types of x and W are."""
    return _rows(_product_f32, p, x) + p["b"]


def _product(p: Params, x: jax.Array) -> jax.Array:
    return _rows(jnp.matmul, p, x)


def _rows(product: Callable, p: Params, x: jax.Array) -> jax.Array:
    # One axis of rows: a gradient that sums over two would be transposed on a GPU.
    return product(x.reshape(-1, x.shape[-1]), p["w"]).reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _product_f32(x: jax.Array, w: jax.Array) -> jax.Array:
    """x W, accumulated and returned in float32; its gradient comes back in the type of x."""
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


def _product_forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple]:
    return _product_f32(x, w), (x, w)


def _product_backward(kept: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    dy = dy.astype(x.dtype)  # else the gradient of x, which is wide, would be float32 in memory
    return dy @ w.T, x.T @ dy


_product_f32.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def product_split(x: jax.Array, w: jax.Array) -> jax.Array:
    """x W of float32 arrays as one product of bfloat16 ones, each number in two parts: sixteen bits
    of every factor count instead of eight, and only the result is rounded to bfloat16. A GPU is
    slow at products of float32."""
    (x, x_rest), (w, w_rest) = _halves(x), _halves(w)
    left, right = jnp.concatenate([x, x_rest, x], -1), jnp.concatenate([w, w, w_rest], -2)
    fill = -left.shape[-1] % ROUND
    left, right = jnp.pad(left, ((0, 0), (0, fill))), jnp.pad(right, ((0, fill), (0, 0)))
    return jnp.matmul(left, right)  # summed in float32


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Not by a conversion there and back: the compiler would take that for nothing.
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


def norm_init(*shape: int) -> Params:
    """Scale one, bias zero."""
    return {"scale": np.ones(shape, np.float32), "bias": np.zeros(shape, np.float32)}


def layer_norm(p: Params, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    """Normalise the last axis; statistics in float32, output in the type of x."""
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-1, keepdims=True)
    var = jnp.square(x32 - mean).mean(-1, keepdims=True)
    y = (x32 - mean) * jax.lax.rsqrt(var + eps) * p["scale"] + p["bias"]
    return y.astype(x.dtype)


def elu(x: jax.Array) -> jax.Array:
    """x where positive, else exp(x) - 1; in float32."""
    return ELU(x.astype(jnp.float32)).astype(x.dtype)


ACTIVATIONS = {"elu": elu, "tanh": jnp.tanh}


def dense_elu(p: Params, x: jax.Array) -> jax.Array:
    """elu(x W + b)."""
    flat = x.reshape(-1, x.shape[-1])
    if kernels.fits(kernels.layers, *flat.shape, p["b"].shape[-1], x.dtype):
        return _widen(p, flat).reshape(*x.shape[:-1], -1)
    return _dense_elu(p, x)


def _dense_elu(p: Params, x: jax.Array) -> jax.Array:
    return _activate("elu", p, None, _product(p, x), x.dtype)


@jax.custom_vjp
def _widen(p: Params, x: jax.Array) -> jax.Array:
    """A narrow layer in one kernel, unless it learns."""
    return kernels.layers.widen(x, p["w"], p["b"])


_widen.defvjp(functools.partial(jax.vjp, _dense_elu), lambda back, d: back(d))


def dense_out(p: Params, out: Params, x: jax.Array) -> jax.Array:
    """elu(x W + b) w + c of a few columns w, in float32."""
    y = _product(p, x)
    flat = y.reshape(-1, y.shape[-1])
    slim = out["b"].shape[-1] + -out["b"].shape[-1] % ROUND
    if kernels.fits(kernels.layers, flat.shape[0], slim, flat.shape[1], y.dtype):
        w = jnp.pad(out["w"], ((0, 0), (0, slim - out["w"].shape[-1])))
        found = _narrow({"b": p["b"]}, {"w": w, "b": jnp.zeros(slim)}, flat)
        return found[:, : out["b"].shape[-1]].reshape(*y.shape[:-1], -1) + out["b"]
    return _dense_out(p, out, y)


def _dense_out(p: Params, out: Params, y: jax.Array) -> jax.Array:
    return linear_f32(out, _activate("elu", p, None, y, y.dtype))


@jax.custom_vjp
def _narrow(p: Params, out: Params, y: jax.Array) -> jax.Array:
    """A narrow output layer and the activation before it in one kernel, unless it learns."""
    return kernels.layers.narrow(y, p["b"], out["w"])


_narrow.defvjp(functools.partial(jax.vjp, _dense_out), lambda back, d: back(d))


def dense_layer_norm(
    p: Params, norm: Params, x: jax.Array, act: str, dtype: jnp.dtype | None = None
) -> jax.Array:
    """act(layer_norm(x W + b)) in a type, that of x if not given."""
    if dtype == jnp.bfloat16 and x.dtype == jnp.float32 and on_gpu():
        return _activate(act, p, norm, _rows(product_split, p, x), dtype)
    return _activate(act, p, norm, _product(p, x), dtype or x.dtype)


def _activate(act: str, p: Params, norm: Params | None, x: jax.Array, dtype: Any) -> jax.Array:
    if kernels.fits(kernels.rows, math.prod(x.shape[:-1]), x.shape[-1]):
        y: Any = kernels.bias_norm_act(act, norm is not None, dtype, *_flat(p, norm, x))
        return y.reshape(x.shape)
    x = x.astype(jnp.float32) + p["b"]
    if norm:
        x = layer_norm(norm, x)
    return ACTIVATIONS[act](x).astype(dtype)


def twin_layer_norm(p: Params, norm: Params, x: jax.Array, act: str) -> jax.Array:
    """`dense_layer_norm` of several layers [G, ...] with the same input: [G, ..., W].

    One product, if kernels that take it apart fit; a product each would have its own input.
    """
    if kernels.fits(kernels.rows, math.prod(x.shape[:-1]), p["b"].shape[-1]):
        w = jnp.moveaxis(p["w"], 0, 1)
        y = _product({"w": w.reshape(w.shape[0], -1)}, x)
        params = p["b"], norm["scale"], norm["bias"]
        rows = y.reshape(-1, y.shape[-1])
        out: Any = kernels.bias_norm_act(act, True, x.dtype, rows, *params)
        return out.reshape(-1, *x.shape[:-1], p["b"].shape[-1])
    return jax.vmap(lambda p, norm: dense_layer_norm(p, norm, x, act))(p, norm)


def _flat(p: Params, norm: Params | None, x: jax.Array) -> tuple[jax.Array, ...]:
    """Rows, their bias, and scale and bias of their norm, which are not read if there is none."""
    norm = norm or {"scale": p["b"], "bias": p["b"]}
    return x.reshape(-1, x.shape[-1]), p["b"], norm["scale"], norm["bias"]


def dense_head(p: Params, norm: Params | None, out: Params, x: jax.Array) -> jax.Array:
    """elu(layer_norm(x W + b)) w + c of a single column w, without the norm if there is none:
    [...], float32."""
    y = _product(p, x)
    if kernels.fits(kernels.rows, math.prod(y.shape[:-1]), y.shape[-1]):
        q: Any = kernels.head("elu", norm is not None, *_flat(p, norm, y), out["w"][:, 0])
        return q.reshape(y.shape[:-1]) + out["b"]
    return linear_f32(out, _activate("elu", p, norm, y, y.dtype)).squeeze(-1)


def dense_batch_norm(p: Params, norm: Params, x: jax.Array) -> tuple[jax.Array, Params]:
    """elu(batch_norm(x W + b)) over axis -2 with the batch's own statistics, returned too.

    The norm takes the bias b away again, so it only enters the statistics and never moves.
    """
    x = _product(p, x)
    if kernels.fits(kernels.columns, *x.shape[-2:]):
        groups = x.reshape(-1, *x.shape[-2:])
        found: Any = kernels.batch_norm_elu(norm["scale"], norm["bias"], groups)
        y, mean, var = (v.reshape(*x.shape[:-2], *v.shape[1:]) for v in found)
    else:
        y, mean, var = kernels.columns.plain(norm["scale"], norm["bias"], x)
    return y, {"mean": mean.squeeze(-2) + p["b"], "var": var.squeeze(-2)}


def stats_init(width: int) -> Params:
    """Running batch-norm statistics before any data."""
    return {"mean": np.zeros(width, np.float32), "var": np.ones(width, np.float32)}


def batch_norm_elu(p: Params, stats: Params, x: jax.Array) -> jax.Array:
    """elu(batch_norm(x)) with running statistics, for acting."""
    scale = p["scale"] * jax.lax.rsqrt(stats["var"] + 1e-5)
    return ELU((x.astype(jnp.float32) - stats["mean"]) * scale + p["bias"]).astype(x.dtype)


def update_stats(running: Params, batches: Params, rows: int, weight: float = 0.1) -> Params:
    """Fold T batches [T, width] into the running statistics one after the other.

    The running variance is the unbiased one, as in the framework the method was written in.
    """
    steps = batches["mean"].shape[0]
    decay = (1 - weight) ** np.arange(steps - 1, -1, -1, dtype=np.float32)[:, None]
    unbiased = {"mean": batches["mean"], "var": batches["var"] * rows / max(rows - 1, 1)}
    return jax.tree.map(
        lambda old, new: (1 - weight) ** steps * old + weight * jnp.sum(decay * new, 0),
        running,
        unbiased,
    )


def gru_init(rng: Rng, n_in: int, width: int) -> Params:
    """The three gates' input and hidden matrices, each orthogonal as one stacked matrix."""
    return {
        "wi": orthogonal(rng, n_in, 3 * width),
        "wh": orthogonal(rng, width, 3 * width),
        "norm": norm_init(3, width),
    }


def ln_gru(p: Params, x: jax.Array, b: jax.Array | None) -> jax.Array:
    """A GRU step with a layer norm on each gate; the update gate multiplies the candidate (1.3).

    The belief b is zero if not given.
    """
    wi, wh, norm = p["wi"], p["wh"], p["norm"]
    width = wh.shape[0]
    if b is not None and on_gpu():
        # One product instead of two; the candidate's two parts stay apart.
        (wi, new_i), (wh, new_h) = (jnp.split(w, [2 * width], -1) for w in (wi, wh))
        none = jnp.zeros_like(new_h), jnp.zeros_like(new_i)
        rows = [wi, new_i, none[1]], [wh, none[0], new_h]
        wi = jnp.concatenate([jnp.concatenate(row, -1) for row in rows])
        x = jnp.concatenate([x, b], -1)
    g = _rows(jnp.matmul, {"w": wi}, x)
    if kernels.fits(kernels.gru, math.prod(g.shape[:-1]), width):
        flat = (y if y is None else y.reshape(-1, y.shape[-1]) for y in (g, b))
        new: Any = kernels.gru_gates(*flat, norm["scale"], norm["bias"])
        return new.reshape(*g.shape[:-1], width)
    parts = jnp.split(g, g.shape[-1] // width, -1)
    if b is not None and len(parts) == 3:
        *gates, candidate = jnp.split(_rows(jnp.matmul, {"w": wh}, b), 3, -1)
        parts = [parts[0] + gates[0], parts[1] + gates[1], parts[2], candidate]
    return kernels.gru.plain(parts, b, norm["scale"], norm["bias"])


def move(cell: Params, p: Params, stats: Params, z, b, actions: jax.Array, t) -> tuple | None:
    """A step of the model for acting, if a kernel for it fits: the latent and the belief after
    step t of actions [H, n, A]."""
    size = cell["wi"].shape[-2] - z.shape[-1]
    sizes = (actions.shape[1], z.shape[-1], size, cell["wh"].shape[0], p["out"]["w"].shape[0])
    if not kernels.fits(kernels.dynamics, *sizes, z.dtype):
        return None
    factor = p["norm"]["scale"] * jax.lax.rsqrt(stats["var"] + 1e-5)
    offset = p["norm"]["bias"] + (p["in"]["b"] - stats["mean"]) * factor
    gates = cell["wi"], cell["wh"], cell["norm"]["scale"], cell["norm"]["bias"]
    projector = p["in"]["w"], factor, offset, p["out"]["w"], p["out"]["b"]
    return kernels.dynamics.step(z, actions, t, b, *gates, *projector)


def cast(params: Params, dtype: jnp.dtype, latent: int) -> Params:
    """Matrices in the type of the activations; norms, biases and the encoder's first matrix, which
    meets raw observations, stay in float32. On a GPU latents get round sizes, see `widen`."""

    def one(path: tuple, x: jax.Array) -> jax.Array:
        names = [k.key for k in path]
        if is_matrix(path) and names[:2] != ["encoder", "in"]:
            x = x.astype(dtype)
        return widen(names, x, latent) if on_gpu() else x

    return jax.tree_util.tree_map_with_path(one, params)


def widen(names: Sequence[str], x: jax.Array, latent: int) -> jax.Array:
    """A leaf with zeros for latents of a round size: otherwise every product that makes or takes
    one would pad it first. Latents stand first in every input that has them."""
    more = -latent % ROUND
    if names[-2] == "out" and names[0] in ("encoder", "projector", "predictor"):
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)])
    takes = [["cell", "wi"], ["value", "in", "w"], ["policy", "in", "w"], ["predictor", "in", "w"]]
    if list(names) in takes:
        head, tail = jnp.split(x, [latent], -2)
        space = [jnp.zeros((*x.shape[:-2], n, x.shape[-1]), x.dtype) for n in (more, ROUND)]
        end = space[1][..., : -tail.shape[-2] % ROUND, :]
        return jnp.concatenate([head, space[0], tail, end], -2)
    return x


def is_matrix(path: tuple) -> bool:
    """Whether a leaf of the parameters, given by its path, is a weight matrix."""
    return path[-1].key in ("w", "wi", "wh")


def scan(step: Callable, carry: Any, xs: Any) -> tuple[Any, Any]:
    """`jax.lax.scan`; on a GPU unrolled into one graph, and the first carry may hold None."""
    if not on_gpu():
        return jax.lax.scan(step, carry, xs)
    outs = []
    for t in range(jax.tree.leaves(xs)[0].shape[0]):
        carry, out = step(carry, jax.tree.map(lambda x, t=t: x[t], xs))
        outs.append(out)
    return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *outs)
