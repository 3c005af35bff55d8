"""Fused GPU kernels for what stands between two matrix products: biases, norms, activations, gates;
where nothing learns, with the products.

On a GPU an update is bound by how often activations go through memory. The plain functions are in
`method.nets`; the tests compare them. `engine.fused` puts the kernels where they fit.
"""

import functools
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from ace.engine.kernels import columns, common, dynamics, gru, layers, rows
from ace.engine.kernels.columns import batch_norm_elu
from ace.engine.kernels.common import lanes
from ace.engine.kernels.gru import gru_gates
from ace.engine.kernels.rows import bias_norm_act, head

__all__ = [
    "Report",
    "batch_norm_elu",
    "bias_norm_act",
    "broken",
    "columns",
    "dynamics",
    "fits",
    "gru",
    "gru_gates",
    "head",
    "lanes",
    "layers",
    "reporting",
    "rows",
]


class Report:
    """Which kinds of kernels a program uses, and why it does not use the others."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.misfits: dict[str, str] = {}

    def unused(self) -> dict[str, str]:
        """Kinds that were asked for and never fitted, and why not."""
        return {kind: why for kind, why in self.misfits.items() if kind not in self.used}

    def line(self) -> str:
        """One line for the user."""
        used = ", ".join(sorted(self.used)) or "none"
        unused = "".join(f"; not {kind}: {why}" for kind, why in sorted(self.unused().items()))
        return f"fused kernels in use: {used}{unused}"


_REPORT: ContextVar[Report | None] = ContextVar("report", default=None)


@contextmanager
def reporting(report: Report) -> Iterator[None]:
    """Note in a report what this thread traces."""
    before = _REPORT.set(report)
    try:
        yield
    finally:
        _REPORT.reset(before)


def fits(kind: ModuleType, *sizes: Any) -> bool:
    """Whether the kernels of a module can be used for some sizes."""
    why = broken() or kind.misfit(*sizes)
    name = kind.__name__.rpartition(".")[2]
    if report := _REPORT.get():
        if why:
            report.misfits.setdefault(name, why)
        else:
            report.used.add(name)
    return not why


def broken() -> str:
    """Why no kernel can be used on this machine, or nothing."""
    return "" if common.INTERPRET else _broken()


@functools.cache
def _broken() -> str:
    """Why the kernels do not compile here, or do not compute what they should."""
    if jax.default_backend() != "gpu":
        return "there is no NVIDIA GPU"
    passed = _mark_of_success()
    if passed and passed.exists():
        return ""
    try:
        # In a thread of its own: this may be asked while a function is being traced.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_try_out).result()
    except Exception as error:  # whatever it is, the plain functions still work
        return f"they failed their trial on this card ({error!r:.300})"
    if passed:
        with suppress(OSError):
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.touch()
    return ""


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
    """Run every kernel once on a few numbers, in one small program for each kind and type; they are
    compiled at the same time."""
    kinds = (rows, gru, columns, dynamics, layers)

    def worst(kind: ModuleType, dtype: Any) -> float:
        return float(jax.jit(lambda: common.worst(kind.trial(dtype)))())

    jobs = [(kind, dtype) for dtype in TOLERANCES for kind in kinds]
    with ThreadPoolExecutor(len(jobs)) as pool:
        for (kind, dtype), off in zip(jobs, pool.map(worst, *zip(*jobs, strict=True)), strict=True):
            if not off < TOLERANCES[dtype]:
                name = kind.__name__.rpartition(".")[2]
                raise ArithmeticError(f"{name} is wrong by {off} in {jnp.dtype(dtype).name}")
