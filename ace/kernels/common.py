"""What the kernels share: the language, activations, norms, and the trial before they are used."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

EPS = 1e-5
LOG2E = 1.4426950408889634
F32 = jnp.float32
Pair = tuple[Any, Any]
INTERPRET = False  # for tests: run the kernels without a GPU
PLAIN = False  # as if there were no GPU, see `plain`


def elu(x: jax.Array) -> jax.Array:
    """In float32: near zero exp(x) - 1 would cancel in bf16. Few instructions, for the kernels."""
    return jnp.maximum(x, 0) + (jnp.exp2(LOG2E * jnp.minimum(x, 0)) - 1)


# Activation in float32, and its slope given its output.
ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    "elu": (elu, lambda y: jnp.minimum(y, 0) + 1),
    "tanh": (jnp.tanh, lambda y: 1 - y * y),
}


def activation(name: str, dtype: Any) -> tuple[Callable, Callable]:
    """An activation inside a kernel whose results are rounded to a type."""
    function, slope = ACTIVATIONS[name]
    if name == "tanh" and dtype == jnp.bfloat16 and not INTERPRET:
        from jax.experimental.pallas import triton

        return triton.approx_tanh, slope  # the card's own, good to 11 bits; bf16 has 8
    return function, slope


def normed(x: jax.Array, eps: float = EPS) -> tuple[jax.Array, jax.Array]:
    """Rows with mean zero and variance one, and what they were multiplied with."""
    centred = x - x.mean(-1, keepdims=True)
    rstd = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
    return centred * rstd, rstd


def through_norm(d: jax.Array, normed: jax.Array, rstd: jax.Array) -> jax.Array:
    """The gradient before a norm, given that of its normed rows."""
    d = d - d.mean(-1, keepdims=True) - normed * (d * normed).mean(-1, keepdims=True)
    return d * rstd


def pallas() -> Any:
    """The kernel language, imported late: nothing but a GPU needs it."""
    from jax.experimental import pallas

    return pallas


def launch(kernel: Callable, name: str, warps: int, **how: Any) -> Callable:
    """A kernel of so many warps a program, ready to be called."""
    from jax.experimental.pallas import triton

    # One stage: loads of weights inside a loop would otherwise take several times their room.
    params = triton.CompilerParams(num_warps=warps, num_stages=1)
    return pallas().pallas_call(
        kernel, name=name, compiler_params=params, interpret=INTERPRET, **how
    )


def worst(pairs: Iterable[Pair]) -> jax.Array:
    """How far what kernels gave is from what they should have given."""

    def far(got: jax.Array, wanted: jax.Array) -> jax.Array:
        return jnp.abs(got - wanted).max() / (1 + jnp.abs(wanted).max())

    both = [jax.tree.leaves(jax.tree.map(far, got, wanted)) for got, wanted in pairs]
    return jnp.stack([x for leaves in both for x in leaves]).max()


@contextmanager
def plain() -> Iterator[None]:
    """Trace functions as they are without a GPU."""
    global PLAIN
    PLAIN = True
    try:
        yield
    finally:
        PLAIN = False


def on_gpu() -> bool:
    """Whether to build what a GPU likes: loops over the horizon unrolled into one graph, round
    sizes, and larger arrays for fewer passes through memory."""
    return jax.default_backend() != "cpu" and not PLAIN
