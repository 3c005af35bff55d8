"""Layers as pairs of plain functions: `*_init` draws parameters with NumPy on the host (a QR under
`vmap` can hang on the CPU backend), the other applies them. Norms compute in float32."""

import jax
import jax.numpy as jnp
import numpy as np

from ace.types import Params

Rng = np.random.Generator


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


def linear(p: Params, x: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """x W + b; `dtype` asks for the output (and accumulation) in that type."""
    y = jnp.matmul(x, p["w"], preferred_element_type=dtype or x.dtype)
    return y + p["b"].astype(y.dtype)


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
    """x where positive, else exp(x) - 1; faster than `jax.nn.elu`, whose expm1 is slow on a CPU.

    In float32, because near zero the difference would cancel in bf16.
    """
    x32 = x.astype(jnp.float32)
    return jnp.where(x32 >= 0, x32, jnp.exp(jnp.minimum(x32, 0)) - 1).astype(x.dtype)


def stats_init(width: int) -> Params:
    """Running batch-norm statistics before any data."""
    return {"mean": np.zeros(width, np.float32), "var": np.ones(width, np.float32)}


def _normalise(p: Params, stats: Params, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    scale = p["scale"] * jax.lax.rsqrt(stats["var"] + eps)
    return ((x.astype(jnp.float32) - stats["mean"]) * scale + p["bias"]).astype(x.dtype)


def batch_norm(p: Params, stats: Params, x: jax.Array) -> jax.Array:
    """Batch norm with running statistics, for acting."""
    return _normalise(p, stats, x)


def batch_norm_train(p: Params, x: jax.Array) -> tuple[jax.Array, Params]:
    """Batch norm over axis -2 with the batch's own statistics, which are returned too."""
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-2, keepdims=True)
    var = jnp.square(x32 - mean).mean(-2, keepdims=True)
    y = _normalise(p, {"mean": mean, "var": var}, x)
    return y, {"mean": mean.squeeze(-2), "var": var.squeeze(-2)}


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
    i = (x @ p["wi"]).reshape(*x.shape[:-1], 3, -1)
    h = (b @ p["wh"]).reshape(*b.shape[:-1], 3, -1)
    gates = layer_norm(_gates(p, slice(0, 2)), i[..., :2, :] + h[..., :2, :], eps=1e-3)
    reset, update = jnp.split(jax.nn.sigmoid(gates), 2, axis=-2)
    reset, update = reset.squeeze(-2), update.squeeze(-2)
    new = layer_norm(_gates(p, 2), i[..., 2, :] + reset * h[..., 2, :], eps=1e-3)
    return update * jnp.tanh(new) + (1 - update) * b


def _gates(p: Params, which: slice | int) -> Params:
    return jax.tree.map(lambda x: x[which], p["norm"])


def unroll() -> bool:
    """Whether loops over the horizon are unrolled: a GPU then runs them as one graph, while a CPU
    only compiles longer."""
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
