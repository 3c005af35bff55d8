"""Fused GPU kernels for what stands between two matrix products: biases, norms, activations, gates.

On a GPU an update is bound by how often activations go through memory. The plain functions are in
`nets` and beside the kernels; the tests compare them.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import jax

from ace.kernels import columns, common, gru, rows
from ace.kernels.columns import batch_norm_elu
from ace.kernels.common import ACTIVATIONS, on_gpu, plain
from ace.kernels.gru import gru_gates
from ace.kernels.rows import bias_norm_act, head

__all__ = [
    "ACTIVATIONS",
    "batch_norm_elu",
    "bias_norm_act",
    "columns",
    "fits",
    "gru",
    "gru_gates",
    "head",
    "on_gpu",
    "plain",
    "rows",
]


def fits(kind: ModuleType, *sizes: Any) -> bool:
    """Whether the kernels of a module can and should be used for some sizes."""
    return (_have_gpu() or common.INTERPRET) and not common.PLAIN and kind.possible(*sizes)


@functools.cache
def _have_gpu() -> bool:
    """Whether there is a GPU on which the kernels compile and compute what they should."""
    if jax.default_backend() != "gpu":
        return False
    try:
        # In a thread of its own: this may be asked while a function is being traced.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_try_out).result()
    except Exception as error:  # whatever it is, the plain functions still work
        print(f"the fused kernels do not work here, so updates are slower: {error!r:.300}")
        return False
    return True


def _try_out() -> None:
    """Run every kernel once on a few numbers, all in one program, which is quick to compile."""
    kinds = (rows, gru, columns)
    off = float(jax.jit(lambda: common.worst(p for kind in kinds for p in kind.trial()))())
    if not off < 1e-3:
        raise ArithmeticError(f"a kernel is wrong by {off}")
