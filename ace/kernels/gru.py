"""The gates of a GRU with layer norms, between its matrix product and its new belief."""

# pyright: reportCallIssue=false

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ace.kernels import common
from ace.kernels.common import F32, launch, normed, pallas, through_norm

EPS = 1e-3
TILE = 8  # rows of a program


def gates(g, scale, bias) -> tuple:
    """Reset, update and candidate gates of rows, with what their gradients need.

    `g` are the sums of input and hidden parts for reset and update, and the input part of the
    candidate; with a belief also the candidate's hidden part, which the reset gate multiplies.
    """
    units, rstd = zip(*(normed(g[k], EPS) for k in (0, 1)), strict=True)
    reset, update = (jax.nn.sigmoid(units[k] * scale[k] + bias[k]) for k in (0, 1))
    last, last_rstd = normed(g[2] + reset * g[3] if len(g) == 4 else g[2], EPS)
    new = jnp.tanh(last * scale[2] + bias[2])
    return reset, update, new, (*units, last), (*rstd, last_rstd)


def plain(g: Sequence[jax.Array], b: jax.Array | None, scale, bias) -> jax.Array:
    """The new belief [..., D] from the parts of `gates`; three where there is no old belief."""
    _, update, new, *_ = gates([x.astype(F32) for x in g], scale, bias)
    belief = update * new if b is None else update * new + (1 - update) * b
    return belief.astype(g[0].dtype)


@jax.custom_vjp
def gru_gates(g, b, scale, bias) -> jax.Array:
    """`plain` of rows in one kernel: g [n, 4 D] and b [n, D], or g [n, 3 D] and None."""
    return fused_gru(g, b, scale, bias)


def _keep(g, b, scale, bias) -> tuple[jax.Array, tuple]:
    return gru_gates(g, b, scale, bias), (g, b, scale, bias)


def _gradients(kept: tuple, d: jax.Array) -> tuple:
    dg, db, sums = fused_gru_gradient(*kept, d)
    return dg, db, sums[:3], sums[3:]


gru_gates.defvjp(_keep, _gradients)


def _columns(ref: Any, width: int) -> list[jax.Array]:
    """The gates of a block [n, 3 D or 4 D]."""
    count = ref.shape[-1] // width
    return [ref[:, k * width : (k + 1) * width].astype(F32) for k in range(count)]


def _weights(scale: Any, bias: Any) -> tuple[list, list]:
    return [scale[k, :] for k in range(3)], [bias[k, :] for k in range(3)]


@jax.jit
def fused_gru(g, b, scale, bias) -> jax.Array:
    """The kernel of the forward pass."""
    pl = pallas()
    rows, width = g.shape[0], scale.shape[-1]

    def kernel(g, scale, bias, *refs):
        *old, out = refs
        _, update, new, *_ = gates(_columns(g, width), *_weights(scale, bias))
        belief = update * new
        for b in old:
            belief += (1 - update) * b[...].astype(F32)
        out[...] = belief.astype(out.dtype)

    block = functools.partial(pl.BlockSpec, index_map=lambda n: (n, 0))
    whole, tile = pl.BlockSpec((3, width), lambda n: (0, 0)), block((TILE, width))
    old = [] if b is None else [b]
    return launch(
        kernel,
        "gru",
        warps=4,
        grid=(rows // TILE,),
        in_specs=[block((TILE, g.shape[1])), whole, whole, *[tile for _ in old]],
        out_specs=tile,
        out_shape=jax.ShapeDtypeStruct((rows, width), g.dtype),
    )(g, scale, bias, *old)


@jax.jit
def fused_gru_gradient(g, b, scale, bias, d) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    """The kernel of the backward pass: gradients of g and b, and sums for scale and bias."""
    pl = pallas()
    rows, width = g.shape[0], scale.shape[-1]
    programs = rows // TILE

    def kernel(g, scale, bias, d, *refs):
        factors, offsets = _weights(scale, bias)
        parts, d32 = _columns(g, width), d[...].astype(F32)
        reset, update, new, units, rstd = gates(parts, factors, offsets)
        by_new = d32 * update * (1 - new * new)
        inside = through_norm(by_new * factors[2], units[2], rstd[2])
        if len(parts) == 4:
            b, dg, sums, db = refs
            by_reset = inside * parts[3] * reset * (1 - reset)
            by_update = d32 * (new - b[...].astype(F32)) * update * (1 - update)
            db[...] = (d32 * (1 - update)).astype(db.dtype)
            dg[:, 3 * width : 4 * width] = (inside * reset).astype(dg.dtype)
        else:
            dg, sums = refs
            by_reset, by_update = jnp.zeros_like(inside), d32 * new * update * (1 - update)
        for k, by in enumerate((by_reset, by_update, by_new)):
            into = inside if k == 2 else through_norm(by * factors[k], units[k], rstd[k])
            dg[:, k * width : (k + 1) * width] = into.astype(dg.dtype)
            sums[k, :] = (by * units[k]).sum(0)
            sums[3 + k, :] = by.sum(0)

    block = functools.partial(pl.BlockSpec, index_map=lambda n: (n, 0))
    whole, tile = pl.BlockSpec((3, width), lambda n: (0, 0)), block((TILE, width))
    wide, old = block((TILE, g.shape[1])), [] if b is None else [b]
    dg, sums, *db = launch(
        kernel,
        "gru_gradient",
        warps=4,
        grid=(programs,),
        in_specs=[wide, whole, whole, tile, *[tile for _ in old]],
        out_specs=[
            wide,
            pl.BlockSpec((None, 6, width), lambda n: (n, 0, 0)),
            *[tile for _ in old],
        ],
        out_shape=[
            jax.ShapeDtypeStruct(g.shape, g.dtype),
            jax.ShapeDtypeStruct((programs, 6, width), F32),
            *[jax.ShapeDtypeStruct(b.shape, b.dtype) for b in old],
        ],
    )(g, scale, bias, d, *old)
    return dg, db[0] if db else None, sums.sum(0)


def possible(rows: int, width: int) -> bool:
    """Whether the kernels divide the work evenly."""
    return rows % TILE == 0 and width in (128, 256)


def trial() -> Iterator[common.Pair]:
    """What every kernel gives for a few numbers, and what it should give."""
    keys = jax.random.split(jax.random.key(1), 4)
    b, d = jax.random.normal(keys[0], (2, 64, 128))
    scale, bias = jax.random.normal(keys[1], (2, 3, 128))
    for parts, old in ((3, None), (4, b)):
        g = jax.random.normal(keys[parts - 1], (64, parts * 128))
        wanted, gradient = jax.vjp(functools.partial(_plain_rows, parts), g, old, scale, bias)
        got, fused = jax.vjp(gru_gates, g, old, scale, bias)
        yield (got, fused(d)), (wanted, gradient(d))


def _plain_rows(parts: int, g, b, scale, bias) -> jax.Array:
    return plain(jnp.split(g, parts, -1), b, scale, bias)
