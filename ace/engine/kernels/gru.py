"""The gates of a GRU with layer norms, between its matrix product and its new belief."""

# pyright: reportCallIssue=false

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ace.engine.kernels import common
from ace.engine.kernels.common import (
    F32,
    fma,
    launch,
    pallas,
    sigmoid,
    standardised,
    tanh,
    through_norm,
    walk,
    wide,
)
from ace.method.nets import GRU_EPS as EPS
from ace.method.nets import gru_gates as plain

TILE = 8  # rows of a thread block
HAND = 256  # numbers of a gate per loop iteration: more would take too many registers


def gates(g, scale, bias) -> tuple:
    """Inside a kernel: reset, update and candidate; their normed inputs; the norms' rstd."""
    dtype, (r, u, n, *hidden) = g[0].dtype, map(wide, g)

    def gate(k, x, function):
        unit, _, rstd = standardised(x, EPS)
        return function(fma(unit, scale[k], bias[k]), dtype), unit, rstd

    reset, update = gate(0, r, sigmoid), gate(1, u, sigmoid)
    new = gate(2, fma(reset[0], hidden[0], n) if hidden else n, tanh)
    return tuple(zip(reset, update, new, strict=True))


@jax.custom_vjp
def gru_gates(g, b, scale, bias) -> jax.Array:
    """`plain` of rows in one kernel: g [n, 4 D] and b [n, D], or g [n, 3 D] and None."""
    return fused_gru(g, b, scale, bias)


def _keep(g, b, scale, bias) -> tuple[jax.Array, tuple]:
    return gru_gates(g, b, scale, bias), (g, b, scale, bias)


def _gradients(kept: tuple, d: jax.Array) -> tuple:
    dg, db, sums = fused_gru_gradient(*kept, d)
    return dg, db, *sums


gru_gates.defvjp(_keep, _gradients)


def _weights(scale: Any, bias: Any) -> tuple[list, list]:
    return [scale[k, :] for k in range(3)], [bias[k, :] for k in range(3)]


def _specs(g: jax.Array, width: int) -> tuple:
    """Block specs: of each gate in g, of all gates, of a belief, and of the weights."""
    pl = pallas()
    parts = [pl.BlockSpec((TILE, width), lambda n, k=k: (n, k)) for k in range(g.shape[1] // width)]
    wide = pl.BlockSpec((TILE, g.shape[1]), lambda n: (n, 0))
    return parts, wide, parts[0], pl.BlockSpec((3, width), lambda n: (0, 0))


@jax.jit
def fused_gru(g, b, scale, bias) -> jax.Array:
    """The kernel of the forward pass."""
    rows, width = g.shape[0], scale.shape[-1]
    (parts, _, tile, whole), hand = _specs(g, width), HAND // width
    old = [] if b is None else [b]

    def kernel(scale, bias, *refs):
        *refs, out = refs
        weights = _weights(scale, bias)

        def some(at, rows, _):
            (_, update, new), *_ = gates(rows[: len(parts)], *weights)
            belief = update * new
            for b in rows[len(parts) :]:
                b = wide(b)
                belief = fma(update, new - b, b)
            out[at] = belief.astype(out.dtype)
            return ()

        walk(TILE // hand, hand, refs, some)

    return launch(
        kernel,
        "gru",
        warps=1,
        grid=(rows // TILE,),
        in_specs=[whole, whole, *parts, *[tile for _ in old]],
        out_specs=tile,
        out_shape=jax.ShapeDtypeStruct((rows, width), g.dtype),
    )(scale, bias, *[g] * len(parts), *old)


@jax.jit
def fused_gru_gradient(g, b, scale, bias, d) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    """The kernel of the backward pass: gradients of g and b, and of scale and bias [2, 3, D]."""
    pl = pallas()
    rows, width = g.shape[0], scale.shape[-1]
    (parts, all_parts, tile, whole), hand = _specs(g, width), HAND // width
    old = [] if b is None else [b]
    used = range(0 if old else 1, 3)  # without an old belief the reset gate does nothing
    sums = (None, 2 * len(used), width)

    def kernel(scale, bias, *refs):
        given = len(parts) + 1 + len(old)
        inputs, (dg, sums, *db) = refs[:given], refs[given:]
        factors, offsets = _weights(scale, bias)

        def some(at, rows, totals):
            g, (d, *old) = rows[: len(parts)], map(wide, rows[len(parts) :])
            (reset, update, new), units, rstd = gates(g, factors, offsets)

            def before_norm(k, by):
                return through_norm(by * factors[k], units[k], rstd[k])

            through, past = d * update, d * (1 - update)
            by = {1: past * update * (new - old[0] if old else new), 2: through * (1 - new * new)}
            into = {1: before_norm(1, by[1]), 2: before_norm(2, by[2])}
            if old:
                db[0][at] = past.astype(db[0].dtype)
                into[3] = into[2] * reset
                by[0] = into[3] * (1 - reset) * wide(g[3])
                into[0] = before_norm(0, by[0])
            for k in range(len(parts)):
                gradient = into.get(k, jnp.zeros_like(d))
                dg[at, k * width : (k + 1) * width] = gradient.astype(dg.dtype)
            by_scale, by_bias = totals
            return (
                [fma(by[k], units[k], t) for k, t in zip(used, by_scale, strict=True)],
                [by[k] + t for k, t in zip(used, by_bias, strict=True)],
            )

        zeros = [jnp.zeros((hand, width), F32) for _ in used]
        by_scale, by_bias = walk(TILE // hand, hand, inputs, some, (zeros, zeros))
        for k, total in enumerate([*by_scale, *by_bias]):
            sums[k, :] = total.sum(0)

    dg, sums, *db = launch(
        kernel,
        "gru_gradient",
        warps=1,
        grid=(rows // TILE,),
        in_specs=[whole, whole, *parts, tile, *[tile for _ in old]],
        out_specs=[all_parts, pl.BlockSpec(sums, lambda n: (n, 0, 0)), *[tile for _ in old]],
        out_shape=[
            jax.ShapeDtypeStruct(g.shape, g.dtype),
            jax.ShapeDtypeStruct((rows // TILE, *sums[1:]), F32),
            *[jax.ShapeDtypeStruct(b.shape, b.dtype) for b in old],
        ],
    )(scale, bias, *[g] * len(parts), d, *old)
    sums = sums.sum(0).reshape(2, len(used), width)
    return dg, db[0] if db else None, jnp.pad(sums, ((0, 0), (used[0], 0), (0, 0)))


def misfit(rows: int, width: int) -> str:
    """Why the kernels do not take these sizes; empty if they do."""
    if width not in (128, 256):
        return f"a belief of {width}; they take 128 or 256"
    return "" if rows % TILE == 0 else f"{rows} rows; they take multiples of {TILE}"


TRIED = (F32, jnp.bfloat16)  # types that `trial` compares


def trial(dtype: Any) -> Iterator[common.Pair]:
    """(result, expected) on small inputs; in bf16 only the forward pass with an old belief."""
    keys = jax.random.split(jax.random.key(1), 4)
    b, d = jax.random.normal(keys[0], (2, 64, 128), dtype)
    scale, bias = jax.random.normal(keys[1], (2, 3, 128))
    for parts, old in ((3, None), (4, b)):
        g = jax.random.normal(keys[parts - 1], (64, parts * 128), dtype)
        args = g, old, scale, bias
        if dtype == F32:
            wanted, gradient = jax.vjp(functools.partial(_plain_rows, parts), *args)
            got, fused = jax.vjp(gru_gates, *args)
            yield (got, fused(d)), (wanted, gradient(d))
        elif parts == 4:
            yield gru_gates(*args), _plain_rows(parts, *args)


def _plain_rows(parts: int, g, b, scale, bias) -> jax.Array:
    return plain(jnp.split(g, parts, -1), b, scale, bias)
