"""Bias, layer norm and activation of rows in one pass, alone or with the output product after them.

Forward: one read and one write; with the output product, no write but its results. Backward: input
and gradient are read once, statistics are computed again from the rows at hand, and the sums over
rows for the parameters' gradients come out of the same pass. A program walks through a few rows at
a time, and its sums stay in registers.
"""

# pyright: reportCallIssue=false

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from ace.kernels import common
from ace.kernels.common import (
    ACTIVATIONS,
    F32,
    activation,
    launch,
    normed,
    pallas,
    through_norm,
)

TILE = 16  # rows must divide by this
# Rows of a program, and rows in hand at a time.
FORWARD, BACKWARD, HEAD_BACKWARD = (16, 8), (32, 2), (64, 4)
WARPS = 2


def forward(act: str, norm: bool, x, b, scale, bias) -> jax.Array:
    """act(norm(x + b)) of rows [n, W], in float32."""
    function, _ = activation(act, x.dtype)
    x = x.astype(F32) + b
    if norm:
        x = normed(x)[0] * scale + bias
    return function(x)


def backward(
    act: str, norm: bool, x, b, scale, bias, through: Callable
) -> tuple[jax.Array, list[jax.Array]]:
    """Gradient of rows [n, W], and terms whose sums over rows are those of the parameters.

    `through` gives the gradient of the activated rows, and terms of what comes after them.
    """
    function, slope = activation(act, x.dtype)
    x = x.astype(F32) + b
    if not norm:
        y = function(x)
        dy, more = through(y)
        dx = dy * slope(y)
        return dx, [dx, *more]
    unit, rstd = normed(x)
    y = function(unit * scale + bias)
    dy, more = through(y)
    dy = dy * slope(y)
    dx = through_norm(dy * scale, unit, rstd)
    return dx, [dx, dy * unit, dy, *more]


def _walk(rows: int, sizes: tuple[int, int]) -> tuple[int, int]:
    """Rows of a program, and rows in hand at a time."""
    most, hand = sizes
    each = next(n for n in (64, 32, 16) if n <= most and rows % n == 0)
    return each, hand


# --- activated rows -------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def bias_norm_act(act: str, norm: bool, dtype: jnp.dtype, x, b, scale, bias) -> jax.Array:
    """act(norm(x + b)) of rows [n, W] in a type; without the norm if it is false."""
    return fused_forward(act, norm, dtype, x, b, scale, bias)


def _keep(act: str, norm: bool, dtype: jnp.dtype, x, b, scale, bias) -> tuple[jax.Array, tuple]:
    return bias_norm_act(act, norm, dtype, x, b, scale, bias), (x, b, scale, bias)


def _gradients(act: str, norm: bool, dtype: jnp.dtype, kept: tuple, dy: jax.Array) -> tuple:
    dx, sums = fused_backward(act, norm, *kept, dy)
    return (dx, *sums, *[jnp.zeros_like(kept[2])] * (3 - len(sums)))


bias_norm_act.defvjp(_keep, _gradients)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def fused_forward(act: str, norm: bool, dtype: jnp.dtype, x, b, scale, bias) -> jax.Array:
    """The kernel of the forward pass."""
    pl = pallas()
    rows, width = x.shape
    each, hand = _walk(rows, FORWARD)

    def kernel(x, b, scale, bias, y):
        weights = b[...], scale[...], bias[...]

        def some(i: jax.Array, _: None) -> None:
            at = pl.ds(i * hand, hand)
            y[at, :] = forward(act, norm, x[at, :], *weights).astype(y.dtype)

        jax.lax.fori_loop(0, each // hand, some, None)

    whole = pl.BlockSpec((width,), lambda i: (0,))
    block = pl.BlockSpec((each, width), lambda i: (i, 0))
    return launch(
        kernel,
        f"{'norm_' if norm else ''}{act}",
        warps=WARPS,
        grid=(rows // each,),
        in_specs=[block, whole, whole, whole],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, dtype),
    )(x, b, scale, bias)


@functools.partial(jax.jit, static_argnums=(0, 1))
def fused_backward(act: str, norm: bool, x, b, scale, bias, dy):
    """The kernel of the backward pass: gradient of x, and sums over rows for the parameters."""
    pl = pallas()
    _, width = x.shape
    count = 3 if norm else 1

    def take(dy, at):
        d = dy[at, :].astype(F32)
        return lambda y: (d, [])

    block = functools.partial(pl.BlockSpec, index_map=lambda i: (i, 0))
    given = [(dy, lambda each: block((each, width)))]
    name = f"{'norm_' if norm else ''}{act}_gradient"
    return _backward_pass(name, BACKWARD, act, norm, count, (x, b, scale, bias), given, take)


def _backward_pass(name, sizes, act, norm, count, args, given, take):
    """Walk through the rows backwards; `given` are arrays that `take` makes a gradient of."""
    pl = pallas()
    x, b, scale, bias = args
    rows, width = x.shape
    each, hand = _walk(rows, sizes)
    programs = rows // each

    def kernel(x, b, scale, bias, *refs):
        *inputs, dx, sums = refs
        weights = b[...], scale[...], bias[...]

        def some(i: jax.Array, totals: tuple) -> tuple:
            at = pl.ds(i * hand, hand)
            d, terms = backward(act, norm, x[at, :], *weights, take(*inputs, at))
            dx[at, :] = d.astype(dx.dtype)
            return tuple(t + term.sum(0) for t, term in zip(totals, terms, strict=True))

        zeros = tuple(jnp.zeros(width, F32) for _ in range(count))
        for k, total in enumerate(jax.lax.fori_loop(0, each // hand, some, zeros)):
            sums[k, :] = total

    whole = pl.BlockSpec((width,), lambda i: (0,))
    block = pl.BlockSpec((each, width), lambda i: (i, 0))
    dx, sums = launch(
        kernel,
        name,
        warps=WARPS,
        grid=(programs,),
        in_specs=[block, whole, whole, whole, *(spec(each) for _, spec in given)],
        out_specs=[block, pl.BlockSpec((None, count, width), lambda i: (i, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((programs, count, width), F32),
        ],
    )(x, b, scale, bias, *(array for array, _ in given))
    return dx, list(sums.sum(0))


# --- activated rows and their product with one column ---------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def head(act: str, norm: bool, x, b, scale, bias, w) -> jax.Array:
    """act(norm(x + b)) of rows [n, W] times w [W]: [n], float32."""
    return fused_head(act, norm, x, b, scale, bias, w)


def _head_keep(act: str, norm: bool, x, b, scale, bias, w) -> tuple[jax.Array, tuple]:
    return head(act, norm, x, b, scale, bias, w), (x, b, scale, bias, w)


def _head_gradients(act: str, norm: bool, kept: tuple, d: jax.Array) -> tuple:
    scale, w = kept[2], kept[4]
    dx, sums = fused_head_gradient(act, norm, *kept, d)
    *sums, dw = sums
    return (dx, *sums, *[jnp.zeros_like(scale)] * (3 - len(sums)), dw.astype(w.dtype))


head.defvjp(_head_keep, _head_gradients)


@functools.partial(jax.jit, static_argnums=(0, 1))
def fused_head(act: str, norm: bool, x, b, scale, bias, w) -> jax.Array:
    """The kernel of the forward pass."""
    pl = pallas()
    rows, width = x.shape
    each, hand = _walk(rows, FORWARD)

    def kernel(x, b, scale, bias, w, q):
        weights, last = (b[...], scale[...], bias[...]), w[...].astype(F32)

        def some(i: jax.Array, _: None) -> None:
            at = pl.ds(i * hand, hand)
            q[at] = (forward(act, norm, x[at, :], *weights) * last).sum(-1)

        jax.lax.fori_loop(0, each // hand, some, None)

    whole = pl.BlockSpec((width,), lambda i: (0,))
    return launch(
        kernel,
        f"{'norm_' if norm else ''}{act}_head",
        warps=WARPS,
        grid=(rows // each,),
        in_specs=[pl.BlockSpec((each, width), lambda i: (i, 0)), whole, whole, whole, whole],
        out_specs=pl.BlockSpec((each,), lambda i: (i,)),
        out_shape=jax.ShapeDtypeStruct((rows,), F32),
    )(x, b, scale, bias, w)


@functools.partial(jax.jit, static_argnums=(0, 1))
def fused_head_gradient(act: str, norm: bool, x, b, scale, bias, w, d):
    """The kernel of the backward pass: gradient of x, and sums for the parameters, w last."""
    pl = pallas()
    width = x.shape[1]

    def take(w, d, at):
        by_row = d[at][:, None]
        return lambda y: (by_row * w[...].astype(F32)[None, :], [by_row * y])

    given = [
        (w, lambda each: pl.BlockSpec((width,), lambda i: (0,))),
        (d, lambda each: pl.BlockSpec((each,), lambda i: (i,))),
    ]
    name = f"{'norm_' if norm else ''}{act}_head_gradient"
    count = 4 if norm else 2
    return _backward_pass(name, HEAD_BACKWARD, act, norm, count, (x, b, scale, bias), given, take)


def possible(rows: int, width: int) -> bool:
    """Whether the kernels divide the work evenly."""
    return rows % TILE == 0 and width in (128, 256, 512, 1024)


def trial() -> Iterator[common.Pair]:
    """What every kernel gives for a few numbers, and what it should give."""
    keys = jax.random.split(jax.random.key(0), 4)
    x, dy = (jax.random.normal(key, (64, 128)) for key in keys[:2])
    b, scale, bias, w = jax.random.normal(keys[2], (4, 128))
    d = jax.random.normal(keys[3], (64,))
    for kind in [(act, norm) for act in ACTIVATIONS for norm in (True, False)]:
        wanted, gradient = jax.vjp(functools.partial(forward, *kind), x, b, scale, bias)
        got, fused = jax.vjp(functools.partial(bias_norm_act, *kind, F32), x, b, scale, bias)
        yield (got, fused(dy)), (wanted, gradient(dy))
        wanted, gradient = jax.vjp(functools.partial(_plain_head, kind), x, b, scale, bias, w)
        got, fused = jax.vjp(functools.partial(head, *kind), x, b, scale, bias, w)
        yield (got, fused(d)), (wanted, gradient(d))


def _plain_head(kind: tuple, x, b, scale, bias, w) -> jax.Array:
    return (forward(*kind, x, b, scale, bias) * w).sum(-1)
