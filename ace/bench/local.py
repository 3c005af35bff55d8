"""Jobs as processes of this machine, one per device."""

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ace.bench.jobs import Job
from ace.bench.results import write_text
from ace.settings.config import ConfigError

PROBE = """import jax, json
memory = lambda device: (device.memory_stats() or {}).get("bytes_limit")
print(json.dumps([(device.device_kind, memory(device)) for device in jax.local_devices()]))"""
PROCESSORS = Path("/proc/cpuinfo")
TAIL = 2000  # characters of a log that an error shows


class Device(NamedTuple):
    """Where one job runs at a time."""

    kind: str  # as `device_name` has it
    visible: str | None = None  # for CUDA_VISIBLE_DEVICES
    memory: int | None = None  # bytes; None: unknown


def find_devices() -> list[Device]:
    """The accelerators of this machine, or its CPU. Another process asks JAX, since the one that
    asks takes memory of every device."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, env=environment(None)
    )
    if done.returncode:
        raise ConfigError(f"JAX finds no device here: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found and found[0][0].lower() != "cpu":
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        ids = shown.split(",") if shown else [str(i) for i in range(len(found))]
        pairs = zip(found, ids, strict=False)
        return [Device(kind, name, memory) for (kind, memory), name in pairs]
    return [Device(device_name("cpu"), memory=host_memory())]


def host_memory() -> int:
    """Bytes of this machine's memory: all of it, so that plans do not depend on what is free."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_name(kind: str) -> str:
    """What JAX calls a device; a CPU with its processor and cores, since rates depend on them."""
    from ace.engine.resources import cores

    if kind.lower() != "cpu":
        return kind
    try:
        lines = PROCESSORS.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"cpu ({[*names, platform.machine()][0]}, {cores()} cores)"


def environment(device: Device | None) -> dict[str, str]:
    """The environment of a job's process."""
    found = dict(os.environ)
    if "ACE_BENCH_PLATFORM" in found:  # `bench` itself keeps off the devices
        platform = found.pop("ACE_BENCH_PLATFORM")
        found.pop("JAX_PLATFORMS", None)
        if platform:
            found["JAX_PLATFORMS"] = platform
    if device and device.visible is not None:
        found["CUDA_VISIBLE_DEVICES"] = device.visible
    return found


class LocalJob:
    """A job that runs in a process."""

    def __init__(self, job: Job, folder: Path, save_minutes: float, device: Device | None = None):
        self.job, self.folder = job, folder
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "job.json", json.dumps(job.to_json(), indent=1) + "\n")
        self._log = (folder / "log.txt").open("ab")
        given = (folder, save_minutes, os.getpid(), *([device.kind] if device else []))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ace.bench.worker", *map(str, given)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment(device),
            start_new_session=True,  # Ctrl-C goes to `ace bench`, which asks its jobs to save
        )

    def poll(self) -> int | None:
        """The exit status, or None while the job runs."""
        status = self._process.poll()
        if status is not None:
            self._log.close()
        return status

    def env_step(self) -> int:
        """How far the job is."""
        return env_step(self.folder)

    def stop(self) -> None:
        """Ask the job to save and end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the job at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """The end of what the job printed."""
        text = (self.folder / "log.txt").read_text(errors="replace")
        return text[-TAIL:].strip()


def env_step(folder: Path) -> int:
    """The last env step that a job has recorded."""
    return max(_last_step(folder / "run" / name) for name in ("train.csv", "eval.csv"))


def _last_step(path: Path) -> int:
    try:
        with path.open("rb") as file:
            header = file.readline().decode().rstrip("\n").split(",")
            file.seek(max(0, path.stat().st_size - 2000))
            lines = file.read().decode(errors="replace").splitlines()
        for line in reversed(lines):
            fields = line.split(",")
            if len(fields) == len(header):
                return int(fields[header.index("env_step")])
    except (OSError, ValueError):
        pass
    return 0
