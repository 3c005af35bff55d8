"""Compiling: the compiler's options on this machine, and functions that are compiled once, ahead of
time or when they are called first."""

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

GPU_OPTIONS = {
    # Products by the vendor's library: a search for others takes most of the compilation.
    "xla_gpu_enable_triton_gemm": False,
    # No merging of products that share a matrix: their inputs would be copied together first.
    "xla_gpu_dot_merger_threshold_mb": 0,
    # Kernels that do not need each other run at the same time.
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
}


@functools.cache
def compiler_options() -> dict[str, Any]:
    """Those of our options that this machine's compiler knows."""
    return _known(GPU_OPTIONS) if jax.default_backend() == "gpu" else {}


def _known(options: dict[str, Any]) -> dict[str, Any]:
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(0.0).compile()
        return options
    except Exception:
        alone = [{name: options[name]} for name in options if len(options) > 1]
        return functools.reduce(operator.or_, map(_known, alone), {})


class Function:
    """A function that is compiled once, for the shapes that it meets first."""

    def __init__(self, function: Callable, **how: Any):
        self.traced, self.donated = function, how.get("donate_argnums", ())
        self.jitted = jax.jit(function, **how)
        self._compiled: Callable | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        """The result; a call waits for a compilation that is under way."""
        return (self._compiled or self.compile(*args))(*args)

    def compile(self, *args: Any, stop: threading.Event | None = None) -> Callable:
        """Be ready for arguments of such shapes, unless asked to `stop` meanwhile."""
        with self._lock:
            if self._compiled is None:
                lowered = self.jitted.lower(*args)
                if stop and stop.is_set():
                    return self.jitted
                self._compiled = lowered.compile()
            return self._compiled

    @property
    def ready(self) -> bool:
        """Whether a call would start at once."""
        return self._compiled is not None


def compile_in_background(
    stop: threading.Event,
    *work: tuple[Function, tuple],
    after: Sequence[threading.Thread] = (),
) -> threading.Thread:
    """Compile functions one after the other in a thread, which is started and returned; it begins
    when other threads have ended."""

    def compile_all() -> None:
        for thread in after:
            thread.join()
        for function, args in work:
            # An error will show again where the function is called.
            with contextlib.suppress(Exception):
                if not stop.is_set():
                    function.compile(*args, stop=stop)

    # No daemon: a process that ends inside XLA aborts.
    thread = threading.Thread(target=compile_all)
    thread.start()
    return thread
