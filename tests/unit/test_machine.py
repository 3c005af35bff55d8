"""What a run finds out about the machine: memory and processors."""

import os
import subprocess
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from ace.engine import resources
from ace.engine.lanes import LaneSetup
from ace.settings.config import Config, ConfigError, replace


def card(monkeypatch, stats: dict[str, int] | None) -> None:
    """A GPU that says so much of its memory."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(memory_stats=lambda: stats)])


def test_memory_by_the_devices_account(monkeypatch) -> None:
    card(monkeypatch, {"bytes_limit": 5, "peak_bytes_in_use": 3})
    assert resources.device_memory() == 5 and resources.peak_memory() == 3


def test_memory_that_nobody_knows(monkeypatch) -> None:
    card(monkeypatch, None)
    assert resources.device_memory() is None and resources.peak_memory() is None


def driver(monkeypatch, says: str | None) -> list[list[str]]:
    """What `nvidia-smi` says, None if there is none; returns how it is asked."""
    asked = []

    def run(command, **how) -> Any:
        asked.append(command)
        if says is None:
            raise FileNotFoundError(command[0])
        return SimpleNamespace(stdout=says)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


@pytest.mark.parametrize(
    ("says", "free"), [("300\n", 316), ("20\n300\n", 316), ("[N/A]\n", None), (None, None)]
)
def test_free_memory_counts_other_processes_and_the_pool_of_this_one(
    says: str | None, free: int | None, monkeypatch
) -> None:
    card(monkeypatch, {"pool_bytes": 20 * 2**20, "bytes_in_use": 4 * 2**20})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7,GPU-8")
    asked = driver(monkeypatch, says)
    assert resources.free_memory() == (free and free * 2**20)
    assert asked[0][-1] == "--id=GPU-7,GPU-8"


def test_a_run_that_does_not_fit_beside_another_is_refused(monkeypatch) -> None:
    """It needs about 0.4 GiB of a card of 8 GiB."""
    config = replace(Config(), {"replay.capacity": 10**7})
    setups = [LaneSetup("probe/point", 0, config, (2, 2))]
    card(monkeypatch, {"bytes_limit": 8 * 2**30})
    for says in ("6000\n", None):
        driver(monkeypatch, says)
        assert 0 < resources.check_memory("ace", setups, 10**7) < 2**30
    driver(monkeypatch, "200\n")
    with pytest.raises(
        ConfigError,
        match=r"for 1 lane, and 0\.2 GiB of the device are free; wait",
    ):
        resources.check_memory("ace", setups, 10**7)


def test_memory_of_a_cpu_includes_what_the_system_would_give_back(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(resources, "MEMORY", tmp_path / "meminfo")
    assert (resources.device_memory() or 0) > 2**20  # there is no such file: free pages
    resources.MEMORY.write_text("MemTotal:  900 kB\nMemFree:  10 kB\nMemAvailable:  500 kB\n")
    assert resources.device_memory() == 500 * 1024


def test_cores_are_those_that_the_process_may_use(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(resources, "CGROUP", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    assert resources.cores() == 12
    for share, wanted in (("max 100000", 12), ("400000 100000", 4), ("50000 100000", 1)):
        resources.CGROUP.write_text(share)
        assert resources.cores() == wanted
    config = Config()
    assert [resources.count_workers(config, n) for n in (1, 48)] == [1, 1]
    resources.CGROUP.unlink()
    assert [resources.count_workers(config, n) for n in (5, 48)] == [5, 12]


def test_workers_keep_cores_busy_only_beside_a_gpu_and_where_they_are_few(monkeypatch) -> None:
    monkeypatch.setattr(resources, "cores", lambda: 16)
    assert not resources.spare_cores(1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert resources.spare_cores(4) and not resources.spare_cores(5)


def test_a_card_is_asked_for_by_number_only_where_both_count_alike(monkeypatch) -> None:
    """CUDA counts the fastest card first unless it is told to count as the driver does."""
    card(monkeypatch, {"bytes_in_use": 0})
    asked = driver(monkeypatch, "300\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for order, last in (
        ("FASTEST_FIRST", "--format=csv,noheader,nounits"),
        ("PCI_BUS_ID", "--id=1"),
    ):
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
        resources.free_memory()
        assert asked[-1][-1] == last
