"""Layers as pairs of plain functions: `*_init` draws parameters with NumPy on the host (a QR under
`vmap` can hang on the CPU backend), the other applies them. Norms compute in float32."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace import kernels
from ace.types import Params

Rng = np.random.Generator
ELU, ELU_SLOPE = kernels.ACTIVATIONS["elu"]  # in float32; the slope given the output


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


def dense_elu(p: Params, x: jax.Array) -> jax.Array:
    """elu(x W + b)."""
    y = _product(p, x)
    if kernels.fits(math.prod(y.shape[:-1]), y.shape[-1]):
        return _fused("elu", p, None, y)
    return elu(y + p["b"].astype(y.dtype))


def dense_layer_norm(p: Params, norm: Params, x: jax.Array, act: str) -> jax.Array:
    """act(layer_norm(x W + b))."""
    y = _product(p, x)
    if kernels.fits(math.prod(y.shape[:-1]), y.shape[-1]):
        return _fused(act, p, norm, y)
    y = layer_norm(norm, y + p["b"].astype(y.dtype))
    return elu(y) if act == "elu" else jnp.tanh(y)


def _fused(act: str, p: Params, norm: Params | None, x: jax.Array) -> jax.Array:
    scale, bias = (norm["scale"], norm["bias"]) if norm else (p["b"], p["b"])  # not read without
    rows = x.reshape(-1, x.shape[-1])
    y: Any = kernels.bias_norm_act(act, norm is not None, rows, p["b"], scale, bias)
    return y.reshape(x.shape)


def dense_batch_norm(p: Params, norm: Params, x: jax.Array) -> tuple[jax.Array, Params]:
    """elu(batch_norm(x W + b)) over axis -2 with the batch's own statistics, returned too.

    The norm takes the bias b away again, so it only enters the statistics and never moves.
    """
    x = _product(p, x)
    fused = kernels.fits(math.prod(x.shape[:-1]), x.shape[-1])
    apply = batch_norm_elu_recomputed if fused else batch_norm_elu_train
    y, mean, var = apply(norm["scale"], norm["bias"], x)
    return y, {"mean": mean.squeeze(-2) + p["b"], "var": var.squeeze(-2)}


def batch_norm_elu_train(scale: jax.Array, bias: jax.Array, x: jax.Array):
    """elu(norm(x)) in the type of x, with mean and variance along axis -2."""
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-2, keepdims=True)
    var = jnp.square(x32 - mean).mean(-2, keepdims=True)
    y = ELU((x32 - mean) * jax.lax.rsqrt(var + 1e-5) * scale + bias)
    return y.astype(x.dtype), mean, var


def _again(*arrays: jax.Array) -> list[jax.Array]:
    """The same arrays, in float32, for one more pass over them.

    A barrier keeps the compiler from sharing float32 results between passes through memory: to
    compute them again from the narrow input is cheaper.
    """
    return [x.astype(jnp.float32) for x in jax.lax.optimization_barrier(arrays)]


@jax.custom_vjp
def batch_norm_elu_recomputed(
    scale: jax.Array, bias: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`batch_norm_elu_train` for a GPU: more arithmetic, fewer passes through memory."""
    (x32,) = _again(x)
    mean = x32.mean(-2, keepdims=True)
    x32, mean = _again(x, mean)
    var = jnp.square(x32 - mean).mean(-2, keepdims=True)
    x32, mean, var = _again(x, mean, var)
    y = ELU((x32 - mean) * jax.lax.rsqrt(var + 1e-5) * scale + bias)
    return y.astype(x.dtype), mean, var


def _batch_norm_forward(scale: jax.Array, bias: jax.Array, x: jax.Array):
    y, mean, var = batch_norm_elu_recomputed(scale, bias, x)
    return (y, mean, var), (scale, bias, x, mean, var)


def _batch_norm_backward(kept: tuple, cotangents: tuple):
    """Gradients of the output; the statistics are for the record and have none."""
    scale, bias, *arrays = kept

    def before_activation() -> tuple[jax.Array, jax.Array, jax.Array]:
        x, mean, var, dy = _again(*arrays, cotangents[0])
        rstd = jax.lax.rsqrt(var + 1e-5)
        normed = (x - mean) * rstd
        return dy * ELU_SLOPE(ELU(normed * scale + bias)), normed, rstd

    d, normed, _ = before_activation()
    by_scale, by_bias = (jnp.sum(t, -2, keepdims=True) for t in (d * normed, d))
    d, normed, rstd = before_activation()
    rows = d.shape[-2]
    dx = (d - by_bias / rows - normed * by_scale / rows) * scale * rstd
    others = tuple(range(dx.ndim - 1))
    return by_scale.sum(others), by_bias.sum(others), dx.astype(arrays[0].dtype)


batch_norm_elu_recomputed.defvjp(_batch_norm_forward, _batch_norm_backward)


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


def ln_gru(p: Params, x: jax.Array, b: jax.Array) -> jax.Array:
    """A GRU step with a layer norm on each gate; the update gate multiplies the candidate (1.3)."""
    i, h = (_rows(jnp.matmul, {"w": w}, v) for w, v in ((p["wi"], x), (p["wh"], b)))
    if kernels.fits_gru(math.prod(b.shape[:-1]), b.shape[-1]):
        flat = (y.reshape(-1, y.shape[-1]) for y in (i, h, b))
        new: Any = kernels.gru_gates(*flat, p["norm"]["scale"], p["norm"]["bias"])
        return new.reshape(b.shape)
    i, h = (y.reshape(*y.shape[:-1], 3, -1) for y in (i, h))
    gates = layer_norm(_gates(p, slice(0, 2)), i[..., :2, :] + h[..., :2, :], eps=1e-3)
    reset, update = jnp.split(jax.nn.sigmoid(gates), 2, axis=-2)
    reset, update = reset.squeeze(-2), update.squeeze(-2)
    new = layer_norm(_gates(p, 2), i[..., 2, :] + reset * h[..., 2, :], eps=1e-3)
    return update * jnp.tanh(new) + (1 - update) * b


def _gates(p: Params, which: slice | int) -> Params:
    return jax.tree.map(lambda x: x[which], p["norm"])


def on_gpu() -> bool:
    """Whether to build what a GPU likes: loops over the horizon unrolled into one graph, and larger
    arrays for fewer passes through memory."""
    return jax.default_backend() != "cpu"


def cast(params: Params, dtype: jnp.dtype) -> Params:
    """Matrices in the type of the activations; norms, biases and the encoder's first matrix, which
    meets raw observations, stay in float32."""

    def one(path: tuple, x: jax.Array) -> jax.Array:
        names = [k.key for k in path]
        return x.astype(dtype) if is_matrix(path) and names[:2] != ["encoder", "in"] else x

    return jax.tree_util.tree_map_with_path(one, params)


def is_matrix(path: tuple) -> bool:
    """Whether a leaf of the parameters, given by its path, is a weight matrix."""
    return path[-1].key in ("w", "wi", "wh")
