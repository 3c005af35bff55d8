"""Batch norm and activation of columns: a program holds a few whole columns, so that statistics,
normed values and activations come from one read."""

# pyright: reportCallIssue=false

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from ace.kernels import common
from ace.kernels.common import EPS, F32, launch, pallas

COLUMNS, ROWS = 64, 128  # of a program; rows in hand at a time
WARPS = 4
ELU, SLOPE = common.ACTIVATIONS["elu"]


def plain(scale: jax.Array, bias: jax.Array, x: jax.Array):
    """elu(norm(x)) in the type of x, with mean and variance along axis -2."""
    x32 = x.astype(F32)
    mean = x32.mean(-2, keepdims=True)
    var = jnp.square(x32 - mean).mean(-2, keepdims=True)
    y = ELU((x32 - mean) * jax.lax.rsqrt(var + EPS) * scale + bias)
    return y.astype(x.dtype), mean, var


@jax.custom_vjp
def batch_norm_elu(scale: jax.Array, bias: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """`plain` of groups of rows [G, n, W]; the statistics are for the record, without gradient."""
    return fused_batch_norm(scale, bias, x)


def _keep(scale: jax.Array, bias: jax.Array, x: jax.Array):
    y, mean, var = batch_norm_elu(scale, bias, x)
    return (y, mean, var), (scale, bias, x, mean, var)


def _gradients(kept: tuple, d: tuple) -> tuple:
    dx, by_scale, by_bias = fused_batch_norm_gradient(*kept, d[0])
    return by_scale.sum(0), by_bias.sum(0), dx


batch_norm_elu.defvjp(_keep, _gradients)


def _specs(rows: int, width: int):
    pl = pallas()
    block = pl.BlockSpec((None, rows, COLUMNS), lambda g, c: (g, 0, c))
    column = pl.BlockSpec((COLUMNS,), lambda g, c: (c,))
    stats = pl.BlockSpec((None, COLUMNS), lambda g, c: (g, c))
    return block, column, stats


@jax.jit
def fused_batch_norm(scale: jax.Array, bias: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """The kernel of the forward pass."""
    pl = pallas()
    groups, rows, width = x.shape
    hand = min(rows, ROWS)

    def kernel(x, scale, bias, y, mean, var):
        factor, offset = scale[...], bias[...]

        def total(function):
            if rows == hand:
                return function(x[...].astype(F32))

            def some(i, t):
                return t + function(x[pl.ds(i * hand, hand), :].astype(F32))

            return jax.lax.fori_loop(0, rows // hand, some, jnp.zeros(COLUMNS, F32))

        m = total(lambda x: x.sum(0)) / rows
        v = total(lambda x: jnp.square(x - m[None, :]).sum(0)) / rows
        rstd = jax.lax.rsqrt(v + EPS) * factor

        def write(i, _):
            at = pl.ds(i * hand, hand)
            unit = (x[at, :].astype(F32) - m[None, :]) * rstd[None, :]
            y[at, :] = ELU(unit + offset[None, :]).astype(y.dtype)

        jax.lax.fori_loop(0, rows // hand, write, None)
        mean[...], var[...] = m, v

    block, column, stats = _specs(rows, width)
    y, mean, var = launch(
        kernel,
        "batch_norm",
        warps=WARPS,
        grid=(groups, width // COLUMNS),
        in_specs=[block, column, column],
        out_specs=[block, stats, stats],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            *[jax.ShapeDtypeStruct((groups, width), F32)] * 2,
        ],
    )(x, scale, bias)
    return y, mean[:, None], var[:, None]


@jax.jit
def fused_batch_norm_gradient(scale, bias, x, mean, var, dy) -> tuple[jax.Array, ...]:
    """The kernel of the backward pass: gradients of x [G, n, W], scale and bias [G, W]."""
    pl = pallas()
    groups, rows, width = x.shape
    hand = min(rows, ROWS)

    def kernel(x, dy, mean, var, scale, bias, dx, by_scale, by_bias):
        m, rstd = mean[...][None, :], jax.lax.rsqrt(var[...] + EPS)[None, :]
        factor, offset = scale[...][None, :], bias[...][None, :]

        def gradient(at):
            unit = (x[at, :].astype(F32) - m) * rstd
            return unit, dy[at, :].astype(F32) * SLOPE(ELU(unit * factor + offset))

        def write(at, unit, d, s, b):
            d = d - b[None, :] / rows - unit * s[None, :] / rows
            dx[at, :] = (d * factor * rstd).astype(dx.dtype)

        if rows == hand:
            unit, d = gradient(slice(None))
            s, b = (d * unit).sum(0), d.sum(0)
            write(slice(None), unit, d, s, b)
        else:

            def add(i, t):
                unit, d = gradient(pl.ds(i * hand, hand))
                return t[0] + (d * unit).sum(0), t[1] + d.sum(0)

            zeros = jnp.zeros(COLUMNS, F32)
            s, b = jax.lax.fori_loop(0, rows // hand, add, (zeros, zeros))

            def put(i, _):
                at = pl.ds(i * hand, hand)
                write(at, *gradient(at), s, b)

            jax.lax.fori_loop(0, rows // hand, put, None)
        by_scale[...], by_bias[...] = s, b

    block, column, stats = _specs(rows, width)
    return launch(
        kernel,
        "batch_norm_gradient",
        warps=WARPS,
        grid=(groups, width // COLUMNS),
        in_specs=[block, block, stats, stats, column, column],
        out_specs=[block, stats, stats],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            *[jax.ShapeDtypeStruct((groups, width), F32)] * 2,
        ],
    )(x, dy, mean[:, 0], var[:, 0], scale, bias)


def possible(rows: int, width: int) -> bool:
    """Whether the kernels divide the work evenly."""
    fits = rows % ROWS == 0 or (rows < ROWS and rows & (rows - 1) == 0)
    return fits and rows >= 16 and width % COLUMNS == 0


def trial() -> Iterator[common.Pair]:
    """What every kernel gives for a few numbers, and what it should give."""
    keys = jax.random.split(jax.random.key(2), 2)
    scale, bias = jax.random.normal(keys[0], (2, 64))
    for rows in (128, 2 * ROWS):
        x, d = jax.random.normal(keys[1], (2, 2, rows, 64))
        wanted, gradient = jax.vjp(plain, scale, bias, x)
        got, fused = jax.vjp(batch_norm_elu, scale, bias, x)
        by = (d, *map(jnp.zeros_like, wanted[1:]))
        yield (got, fused(by)), (wanted, gradient(by))
