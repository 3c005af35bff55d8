"""What must be set before JAX is imported, the compilation cache, and the start of the device."""

import contextlib
import ctypes
import os
import threading
from pathlib import Path


def environment() -> None:
    """Set variables that JAX, XLA and LAPACK read when they are loaded, unless the user has set
    them."""
    # Allocate GPU memory on demand, so that several runs can share a card, up to this fraction.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    # NumPy's BLAS would start a thread for every core, in each simulator process too.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def keep_memory() -> None:
    """Let glibc use freed memory again instead of returning it to the system; to be called by a
    process of our own before JAX is imported.

    On a CPU a compiled update allocates tens of megabytes of working memory. glibc maps blocks of
    that size anew in every call, and the system clears each of their pages: with four lanes, a
    sixth of a step's time. Where there is a GPU, working memory lies there.
    """
    if any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd"))):
        return
    # Numbers of malloc.h. One arena, because others map large blocks whatever M_MMAP_MAX says.
    M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
    with contextlib.suppress(AttributeError, OSError):  # only glibc has `mallopt`
        libc = ctypes.CDLL(None)
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def load_jax() -> None:
    """Import JAX with a persistent compilation cache, and begin to start the device."""
    environment()
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(root / "ace" / "xla"))
    # Without Python's stack in the code of kernels, equal programs are found in the cache again,
    # whatever was traced before; and lowering is quicker.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    # Cache small programs too: a run starts with dozens of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # CUDA takes a second to start: meanwhile the caller imports and checks settings. Not a daemon
    # thread: a process that exits while CUDA starts may crash.
    threading.Thread(target=_start_device).start()


def _start_device() -> None:
    import jax

    with contextlib.suppress(Exception):  # whoever asks for a device next gets the error
        jax.devices()
