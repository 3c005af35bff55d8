"""Bias, layer norm and activation of rows in one pass, alone or fused with an output product of one
column.

The forward pass reads its input once, writes only its result, and keeps mean and rstd of every row.
The backward pass reads input and gradient once and also sums the parameters' gradients over rows. A
thread block loops over its rows with those sums in registers. It is one warp, so that a sum over a
row needs no shared memory; wide rows get more warps, to limit the registers of each thread.

Layers of several networks that share an input can come from one matrix product: with parameters
[G, W], rows [n, G W] become [G, n, W], each network's result contiguous.
"""

# pyright: reportCallIssue=false

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ace.engine.kernels import common
from ace.engine.kernels.common import (
    ACTIVATIONS,
    F32,
    fma,
    launch,
    pallas,
    standardised,
    through_norm,
    walk,
    wide,
)
from ace.method import nets

TILE = 16  # the number of rows must be a multiple of this
# Rows of a thread block, and numbers of a warp per loop iteration.
FORWARD, BACKWARD = (16, 1024), (32, 256)


def plain(act: str, norm: bool, x, b, scale, bias) -> jax.Array:
    """act(norm(x + b)) of rows [n, W], in float32; without the norm if it is false."""
    params = {"scale": scale, "bias": bias} if norm else None
    return nets.bias_norm_act.plain(act, b, params, x, F32)


def forward(act: str, norm: bool, x, b, scale, bias) -> tuple[jax.Array, list[jax.Array]]:
    """Inside a kernel: `plain`, with mean and rstd of every row if there is a norm."""
    dtype, x, stats = x.dtype, wide(x) + b, []
    if norm:
        unit, *stats = standardised(x)
        x = fma(unit, scale, bias)
    return ACTIVATIONS[act](x, dtype)[0], [s[:, 0] for s in stats]


def backward(act: str, norm: bool, x, b, scale, bias, stats, dy, w=None):
    """Inside a kernel: the gradient of rows [n, W], and one tuple of factors per parameter, whose
    product summed over rows is the parameter's gradient.

    `dy` is the gradient of the activated rows or, with w, of their product with w. Then the factors
    of the norm's scale and bias lack w, which is the same for all rows: the caller multiplies last.
    """
    dtype, x = x.dtype, wide(x) + b
    if norm:
        mean, rstd = (s[:, None] for s in stats)
        unit = fma(x, rstd, -mean * rstd)
        x = fma(unit, scale, bias)
    y, slope = ACTIVATIONS[act](x, dtype)
    d = dy * slope
    more = [] if w is None else [(dy, y)]
    if not norm:
        dx = d if w is None else d * w
        return dx, [(dx,), *more]
    dx = through_norm(d * (scale if w is None else scale * w), unit, rstd)
    return dx, [(dx,), (d, unit), (d,), *more]


def _sizes(rows: int, width: int, sizes: tuple[int, int]) -> tuple[int, int, int]:
    """Rows of a thread block, rows per loop iteration, and warps."""
    most, numbers = sizes
    each = next(n for n in (64, 32, 16) if n <= most and rows % n == 0)
    # A thread holds at most 16 numbers of a row: with the parameters of their columns, more would
    # not fit into registers.
    return each, max(1, numbers // width), max(1, width // min(numbers, 512))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def bias_norm_act(act: str, norm: bool, dtype: jnp.dtype, x, b, scale, bias) -> jax.Array:
    """act(norm(x + b)) of rows [n, W] as `dtype`, without the norm if that is false; parameters
    [G, W] take rows [n, G W] to [G, n, W]."""
    return _foldable(act, norm, dtype)(x, b, scale, bias)


@functools.cache
def _foldable(act: str, norm: bool, dtype: jnp.dtype) -> Callable:
    """`fused_forward` that treats a vmapped axis with shared parameters as more rows: the results
    of a group are then contiguous, as the next matrix product needs them."""

    @jax.custom_batching.custom_vmap
    def activated(*args: jax.Array) -> jax.Array:
        return fused_forward(act, norm, dtype, *args)[0]

    @activated.def_vmap
    def batch(size: int, batched: list[bool], x: jax.Array, *params: jax.Array):
        if any(batched[1:]):
            axes = [0 if b else None for b in batched]
            return jax.vmap(activated.fun, axes, axis_size=size)(x, *params), True
        y = activated(x.reshape(-1, x.shape[-1]), *params)
        y = y.reshape(*y.shape[:-2], size, -1, y.shape[-1])
        return jnp.moveaxis(y, -3, 0), True

    return activated


def _keep(act: str, norm: bool, dtype: jnp.dtype, *args: Any) -> tuple[jax.Array, tuple]:
    values = [a.value for a in args]
    y, stats = fused_forward(act, norm, dtype, *values)
    return y, (values, stats, _learned(args))


def _learned(args: Sequence[Any]) -> tuple | None:
    """() if a parameter needs a gradient, else None; the policy's loss needs none."""
    return () if any(a.perturbed for a in args[1:]) else None


def _numbers(d: Any) -> jax.Array:
    """A gradient as an array; JAX may pass a zero one symbolically."""
    if isinstance(d, jax.custom_derivatives.SymbolicZero):
        zero: Any = d
        return jnp.zeros(zero.shape, zero.dtype)
    return d


def _gradients(act: str, norm: bool, dtype: jnp.dtype, kept: tuple, dy: jax.Array) -> tuple:
    (values, stats, learned), dy = kept, _numbers(dy)
    dx, sums = fused_backward(act, norm, learned is not None, *values, stats, dy)
    return (dx, *sums, *[jnp.zeros_like(v) for v in values[1 + len(sums) :]])


bias_norm_act.defvjp(_keep, _gradients, symbolic_zeros=True)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def fused_forward(act: str, norm: bool, dtype: jnp.dtype, x, b, scale, bias):
    """The kernel of the forward pass: activated rows, and their statistics."""
    return _forward_pass(f"{'norm_' if norm else ''}{act}", act, norm, dtype, (x, b, scale, bias))


def _grouped(x: jax.Array, *params: jax.Array) -> tuple[int, int, list[jax.Array]]:
    """Number of rows, their width, and parameters [G, W]."""
    width = params[0].shape[-1]
    return x.shape[0], width, [p.reshape(-1, width) for p in params]


def _specs(each: int, width: int) -> tuple[Any, ...]:
    """Block specs of thread block (g, i) for arrays [n, G W], [G, W], [G, n, W] and [G, n]."""
    pl = pallas()
    return (
        pl.BlockSpec((each, width), lambda g, i: (i, g)),
        pl.BlockSpec((None, width), lambda g, i: (g, 0)),
        pl.BlockSpec((None, each, width), lambda g, i: (g, i, 0)),
        pl.BlockSpec((None, each), lambda g, i: (g, i)),
    )


def _forward_pass(name, act, norm, dtype, args, w=None):
    """Launch the forward kernel; with w, the result is the product of the rows with w."""
    given = [] if w is None else [w]
    rows, width, params = _grouped(args[0], *args[1:], *given)
    groups, (each, hand, warps) = len(params[0]), _sizes(rows, width, FORWARD)

    def kernel(x, b, scale, bias, *refs):
        last, (out, *stats) = refs[: len(given)], refs[len(given) :]
        weights, last = (b[...], scale[...], bias[...]), [w[...].astype(F32) for w in last]

        def some(at, rows, _):
            y, found = forward(act, norm, *rows, *weights)
            for w in last:
                y = (y * w).sum(-1)
            out[at] = y.astype(out.dtype)
            for ref, s in zip(stats, found, strict=True):
                ref[at] = s
            return ()

        walk(each // hand, hand, [x], some)

    wide_rows, whole, block, column = _specs(each, width)
    each_row = jax.ShapeDtypeStruct((groups, rows), F32)
    count = 2 if norm else 0
    out, *stats = launch(
        kernel,
        name,
        warps=warps,
        grid=(groups, rows // each),
        in_specs=[wide_rows, *[whole for _ in params]],
        out_specs=[column if given else block, *[column] * count],
        out_shape=[
            each_row if given else jax.ShapeDtypeStruct((groups, rows, width), dtype),
            *[each_row] * count,
        ],
    )(args[0], *params)
    return out.reshape(*args[1].shape[:-1], *out.shape[1:]), stats


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def fused_backward(act: str, norm: bool, learned: bool, x, b, scale, bias, stats, dy):
    """The kernel of the backward pass: gradient of x and, if `learned`, of the parameters."""
    name = f"{'norm_' if norm else ''}{act}_gradient"
    return _backward_pass(name, act, norm, learned, (x, b, scale, bias), stats, dy)


def _backward_pass(name, act, norm, learned, args, stats, dy, w=None):
    """Launch the backward kernel; with w, `dy` is the gradient of the rows' product with w."""
    pl = pallas()
    given = [] if w is None else [w]
    rows, width, params = _grouped(args[0], *args[1:], *given)
    groups, (each, hand, warps) = len(params[0]), _sizes(rows, width, BACKWARD)
    count = (3 if norm else 1) + len(given) if learned else 0

    def kernel(x, b, scale, bias, *refs):
        last, (dy, *refs) = refs[: len(given)], refs[len(given) :]
        *stats, dx = refs[: 3 if norm else 1]
        weights, last = (b[...], scale[...], bias[...]), [w[...].astype(F32) for w in last]

        def some(at, rows, totals):
            x, dy, *stats = rows
            dy = dy[:, None] if last else wide(dy)
            d, terms = backward(act, norm, x, *weights, stats, dy, *last)
            dx[at] = d.astype(dx.dtype)
            return [
                fma(*term, t) if len(term) == 2 else t + term[0]
                for t, term in zip(totals, terms, strict=learned)
            ]

        zeros = [jnp.zeros((hand, width), F32) for _ in range(count)]
        totals = walk(each // hand, hand, [x, dy, *stats], some, zeros)
        for k, total in enumerate(totals):
            refs[-1][k, :] = total.sum(0)

    wide_rows, whole, block, column = _specs(each, width)
    sums_of = pl.BlockSpec((None, None, count, width), lambda g, i: (g, i, 0, 0))
    dx, *found = launch(
        kernel,
        name,
        warps=warps,
        grid=(groups, rows // each),
        in_specs=[
            *(wide_rows, *[whole for _ in params]),
            *(column if given else block, *[column for _ in stats]),
        ],
        out_specs=[wide_rows, sums_of][: 1 + learned],
        out_shape=[
            jax.ShapeDtypeStruct(args[0].shape, args[0].dtype),
            jax.ShapeDtypeStruct((groups, rows // each, count, width), F32),
        ][: 1 + learned],
    )(args[0], *params, dy.reshape(groups, *dy.shape[-1 if given else -2 :]), *stats)
    sums = (
        [s.reshape(args[1].shape) for s in jnp.moveaxis(found[0].sum(1), 1, 0)] if learned else []
    )
    if learned and w is not None and norm:
        sums[1:3] = [s * w.astype(F32) for s in sums[1:3]]
    return dx, sums


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def head(act: str, norm: bool, x, b, scale, bias, w) -> jax.Array:
    """act(norm(x + b)) of rows [n, W] times w [W]: [n], float32."""
    return fused_head(act, norm, x, b, scale, bias, w)[0]


def _head_keep(act: str, norm: bool, *args: Any) -> tuple[jax.Array, tuple]:
    values = [a.value for a in args]
    q, stats = fused_head(act, norm, *values)
    return q, (values, stats, _learned(args))


def _head_gradients(act: str, norm: bool, kept: tuple, d: jax.Array) -> tuple:
    (values, stats, learned), d = kept, _numbers(d)
    dx, sums = fused_head_gradient(act, norm, learned is not None, *values, stats, d)
    if learned is None:
        return (dx, *map(jnp.zeros_like, values[1:]))
    *sums, dw = sums
    none = [jnp.zeros_like(v) for v in values[1 + len(sums) : 4]]
    return (dx, *sums, *none, dw.astype(values[4].dtype))


head.defvjp(_head_keep, _head_gradients, symbolic_zeros=True)


@functools.partial(jax.jit, static_argnums=(0, 1))
def fused_head(act: str, norm: bool, x, b, scale, bias, w):
    """The kernel of the forward pass: products, and the rows' statistics."""
    name = f"{'norm_' if norm else ''}{act}_head"
    return _forward_pass(name, act, norm, F32, (x, b, scale, bias), w)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def fused_head_gradient(act: str, norm: bool, learned: bool, x, b, scale, bias, w, stats, d):
    """The kernel of the backward pass: gradient of x and, if `learned`, of the parameters, w
    last."""
    name = f"{'norm_' if norm else ''}{act}_head_gradient"
    return _backward_pass(name, act, norm, learned, (x, b, scale, bias), stats, d, w)


def misfit(rows: int, width: int) -> str:
    """Why the kernels do not take these sizes; empty if they do."""
    if width not in (128, 256, 512, 1024):
        return f"rows of {width} numbers; they take 128, 256, 512 or 1024"
    return "" if rows % TILE == 0 else f"{rows} rows; they take multiples of {TILE}"


TRIED = (F32, jnp.bfloat16)  # types that `trial` compares


def trial(dtype: Any) -> Iterator[common.Pair]:
    """(result, expected) of every kernel on small inputs; in bf16 only norm and tanh."""
    keys = jax.random.split(jax.random.key(0), 4)
    x, dy = (jax.random.normal(key, (64, 128), dtype) for key in keys[:2])
    b, scale, bias, w = jax.random.normal(keys[2], (4, 128))
    d = jax.random.normal(keys[3], (64,))
    kinds = [(act, norm) for act in ACTIVATIONS for norm in (True, False)]
    for kind in kinds if dtype == F32 else [("tanh", True)]:
        wanted, gradient = jax.vjp(functools.partial(plain, *kind), x, b, scale, bias)
        got, fused = jax.vjp(functools.partial(bias_norm_act, *kind, dtype), x, b, scale, bias)
        yield (got, fused(dy)), (wanted, gradient(dy.astype(F32)))
        if dtype != F32:
            continue
        pair = [jnp.stack([p, 2 * p]) for p in (b, scale, bias)]
        both, d_both = jnp.concatenate([x, -x], -1), jnp.stack([dy, -dy])
        wanted, gradient = jax.vjp(functools.partial(_plain_groups, kind), both, *pair)
        got, fused = jax.vjp(functools.partial(bias_norm_act, *kind, dtype), both, *pair)
        yield (got, fused(d_both)), (wanted, gradient(d_both))
        wanted, gradient = jax.vjp(functools.partial(_plain_head, kind), x, b, scale, bias, w)
        got, fused = jax.vjp(functools.partial(head, *kind), x, b, scale, bias, w)
        yield (got, fused(d)), (wanted, gradient(d))


def _plain_head(kind: tuple, x, b, scale, bias, w) -> jax.Array:
    return (plain(*kind, x, b, scale, bias) * w).sum(-1)


def _plain_groups(kind: tuple, x, *params: jax.Array) -> jax.Array:
    groups = jnp.split(x, params[0].shape[0], -1)
    return jnp.stack([plain(*kind, g, *p) for g, *p in zip(groups, *params, strict=True)])
