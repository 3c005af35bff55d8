"""A cluster: what is asked of Ray and of its nodes, on a Ray that only pretends; and two real nodes
on this machine, where Ray is installed."""

import importlib.util
import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ace import __version__
from ace.bench import cluster
from ace.bench.suites import Suite
from ace.settings.config import ConfigError

SUITE = Suite("mine", "", ("probe/point",), (), (0,), 100, "debug", 4, ())


class FakeRay:
    """As much of Ray as a connection needs."""

    class RayError(Exception): ...

    def __init__(self, *nodes: dict[str, float], answer: Any = (__version__, "", None)):
        self.exceptions = SimpleNamespace(RayError=FakeRay.RayError)
        self._nodes, self.answer, self.closed = nodes, answer, False
        strategy = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(scheduling_strategies=strategy)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": str(i), "Alive": True, "NodeManagerAddress": f"n{i}", "Resources": r}
            for i, r in enumerate(self._nodes)
        ]

    def remote(self, function: Any) -> Any:
        return SimpleNamespace(options=lambda **o: SimpleNamespace(remote=object))

    def wait(self, references, num_returns: int, timeout: float):
        return list(references), []

    def get(self, reference: object) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def shutdown(self) -> None:
        self.closed = True


def connected(monkeypatch, ray: FakeRay) -> cluster.Cluster:
    monkeypatch.setattr(cluster, "connect", lambda address: ray)
    return cluster.Cluster("auto", SUITE)


def test_a_job_asks_for_a_gpu_and_its_share_of_the_cpus(monkeypatch) -> None:
    big, small = {"GPU": 8.0, "CPU": 64.0}, {"GPU": 4.0, "CPU": 26.0, "accelerator_type:T4": 1.0}
    found = connected(monkeypatch, FakeRay({"CPU": 4.0}, big, small))
    assert found.hardware == "T4" and "2 nodes with 12 x T4" in found.about()
    assert found._needs(3) == (1, 3) and found._needs(15) == (1, 6) and found._needs(0) == (1, 1)
    assert len(found.slots(100)) == 100 and len(found.slots(100, waiting=False)) == 12
    ray = FakeRay({"GPU": 4.0, "CPU": 2.0}, answer=(__version__, "NVIDIA H200", 2**37))
    found = connected(monkeypatch, ray)
    assert (found.hardware, found.memory) == ("NVIDIA H200", 2**37) and found._needs(15) == (1, 0.5)
    assert len(found.slots(9, waiting=False)) == 4


def test_without_gpus_a_job_asks_for_cpus_that_every_node_has(monkeypatch) -> None:
    found = connected(monkeypatch, FakeRay({"CPU": 16.0}, {"CPU": 2.0}, {"memory": 1.0}))
    assert found.hardware == "cpu" and found._needs(15) == (0, 2) and found._needs(1) == (0, 1)
    assert len(found.slots(100, waiting=False)) == 9
    ray = FakeRay({"CPU": 16.0}, answer=(__version__, "cpu (Abacus 9, 6 cores)", 2**30))
    assert connected(monkeypatch, ray).hardware == "cpu (Abacus 9, 6 cores)"


@pytest.mark.parametrize(
    ("ray", "says"),
    [
        (FakeRay({"memory": 1.0}), "none of the cluster's 1 node"),
        (FakeRay({"CPU": 1.0}, answer=("0.0.1", "", None)), "n0 has ace 0.0.1"),
        (
            FakeRay({"CPU": 1.0}, answer=FakeRay.RayError("x\nModuleNotFoundError: No ace\ny")),
            "node n0 cannot run programs: ModuleNotFoundError: No ace; install ace",
        ),
    ],
)
def test_a_cluster_that_cannot_run_programs_is_refused(monkeypatch, ray, says) -> None:
    with pytest.raises(ConfigError, match=says):
        connected(monkeypatch, ray)
    assert ray.closed


def test_without_ray_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'ace-planner\[ray\]'"):
        cluster.connect("auto")


def test_an_address_that_nobody_listens_at_is_refused_at_once(monkeypatch, tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        with pytest.raises(ConfigError, match="no Ray cluster answers"):
            cluster.check_reachable(f"127.0.0.1:{taken.getsockname()[1]}")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ConfigError, match="ray start --head"):
        cluster.find_address("auto")
    for text in ("nonsense", "host:", ":6379", "ray://host:10001"):
        with pytest.raises(ConfigError, match="--ray"):
            cluster.find_address(text)
    assert cluster.find_address("head:6379") == "head:6379"


def test_a_suites_own_modules_are_sent_and_installed_ones_are_not(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text("x = 1")
    (tmp_path / "pack" / "deep").mkdir(parents=True)
    for name in ("__init__.py", "deep/__init__.py", "deep/table.json"):
        (tmp_path / "pack" / name).write_text("")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "agent.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    found = cluster.own_modules(["mine", "pack.deep", "bare.agent", "numpy", "json", "ace"])
    names = {
        "mine.py",
        "bare/agent.py",
        "pack/__init__.py",
        "pack/deep/__init__.py",
        "pack/deep/table.json",
    }
    assert set(found) == names and found["mine.py"] == b"x = 1"


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install 'ace-planner[ray]' lets this test run",
)
def test_a_worker_killed_on_a_real_cluster_changes_no_number(tmp_path) -> None:
    from benchmarks.cluster import demonstrate

    printed = demonstrate(tmp_path, "worker", False, 2_000, seeds="0", more="")
    assert "goes on from its checkpoint" in printed and "2 programs finished" in printed
