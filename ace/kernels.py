"""Fused GPU kernels for what stands between two matrix products: bias, layer norm, activation.

On a GPU an update is bound by how often activations go through memory. Forward: one read and one
write. Backward: input and gradient are read once, statistics are computed again from the rows at
hand, and the sums over rows for the parameters' gradients come out of the same pass. The plain
functions are in `nets`; the tests compare the two.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

EPS = 1e-5
TILE = 16  # rows that a program holds at a time
F32 = jnp.float32


def _elu(x: jax.Array) -> jax.Array:
    # exp(x) - 1 in float32: near zero the difference would cancel in bf16, and expm1 is slow.
    return jnp.where(x >= 0, x, jnp.exp(jnp.minimum(x, 0)) - 1)


# Activation in float32, and its slope given its output.
ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    "elu": (_elu, lambda y: jnp.where(y >= 0, 1.0, y + 1)),
    "tanh": (jnp.tanh, lambda y: 1 - y * y),
}


def _normed(x: jax.Array, eps: float = EPS) -> tuple[jax.Array, jax.Array]:
    """Rows with mean zero and variance one, and what they were multiplied with."""
    centred = x - x.mean(-1, keepdims=True)
    rstd = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
    return centred * rstd, rstd


def _through_norm(d: jax.Array, normed: jax.Array, rstd: jax.Array) -> jax.Array:
    """The gradient before a norm, given that of its normed rows."""
    d = d - d.mean(-1, keepdims=True) - normed * (d * normed).mean(-1, keepdims=True)
    return d * rstd


def _forward(act: str, norm: bool, x, b, scale, bias) -> jax.Array:
    """act(norm(x + b)) of rows [n, W], in float32."""
    x = x.astype(F32) + b
    if norm:
        x = _normed(x)[0] * scale + bias
    return ACTIVATIONS[act][0](x)


def _backward(act: str, norm: bool, x, b, scale, bias, dy) -> tuple[jax.Array, tuple]:
    """Gradient of rows [n, W], and terms whose sums over rows are those of b, scale and bias."""
    function, slope = ACTIVATIONS[act]
    x, dy = x.astype(F32) + b, dy.astype(F32)
    if not norm:
        dx = dy * slope(function(x))
        return dx, (dx,)
    normed, rstd = _normed(x)
    dy = dy * slope(function(normed * scale + bias))
    dx = _through_norm(dy * scale, normed, rstd)
    return dx, (dx, dy * normed, dy)


INTERPRET = False  # for tests: run the kernels without a GPU


def fits(rows: int, width: int) -> bool:
    """Whether the kernels can and should be used: on a GPU, where they divide the work evenly."""
    return (_have_gpu() or INTERPRET) and rows % TILE == 0 and width in (128, 256, 512, 1024)


@functools.cache
def _have_gpu() -> bool:
    """Whether there is a GPU on which the kernels compile and compute what they should."""
    if jax.default_backend() != "gpu":
        return False
    try:
        # In a thread of its own: this may be asked while a function is being traced.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_try_out).result()
    except Exception as error:  # whatever it is, the plain functions still work
        print(f"the fused kernels do not work here, so updates are slower: {error!r:.300}")
        return False
    return True


def _try_out() -> None:
    """Run every kernel once on a few numbers; raise if one gives others than the plain formula."""
    keys = jax.random.split(jax.random.key(0), 5)
    x, dy, i, h = (
        jax.random.normal(key, (4 * TILE, width))
        for key, width in zip(keys[:4], (128, 128, 384, 384), strict=True)
    )
    b, scale, bias = gates = jax.random.normal(keys[4], (3, 128))
    for act in ACTIVATIONS:
        for norm in (True, False):
            y = fused_forward(act, norm, x, b, scale, bias)
            dx, sums = fused_backward(act, norm, x, b, scale, bias, dy)
            expected, terms = _backward(act, norm, x, b, scale, bias, dy)
            _agree(y, _forward(act, norm, x, b, scale, bias))
            _agree(dx, expected)
            for one, other in zip(sums, terms, strict=True):
                _agree(one, other.sum(0))
    new, gradient = jax.vjp(lambda i, h, b: gru_gates(i, h, b, gates, gates), i, h, x)
    expected, plain = jax.vjp(lambda i, h, b: _plain_gru(i, h, b, gates, gates), i, h, x)
    jax.tree.map(_agree, (new, gradient(dy)), (expected, plain(dy)))


def _plain_gru(i, h, b, scale, bias) -> jax.Array:
    _, update, new, *_ = _gates(jnp.split(i, 3, -1), jnp.split(h, 3, -1), scale, bias)
    return update * new + (1 - update) * b


def _agree(one: jax.Array, other: jax.Array) -> None:
    worst = float(jnp.abs(one - other).max() / (1 + jnp.abs(other).max()))
    if not worst < 1e-3:
        raise ArithmeticError(f"a kernel is wrong by {worst}")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def bias_norm_act(act: str, norm: bool, x, b, scale, bias) -> jax.Array:
    """act(norm(x + b)) of rows [n, W] in the type of x; without the norm if it is false."""
    return fused_forward(act, norm, x, b, scale, bias)


def _keep(act: str, norm: bool, x, b, scale, bias) -> tuple[jax.Array, tuple]:
    return bias_norm_act(act, norm, x, b, scale, bias), (x, b, scale, bias)


def _gradients(act: str, norm: bool, kept: tuple, dy: jax.Array) -> tuple:
    x, b, scale, bias = kept
    dx, sums = fused_backward(act, norm, x, b, scale, bias, dy)
    zeros = [jnp.zeros_like(scale)] * (3 - len(sums))
    return (dx, *sums, *zeros)


bias_norm_act.defvjp(_keep, _gradients)


def _pallas() -> tuple[Any, Any]:
    """The kernel language, imported late: nothing but a GPU needs it."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    return pallas, triton.CompilerParams(num_warps=4)


def fused_forward(act: str, norm: bool, x, b, scale, bias) -> jax.Array:
    """The kernel of the forward pass."""
    pl, params = _pallas()
    rows, width = x.shape

    def kernel(x, b, scale, bias, y):
        y[...] = _forward(act, norm, x[...], b[...], scale[...], bias[...]).astype(y.dtype)

    whole = pl.BlockSpec((width,), lambda i: (0,))
    tile = pl.BlockSpec((TILE, width), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(rows // TILE,),
        in_specs=[tile, whole, whole, whole],
        out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=params,
        interpret=INTERPRET,
        name=f"{'norm_' if norm else ''}{act}",
    )(x, b, scale, bias)


def fused_backward(act: str, norm: bool, x, b, scale, bias, dy):
    """The kernel of the backward pass: gradient of x, and sums over rows for the parameters."""
    pl, params = _pallas()
    rows, width = x.shape
    # Several tiles to a program: fewer sums are left to add up.
    each = next(TILE * n for n in (4, 2, 1) if rows % (TILE * n) == 0)
    count, programs = 3 if norm else 1, rows // each

    def kernel(x, b, scale, bias, dy, dx, sums):
        weights = b[...], scale[...], bias[...]

        def tile(i: jax.Array, totals: tuple) -> tuple:
            at = pl.ds(i * TILE, TILE)
            d, terms = _backward(act, norm, x[at, :], *weights, dy[at, :])
            dx[at, :] = d.astype(dx.dtype)
            return tuple(t + term.sum(0) for t, term in zip(totals, terms, strict=True))

        zeros = tuple(jnp.zeros(width, F32) for _ in range(count))
        for k, total in enumerate(jax.lax.fori_loop(0, each // TILE, tile, zeros)):
            sums[k, :] = total

    whole = pl.BlockSpec((width,), lambda i: (0,))
    block = pl.BlockSpec((each, width), lambda i: (i, 0))
    dx, sums = pl.pallas_call(
        kernel,
        grid=(programs,),
        in_specs=[block, whole, whole, whole, block],
        out_specs=[block, pl.BlockSpec((None, count, width), lambda i: (i, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((programs, count, width), F32),
        ],
        compiler_params=params,
        interpret=INTERPRET,
        name=f"{'norm_' if norm else ''}{act}_gradient",
    )(x, b, scale, bias, dy)
    return dx, list(sums.sum(0))


GRU_EPS = 1e-3
GRU_TILE = 8  # rows of a program; a gate takes more room than a layer


def fits_gru(rows: int, width: int) -> bool:
    """Whether the kernels of the GRU can and should be used."""
    return (_have_gpu() or INTERPRET) and rows % GRU_TILE == 0 and width in (128, 256)


def _gates(i, h, scale, bias) -> tuple:
    """Reset, update and candidate gates of rows, with what their gradients need."""
    normed, rstd = zip(*(_normed(i[k] + h[k], GRU_EPS) for k in (0, 1)), strict=True)
    reset, update = (jax.nn.sigmoid(normed[k] * scale[k] + bias[k]) for k in (0, 1))
    last, last_rstd = _normed(i[2] + reset * h[2], GRU_EPS)
    new = jnp.tanh(last * scale[2] + bias[2])
    return reset, update, new, (*normed, last), (*rstd, last_rstd)


@jax.custom_vjp
def gru_gates(i, h, b, scale, bias) -> jax.Array:
    """The new belief [n, D] of a GRU from its two products [n, 3 D] and the old belief [n, D]."""
    return fused_gru(i, h, b, scale, bias)


def _gru_keep(i, h, b, scale, bias) -> tuple[jax.Array, tuple]:
    return gru_gates(i, h, b, scale, bias), (i, h, b, scale, bias)


def _gru_gradients(kept: tuple, d: jax.Array) -> tuple:
    i, h, b, scale, bias = kept
    di, dh, db, sums = fused_gru_gradient(i, h, b, scale, bias, d)
    return di, dh, db, sums[:3], sums[3:]


gru_gates.defvjp(_gru_keep, _gru_gradients)


def _columns(ref: Any, width: int) -> list[jax.Array]:
    """The three gates of a block [n, 3 D]."""
    return [ref[:, k * width : (k + 1) * width].astype(F32) for k in range(3)]


def fused_gru(i, h, b, scale, bias) -> jax.Array:
    """The kernel of the forward pass."""
    pl, params = _pallas()
    rows, width = b.shape

    def kernel(i, h, b, scale, bias, out):
        weights = [scale[k, :] for k in range(3)], [bias[k, :] for k in range(3)]
        old = b[...].astype(F32)
        _, update, new, *_ = _gates(_columns(i, width), _columns(h, width), *weights)
        out[...] = (update * new + (1 - update) * old).astype(out.dtype)

    wide = pl.BlockSpec((GRU_TILE, 3 * width), lambda n: (n, 0))
    tile = pl.BlockSpec((GRU_TILE, width), lambda n: (n, 0))
    whole = pl.BlockSpec((3, width), lambda n: (0, 0))
    return pl.pallas_call(
        kernel,
        grid=(rows // GRU_TILE,),
        in_specs=[wide, wide, tile, whole, whole],
        out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(b.shape, b.dtype),
        compiler_params=params,
        interpret=INTERPRET,
        name="gru",
    )(i, h, b, scale, bias)


def fused_gru_gradient(i, h, b, scale, bias, d) -> tuple[jax.Array, ...]:
    """The kernel of the backward pass: gradients of i, h and b, and sums for scale and bias."""
    pl, params = _pallas()
    rows, width = b.shape
    programs = rows // GRU_TILE

    def kernel(i, h, b, scale, bias, d, di, dh, db, sums):
        weights = [scale[k, :] for k in range(3)], [bias[k, :] for k in range(3)]
        hidden, old, d32 = _columns(h, width), b[...].astype(F32), d[...].astype(F32)
        reset, update, new, normed, rstd = _gates(_columns(i, width), hidden, *weights)
        db[...] = (d32 * (1 - update)).astype(db.dtype)
        by_new = d32 * update * (1 - new * new)
        inside = _through_norm(by_new * weights[0][2], normed[2], rstd[2])
        by_reset = inside * hidden[2] * reset * (1 - reset)
        by_update = d32 * (new - old) * update * (1 - update)
        for k, by in enumerate((by_reset, by_update, by_new)):
            into = inside if k == 2 else _through_norm(by * weights[0][k], normed[k], rstd[k])
            at = slice(k * width, (k + 1) * width)
            di[:, at] = into.astype(di.dtype)
            dh[:, at] = (into * reset if k == 2 else into).astype(dh.dtype)
            sums[k, :] = (by * normed[k]).sum(0)
            sums[3 + k, :] = by.sum(0)

    wide = pl.BlockSpec((GRU_TILE, 3 * width), lambda n: (n, 0))
    tile = pl.BlockSpec((GRU_TILE, width), lambda n: (n, 0))
    whole = pl.BlockSpec((3, width), lambda n: (0, 0))
    di, dh, db, sums = pl.pallas_call(
        kernel,
        grid=(programs,),
        in_specs=[wide, wide, tile, whole, whole, tile],
        out_specs=[wide, wide, tile, pl.BlockSpec((None, 6, width), lambda n: (n, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct(i.shape, i.dtype),
            jax.ShapeDtypeStruct(h.shape, h.dtype),
            jax.ShapeDtypeStruct(b.shape, b.dtype),
            jax.ShapeDtypeStruct((programs, 6, width), F32),
        ],
        compiler_params=params,
        interpret=INTERPRET,
        name="gru_gradient",
    )(i, h, b, scale, bias, d)
    return di, dh, db, sums.sum(0)
