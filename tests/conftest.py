"""Shared by all tests: programs compile without optimisation, which is quick, and stay in a cache
on disk for the length of the session, since the same small ones appear in several tests."""

import os
import tempfile

import pytest

_CACHE = tempfile.TemporaryDirectory(prefix="ace-tests-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name  # also for the processes that tests start
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling is most of what the suite does; these halve it, and no test is about speed.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


@pytest.fixture(scope="session", autouse=True)
def _remove_cache():
    yield
    _CACHE.cleanup()
