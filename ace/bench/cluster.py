"""Jobs on a Ray cluster: each is an actor that asks for its GPU and CPUs, runs the same process as
a job on this machine, and hands its checkpoints to the driver. A job whose worker or node is lost
goes on from the last of them, on whatever node Ray finds. Ray is imported only here."""

import importlib
import importlib.util
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ace import __version__
from ace.bench.jobs import Job, make_config
from ace.bench.remote import Host, about_node
from ace.bench.suites import Suite
from ace.bench.watch import Lost, RemoteJob, Withdrawn
from ace.envs.explain import LIBRARIES
from ace.settings.config import ConfigError
from ace.settings.words import counted

MISSING = "--ray needs Ray: pip install 'ace-planner[ray]'"
REACH_SECONDS = 5.0  # for the head node to accept a connection
ANSWER_SECONDS = 60.0  # for a node to start a Python process
UNHEARD_SECONDS = 60.0  # that a node may be out of reach before its job is given up
END_SECONDS = 5.0  # for an actor to delete its files
CURRENT = Path("ray") / "ray_current_cluster"  # where `ray start` writes the address
INSTALLED = (*LIBRARIES, "dist-packages")
MODULE_BYTES = 20 * 2**20  # most that a suite's own modules may have


class Needs(NamedTuple):
    """What a job asks of a node."""

    gpus: float
    cpus: float

    def fit(self, node: Mapping[str, float]) -> int:
        """How many such jobs a node with these resources holds."""
        asked = ((self.gpus, node.get("GPU", 0.0)), (self.cpus, node.get("CPU", 0.0)))
        return min((int(there / need + 1e-6) for need, there in asked if need), default=1)


def load_ray() -> Any:
    """The module, or an error that says how to install it."""
    # Ray prints a paragraph about each lost worker; a job says it in a line.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(MISSING) from error


def connect(address: str) -> Any:
    """Ray, connected to a cluster; errors are one line and come within seconds."""
    ray = load_ray()
    check_reachable(find_address(address))
    options = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        with quiet_stderr():
            ray.init(address=address, **options)
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"Ray cannot use the cluster at {address}: {reason}; this machine must be one of its "
            "nodes (`ray status` shows them): `ray start --address=HEAD:6379 --num-cpus=0` makes "
            "it one that runs no programs"
        ) from None
    return ray


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discard what Ray's C++ code prints while it tries to connect; the error that follows says
    what is wrong."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def find_address(address: str) -> str:
    """The HOST:PORT that an address stands for; '' if only Ray can tell."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"--ray {address}: Ray's client protocol is not supported; run `ace bench` on a node "
            "of the cluster, with --ray auto"
        )
    if address != "auto":
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isdigit()):
            raise ConfigError(f"--ray is {address!r}; give auto, or HOST:PORT of the head node")
        return address
    if found := os.environ.get("RAY_ADDRESS"):
        return found if ":" in found and "/" not in found else ""
    try:
        return (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / CURRENT).read_text().strip()
    except OSError:
        raise ConfigError(
            "--ray auto finds no Ray cluster on this machine; start one with `ray start --head`, "
            "or leave out --ray: one machine with one GPU needs none"
        ) from None


def check_reachable(address: str) -> None:
    """Refuse an address that nobody listens at: Ray itself would wait two minutes."""
    if not address:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}); `ray start --head` starts one, and "
            "`ray status` shows it"
        ) from None


def own_modules(names: Iterable[str]) -> dict[str, bytes]:
    """The files of a suite's modules, by their path below a folder of PYTHONPATH. Installed
    packages are left out: they must be installed on the nodes too."""
    found: dict[str, bytes] = {}
    for top in dict.fromkeys(name.partition(".")[0] for name in names):
        spec = importlib.util.find_spec(top)
        places = [*((spec and spec.submodule_search_locations) or ()), spec and spec.origin]
        path = Path(places[0] or "")  # the folder of a package, or the file of a module
        if top == "ace" or not path.is_absolute() or any(x in str(path) for x in INSTALLED):
            continue
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                found[file.relative_to(path.parent).as_posix()] = file.read_bytes()
        if sum(map(len, found.values())) > MODULE_BYTES:
            raise ConfigError(f"{path} is too large to be sent to the nodes; install {top} there")
    return found


class RayHost:
    """Calls the methods of a job's `Host`, wherever Ray put it."""

    def __init__(self, ray: Any, needs: Needs):
        self._ray = ray
        options = {"num_gpus": needs.gpus, "num_cpus": needs.cpus, "max_restarts": 0}
        self._actor = ray.remote(Host).options(**options).remote()

    def call(self, withdrawn: Callable[[], bool], method: str, *args: Any) -> Any:
        """The result of a method; waits for a free node first, until it is `withdrawn`."""
        errors, unheard = self._ray.exceptions, None
        while True:
            try:
                reference = getattr(self._actor, method).remote(*args)
                while not self._ray.wait([reference], timeout=0.5)[0]:
                    if withdrawn():
                        raise Withdrawn
                return self._ray.get(reference)
            except errors.ActorUnavailableError as error:  # the network, perhaps for a moment
                unheard = unheard or time.monotonic()
                if time.monotonic() - unheard > UNHEARD_SECONDS:
                    raise Lost(_reason(error)) from error
                time.sleep(1)
            except errors.RayError as error:
                raise Lost(_reason(error)) from error

    def end(self) -> None:
        """Let the job's files on the node be deleted."""
        try:
            self._ray.wait([self._actor.end.remote()], timeout=END_SECONDS)
        except Exception:  # lost with its node: there is nothing to delete
            pass
        self.kill()

    def kill(self) -> None:
        """End the job at once."""
        try:
            self._ray.kill(self._actor)
        except Exception:  # it is gone, or the connection is
            pass


def _reason(error: Exception) -> str:
    """The line of Ray's page about an error that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line][-1:]  # raised on the node
    said = [line for line in lines if " died" in line or " dead" in line or " killed" in line]
    line = [*named, *said, *lines, type(error).__name__][0]
    return line.partition(". ")[0][:300].rstrip(".")


class Cluster:
    """A connection to a cluster, and what its nodes offer."""

    def __init__(self, address: str, suite: Suite):
        self.tell: Callable[[str], None] = lambda text: None  # prints a line for the user
        self._lanes = suite.lanes
        self._modules = own_modules(suite.imports)
        self._ray = connect(address)
        try:
            self._nodes = self._find_nodes()
            self.hardware = self._check_nodes()
        except BaseException:
            self.close()
            raise

    def _find_nodes(self) -> list[dict[str, Any]]:
        """The nodes that may run programs: those with GPUs if there are any, else with CPUs."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        for resource in ("GPU", "CPU"):
            if nodes := [node for node in alive if node["Resources"].get(resource, 0) >= 1]:
                return nodes
        nodes = counted(len(alive), "node")
        raise ConfigError(
            f"none of the cluster's {nodes} has a GPU or a CPU for programs; add one "
            "with `ray start --address=HEAD:6379` (`ray status` shows what there is)"
        )

    def _check_nodes(self) -> str:
        """See that ace is the same everywhere; the kind of device, as JAX calls it."""
        strategies = self._ray.util.scheduling_strategies
        probe = self._ray.remote(about_node)
        asked = {
            probe.options(
                num_cpus=0,
                max_retries=0,
                scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(
                    node["NodeID"], soft=False
                ),
            ).remote(): node["NodeManagerAddress"]
            for node in self._nodes
        }
        ready, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)
        kinds, memories = [], []
        for reference, name in asked.items():
            if reference not in ready:
                raise ConfigError(f"node {name} does not answer; `ray stop` there takes it out")
            try:
                version, kind, memory = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                raise ConfigError(
                    f"node {name} cannot run programs: {_reason(error)}; install ace {__version__} "
                    "in the Python environment of its `ray start`"
                ) from None
            if version != __version__:
                raise ConfigError(
                    f"node {name} has ace {version} and this machine {__version__}; install the "
                    "same version on both"
                )
            kinds.append(kind)
            memories.append(memory)
        self.memory = min(filter(None, memories), default=None)  # bytes of a device
        if not self._nodes[0]["Resources"].get("GPU"):
            return next((kind for kind in kinds if kind.startswith("cpu")), "cpu")
        kinds = [kind for kind in kinds if not kind.startswith("cpu")]
        prefix = "accelerator_type:"
        named = [r.removeprefix(prefix) for n in self._nodes for r in n["Resources"] if prefix in r]
        return next(filter(None, [*kinds, *named]), "gpu")

    def about(self) -> str:
        """What the cluster is, in a few words."""
        count = sum(node["Resources"].get("GPU", 0) for node in self._nodes)
        count = count or sum(node["Resources"].get("CPU", 0) for node in self._nodes)
        nodes = counted(len(self._nodes), "node")
        return f"a Ray cluster of {nodes} with {count:.0f} x {self.hardware}"

    def slots(self, count: int, waiting: bool = True) -> list[int]:
        """A place for each of `count` jobs: Ray lets them wait, and uses nodes that join later.
        Without `waiting`, only as many as find room now, since a time limit counts from the
        start."""
        needs = self._needs(self._lanes)
        room = sum(needs.fit(node["Resources"]) for node in self._nodes)
        return list(range(count if waiting else max(1, min(count, room))))

    def _needs(self, processes: int) -> Needs:
        """A GPU, if the cluster has any, and a CPU per simulator process; never more CPUs than
        the smallest node has for each of its GPUs, or some would never be used."""
        resources = [node["Resources"] for node in self._nodes]
        gpus = float(bool(resources[0].get("GPU")))
        share = min(r.get("CPU", 0.0) / (r["GPU"] if gpus else 1.0) for r in resources)
        whole = share if share < 1 else float(int(share))  # Ray wants whole CPUs from one on
        return Needs(gpus, min(float(max(processes, 1)), whole))

    def start(self, job: Job, folder: Path, save_minutes: float) -> RemoteJob:
        """Give a job to Ray, which starts it when a node is free."""
        lane = job.lanes[0]
        workers = make_config(lane.agent, job, lane.task).workers
        needs = self._needs(len(job.lanes) if workers < 0 else min(workers, len(job.lanes)))

        def place() -> RayHost:
            return RayHost(self._ray, needs)

        def tell(text: str) -> None:
            self.tell(text)

        return RemoteJob(job, folder, save_minutes, place, self._modules, tell)

    def close(self) -> None:
        """Leave the cluster; Ray ends what still runs there."""
        self._ray.shutdown()
