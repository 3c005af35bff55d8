"""Fused GPU kernels for the work between two matrix products: biases, norms, activations, gates;
where no gradient is needed, a kernel includes the products.

On a GPU an update is bound by the memory traffic of its activations, so a kernel reads and writes
them once. The tests compare the kernels with the plain functions in `method.nets`; `engine.fused`
calls a kernel wherever it fits.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from ace.engine.compile import compiler_options, tracing
from ace.engine.kernels import columns, common, dynamics, gru, layers, rows
from ace.engine.kernels.columns import batch_norm_elu
from ace.engine.kernels.common import lanes
from ace.engine.kernels.gru import gru_gates
from ace.engine.kernels.rows import bias_norm_act, head

__all__ = [
    "TRIAL",
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
    "known_broken",
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

    @classmethod
    def joined(cls, reports: Iterable["Report"]) -> "Report":
        """One report of several functions."""
        whole = cls()
        for report in list(reports):
            whole.used |= report.used
            whole.misfits = report.misfits | whole.misfits
        return whole

    def unused(self) -> dict[str, str]:
        """Kinds that never fitted the sizes of a layer, each with the reason."""
        return {kind: why for kind, why in self.misfits.items() if kind not in self.used}

    def described(self) -> dict[str, Any]:
        """The same for a file."""
        return {"kernels_used": sorted(self.used), "kernels_unused": self.unused()}

    def line(self) -> str:
        """One line for the user."""
        used = ", ".join(sorted(self.used)) or "none"
        unused = "".join(f"; not {kind}: {why}" for kind, why in sorted(self.unused().items()))
        return f"fused kernels in use: {used}{unused}"


_REPORT: ContextVar[Report | None] = ContextVar("report", default=None)


@contextmanager
def reporting(report: Report) -> Iterator[None]:
    """Record in `report` which kernels this thread traces, and which do not fit."""
    before = _REPORT.set(report)
    try:
        yield
    finally:
        _REPORT.reset(before)


def fits(kind: ModuleType, *sizes: Any) -> bool:
    """Whether a module's kernels take these sizes and are not known to fail on this machine;
    recorded. Whoever traces with kernels asks `broken` before the result is used."""
    why = known_broken() or kind.misfit(*sizes)
    name = kind.__name__.rpartition(".")[2]
    if report := _REPORT.get():
        if why:
            report.misfits.setdefault(name, why)
        else:
            report.used.add(name)
    return not why


class Trial:
    """The trial of all kernels on this machine, made once."""

    def __init__(self) -> None:
        self.found: str | None = None  # why they cannot be used, "" if they can, None if not known
        self._lock = threading.Lock()

    def result(self) -> str:
        """Make the trial, unless it was made before on this card, or wait for the one that runs."""
        with self._lock:
            if self.found is None:
                self.found = self._make()
            return self.found

    def _make(self) -> str:
        if jax.default_backend() != "gpu":
            return "there is no NVIDIA GPU"
        passed = _mark_of_success()
        if passed and passed.exists():
            return ""
        try:
            # Use another thread: the caller may be tracing, and trace state is thread-local.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(_try_out).result()
        except Exception as error:  # any failure: the plain functions still work
            return f"they failed their trial on this card ({error!r:.300})"
        if passed:
            with suppress(OSError):
                passed.parent.mkdir(parents=True, exist_ok=True)
                passed.touch()
        return ""


TRIAL = Trial()


def broken() -> str:
    """Why no kernel can be used on this machine; empty if they can. Waits for the trial."""
    return "" if common.INTERPRET else TRIAL.result()


def known_broken() -> str:
    """`broken`, but empty while the trial is not over: it takes as long as compiling a program, so
    a program is compiled beside it, as if the kernels passed."""
    on_gpu = jax.default_backend() == "gpu"
    return (TRIAL.found or "") if on_gpu and not common.INTERPRET else broken()


def _mark_of_success() -> Path | None:
    """The marker file of a passed trial on this card: it saves the seconds of the next one."""
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not folder:
        return None
    what = hashlib.sha256(f"{jax.__version__} {jax.devices()[0].device_kind}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        what.update(path.read_bytes())
    return Path(folder) / f"kernels-{what.hexdigest()[:32]}"


# Largest accepted relative error; bf16 adds its rounding and the card's approximate tanh.
TOLERANCES = {jnp.float32: 1e-3, jnp.bfloat16: 1e-2}


def _try_out() -> None:
    """Compare every kernel with its plain function on small inputs: one compilation per kind and
    type, all in parallel."""
    kinds = (dynamics, layers, rows, gru, columns)  # XLA takes longest for the first
    options = compiler_options()  # as for the programs that will use the kernels

    def worst(kind: ModuleType, dtype: Any) -> float:
        with tracing():
            program = jax.jit(lambda: common.worst(kind.trial(dtype)), compiler_options=options)
            lowered = program.lower()
        return float(lowered.compile()())

    jobs = [(kind, dtype) for kind in kinds for dtype in kind.TRIED]
    with ThreadPoolExecutor(len(jobs)) as pool:
        for (kind, dtype), off in zip(jobs, pool.map(worst, *zip(*jobs, strict=True)), strict=True):
            if not off < TOLERANCES[dtype]:
                name = kind.__name__.rpartition(".")[2]
                raise ArithmeticError(f"{name} is wrong by {off} in {jnp.dtype(dtype).name}")
