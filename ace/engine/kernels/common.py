"""What the kernels share: fast math in PTX, activations, norms, launching, and the inputs and
the error measure of their trial."""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from ace.method.nets import LOG2E

EPS = 1e-5
F32 = jnp.float32
Pair = tuple[Any, Any]
INTERPRET = False  # for tests: run the kernels without a GPU
LANES = ContextVar("lanes", default=1)  # lanes of the program that is being traced


# Triton compiles a kernel as written: it contracts no product and sum into a fused multiply-add,
# and its exp2 and rsqrt spend three more instructions on subnormal numbers (below 1e-38). So the
# functions below use PTX instructions.


def _ptx(code: str, *args: Any) -> jax.Array:
    """Inline PTX, elementwise: it computes $0 from the float32 operands $1, $2, ..."""
    from jax.experimental.pallas import triton

    given = jnp.broadcast_arrays(*args)
    [result] = triton.elementwise_inline_asm(
        code,
        args=given,
        constraints=",".join(["=f", *["f" for _ in given]]),
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(given[0].shape, F32)],
    )
    return result


def fma(a: Any, b: Any, c: Any) -> jax.Array:
    """a b + c."""
    return a * b + c if INTERPRET else _ptx("fma.rn.f32 $0, $1, $2, $3;", a, b, c)


def exp2(x: jax.Array) -> jax.Array:
    """2^x; results below 1e-38 become zero."""
    return jnp.exp2(x) if INTERPRET else _ptx("ex2.approx.ftz.f32 $0, $1;", x)


def rsqrt(x: jax.Array) -> jax.Array:
    """1 / sqrt(x) for x above 1e-38."""
    return jax.lax.rsqrt(x) if INTERPRET else _ptx("rsqrt.approx.ftz.f32 $0, $1;", x)


def tanh(x: jax.Array, dtype: Any) -> jax.Array:
    """tanh(x), precise enough for a result that is rounded to `dtype`."""
    if dtype == jnp.bfloat16 and not INTERPRET:
        return _ptx("tanh.approx.f32 $0, $1;", x)  # good to 11 bits; bf16 has 8
    return jnp.tanh(x)


def sigmoid(x: jax.Array, dtype: Any) -> jax.Array:
    """1 / (1 + exp(-x)), precise enough for a result that is rounded to `dtype`."""
    return fma(tanh(0.5 * x, dtype), 0.5, 0.5)


def wide(x: jax.Array) -> jax.Array:
    """Loaded numbers as float32."""
    if x.dtype != jnp.bfloat16 or INTERPRET:
        return x.astype(F32)
    from jax.experimental.pallas import triton

    # A pair of packed bf16 numbers takes two instructions; unpacked first, it would take three.
    [result] = triton.elementwise_inline_asm(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
        args=[x],
        constraints="=&r,=r,r",
        pack=2,
        result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, F32)],
    )
    return result


def _elu(x: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
    e = exp2(LOG2E * x)
    slope = jnp.minimum(e, 1)
    if INTERPRET:
        return jnp.maximum(x, slope - 1), slope
    # max(x, -sat(1 - e)): sat gives 0 for positive x, and exp(x) - 1 >= x for all others.
    code = "{.reg .f32 t; sub.sat.f32 t, 0f3F800000, $2; neg.f32 t, t; max.NaN.f32 $0, $1, t;}"
    return _ptx(code, x, e), slope


def _tanh(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    y = tanh(x, dtype)
    if INTERPRET:
        return y, 1 - y * y
    return y, _ptx("{.reg .f32 t; neg.f32 t, $1; fma.rn.f32 $0, t, $1, 0f3F800000;}", y)


# (x, type that results are rounded to) -> value and slope in float32.
ACTIVATIONS: dict[str, Callable] = {"elu": _elu, "tanh": _tanh}


def standardised(x: jax.Array, eps: float = EPS) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows with mean zero and variance one, their mean, and 1 / their standard deviation."""
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    rstd = rsqrt((centred * centred).mean(-1, keepdims=True) + eps)
    return centred * rstd, mean, rstd


def through_norm(d: jax.Array, normed: jax.Array, rstd: jax.Array) -> jax.Array:
    """Backpropagate d through a norm: rstd (d - mean(d) - normed mean(d normed))."""
    mean, along = (s.mean(-1, keepdims=True) * -rstd for s in (d, d * normed))
    return fma(d, rstd, fma(normed, along, mean))


def walk(count: int, hand: int, refs: Sequence[Any], work: Callable, totals: Any = ()) -> Any:
    """Loop over `count` chunks of `hand` rows: totals = work(slice, chunk of each array, totals).

    The loop is software-pipelined: it loads the next chunk before it works on the current one.
    """
    pl = pallas()

    def load(i: Any) -> list:
        return [ref[pl.ds(i * hand, hand)] for ref in refs]

    def step(i: jax.Array, carry: tuple) -> tuple:
        rows, totals = carry
        ahead = load(jnp.minimum(i + 1, count - 1))
        return ahead, work(pl.ds(i * hand, hand), rows, totals)

    return jax.lax.fori_loop(0, count, step, (load(0), totals))[1]


def pallas() -> Any:
    """The Pallas module, imported late: only a GPU needs it."""
    from jax.experimental import pallas

    _stop_looking_for_triton()
    return pallas


@functools.cache
def _stop_looking_for_triton() -> None:
    """While a kernel is lowered, MLIR asks for the type of every value, and each time looks in
    three folders for the Python module of Triton's types, which jaxlib does not have: that took a
    sixth of the time to trace and lower a plan and an update. An empty module in its place ends the
    search."""
    name = "jaxlib.mlir.dialects.tt"
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = ModuleType(name)


def tile(each: int, width: int) -> Any:
    """Block spec: the rows of one thread block, of an array [n, width]."""
    return pallas().BlockSpec((each, width), lambda i: (i, 0))


def whole(x: jax.Array) -> Any:
    """Block spec: an array that every thread block reads whole."""
    return pallas().BlockSpec(x.shape, lambda i: (0,) * x.ndim)


def launch(kernel: Callable, name: str, warps: int, stages: int = 1, **how: Any) -> Callable:
    """A callable kernel with `warps` warps per thread block; with more than one stage, loops load
    the operands of their matrix products ahead of time."""
    from jax.experimental.pallas import triton

    # Loops without matrix products keep one stage: more would only take shared memory.
    params = triton.CompilerParams(num_warps=warps, num_stages=stages)
    return pallas().pallas_call(
        kernel, name=name, compiler_params=params, interpret=INTERPRET, **how
    )


def draws(seed: int, count: int, dtype: Any) -> Callable[..., jax.Array]:
    """Inputs of a trial: each of `count` calls draws another array, normal with deviation 1/4."""
    keys = iter(jax.random.split(jax.random.key(seed), count))

    def some(*shape: int, dtype: Any = dtype) -> jax.Array:
        return (jax.random.normal(next(keys), shape) / 4).astype(dtype)

    return some


def worst(pairs: Iterable[Pair]) -> jax.Array:
    """The largest relative error of (result, expected) pairs."""

    def far(got: jax.Array, wanted: jax.Array) -> jax.Array:
        got, wanted = got.astype(F32), wanted.astype(F32)
        return jnp.abs(got - wanted).max() / (1 + jnp.abs(wanted).max())

    both = [jax.tree.leaves(jax.tree.map(far, got, wanted)) for got, wanted in pairs]
    return jnp.stack([jnp.zeros(()), *(x for leaves in both for x in leaves)]).max()


@contextmanager
def lanes(count: int) -> Iterator[None]:
    """Declare how many lanes the traced program has: it sets the block size of some kernels."""
    before = LANES.set(count)  # thread-local: programs are traced in several threads
    try:
        yield
    finally:
        LANES.reset(before)
