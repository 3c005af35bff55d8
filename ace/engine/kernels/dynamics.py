"""One step of the learned model without gradients, as in plans: the GRU and the projector with
their matrix products in one kernel, so that intermediate results never go through memory.

It computes in bf16 and accumulates in float32.
"""

# pyright: reportCallIssue=false

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ace.engine.kernels import common, gru
from ace.engine.kernels.common import ACTIVATIONS, F32, fma, launch, pallas, tile, whole, wide
from ace.method.nets import elu

BF16 = jnp.bfloat16
MOST, FEWEST = 64, 16  # rows of a thread block
BUSY = 2048  # rows over all lanes for which large thread blocks are enough to fill a GPU
CHUNK = 64  # hidden units of the projector per loop iteration
WARPS, STAGES = 4, 3


def plain_step(z, a, b, keep, wi, wh, scale, bias, w_in, factor, offset, w_out, c):
    """New latents [n, Z] and beliefs [n, D] from latents, actions and old beliefs, which may be
    None; rows of `wi` past the action's dimensions are padding.

    The latent is elu(b w_in * factor + offset) w_out + c + keep z.
    """
    x = jnp.concatenate([z, a.astype(z.dtype)], -1).astype(F32)
    parts = jnp.split(x @ wi[: x.shape[-1]].astype(F32), 3, -1)
    if b is not None:
        reset, update, new = jnp.split(b.astype(F32) @ wh.astype(F32), 3, -1)
        parts = [parts[0] + reset, parts[1] + update, parts[2], new]
    b = gru.plain(parts, b, scale, bias).astype(z.dtype)
    h = elu((b.astype(F32) @ w_in.astype(F32)) * factor + offset)
    change = h.astype(b.dtype).astype(F32) @ w_out.astype(F32) + c
    return (change + keep * z.astype(F32)).astype(b.dtype), b


def dot(x: jax.Array, w: jax.Array) -> jax.Array:
    """x w, accumulated in float32."""
    return jnp.dot(x, w, preferred_element_type=F32)


def _pieces(size: int) -> Iterator[slice]:
    """Slices of `size` columns, each a power of two wide: Triton allows no other shapes."""
    start = 0
    while start < size:
        piece = 1 << ((size - start).bit_length() - 1)
        yield slice(start, start + piece)
        start += piece


def rows_each(rows: int) -> int:
    """Rows of a thread block: few where large blocks would be too few to fill a GPU."""
    each = MOST if common.LANES.get() * rows >= BUSY else FEWEST
    return max(FEWEST, min(each, 1 << (rows - 1).bit_length()))


def trial_rows() -> Iterator[int]:
    """Rows of a trial: for small thread blocks, then for large ones that reach past the last."""
    for lanes, rows in ((1, 80), (BUSY, 72)):
        with common.lanes(lanes):
            yield rows


class Rows:
    """The rows of one thread block; past the last row or column, reads are zero, writes masked."""

    def __init__(self, each: int, rows: int):
        self.count = each
        at = pallas().program_id(0) * each + jnp.arange(each)
        self.real = None if rows % each == 0 else (at < rows)[:, None]

    def read(self, ref: Any, columns: slice, width: int, *lead: Any) -> jax.Array:
        """Some columns of an array `width` columns wide; `lead` indexes its leading axes."""
        from jax.experimental.pallas import triton

        size = columns.stop - columns.start
        if ref.shape[-2] == 1:  # one row for all
            return jnp.broadcast_to(ref[0, columns], (self.count, size))
        real = self.real
        if columns.stop > width:
            inside = (columns.start + jnp.arange(size) < width)[None]
            real = inside if real is None else real & inside
        if real is not None:
            real = jnp.broadcast_to(real, (self.count, size))
        at = ref.at[(*lead, slice(None), pallas().ds(columns.start, size))]
        return triton.load(at, mask=real, other=None if real is None else 0).astype(BF16)

    def read_at(self, ref: Any, columns: Any) -> jax.Array:
        """Some columns, all inside the array."""
        from jax.experimental.pallas import triton

        at = ref.at[:, columns]
        if self.real is None:
            return triton.load(at)
        return triton.load(at, mask=jnp.broadcast_to(self.real, at.shape), other=0)

    def write(self, ref: Any, x: jax.Array, columns: Any = slice(None)) -> None:
        """Write the rows that exist, or some of their columns."""
        from jax.experimental.pallas import triton

        real = None if self.real is None else jnp.broadcast_to(self.real, x.shape)
        triton.store(ref.at[:, columns], x.astype(ref.dtype), mask=real)


def step(z, actions, t, b, keep, *weights: Any) -> tuple[jax.Array, jax.Array]:
    """`plain_step` with step t of actions [H, n, A]: slicing them beforehand would cost another
    kernel. A single latent [1, Z] serves all rows; `weights` are the cell's, then the
    projector's."""
    t, keep = jnp.asarray(t, jnp.int32)[None], jnp.asarray(keep, F32)[None]
    return _step(rows_each(actions.shape[1]), z, actions, t, b, keep, *weights)


@functools.partial(jax.jit, static_argnums=0)
def _step(each: int, z, actions, t, b, keep, *weights: Any):
    pl = pallas()
    wi, wh, *_, w_out, _ = weights
    (count, latent), (steps, rows, size), width = z.shape, actions.shape, wh.shape[0]
    hidden, old = w_out.shape[0], [] if b is None else [b]

    def kernel(z, actions, t, keep, wi, wh, scale, bias, w_in, factor, offset, w_out, c, *refs):
        *old, z_out, b_out = refs
        here = Rows(each, rows)
        inputs = [
            (here.read(x, at, real, *step), start + at.start, start + at.stop)
            for x, start, real, *step in ((z, 0, latent), (actions, latent, size, t[0]))
            for at in _pieces(x.shape[-1])
        ]
        old = [here.read(b, slice(0, width), width) for b in old]

        # This order needs few registers: each product accumulates into `start`.
        def gate(k: int, start: Any, function: Any) -> jax.Array:
            columns = slice(k * width, (k + 1) * width)
            for x, first, last in inputs:
                start = start + dot(x, wi[first:last, columns])
            unit = common.standardised(start, gru.EPS)[0]
            return function(fma(unit, scale[k, :], bias[k, :]), BF16)

        def from_old(k: int) -> Any:
            return sum(dot(b, wh[:, k * width : (k + 1) * width]) for b in old)

        candidate = from_old(2)
        if old:
            candidate = gate(0, from_old(0), common.sigmoid) * candidate
        new = gate(2, candidate, common.tanh)
        update = gate(1, from_old(1), common.sigmoid)
        belief = update * new
        for x in old:
            x = wide(x)
            belief = fma(update, new - x, x)
        belief = belief.astype(BF16)
        here.write(b_out, belief)

        def some(i: jax.Array, total: jax.Array) -> jax.Array:
            """Add the part of the output that comes from CHUNK hidden units of the projector."""
            at = pl.ds(i * CHUNK, CHUNK)
            h = fma(dot(belief, w_in[:, at]), factor[at], offset[at])
            h = ACTIVATIONS["elu"](h, BF16)[0].astype(BF16)
            return total + dot(h, w_out[at, :])

        zero = jnp.zeros((each, latent), F32)
        change = jax.lax.fori_loop(0, hidden // CHUNK, some, zero) + c[...]
        # Load the latent again: kept across the loop it would make registers spill.
        old_z = wide(here.read(z, slice(0, latent), latent))
        here.write(z_out, fma(keep[0], old_z, change))

    return launch(
        kernel,
        "step",
        warps=WARPS,
        stages=STAGES,
        grid=(-(-rows // each),),
        in_specs=[
            tile(each, latent) if count == rows else whole(z),
            # The block is wider than the array: JAX refuses a slice beyond a block, even masked.
            pl.BlockSpec((steps, each, wi.shape[0] - latent), lambda i: (0, i, 0)),
            *[pl.BlockSpec((1,), lambda i: (0,))] * 2,
            *[whole(w) for w in weights],
            *[tile(each, width) for _ in old],
        ],
        out_specs=[tile(each, latent), tile(each, width)],
        out_shape=[jax.ShapeDtypeStruct((rows, n), z.dtype) for n in (latent, width)],
    )(z, actions, t, keep, *weights, *old)


def misfit(rows: int, latent: int, action: int, belief: int, hidden: int, dtype: Any) -> str:
    """Why the kernel does not take these sizes, shared memory included; empty if it does."""
    if dtype != BF16:
        return f"{jnp.dtype(dtype).name}; it computes in bfloat16"
    if latent not in (16, 32, 64, 128):
        return f"a latent of {latent}; it takes 16, 32, 64 or 128"
    if belief != 128:
        return f"a belief of {belief}; it takes 128"
    if action % 16:
        return f"{action} rows for actions; it takes multiples of 16"
    if hidden % CHUNK:
        return f"{hidden} hidden units; it takes multiples of {CHUNK}"
    return "" if rows >= 16 else f"{rows} rows; it takes 16 or more"


TRIED = (BF16,)  # types that `trial` compares


def trial(dtype: Any) -> Iterator[common.Pair]:
    """(result, expected) of the kernel on small inputs; bf16 only."""
    some = common.draws(3, 9, dtype)
    z, actions, b = some(80, 64), some(2, 80, 12).astype(F32), some(80, 128)
    scale, bias = 4 * some(2, 3, 128, dtype=F32)
    cell = some(80, 384), some(128, 384), scale, bias
    projector = some(128, 256), *(4 * some(2, 256, dtype=F32)), some(256, 64)
    weights = *cell, *projector, scale[0, :64]
    for rows in trial_rows():
        cut = z[:rows], actions[:, :rows], b[:rows]
        for latents, old in ((cut[0], cut[2]), (z[:1], None)):
            given = jnp.broadcast_to(latents, cut[0].shape), cut[1][1], old
            last = 0.5, *weights  # `keep` and the weights
            yield step(latents, cut[1], 1, old, *last), plain_step(*given, *last)
