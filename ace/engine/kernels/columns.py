"""Batch norm and activation of columns in one kernel: a thread block owns a few whole columns, so
it computes their statistics, normed values and activations without the others."""

# pyright: reportCallIssue=false

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ace.engine.kernels import common
from ace.engine.kernels.common import EPS, F32, exp2, fma, launch, pallas, rsqrt, wide
from ace.method.nets import LOG2E
from ace.method.nets import batch_normed_elu as plain

COLUMNS, ROWS = 64, 128  # columns of a thread block, and its rows per loop iteration
WARPS = 4
TILE = 16  # rows that the warps hold together, eight numbers a thread


@jax.custom_vjp
def batch_norm_elu(scale: jax.Array, bias: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """`plain` of groups of rows [G, n, W]; no gradient flows through the returned statistics."""
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


def _total(rows: int, function: Callable, count: int) -> list[jax.Array]:
    """Sums over rows: `function(slice, *totals)` adds the rows of a slice to the totals.

    Each thread sums its own rows; the threads' sums are added once, at the end.
    """
    pl = pallas()
    zeros = [jnp.zeros((TILE, COLUMNS), F32) for _ in range(count)]
    hand = min(rows, ROWS) // TILE

    def some(i: jax.Array, totals: list) -> list:
        for k in range(hand):
            totals = function(pl.ds((i * hand + k) * TILE, TILE), *totals)
        return totals

    return [t.sum(0) for t in jax.lax.fori_loop(0, rows // (hand * TILE), some, zeros)]


def _each(rows: int, function: Callable) -> None:
    """Call `function(slice)` for slices that cover all rows."""
    pl = pallas()
    hand = min(rows, ROWS)
    jax.lax.fori_loop(0, rows // hand, lambda i, _: function(pl.ds(i * hand, hand)), None)


@jax.jit
def fused_batch_norm(scale: jax.Array, bias: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """The kernel of the forward pass."""
    pl = pallas()
    groups, rows, width = x.shape

    def kernel(x, scale, bias, y, mean, var):
        # One pass gives mean and variance, shifted by the mean of the first TILE rows: the shift is
        # at most sqrt(rows / TILE) deviations off, so subtracting its square cancels few digits.
        first = wide(x[pl.ds(0, TILE), :]).mean(0)

        def add(at, s, q):
            d = wide(x[at, :]) - first
            return [s + d, fma(d, d, q)]

        s, q = _total(rows, add, 2)
        m = s / rows
        v = jnp.maximum(q / rows - m * m, 0)
        m += first
        factor = rsqrt(v + EPS) * scale[...]
        offset = bias[...] - m * factor

        def write(at):
            y[at, :] = common.ACTIVATIONS["elu"](fma(wide(x[at, :]), factor, offset), x.dtype)[
                0
            ].astype(y.dtype)

        _each(rows, write)
        mean[...], var[...] = m, v

    block, column, stats = _specs(rows, width)
    y, mean, var = launch(
        kernel,
        "batch_norm",
        warps=WARPS if groups == 1 else 2 * WARPS,  # measured to be fastest
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
    groups, rows, width = x.shape

    def kernel(x, dy, mean, var, scale, bias, dx, by_scale, by_bias):
        rstd = rsqrt(var[...] + EPS)
        factor, centre = scale[...] * rstd, -mean[...] * rstd
        # The slope of elu is the smaller of exp(y) and one, so only 2^(y log2(e)) is needed.
        steep, start = LOG2E * factor, LOG2E * fma(centre, scale[...], bias[...])

        def gradient(at):
            x32 = wide(x[at, :])
            return x32, wide(dy[at, :]) * jnp.minimum(exp2(fma(x32, steep, start)), 1)

        def add(at, s, b):
            x32, d = gradient(at)
            return [fma(d, fma(x32, rstd, centre), s), b + d]

        s, b = _total(rows, add, 2)
        # dx = factor (d - mean(d) - unit mean(d unit)), with unit = x rstd + centre.
        along = -factor * s / rows
        slope, rest = along * rstd, fma(along, centre, -factor * b / rows)

        def write(at):
            x32, d = gradient(at)
            dx[at, :] = fma(d, factor, fma(x32, slope, rest)).astype(dx.dtype)

        _each(rows, write)
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


def misfit(rows: int, width: int) -> str:
    """Why the kernels do not take these sizes; empty if they do."""
    if width % COLUMNS:
        return f"{width} columns; they take multiples of {COLUMNS}"
    even = rows % ROWS == 0 or (16 <= rows < ROWS and rows & (rows - 1) == 0)
    return "" if even else f"{rows} rows; they take multiples of {ROWS}, or 16, 32 or 64"


TRIED = (F32,)  # types that `trial` compares


def trial(dtype: Any) -> Iterator[common.Pair]:
    """(result, expected) of every kernel on small inputs; float32 only."""
    keys = jax.random.split(jax.random.key(2), 2)
    scale, bias = jax.random.normal(keys[0], (2, 64))
    for rows in (128, 2 * ROWS):
        x, d = jax.random.normal(keys[1], (2, 2, rows, 64))
        wanted, gradient = jax.vjp(plain, scale, bias, x)
        got, fused = jax.vjp(batch_norm_elu, scale, bias, x)
        by = (d, *map(jnp.zeros_like, wanted[1:]))
        yield (got, fused(by)), (wanted, gradient(by))
