"""Which devices `ace bench` finds, and what a job's process is told of them."""

import json
import subprocess

import pytest

from ace.bench import local, worker
from ace.settings.config import ConfigError


def found(monkeypatch, kinds, visible=None):
    """The devices of a machine where JAX names these."""
    pairs = [(kind, None if kind == "cpu" else 1000 + i) for i, kind in enumerate(kinds)]
    done = subprocess.CompletedProcess([], 0, stdout=json.dumps(pairs) + "\n", stderr="")
    monkeypatch.setattr(local.subprocess, "run", lambda *_, **__: done)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return local.find_devices()


@pytest.mark.parametrize(
    ("count", "visible", "names"),
    [
        (1, None, ["0"]),
        (2, None, ["0", "1"]),
        (1, "3", ["3"]),
        (2, "2,GPU-5f", ["2", "GPU-5f"]),
    ],
)
def test_every_accelerator_is_a_place_for_a_job_by_its_own_name(monkeypatch, count, visible, names):
    devices = found(monkeypatch, ["NVIDIA H200"] * count, visible)
    named = [local.Device("NVIDIA H200", name, 1000 + i) for i, name in enumerate(names)]
    assert devices == named


def test_a_job_of_an_accelerator_sees_that_one(monkeypatch):
    monkeypatch.setenv("ACE_BENCH_PLATFORM", "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # of `ace bench` itself
    told = local.environment(found(monkeypatch, ["NVIDIA H200"] * 2)[1])
    assert told["CUDA_VISIBLE_DEVICES"] == "1"
    assert "JAX_PLATFORMS" not in told


def test_a_job_does_not_train_on_another_device_than_it_was_planned_for():
    worker.check_device("cpu")
    with pytest.raises(ConfigError, match="planned for NVIDIA H200, but JAX finds cpu here"):
        worker.check_device("NVIDIA H200")


def test_a_cpu_is_named_by_its_processor_and_cores(monkeypatch, tmp_path):
    monkeypatch.setattr("ace.engine.resources.cores", lambda: 6)
    monkeypatch.setattr(local, "PROCESSORS", tmp_path / "cpuinfo")
    local.PROCESSORS.write_text("processor : 0\nmodel name : Abacus 9\nmodel name : Abacus 9\n")
    (device,) = found(monkeypatch, ["cpu"])
    assert device.kind == "cpu (Abacus 9, 6 cores)" and device.memory == local.host_memory()
    worker.check_device(device.kind)
    local.PROCESSORS.unlink()
    assert local.device_name("cpu").endswith(", 6 cores)")
    assert local.device_name("NVIDIA H200") == "NVIDIA H200"


def test_a_job_of_the_cpu_gets_the_platform_that_the_user_chose(monkeypatch):
    (device,) = found(monkeypatch, ["cpu"])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("ACE_BENCH_PLATFORM", "")
    assert "JAX_PLATFORMS" not in local.environment(device)
    monkeypatch.setenv("ACE_BENCH_PLATFORM", "cpu")
    assert local.environment(device)["JAX_PLATFORMS"] == "cpu"
