"""Shared by all tests: programs compile without optimisation, which is quick, and stay in a cache
on disk for the length of the session, since the same small ones appear in several tests."""

import os
import shutil
import tempfile

CACHE = "ACE_TEST_CACHE"
os.environ.setdefault(CACHE, tempfile.mkdtemp(prefix="ace-tests-"))  # test processes inherit it
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ[CACHE]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Compiling is most of what the suite does; these halve it, and no test is about speed.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def pytest_unconfigure(config) -> None:
    """Remove the cache when the session, and not only one of its processes, ends."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)
