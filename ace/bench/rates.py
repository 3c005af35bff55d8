"""How long a job will take: lane-steps per second that were measured on the same kind of device,
and the time that a start takes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ace.bench.jobs import Job, make_config
from ace.bench.results import read_programs, write_text

MEASURED = Path(__file__).parent / "data" / "rates.json"
START_SECONDS = {"cpu": 15.0}  # from the process to the first update
GPU_START_SECONDS = 45.0


class Rate(NamedTuple):
    """One measurement."""

    hardware: str
    agent: str
    preset: str
    lanes: int
    lane_steps_per_s: float


class Rates:
    """Measurements that ship with the package, of results, and of this machine."""

    def __init__(self, results: Path, own: Path):
        self.own = own
        self.known = [*_read(MEASURED), *_read(own)]
        for folder in sorted(results.parent.glob("*/programs")) if results.parent.exists() else ():
            for program in read_programs(folder.parent):
                if program.get("lane_steps_per_s") and program.get("hardware"):
                    self.known.append(_rate(program))

    def add(self, rate: Rate) -> None:
        """Remember a measurement, also for later calls."""
        self.known.append(rate)
        mine = [*_read(self.own), rate][-200:]
        self.own.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.own, json.dumps([r._asdict() for r in mine], indent=1) + "\n")

    def find(self, job: Job, hardware: str) -> float | None:
        """Lane-steps per second, interpolated between measurements with fewer and more lanes (on
        logarithmic scales; the newest counts). Below the fewest, a step takes as long as with
        them; above the most, a lane-step does."""
        wanted = (hardware, job.agent, job.preset)
        alike = {r.lanes: r.lane_steps_per_s for r in self.known if r[:3] == wanted}
        if not alike:
            return None
        lanes, counts = len(job.lanes), sorted(alike)
        if lanes < counts[0]:
            return alike[counts[0]] * lanes / counts[0]
        logs = np.log(counts), np.log([alike[n] for n in counts])
        return float(np.exp(np.interp(np.log(lanes), *logs)))

    def seconds(self, job: Job, hardware: str, made: int = 0) -> float | None:
        """Expected seconds until the job ends, if it has made some agent steps already."""
        rate = self.find(job, hardware)
        if rate is None:
            return None
        steps = max(agent_steps(job) - made, 0) * len(job.lanes)
        return START_SECONDS.get(hardware, GPU_START_SECONDS) + steps / rate


def agent_steps(job: Job) -> int:
    """Agent steps of every lane."""
    lane = job.lanes[0]
    return make_config(lane.agent, job, lane.task).agent_steps


def bytes_needed(job: Job) -> int:
    """Device memory that the job needs at least."""
    from ace import replay
    from ace.agents import AGENTS
    from ace.bench.jobs import make_run
    from ace.engine.resources import replay_capacity

    run = make_run(job, Path("unused"))
    sizes = max(s.sizes[0] for s in run.setups), max(s.sizes[1] for s in run.setups)
    one = replay.size_in_bytes(replay_capacity(run.setups), *sizes)
    one += sum(AGENTS[job.agent].footprint(run.setups[0].config, sizes).values())
    return one * len(job.lanes)


def _read(path: Path) -> list[Rate]:
    try:
        return [Rate(**rate) for rate in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError):
        return []


def _rate(program: Mapping[str, Any]) -> Rate:
    return Rate(
        program["hardware"],
        program["agent"],
        program["preset"],
        len(program["lanes"]),
        float(program["lane_steps_per_s"]),
    )
