"""XLA's options on this machine, and functions that are compiled once, ahead of time or at their
first call."""

import contextlib
import functools
import gc
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

GPU_OPTIONS = {
    # Matrix products by cuBLAS: autotuning Triton's takes most of the compilation time.
    "xla_gpu_enable_triton_gemm": False,
    # Do not merge products that share a factor: XLA would first concatenate the other factors.
    "xla_gpu_dot_merger_threshold_mb": 0,
    # Run independent kernels of a CUDA graph concurrently.
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
}


@functools.cache
def compiler_options() -> dict[str, Any]:
    """The options above that this machine's XLA knows."""
    return _known(GPU_OPTIONS) if jax.default_backend() == "gpu" else {}


def _known(options: dict[str, Any]) -> dict[str, Any]:
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(0.0).compile()
        return options
    except Exception:
        alone = [{name: options[name]} for name in options if len(options) > 1]
        return functools.reduce(operator.or_, map(_known, alone), {})


_TRACING = threading.Lock()


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Trace in one thread at a time, so that the first function reaches XLA early: threads that
    trace together share the interpreter lock and all finish late, and XLA does not need the lock.
    The garbage collector is off meanwhile: tracing makes many objects that live on, and collecting
    takes a sixth of its time."""
    with _TRACING:
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


class Function:
    """A function that is compiled once, for the shapes of its first arguments."""

    def __init__(
        self,
        function: Callable,
        check: Callable[[], bool] = lambda: True,
        recover: Callable[[Exception], bool] = lambda error: False,
        **how: Any,
    ):
        """`check` runs beside the compilation and says whether what was traced may be used; if not,
        the function is traced and compiled again. So it is after an error, if `recover` has changed
        what is traced and returns true."""
        self.traced, self.donated = function, how.get("donate_argnums", ())
        self.jitted = jax.jit(function, **how)
        self._check, self._recover, self._how = check, recover, how
        self._compiled: Callable | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        """Call the compiled function; waits for a compilation in progress."""
        return (self._compiled or self.compile(*args))(*args)

    def compile(self, *args: Any, stop: threading.Event | None = None) -> Callable:
        """Compile for arguments of these shapes, unless `stop` is set after tracing."""
        with self._lock:
            if self._compiled is None:
                self._compiled = self._compile(args, stop)
            return self._compiled or self.jitted

    def _compile(self, args: tuple, stop: threading.Event | None) -> Callable | None:
        try:
            with tracing():
                lowered = self.jitted.lower(*args)
            if stop and stop.is_set():
                return None
            with ThreadPoolExecutor(1) as pool:
                passed = pool.submit(self._check)
                compiled = lowered.compile()
                if passed.result():
                    return compiled
        except Exception as error:
            if self._check() and not self._recover(error):
                raise
        self.jitted = jax.jit(lambda *args: self.traced(*args), **self._how)  # a new trace
        return self.jitted.lower(*args).compile()

    @property
    def ready(self) -> bool:
        """Whether a call would not have to compile."""
        return self._compiled is not None


def compile_in_background(
    stop: threading.Event,
    *work: tuple[Function, tuple],
    after: Sequence[threading.Thread] = (),
) -> threading.Thread:
    """Compile functions one after the other in a thread, which is started and returned; it first
    joins the threads in `after`."""

    def compile_all() -> None:
        for thread in after:
            thread.join()
        for function, args in work:
            # The call of the function compiles again and raises the error there.
            with contextlib.suppress(Exception):
                if not stop.is_set():
                    function.compile(*args, stop=stop)

    # Not a daemon thread: a process that exits while XLA compiles aborts.
    thread = threading.Thread(target=compile_all)
    thread.start()
    return thread
