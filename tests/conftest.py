"""Shared by all tests: programs compile without optimisation, which is quick, and stay in a cache
on disk for the length of the session, since the same small ones appear in several tests."""

import gc
import os
import shutil
import tempfile
from typing import Any

import pytest

from ace.engine import prepare

CACHE = "ACE_TEST_CACHE"
if CACHE not in os.environ:  # test processes inherit it
    os.environ[CACHE] = tempfile.mkdtemp(prefix="ace-tests-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ[CACHE]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # as the command sets it
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Compiling is most of what the suite does; these halve it, and no test is about speed. Code in one
# piece takes a quarter less work than in many, which are for cores that have nothing else to do.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
prepare.keep_memory()  # as the command does
# Tracing makes many objects that live on: looking through all of them often takes time.
gc.set_threshold(100_000, 50, 100)


def pytest_collection_finish() -> None:
    """What was imported is not looked through again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config) -> None:
    """Remove the cache when the session, and not only one of its processes, ends."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)


# The longest files start first, so that both processes end at about the same time. Files whose runs
# share compiled functions (`tests/run/conftest.py`) go to one process, as one piece of work.
TOGETHER = tuple(
    f"tests/run/test_{name}.py"
    for name in (
        *("runs", "resume", "faults", "signals", "lanes", "speed", "export", "fuzz", "door"),
        *("cli", "instruments"),
    )
)
HEAVY = (
    *TOGETHER,
    "tests/learn/test_probes.py",
    "tests/golden/test_fused_update.py",
    "tests/golden/test_kernel_trial.py",
    "tests/golden/test_fused.py",
    "tests/golden/test_agent.py",
    "tests/golden/test_fused_plan.py",
    "tests/envs/test_vector.py",
    "tests/examples/",
    "tests/bench/",
    "tests/agents/",
    "tests/run/",
    "tests/golden/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put heavy files first."""

    def place(item: pytest.Item) -> int:
        return next((i for i, name in enumerate(HEAVY) if item.nodeid.startswith(name)), len(HEAVY))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests by file, and the files of `TOGETHER` as if they were one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return TOGETHER[0] if file in TOGETHER else file

    return Scheduling(config, log)
