"""Layers without gradients, as in plans and targets: a narrow product fused with its activation,
and an activation fused with the narrow product after it. The wide array goes through memory once
instead of three times.

Both compute in bf16 and accumulate in float32. Where gradients are needed, the separate parts run:
the backward pass needs the array between them.
"""

# pyright: reportCallIssue=false

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ace.engine.kernels import common
from ace.engine.kernels.common import ACTIVATIONS, F32, launch, pallas, tile, whole, wide
from ace.engine.kernels.dynamics import BF16, Rows, dot, rows_each, trial_rows
from ace.method.nets import elu

IN_CHUNK, OUT_CHUNK = 64, 128  # columns of the wide side per loop iteration
WARPS, STAGES = 4, 3


def plain_widen(x, w, b) -> jax.Array:
    """elu(x w + b) in the type of x."""
    return elu(x.astype(F32) @ w.astype(F32) + b).astype(x.dtype)


def plain_narrow(x, b, w) -> jax.Array:
    """elu(x + b) w in float32."""
    y = elu(x.astype(F32) + b).astype(x.dtype)
    return y.astype(F32) @ w.astype(F32)


def widen(x, w, b) -> jax.Array:
    """`plain_widen` of rows [n, K] to [n, W]."""
    return _widen(rows_each(x.shape[0]), x, w, b)


@functools.partial(jax.jit, static_argnums=0)
def _widen(each: int, x, w, b) -> jax.Array:
    pl = pallas()
    (rows, inner), width = x.shape, w.shape[1]

    def kernel(x, w, b, y):
        here = Rows(each, rows)
        given = here.read(x, slice(0, inner), inner)

        def some(i: jax.Array, _: None) -> None:
            at = pl.ds(i * IN_CHUNK, IN_CHUNK)
            h = ACTIVATIONS["elu"](dot(given, w[:, at]) + b[at], BF16)[0]
            here.write(y, h, at)

        jax.lax.fori_loop(0, width // IN_CHUNK, some, None)

    return _over_rows(kernel, "widen", each, width, x.dtype, x, w, b)


def narrow(x, b, w) -> jax.Array:
    """`plain_narrow` of rows [n, W] to [n, A]."""
    return _narrow(rows_each(x.shape[0]), x, b, w)


@functools.partial(jax.jit, static_argnums=0)
def _narrow(each: int, x, b, w) -> jax.Array:
    pl = pallas()
    (rows, width), outer = x.shape, w.shape[1]

    def kernel(x, b, w, y):
        here = Rows(each, rows)

        def some(i: jax.Array, total: jax.Array) -> jax.Array:
            at = pl.ds(i * OUT_CHUNK, OUT_CHUNK)
            h = ACTIVATIONS["elu"](wide(here.read_at(x, at)) + b[at], BF16)[0]
            return total + dot(h.astype(BF16), w[at, :])

        zero = jnp.zeros((each, outer), F32)
        here.write(y, jax.lax.fori_loop(0, width // OUT_CHUNK, some, zero))

    return _over_rows(kernel, "narrow", each, outer, F32, x, b, w)


def _over_rows(kernel, name: str, each: int, width: int, dtype: Any, x, *weights) -> jax.Array:
    """Launch a kernel over the rows of x; every thread block reads all weights."""
    return launch(
        kernel,
        name,
        warps=WARPS,
        stages=STAGES,
        grid=(-(-x.shape[0] // each),),
        in_specs=[tile(each, x.shape[1]), *map(whole, weights)],
        out_specs=tile(each, width),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], width), dtype),
    )(x, *weights)


def misfit(rows: int, slim: int, width: int, dtype: Any) -> str:
    """Why the kernels do not take these sizes; empty if they do."""
    if dtype != BF16:
        return f"{jnp.dtype(dtype).name}; they compute in bfloat16"
    if slim not in (16, 32, 64, 128):
        return f"a narrow side of {slim}; they take 16, 32, 64 or 128"
    if width % OUT_CHUNK:
        return f"a wide side of {width}; they take multiples of {OUT_CHUNK}"
    return "" if rows >= 16 else f"{rows} rows; they take 16 or more"


TRIED = (BF16,)  # types that `trial` compares


def trial(dtype: Any) -> Iterator[common.Pair]:
    """(result, expected) of both kernels on small inputs; bf16 only."""
    some = common.draws(4, 5, dtype)
    b = 4 * some(256, dtype=F32)
    x, w = some(80, 64), some(64, 256)
    y, out = some(80, 256), some(256, 16)
    for rows in trial_rows():
        yield widen(x[:rows], w, b), plain_widen(x[:rows], w, b)
        yield narrow(y[:rows], b, out), plain_narrow(y[:rows], b, out)
