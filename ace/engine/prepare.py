"""What must be set before JAX starts, and where compiled programs are kept."""

import os
from pathlib import Path


def environment() -> None:
    """Variables that JAX, its C++ parts and LAPACK read when they are loaded; what the user has set
    stays."""
    # Memory is taken as it is needed, so that several runs share a card, and no more than this.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    # Learners are initialised in threads of ours: LAPACK's own, which spin, take ten times longer.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def load_jax() -> None:
    """Import JAX, with compiled programs kept on disk."""
    environment()
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(root / "ace" / "xla"))
    # Small programs too: a run starts with dozens of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
