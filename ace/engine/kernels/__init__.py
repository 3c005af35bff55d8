"""Fused GPU kernels for what stands between two matrix products: biases, norms, activations, gates;
where nothing learns, with the products.

On a GPU an update is bound by how often activations go through memory. The plain functions are in
`nets` and beside the kernels; the tests compare them.
"""

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from ace.engine.kernels import columns, common, dynamics, gru, layers, rows
from ace.engine.kernels.columns import batch_norm_elu
from ace.engine.kernels.common import ACTIVATIONS, lanes, on_gpu, plain
from ace.engine.kernels.gru import gru_gates
from ace.engine.kernels.rows import bias_norm_act, head

__all__ = [
    "ACTIVATIONS",
    "batch_norm_elu",
    "bias_norm_act",
    "columns",
    "dynamics",
    "fits",
    "gru",
    "gru_gates",
    "head",
    "lanes",
    "layers",
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
    passed = _mark_of_success()
    if passed and passed.exists():
        return True
    try:
        # In a thread of its own: this may be asked while a function is being traced.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_try_out).result()
    except Exception as error:  # whatever it is, the plain functions still work
        print(f"the fused kernels do not work here, so updates are slower: {error!r:.300}")
        return False
    if passed:
        with suppress(OSError):
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.touch()
    return True


def _mark_of_success() -> Path | None:
    """The file that says that these kernels passed on this card: a trial takes seconds."""
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not folder:
        return None
    what = hashlib.sha256(f"{jax.__version__} {jax.devices()[0].device_kind}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        what.update(path.read_bytes())
    return Path(folder) / f"kernels-{what.hexdigest()[:32]}"


# How wrong kernels may be: most in float32, some in bf16, with its rounding and the card's tanh.
TOLERANCES = {jnp.float32: 1e-3, jnp.bfloat16: 1e-2}


def _try_out() -> None:
    """Run kernels once on a few numbers, all in one program, which is quick to compile."""
    kinds = (rows, gru, columns, dynamics, layers)

    def worst(dtype: Any) -> jax.Array:
        return common.worst(pair for kind in kinds for pair in kind.trial(dtype))

    found = jax.jit(lambda: [worst(dtype) for dtype in TOLERANCES])()
    for off, (dtype, most) in zip(found, TOLERANCES.items(), strict=True):
        if not off < most:
            raise ArithmeticError(f"a kernel is wrong by {off} in {dtype.__name__}")
