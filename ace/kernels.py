"""Fused GPU kernels for what stands between two matrix products: bias, layer norm, activation.

On a GPU an update is bound by how often activations go through memory. Forward: one read and one
write. Backward: input and gradient are read once, statistics are computed again from the rows at
hand, and the sums over rows for the parameters' gradients come out of the same pass. The plain
functions are in `nets`; the tests compare the two.
"""

import functools
from collections.abc import Callable
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


def _normed(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows with mean zero and variance one, and what they were multiplied with."""
    centred = x - x.mean(-1, keepdims=True)
    rstd = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + EPS)
    return centred * rstd, rstd


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
    d = dy * scale
    d = d - d.mean(-1, keepdims=True) - normed * (d * normed).mean(-1, keepdims=True)
    dx = d * rstd
    return dx, (dx, dy * normed, dy)


INTERPRET = False  # for tests: run the kernels without a GPU


def fits(rows: int, width: int) -> bool:
    """Whether the kernels can and should be used: on a GPU, where they divide the work evenly."""
    return (_have_gpu() or INTERPRET) and rows % TILE == 0 and width in (128, 256, 512, 1024)


@functools.cache
def _have_gpu() -> bool:
    """Whether there is a GPU on which the kernels compile."""
    if jax.default_backend() != "gpu":
        return False
    try:
        with jax.ensure_compile_time_eval():
            x, b = jnp.ones((4 * TILE, 128), jnp.bfloat16), jnp.ones(128)
            jax.block_until_ready(fused_backward("elu", True, x, b, b, b, x))
    except Exception as error:  # whatever it is, the plain functions still work
        print(f"the fused kernels do not work here, so updates are slower: {error!r:.300}")
        return False
    return True


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
