"""How long a job will take: lane-steps per second that were measured on the same kind of device,
and the time that a start takes."""

import csv
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ace.bench.jobs import Job, make_config
from ace.bench.results import read_programs, write_text

MEASURED = Path(__file__).parent / "data" / "rates.json"
CPU_START_SECONDS, GPU_START_SECONDS = 15.0, 45.0  # from the process to the first update
SHORTEST = 5.0  # seconds of learning that a rate is measured over


class Rate(NamedTuple):
    """One measurement."""

    hardware: str
    agent: str
    preset: str
    lanes: int
    lane_steps_per_s: float  # while lanes learn: without the start
    when: str = ""  # time of the measurement, as ISO 8601 has it; those that ship have none


def now() -> str:
    """The time of a measurement."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def measure(folder: Path, lanes: int, repeat: int, after: int) -> float | None:
    """Lane-steps per second of a run between the first and the last row that it has recorded past
    an env step, at which it learns already; None if they are too close to each other."""
    points = sorted(point for point in _points(folder) if point[0] > after)
    if not points or points[-1][1] - points[0][1] < SHORTEST:
        return None
    (first, begun), (last, ended) = points[0], points[-1]
    return (last - first) // repeat * lanes / (ended - begun)


def _points(folder: Path) -> Iterator[tuple[int, float]]:
    """Env step and wall-clock of every row of a run; a row that is being written is left out."""
    for name in ("train.csv", "eval.csv"):
        try:
            with (folder / name).open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(line for line in file if line.endswith("\n")):
                    yield int(row["env_step"]), float(row["wall_time"])
        except (OSError, ValueError, KeyError, TypeError):
            continue


class Rates:
    """Measurements that ship with the package, of results, and of this machine."""

    def __init__(self, results: Path, own: Path):
        self.own = own
        known = [*_read(MEASURED), *_read(own)]
        for folder in sorted(results.parent.glob("*/programs")) if results.parent.exists() else ():
            for program in read_programs(folder.parent):
                if program.get("lane_steps_per_s") and program.get("hardware"):
                    known.append(_rate(program))
        self.known = sorted(known, key=lambda rate: rate.when)

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
        start = CPU_START_SECONDS if hardware.startswith("cpu") else GPU_START_SECONDS
        return start + steps / rate


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
        str(program.get("finished") or ""),
    )
