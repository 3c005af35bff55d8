"""The resources of a run: simulator processes, slots of the replay, device memory."""

import os
from collections.abc import Sequence
from pathlib import Path

import jax

from ace import replay
from ace.agents import AGENTS
from ace.engine.lanes import LaneSetup
from ace.envs import get_spec
from ace.settings.config import Config, ConfigError

CGROUP = Path("/sys/fs/cgroup/cpu.max")


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
            f"the replay of {lanes} lane(s) needs {_size(per_lane * lanes)} and the "
            f"device has {_size(limit)}; train fewer lanes or set --replay.capacity below "
            f"{int(0.8 * limit / lanes / per_lane * capacity)}"
        )
    parts = AGENTS[agent].footprint(config, sizes)
    if per_lane * lanes + sum(parts.values()) * lanes > limit:
        what, most = max(parts.items(), key=lambda part: part[1])
        raise ConfigError(
            f"{lanes} lane(s) need at least {_size(lanes * (per_lane + sum(parts.values())))} and "
            f"the device has {_size(limit)}; {what} alone takes {_size(lanes * most)}: make it "
            "smaller or train fewer lanes"
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
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return None


def peak_memory() -> int | None:
    """Most bytes of the device that were in use, or None if unknown."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
