"""Shared by all tests: compiled programs are cached on disk for the length of the session, because
compiling is most of what the suite does, and the same small programs appear in several tests."""

import os
import tempfile

import pytest

_CACHE = tempfile.TemporaryDirectory(prefix="ace-tests-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name  # also for the processes that tests start
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
os.environ["JAX_PLATFORMS"] = "cpu"


@pytest.fixture(scope="session", autouse=True)
def _remove_cache():
    yield
    _CACHE.cleanup()
