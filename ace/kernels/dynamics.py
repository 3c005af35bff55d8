"""A step of the learned model where nothing learns, as in plans: the GRU with its products in one
kernel, the projector in another. What lies between their products never goes through memory.

Both compute in bf16 and sum in float32.
"""

# pyright: reportCallIssue=false

import functools
import operator
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ace.kernels import common, gru
from ace.kernels.common import ACTIVATIONS, F32, fma, launch, pallas, wide

BF16 = jnp.bfloat16
MOST, FEWEST = 64, 16  # rows of a program
BUSY = 2048  # rows of all lanes that make enough programs of the larger kind
CHUNK = 64  # hidden units of the projector in hand at a time
WARPS = 4


def plain_step(z, a, b, wi, wh, scale, bias) -> jax.Array:
    """The new belief [n, D] of latents, actions and beliefs; an old belief may be None, and rows of
    the matrix that no action dimension meets do not count."""
    x = jnp.concatenate([z, a.astype(z.dtype)], -1).astype(F32)
    parts = jnp.split(x @ wi[: x.shape[-1]].astype(F32), 3, -1)
    if b is not None:
        reset, update, new = jnp.split(b.astype(F32) @ wh.astype(F32), 3, -1)
        parts = [parts[0] + reset, parts[1] + update, parts[2], new]
    return gru.plain(parts, b, scale, bias).astype(z.dtype)


def plain_project(b, w, factor, offset, out, c) -> jax.Array:
    """The new latent [n, Z]: elu(b w * factor + offset) out + c."""
    h = ACTIVATIONS["elu"][0]((b.astype(F32) @ w.astype(F32)) * factor + offset)
    return (h.astype(b.dtype).astype(F32) @ out.astype(F32) + c).astype(b.dtype)


def _dot(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.dot(x, w, preferred_element_type=F32)


def _pieces(size: int) -> Iterator[slice]:
    """A number of columns, cut into powers of two: nothing else can be in hand."""
    start = 0
    while start < size:
        piece = 1 << ((size - start).bit_length() - 1)
        yield slice(start, start + piece)
        start += piece


def _each(rows: int) -> int:
    """Rows of a program: few if there would be too few programs to keep a card busy."""
    each = MOST if common.LANES.get() * rows >= BUSY else FEWEST
    return max(FEWEST, min(each, 1 << (rows - 1).bit_length()))


class _Rows:
    """Rows of one program; what lies past the last row or column is read as zero, not written."""

    def __init__(self, each: int, rows: int):
        self.count = each
        at = pallas().program_id(0) * each + jnp.arange(each)
        self.real = None if rows % each == 0 else (at < rows)[:, None]

    def read(self, ref: Any, columns: slice, width: int, *lead: Any) -> jax.Array:
        """Some columns of an array that really has so many."""
        from jax.experimental.pallas import triton

        size = columns.stop - columns.start
        if ref.shape[-2] == 1:  # the same for all
            return jnp.broadcast_to(ref[0, columns], (self.count, size))
        real = self.real
        if columns.stop > width:
            inside = (columns.start + jnp.arange(size) < width)[None]
            real = inside if real is None else real & inside
        if real is not None:
            real = jnp.broadcast_to(real, (self.count, size))
        at = ref.at[(*lead, slice(None), pallas().ds(columns.start, size))]
        return triton.load(at, mask=real, other=None if real is None else 0).astype(BF16)

    def write(self, ref: Any, x: jax.Array) -> None:
        from jax.experimental.pallas import triton

        real = None if self.real is None else jnp.broadcast_to(self.real, x.shape)
        triton.store(ref.at[...], x.astype(ref.dtype), mask=real)


def believe(z, actions, t, *args: Any) -> jax.Array:
    """`plain_step` with the actions of step t of [H, n, A], which taken out beforehand would cost a
    kernel of their own; a single latent is that of all rows."""
    return _believe(_each(actions.shape[1]), z, actions, jnp.asarray(t, jnp.int32)[None], *args)


@functools.partial(jax.jit, static_argnums=0)
def _believe(each: int, z, actions, t, b, wi, wh, scale, bias) -> jax.Array:
    pl = pallas()
    (count, latent), (steps, rows, size), width = z.shape, actions.shape, wh.shape[0]
    old = [] if b is None else [b]

    def kernel(z, actions, t, wi, wh, scale, bias, *refs):
        *old, out = refs
        here = _Rows(each, rows)
        inputs = [
            (here.read(x, at, real, *step), start + at.start, start + at.stop)
            for x, start, real, *step in ((z, 0, latent), (actions, latent, size, t[0]))
            for at in _pieces(x.shape[-1])
        ]
        old = [here.read(b, slice(0, width), width) for b in old]

        def product(k: int) -> jax.Array:
            columns = slice(k * width, (k + 1) * width)
            parts = [_dot(x, wi[start:stop, columns]) for x, start, stop in inputs]
            return functools.reduce(operator.add, parts)

        def hidden(k: int) -> list[jax.Array]:
            return [_dot(b, wh[:, k * width : (k + 1) * width]) for b in old]

        def gate(k: int, x: jax.Array, function: Any) -> jax.Array:
            unit = common.standardised(x, gru.EPS)[0]
            return function(fma(unit, scale[k, :], bias[k, :]), BF16)

        new = product(2)
        for candidate in hidden(2):
            reset = gate(0, sum(hidden(0), product(0)), common.sigmoid)
            new = fma(reset, candidate, new)
        new = gate(2, new, common.tanh)
        update = gate(1, sum(hidden(1), product(1)), common.sigmoid)
        belief = update * new
        for x in old:
            x = wide(x)
            belief = fma(update, new - x, x)
        here.write(out, belief)

    def tile(width: int) -> Any:
        return pl.BlockSpec((each, width), lambda i: (i, 0))

    def whole(x: jax.Array) -> Any:
        return pl.BlockSpec(x.shape, lambda i: (0, 0))

    weights = wi, wh, scale, bias
    return launch(
        kernel,
        "believe",
        warps=WARPS,
        grid=(-(-rows // each),),
        in_specs=[
            tile(latent) if count == rows else whole(z),
            # Wider than the array: JAX refuses a slice beyond a block, though it is masked.
            pl.BlockSpec((steps, each, wi.shape[0] - latent), lambda i: (0, i, 0)),
            pl.BlockSpec((1,), lambda i: (0,)),
            *[whole(w) for w in weights],
            *[tile(width) for _ in old],
        ],
        out_specs=tile(width),
        out_shape=jax.ShapeDtypeStruct((rows, width), z.dtype),
    )(z, actions, t, *weights, *old)


def project(b, *args: Any) -> jax.Array:
    """`plain_project` of rows: the hidden layer is made and used up chunk by chunk."""
    return _project(_each(b.shape[0]), b, *args)


@functools.partial(jax.jit, static_argnums=0)
def _project(each: int, b, w, factor, offset, out, c) -> jax.Array:
    pl = pallas()
    (rows, width), (hidden, latent) = b.shape, out.shape

    def kernel(b, w, factor, offset, out, c, z):
        here = _Rows(each, rows)
        x = here.read(b, slice(0, width), width)

        def some(i: jax.Array, total: jax.Array) -> jax.Array:
            at = pl.ds(i * CHUNK, CHUNK)
            h = fma(_dot(x, w[:, at]), factor[at], offset[at])
            h = ACTIVATIONS["elu"][1](h, BF16)[0].astype(out.dtype)
            return total + _dot(h, out[at, :])

        zero = jnp.zeros((each, latent), F32)
        here.write(z, jax.lax.fori_loop(0, hidden // CHUNK, some, zero) + c[...])

    def whole(x: jax.Array) -> Any:
        return pl.BlockSpec(x.shape, lambda i: (0,) * x.ndim)

    weights = w, factor, offset, out, c
    return launch(
        kernel,
        "project",
        warps=WARPS,
        stages=3,
        grid=(-(-rows // each),),
        in_specs=[pl.BlockSpec((each, width), lambda i: (i, 0)), *[whole(w) for w in weights]],
        out_specs=pl.BlockSpec((each, latent), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, latent), b.dtype),
    )(b, *weights)


def possible(rows: int, latent: int, action: int, belief: int, hidden: int, dtype: Any) -> bool:
    """Whether the kernels can hold such sizes, in the memory of a multiprocessor too."""
    even = latent in (16, 32, 64, 128) and action % 16 == 0 and belief == 128
    return dtype == BF16 and rows >= 16 and even and hidden % CHUNK == 0


def trial(dtype: Any) -> Iterator[common.Pair]:
    """What both kernels give for a few numbers, and what they should give; only in bf16."""
    if dtype != BF16:
        return
    keys = iter(jax.random.split(jax.random.key(3), 9))

    def some(*shape: int) -> jax.Array:
        return (jax.random.normal(next(keys), shape) / 4).astype(dtype)

    z, actions, b, wi, wh = (
        some(80, 64),
        some(2, 80, 12).astype(F32),
        some(80, 128),
        some(80, 384),
        some(128, 384),
    )
    scale, bias = jax.random.normal(next(keys), (2, 3, 128))
    for latents, old in ((z, b), (z[:1], None)):
        given = jnp.broadcast_to(latents, z.shape), actions[1], old
        wanted = plain_step(*given, wi, wh, scale, bias)
        yield believe(latents, actions, 1, old, wi, wh, scale, bias), wanted
    args = b, some(128, 256), *jax.random.normal(next(keys), (2, 256)), some(256, 64), scale[0, :64]
    yield project(*args), plain_project(*args)
