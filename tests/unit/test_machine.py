"""What a run asks of the machine: flags for the compiler, and how much memory there is."""

import importlib.metadata
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from ace import cli, resources
from ace.config import Config

FLAG = "--xla_gpu_command_buffer_update_mode"


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ("0.10.2", "", ""),  # would end the process: it knows no such mode
        ("0.12.0", "", ""),  # nobody has tried
        ("0.11.2", "/some/file", "/some/file"),
        ("0.11.2", "--xla_a=1", f"--xla_a=1 {FLAG}=SKIP_TEMP"),
        ("0.11.2", f"{FLAG}=ALWAYS_UPDATE", f"{FLAG}=ALWAYS_UPDATE"),
    ],
)
def test_flags_only_where_the_compiler_knows_them(monkeypatch, version, before, after) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    monkeypatch.setenv("XLA_FLAGS", before)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    monkeypatch.setattr(jax.config, "update", lambda *a: None)
    cli.prepare_jax()
    assert os.environ["XLA_FLAGS"] == after


def card(monkeypatch, run: Any) -> None:
    """A GPU of which JAX says nothing."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(memory_stats=lambda: None)])
    monkeypatch.setattr(subprocess, "run", run)


def test_memory_by_the_drivers_account(monkeypatch) -> None:
    def run(command, **how):
        assert command[0] == "nvidia-smi" and command[-1] == "3"
        total = any("memory.total" in word for word in command)
        return SimpleNamespace(stdout="143771\n" if total else "2393\n")

    card(monkeypatch, run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert resources.device_memory() == 143771 * 2**20
    assert resources.peak_memory() == 2393 * 2**20


def test_memory_that_nobody_knows(monkeypatch) -> None:
    def run(command, **how):
        raise FileNotFoundError(command[0])

    card(monkeypatch, run)
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
