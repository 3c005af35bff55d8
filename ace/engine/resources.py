"""The resources of a run: simulator processes, slots of the replay, device memory."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax

from ace import replay
from ace.agents import AGENTS
from ace.engine.lanes import LaneSetup
from ace.envs import get_spec
from ace.settings.config import Config, ConfigError
from ace.settings.words import counted

CGROUP = Path("/sys/fs/cgroup/cpu.max")
MEMORY = Path("/proc/meminfo")


def cores() -> int:
    """Cores that this process may use, by its affinity and the container's quota."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    try:  # the container's quota
        quota, period = CGROUP.read_text().split()
        return max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):
        return count


def count_workers(config: Config, envs: int) -> int:
    """Simulator processes: as set, else one per core; never more than environments."""
    return min(cores() if config.workers < 0 else config.workers, envs)


def spare_cores(workers: int) -> bool:
    """Whether simulator processes may busy-wait: not if they would take more than a quarter of the
    cores, nor if the CPU is the device."""
    return jax.default_backend() != "cpu" and workers <= cores() // 4


def replay_capacity(setups: Sequence[LaneSetup]) -> int:
    """Slots per lane: as set, else enough for the whole run."""
    config = setups[0].config
    if config.replay.capacity:
        return config.replay.capacity
    steps = config.agent_steps
    needed = []
    for setup in setups:
        spec = get_spec(setup.task)
        longest = spec.max_episode_steps and spec.max_episode_steps // config.action_repeat
        needed.append(replay.capacity_for(steps, longest, spec.fixed_length))
    return max(needed)


def check_memory(agent: str, setups: Sequence[LaneSetup], capacity: int) -> int:
    """Bytes of the replay of all lanes; refuse a run that cannot fit, before allocating it."""
    config, lanes = setups[0].config, len(setups)
    sizes = max(s.sizes[0] for s in setups), max(s.sizes[1] for s in setups)
    per_lane = replay.size_in_bytes(capacity, *sizes)
    limit = device_memory()
    if not limit:
        return lanes * per_lane
    if per_lane * lanes > 0.8 * limit:
        raise ConfigError(
            f"the replay of {counted(lanes, 'lane')} needs {_size(per_lane * lanes)} and the "
            f"device has {_size(limit)}; train fewer lanes or set --replay.capacity below "
            f"{int(0.8 * limit / lanes / per_lane * capacity)}"
        )
    parts = AGENTS[agent].footprint(config, sizes)
    needed = lanes * (per_lane + sum(parts.values()))
    needs = f"at least {_size(needed)} are needed for {counted(lanes, 'lane')}"
    if needed > limit:
        what, most = max(parts.items(), key=lambda part: part[1])
        raise ConfigError(
            f"{needs}, and the device has {_size(limit)}; {_size(lanes * most)} are {what}: lower "
            "these settings or train fewer lanes"
        )
    free = free_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"{needs}, and {_size(free)} of the device are free; wait until the other program on "
            "it has ended, train fewer lanes or lower --replay.capacity"
        )
    return lanes * per_lane


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB"


def device_memory() -> int | None:
    """Bytes of the device that may be used, or None if unknown."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    if jax.default_backend() == "cpu" and hasattr(os, "sysconf"):
        try:  # MemAvailable includes the page cache, which can be reclaimed
            found = dict(line.split(":") for line in MEMORY.read_text().splitlines())
            return 1024 * int(found["MemAvailable"].removesuffix("kB"))
        except (OSError, ValueError, KeyError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return None


def free_memory() -> int | None:
    """Bytes of a GPU that this process can still get, or None if unknown. JAX knows nothing of
    other processes, so the driver is asked; of several cards, the one with the most counts."""
    stats = jax.devices()[0].memory_stats()
    if jax.default_backend() != "gpu" or not stats:
        return None
    asked = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # CUDA and the driver may number cards differently: without UUIDs or PCI order, ask for all.
    if "-" in visible or (visible and os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"):
        asked.append(f"--id={visible}")
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        free = 2**20 * max(map(int, said.split()))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    # What JAX holds and does not use, after an earlier run of this process, is free as well.
    return free + max(stats.get("pool_bytes", 0) - stats.get("bytes_in_use", 0), 0)


def peak_memory() -> int | None:
    """Most bytes of the device that were in use, or None if unknown."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
