"""What a run finds out about the machine: memory and processors."""

import os
from types import SimpleNamespace

import jax

from ace.engine import resources
from ace.settings.config import Config


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
