"""A suite on a Ray cluster that is shot at: does it give the same numbers as one process after the
other?

    python benchmarks/cluster.py                   # kill a Ray worker in the middle
    python benchmarks/cluster.py --kill node       # kill one of the two nodes
    python benchmarks/cluster.py --shared          # let the nodes see the driver's folder

Starts two Ray nodes on this machine, with one CPU each. Runs a suite of eight small programs
without Ray, then with it, kills something once the driver has a checkpoint, and compares all CSV
files byte by byte. Unless `--shared` is given, nodes and driver exchange files as if they were on
different machines. Needs `pip install 'ace-planner[ray]'`.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ace.bench.jobs import Job
from ace.bench.mirror import newest

ROOT = Path(__file__).parents[1]
SUITE = """
tasks = ["probe/point", "probe/long"]
seeds = "{seeds}"
env_steps = {env_steps}
preset = "debug"
lanes = 1
imports = ["own_agent"]

[settings]
eval_every = {eval_every}

[agents.monkey]
"""
REAL = """
[agents.ace]
settings = { "plan.iterations" = 1 }
"""
READY = "Ray runtime started"


@contextmanager
def node(folder: Path, name: str, *flags: str) -> Iterator[subprocess.Popen]:
    """A Ray node of one CPU until the end of the context; its temporary files stay in `folder`."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
    small = ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
    env = os.environ | {"TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    env.pop("PYTHONPATH", None)  # the nodes know the user's modules only from the driver
    path = folder / f"{name}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [*command, *small, *flags],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
    try:
        begun = time.monotonic()
        while READY not in path.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() - begun > 60:
                raise RuntimeError(f"the node did not start: {path.read_text()[-1000:]}")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started is in its process group


@contextmanager
def two_nodes() -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """A cluster on this machine: its address and nodes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    head = ("--head", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false")
    with ExitStack() as stack:
        # Not below a folder of pytest: the path of a socket may have 107 bytes.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ace-")))
        first = stack.enter_context(node(folder, "head", *head, f"--temp-dir={folder / 'ray'}"))
        second = stack.enter_context(node(folder, "node", f"--address={address}"))
        yield address, [first, second]


def bench(folder: Path, suite: Path, *flags: str, **env: str) -> subprocess.Popen:
    """`ace bench` in a process of its own; what it prints goes to `folder/out.txt`."""
    folder.mkdir()
    places = ("--results", str(folder / "results"), "--work", str(folder / "work"))
    command = [sys.executable, "-m", "ace", "bench", str(suite), *places, *flags]
    own = {"PYTHONPATH": str(ROOT / "examples"), "COLUMNS": "200", **env}
    with (folder / "out.txt").open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | own)


class Victim(NamedTuple):
    """A program on the cluster."""

    pid: int
    worker: int  # its parent, the process of Ray
    folder: Path  # on the node
    name: str


def programs(nodes: Sequence[subprocess.Popen]) -> Iterator[Victim]:
    """The programs that these nodes run now."""
    table = processes()
    for pid, (parent, words) in table.items():
        if "ace.bench.worker" not in words or not belongs(pid, table, nodes):
            continue
        folder = Path(words[words.index("ace.bench.worker") + 1])
        try:
            job = json.loads((folder / "job.json").read_text())
        except (OSError, ValueError):  # it is just being written, or deleted
            continue
        yield Victim(pid, parent, folder, Job.from_json(job).id)


def processes() -> dict[int, tuple[int, list[str]]]:
    """Parent and command line of every process (from /proc)."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            words = (path / "cmdline").read_text(errors="replace").split("\0")
            found[int(path.name)] = (int(fields[1]), words)
        except (OSError, IndexError):  # it ended meanwhile
            continue
    return found


def belongs(pid: int, table: Mapping, nodes: Sequence[subprocess.Popen]) -> bool:
    """Whether a process was started by one of these nodes."""
    roots = {process.pid for process in nodes}
    while pid in table:
        if pid in roots:
            return True
        pid = table[pid][0]
    return False


def shoot(
    what: str,
    driver: subprocess.Popen,
    nodes: Sequence[subprocess.Popen],
    work: Path,
    at_least: int,
) -> str:
    """Wait for a program in the middle, then kill it, its Ray worker, or the second node; its
    id."""
    mine = nodes[-1:] if what == "node" else nodes

    def wait(found: Callable[[], Victim | None]) -> Victim:
        while not (victim := found()):
            if driver.poll() is not None:
                raise RuntimeError("all programs ended before one could be killed")
            time.sleep(0.02)
        return victim

    victim = wait(lambda: next((v for v in programs(mine) if newest(v.folder) >= at_least), None))
    os.kill(victim.pid, signal.SIGSTOP)  # it must not end before the driver has its checkpoint
    wait(lambda: victim if newest(work / victim.name) >= at_least else None)
    if what == "node":
        table = processes()
        for pid in [pid for pid in table if belongs(pid, table, mine)]:
            os.kill(pid, signal.SIGKILL)
    else:
        os.kill(victim.worker if what == "worker" else victim.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGCONT)  # to see that its parent is gone
    return victim.name


def compare(one: Path, other: Path) -> int:
    """The number of CSV files, all of which must be equal byte by byte."""
    files = sorted(path.relative_to(one) for path in one.rglob("*.csv"))
    if not files or files != sorted(path.relative_to(other) for path in other.rglob("*.csv")):
        raise AssertionError(f"other files: {files}")
    for name in files:
        if (one / name).read_bytes() != (other / name).read_bytes():
            raise AssertionError(f"{name} differs")
    return len(files)


def demonstrate(
    folder: Path, kill: str, shared: bool, env_steps: int, seeds: str = "0-1", more: str = REAL
) -> str:
    """Run the suite without and with Ray; what the driver printed. Raises if anything differs."""
    suite, begun = folder / "small.toml", time.monotonic()
    text = SUITE.format(env_steps=env_steps, eval_every=env_steps // 4, seeds=seeds)
    suite.write_text(text + more)
    often = ("--save-minutes", "0.002")
    alone = bench(folder / "alone", suite, *often)
    if alone.wait():
        raise RuntimeError((folder / "alone" / "out.txt").read_text()[-2000:])
    print(f"without Ray: {time.monotonic() - begun:.0f} s", flush=True)
    begun, out = time.monotonic(), folder / "ray" / "out.txt"
    with two_nodes() as (address, nodes):
        print(f"two nodes started: {time.monotonic() - begun:.0f} s", flush=True)
        sharing = "on" if shared else "off"
        driver = bench(folder / "ray", suite, *often, "--ray", address, ACE_BENCH_SHARED=sharing)
        try:
            name = shoot(kill, driver, nodes, folder / "ray" / "work" / suite.stem, env_steps // 3)
            print(f"killed the {kill} of {name}", flush=True)
            status = driver.wait()
        finally:
            driver.kill()
        printed = out.read_text()
        if status:
            raise RuntimeError(printed[-3000:])
    print(f"with Ray: {time.monotonic() - begun:.0f} s", flush=True)
    if f"{name}: lost" not in printed:
        raise AssertionError(f"the kill went unnoticed:\n{printed}")
    count = compare(folder / "alone" / "results", folder / "ray" / "results")
    print(f"equal: {count} CSV files, byte by byte")
    return printed


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kill", choices=("worker", "program", "node"), default="worker")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--env-steps", type=int, default=4_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ace-") as folder:
        printed = demonstrate(Path(folder), args.kill, args.shared, args.env_steps).splitlines()
    print("\n".join([*(line for line in printed if ": lost (" in line), printed[-1]]))


if __name__ == "__main__":
    main()
