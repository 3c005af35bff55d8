"""What a call of `ace bench` has to do: the jobs that are missing, what earlier calls have begun of
them, how long each will take, and which are started."""

import heapq
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ace.bench import reuse, suites
from ace.bench.jobs import (
    Job,
    LaneSpec,
    check_shared,
    finished_lanes,
    last_env_step,
    make_config,
    make_jobs,
    split,
)
from ace.bench.mirror import newest
from ace.bench.rates import Rates, bytes_needed, measure
from ace.bench.results import Part, lost_seeds, read_programs
from ace.run.flags import BenchArgs
from ace.settings.config import ConfigError

MARGIN = 1.1  # expected times are multiplied by this before they are compared with a limit
SAVE_SECONDS = 20.0  # before a limit, for jobs to save
MEMORY_SHARE = 0.8  # of a device's, for what is known before a job runs: it needs some more


@dataclass
class Planned:
    """A job, where it keeps its state, and what became of it."""

    job: Job
    folder: Path
    steps: int  # agent steps of every lane
    repeat: int
    packed: int  # lanes of the program that the suite packs these lanes into
    seed: int = 0  # agent steps before it learns
    made: int = 0  # agent steps made by an earlier call
    expected: float | None = None  # seconds
    running: Any = None
    begun: float = 0.0
    asked: bool = False  # to stop
    failure: str = ""

    @property
    def last(self) -> int:
        """The env step at which the job ends."""
        return self.steps * self.repeat

    def rate(self) -> float | None:
        """Lane-steps per second that the job has made in this call, while it learned."""
        after = max(self.seed, self.made) * self.repeat
        return measure(self.folder / "run", len(self.job.lanes), self.repeat, after)

    @property
    def needed(self) -> float:
        """Seconds that must be left for the job to start; 0 if nobody knows how long it takes."""
        return (self.expected or 0.0) * MARGIN

    @cached_property
    def size(self) -> int:
        """Bytes of a device that the job needs at least."""
        return bytes_needed(self.job)

    @property
    def is_part(self) -> bool:
        """Whether the suite packs more lanes together than the job has."""
        return len(self.job.lanes) < self.packed

    def part(self, lanes: Sequence[LaneSpec]) -> "Planned":
        """A job of some of the lanes, with a folder of its own."""
        job = self.job.part(lanes)
        return replace(self, job=job, folder=self.folder.parent / job.id)


@dataclass
class Plan:
    """All jobs of a call."""

    suite: suites.Suite
    results: Path
    todo: list[Planned]
    # Last env step of each curve that the results have, or get from other suites.
    done: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # on results that are there
    reused: list[Part] = field(default_factory=list)  # curves of other suites
    failed: list[Planned] = field(default_factory=list)
    finished: list[Planned] = field(default_factory=list)


def read_shard(text: str) -> tuple[int, int]:
    """Part and number of parts of `1/4`."""
    if not text:
        return 1, 1
    try:
        part, parts = map(int, text.split("/"))
    except ValueError:
        part, parts = 0, 0
    if not 1 <= part <= parts:
        raise ConfigError(f"--shard is {text!r}; give a part and the number of parts, as in 1/4")
    return part, parts


def choose_suite(args: BenchArgs) -> suites.Suite:
    """The suite of a call, less what was not asked for."""
    from ace.run.request import known

    suite = suites.load(args.suite)
    check_shared(suite)  # with all agents: one that was not asked for may read a setting
    for name in args.agents:
        known("agent of the suite", name, [e.name for e in suite.entries])
    for task in args.tasks:
        known("task of the suite", task, suite.tasks)
    entries = tuple(e for e in suite.entries if not args.agents or e.name in args.agents)
    tasks = tuple(t for t in suite.tasks if not args.tasks or t in args.tasks)
    if len(set(args.seeds)) < len(args.seeds):
        raise ConfigError(f"a seed is given twice: {' '.join(map(str, args.seeds))}")
    if args.lanes is not None and args.lanes < 1:
        raise ConfigError(f"--lanes is {args.lanes}; it must be at least 1")
    return replace(suite, entries=entries, tasks=tasks, seeds=args.seeds or suite.seeds)


def make_plan(args: BenchArgs) -> Plan:
    """What is done and what is to do."""
    suite = choose_suite(args)
    part, parts = read_shard(args.shard)
    jobs = make_jobs(suite, args.lanes)[part - 1 :: parts]
    results = args.results / suite.name
    finished = finished_lanes(jobs, results)
    reused = reuse.find(suite, jobs, finished, args.reuse)
    known = finished | reuse.lanes_of(reused)
    notes = lost_seeds(results, read_programs(results))
    plan = Plan(suite, results, [], [], notes, reused)
    for job in jobs:
        missing = tuple(lane for lane in job.lanes if lane not in known)
        lane = job.lanes[0]
        config = make_config(lane.agent, job, lane.task)  # all lanes make the same steps
        plan.done += [last_env_step(config)] * (len(job.lanes) - len(missing))
        if not missing:
            if finished.issuperset(job.lanes):
                clean_up(args.work / suite.name / job.id)
            continue
        left = job.part(missing)
        folder = args.work / suite.name / left.id
        sizes = (config.agent_steps, config.action_repeat, len(job.lanes), config.seed_steps)
        plan.todo.append(Planned(left, folder, *sizes))
    return plan


def clean_up(folder: Path) -> None:
    """Delete the checkpoints of a job whose results are in; agents and curves stay."""
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)


def estimate(
    plan: Plan,
    rates: Rates,
    hardware: str,
    limit: float | None = None,
    memory: int | None = None,
) -> None:
    """Fill in what is known of started jobs and how long each will take, go on with parts that an
    earlier call has begun, and cut jobs that do not fit a device's memory or that a limit would
    never let finish; put in order: started ones first, then those that finish the most curves in a
    second, then those with the fewest missing ones."""

    def look(planned: Planned) -> Planned:
        planned.made = max(newest(planned.folder), 0)
        planned.expected = rates.seconds(planned.job, hardware, planned.made)
        return planned

    def smaller(planned: Planned) -> list[Planned]:
        """The job, or the largest parts of it that fit the memory and that the limit lets
        finish."""
        lanes, time = planned.job.lanes, time_for_jobs(limit)
        most = lanes_for(planned, memory)
        ways = (split(lanes, count) for count in range(most, 0, -1))
        first: list[Planned] = []
        for way in ways:
            alone = len(way) == 1
            parts = [planned] if alone else [look(planned.part(some)) for some in way]
            first = first or parts
            if all(fits(part, time) for part in parts):
                return parts
        return first  # a single lane would not be finished either: nothing is gained

    todo: list[Planned] = []
    for whole in map(look, plan.todo):
        begun = [whole] if whole.made else [look(part) for part in begun_parts(whole)]
        taken = {lane for part in begun for lane in part.job.lanes}
        left = [lane for lane in whole.job.lanes if lane not in taken]
        todo += begun
        if left:
            todo += smaller(look(whole.part(left)) if begun else whole)
    plan.todo = sorted(todo, key=order)


def lanes_for(planned: Planned, memory: int | None) -> int:
    """How many of a job's lanes fit a device with `memory` bytes: all if that is unknown."""
    lanes = len(planned.job.lanes)
    if memory is None or planned.size <= MEMORY_SHARE * memory:
        return lanes
    most = int(MEMORY_SHARE * memory * lanes / planned.size)
    if not most:
        lane = planned.job.lanes[0]
        raise ConfigError(
            f"{lane.agent} on {lane.task}: a lane needs at least "
            f"{show_bytes(planned.size / lanes)}, and the device has {show_bytes(memory)}; set "
            "replay.capacity in the suite, or make the networks smaller"
        )
    return most


def show_bytes(count: float) -> str:
    """A size for people."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"


def begun_parts(whole: Planned) -> list[Planned]:
    """The parts of a job that earlier calls have begun, most lane-steps first; no lane is in two of
    them."""
    found = []
    for path in whole.folder.parent.glob("*/job.json"):
        try:
            lanes = Job.from_json(json.loads(path.read_text())).lanes
        except (OSError, ValueError, TypeError, KeyError):
            continue  # not of this version: it cannot be continued
        if set(lanes) < set(whole.job.lanes) and newest(path.parent) > 0:
            part = whole.part(lanes)
            found += [part] if part.folder == path.parent else []
    found.sort(key=lambda part: (-newest(part.folder) * len(part.job.lanes), part.job.id))
    chosen: list[Planned] = []
    for part in found:
        taken = {lane for other in chosen for lane in other.job.lanes}
        chosen += [] if taken & set(part.job.lanes) else [part]
    return chosen


def order(planned: Planned) -> tuple:
    """Where a job stands among those that wait."""
    lanes = len(planned.job.lanes)
    worth = lanes / planned.expected if planned.expected else 0.0
    return planned.made == 0, -worth, lanes, planned.job.id


def time_for_jobs(limit: float | None) -> float:
    """Seconds of a limit until jobs must save."""
    return math.inf if limit is None else limit - SAVE_SECONDS


def fits(planned: Planned, left: float) -> bool:
    """Whether a job may start when `left` seconds remain."""
    return left > 0 and planned.needed <= left


def to_start(todo: Iterable[Planned], slots: int, limit: float | None) -> Iterator[Planned]:
    """The jobs that will start within a limit, as `Drive` starts them: each device takes the first
    that fits when it is free. One whose time is unknown is taken to last until the limit."""
    waiting, left = list(todo), time_for_jobs(limit)
    free = [0.0] * slots  # when each device is free
    while fitting := [p for p in waiting if limit is None or fits(p, left - free[0])]:
        waiting.remove(fitting[0])
        yield fitting[0]
        expected = fitting[0].expected
        heapq.heapreplace(free, free[0] + (math.inf if expected is None else expected))
