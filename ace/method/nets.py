"""Layers as pairs of plain functions: `*_init` draws parameters with NumPy on the host (a QR under
`vmap` can hang on the CPU backend), the other applies them. Norms compute in float32."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.method.replaceable import replaceable
from ace.method.types import Params

Rng = np.random.Generator
Axes = Mapping[tuple[str, ...], tuple[int, Sequence[tuple[str, int | None]]]]
"""From a leaf's path to an axis and the names and sizes of its consecutive parts; a size of None is
the rest of the axis. A faster form of `cast` may widen parts called "latent" with zeros: sum over a
latent and divide by its size in the settings, rather than take a mean."""
LOG2E = 1.4426950408889634
GRU_EPS = 1e-3


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


@replaceable
def linear(p: Params, x: jax.Array) -> jax.Array:
    """x W + b."""
    y = x @ p["w"]
    return y + p["b"].astype(y.dtype)


@replaceable
def linear_f32(p: Params, x: jax.Array) -> jax.Array:
    """x W + b in float32, whatever the types of x and W are."""
    return jnp.matmul(x, p["w"], preferred_element_type=jnp.float32) + p["b"]


def norm_init(*shape: int) -> Params:
    """Scale one, bias zero."""
    return {"scale": np.ones(shape, np.float32), "bias": np.zeros(shape, np.float32)}


@jax.custom_jvp
def tanh(x: jax.Array) -> jax.Array:
    """tanh whose derivative does not vanish where tanh rounds to 1, from |x| = 8 in float32."""
    return jnp.tanh(x)


@tanh.defjvp
def _tanh_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    small = jnp.exp(-2 * jnp.abs(primals[0]))
    return tanh(primals[0]), tangents[0] * 4 * small / jnp.square(1 + small)


def normed(x: jax.Array, eps: float = 1e-5) -> jax.Array:
    """Rows with mean zero and variance one."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)


def elu(x: jax.Array) -> jax.Array:
    """x where positive, else exp(x) - 1; for float32, since in bf16 the difference cancels."""
    return jnp.maximum(x, 0) + (jnp.exp2(LOG2E * jnp.minimum(x, 0)) - 1)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"elu": elu, "tanh": jnp.tanh}


@replaceable
def bias_norm_act(
    act: str, b: jax.Array, norm: Params | None, x: jax.Array, dtype: Any
) -> jax.Array:
    """act(layer_norm(x + b)) as `dtype`, computed in float32; without the norm if it is None."""
    x = x.astype(jnp.float32) + b
    if norm is not None:
        x = normed(x) * norm["scale"] + norm["bias"]
    return ACTIVATIONS[act](x).astype(dtype)


@replaceable
def dense_elu(p: Params, x: jax.Array) -> jax.Array:
    """elu(x W + b)."""
    return bias_norm_act("elu", p["b"], None, x @ p["w"], x.dtype)


@replaceable
def dense_out(p: Params, out: Params, x: jax.Array) -> jax.Array:
    """elu(x W + b) w + c with a few columns w, in float32."""
    return linear_f32(out, dense_elu(p, x))


@replaceable
def dense_layer_norm(
    p: Params, norm: Params, x: jax.Array, act: str, dtype: Any = None
) -> jax.Array:
    """act(layer_norm(x W + b)) as `dtype`, by default that of x."""
    return bias_norm_act(act, p["b"], norm, x @ p["w"], dtype or x.dtype)


@replaceable
def twin_layer_norm(p: Params, norm: Params, x: jax.Array, act: str) -> jax.Array:
    """`dense_layer_norm` of several layers [G, ...] with the same input: [G, ..., W]."""
    return jax.vmap(lambda p, norm: dense_layer_norm(p, norm, x, act))(p, norm)


@replaceable
def dense_head(p: Params, norm: Params | None, out: Params, x: jax.Array) -> jax.Array:
    """elu(layer_norm(x W + b)) w + c with a single column w, without the norm if it is None: [...],
    float32."""
    y = bias_norm_act("elu", p["b"], norm, x @ p["w"], x.dtype)
    return linear_f32(out, y).squeeze(-1)


@replaceable
def dense_batch_norm(p: Params, norm: Params, x: jax.Array) -> tuple[jax.Array, Params]:
    """elu(batch_norm(x W + b)) over axis -2 with the batch's own statistics, returned too.

    The norm cancels the bias b, so b only enters the statistics and never gets a gradient.
    """
    y, mean, var = batch_normed_elu(norm["scale"], norm["bias"], x @ p["w"])
    return y, {"mean": mean.squeeze(-2) + p["b"], "var": var.squeeze(-2)}


def batch_normed_elu(scale: jax.Array, bias: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """elu(batch_norm(x)) in the type of x, with mean and variance along axis -2."""
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-2, keepdims=True)
    var = jnp.square(x32 - mean).mean(-2, keepdims=True)
    y = elu((x32 - mean) * jax.lax.rsqrt(var + 1e-5) * scale + bias)
    return y.astype(x.dtype), mean, var


def stats_init(*shape: int) -> Params:
    """Running statistics before any data."""
    return {"mean": np.zeros(shape, np.float32), "var": np.ones(shape, np.float32)}


def folded_norm(p: Params, norm: Params, stats: Params) -> Params:
    """The bias of a layer and the batch norm after it, with running statistics [..., width], as one
    scale and one shift."""
    scale = norm["scale"] * jax.lax.rsqrt(stats["var"] + 1e-5)
    return {"scale": scale, "shift": norm["bias"] + (p["b"] - stats["mean"]) * scale}


def folded_norm_elu(p: Params, folded: Params, x: jax.Array) -> jax.Array:
    """elu(batch_norm(x W + b)) with running statistics, for acting."""
    y = (x @ p["w"]).astype(jnp.float32) * folded["scale"] + folded["shift"]
    return elu(y).astype(x.dtype)


def update_step_stats(running: Params, batches: Params, rows: int, weight: float = 0.1) -> Params:
    """Fold the batch of each of T steps [T, width] into running statistics of its own."""
    unbiased = {"mean": batches["mean"], "var": batches["var"] * rows / max(rows - 1, 1)}
    return jax.tree.map(lambda old, new: (1 - weight) * old + weight * new, running, unbiased)


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


@replaceable
def ln_gru(p: Params, x: jax.Array, b: jax.Array | None) -> jax.Array:
    """A GRU step with a layer norm on each gate; the update gate multiplies the candidate (1.3).

    The belief b is zero if None.
    """
    parts = jnp.split(x @ p["wi"], 3, -1)
    if b is not None:
        reset, update, candidate = jnp.split(b @ p["wh"], 3, -1)
        parts = [parts[0] + reset, parts[1] + update, parts[2], candidate]
    return gru_gates(parts, b, p["norm"]["scale"], p["norm"]["bias"])


def gru_gates(
    parts: Sequence[jax.Array], b: jax.Array | None, scale: jax.Array, bias: jax.Array
) -> jax.Array:
    """The new belief [..., D] from the matrix products of a GRU.

    `parts` are the sums of input and hidden products for reset and update, and the input product of
    the candidate; with an old belief also the candidate's hidden product, which the reset gate
    multiplies.
    """
    r, u, n, *hidden = (x.astype(jnp.float32) for x in parts)
    reset, update = (
        jax.nn.sigmoid(normed(x, GRU_EPS) * scale[k] + bias[k]) for k, x in enumerate((r, u))
    )
    n = n + reset * hidden[0] if hidden else n
    new = jnp.tanh(normed(n, GRU_EPS) * scale[2] + bias[2])
    belief = update * new if b is None else update * new + (1 - update) * b
    return belief.astype(parts[0].dtype)


@replaceable
def scan(step: Callable, carry: Any, xs: Any) -> tuple[Any, Any]:
    """`jax.lax.scan`."""
    return jax.lax.scan(step, carry, xs)


@replaceable
def cast(params: Params, dtype: Any, axes: Axes) -> Params:
    """Matrices in the type of the activations; norms, biases and the matrices that multiply raw
    observations, according to `axes`, stay in float32."""

    def one(path: tuple, x: jax.Array) -> jax.Array:
        _, parts = axes.get(path_names(path), (0, ()))
        raw = any(name == "obs" for name, _ in parts)
        return x.astype(dtype) if is_matrix(path) and not raw else x

    return jax.tree_util.tree_map_with_path(one, params)


def path_names(path: tuple) -> tuple[str, ...]:
    """The dictionary keys along the path of a leaf."""
    return tuple(k.key for k in path if isinstance(k, jax.tree_util.DictKey))


def is_matrix(path: tuple) -> bool:
    """Whether the parameter at a path is a weight matrix: by its name, `w`, `wi` or `wh`."""
    return path_names(path)[-1:] in (("w",), ("wi",), ("wh",))


def pad(tree: Any, axes: Axes, sizes: Mapping[str, int]) -> Any:
    """A tree of host arrays, padded with zeros where the last part of an axis grows to its size in
    `sizes`.

    Padded inputs are always zero, so the new weights get no gradient and never move: a padded lane
    computes what the unpadded one does.
    """

    def grow(path: tuple, x: np.ndarray) -> np.ndarray:
        axis, parts = axes.get(path_names(path), (0, ()))
        known = sum(size or 0 for _, size in parts)
        wanted = sum(sizes.get(name, 0) for name, size in parts if size is None)
        if not wanted:
            return x
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, known + wanted - x.shape[axis])
        return np.pad(x, widths)

    return jax.tree_util.tree_map_with_path(grow, tree)
