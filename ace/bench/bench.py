"""`ace bench`: run what is missing of a suite, as many jobs at once as there are devices, and add
what they find to the results."""

import json
import math
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ace.bench import suites
from ace.bench.jobs import Job, finished_lanes, last_env_step, make_config, make_jobs, split
from ace.bench.rates import Rate, Rates
from ace.bench.results import ResultError, Table, add_program, lost_seeds, read_programs
from ace.run.flags import BenchArgs
from ace.settings.config import ConfigError

MARGIN = 1.1  # expected times are multiplied by this before they are compared with a limit
SAVE_SECONDS = 20.0  # before a limit, for jobs to save
POLL_SECONDS = 0.2


class Running(Protocol):
    """A job in progress."""

    def poll(self) -> int | None: ...
    def env_step(self) -> int: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def log(self) -> str: ...


@dataclass
class Planned:
    """A job, where it keeps its state, and what became of it."""

    job: Job
    folder: Path
    steps: int  # agent steps of every lane
    repeat: int
    whole: int  # lanes before finished ones were left out
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


@dataclass
class Plan:
    """All jobs of a call."""

    suite: suites.Suite
    results: Path
    todo: list[Planned]
    done: list[Job]
    notes: list[str] = field(default_factory=list)  # on results that are there
    failed: list[Planned] = field(default_factory=list)
    finished: list[Planned] = field(default_factory=list)


def read_limit(text: str) -> float | None:
    """Seconds of `25m`, `2h`, `90s` or `90`."""
    if not text:
        return None
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--for is {text!r}; give a time such as 25m, 2h or 90s")
    return seconds


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
    todo, done = [], []
    for job in jobs:
        missing = tuple(lane for lane in job.lanes if lane not in finished)
        if not missing:
            done.append(job)
            clean_up(args.work / suite.name / job.id)
            continue
        left, lane = job.part(missing), missing[0]
        config = make_config(lane.agent, left, lane.task)
        folder = args.work / suite.name / left.id
        sizes = (config.agent_steps, config.action_repeat, len(job.lanes))
        todo.append(Planned(left, folder, *sizes))
    return Plan(suite, results, todo, done, lost_seeds(results, read_programs(results)))


def estimate(plan: Plan, rates: Rates, hardware: str, limit: float | None = None) -> None:
    """Fill in what is known of started jobs and how long each will take, and cut those that a
    limit would never let finish; put in order: started ones first, then those that finish the most
    curves in a second, then those with the fewest missing ones."""
    from ace.bench.local import env_step

    def look(planned: Planned) -> Planned:
        planned.made = env_step(planned.folder) // planned.repeat
        planned.expected = rates.seconds(planned.job, hardware, planned.made)
        return planned

    def fits(planned: Planned) -> bool:
        left = math.inf if limit is None else limit - SAVE_SECONDS
        return planned.expected is None or planned.expected * MARGIN <= left

    todo = []
    for whole in map(look, plan.todo):
        ways = [[whole]]
        if not whole.made and not fits(whole):
            fewer = range(len(whole.job.lanes) - 1, 0, -1)
            ways += [[look(part) for part in cut(whole, most)] for most in fewer]
        begun = [way for way in ways if any(part.made for part in way)]  # cut by an earlier call
        todo += next((way for way in [*begun, *ways] if all(map(fits, way))), ways[0])
    plan.todo = sorted(todo, key=order)


def cut(planned: Planned, most: int) -> list[Planned]:
    """A job that has not begun as several jobs of at most so many lanes."""
    jobs = [planned.job.part(lanes) for lanes in split(planned.job.lanes, most)]
    done = planned.whole - len(planned.job.lanes)
    return [
        replace(
            planned,
            job=job,
            folder=planned.folder.parent / job.id,
            whole=len(job.lanes) + (0 if i else done),
        )
        for i, job in enumerate(jobs)
    ]


def order(planned: Planned) -> tuple:
    """Where a job stands among those that wait."""
    lanes = len(planned.job.lanes)
    worth = lanes / planned.expected if planned.expected else 0.0
    return planned.made == 0, -worth, lanes, planned.job.id


def describe_lanes(job: Job, settings: Sequence[Any]) -> list[dict[str, Any]]:
    """What a program's description says of every lane."""
    found = []
    for lane, own in zip(job.lanes, settings, strict=True):
        learned = job.trained_on(lane.agent, lane.task)
        other = {"trained_on": learned} if learned != lane.task else {}
        found.append(lane._asdict() | {"settings": own} | other)
    return found


def collect(planned: Planned, results: Path, command: str, score: str = "") -> Rate:
    """Add the results of a finished job, then delete its checkpoints; `score` is the suite's."""
    from ace.run.record import read_csv

    job, folder = planned.job, planned.folder
    rows = join_exploration(read_csv(folder / "run" / "eval.csv"), folder)
    tables: dict[tuple[str, str], Table] = {}
    skipped = ("lane", "seed", "task", "env_step", "wall_time")
    for row in rows:
        lane = job.lanes[row["lane"]]
        known = {n: float(x) for n, x in row.items() if n not in skipped and x != ""}
        values = {n: x for n, x in known.items() if not math.isnan(x)}
        table = tables.setdefault((lane.agent, lane.task), {})
        table.setdefault(lane.seed, {})[row["env_step"]] = values
    check_complete(job, tables)
    made = json.loads((folder / "done.json").read_text())
    wall = max(float(row["wall_time"]) for row in rows)
    versions = made["versions"]
    hardware = versions.get("device") or "unknown"
    rate = planned.steps * len(job.lanes) / max(wall, 1e-9)
    description = {
        "id": job.id,
        "format": 1,
        "suite": job.suite,
        "agent": job.agent,
        "preset": job.preset,
        "command": command,
        "commit": versions.get("commit"),
        "dirty": versions.get("dirty"),
        "versions": versions,
        "hardware": hardware,
        "config": made["config"],
        "lanes": describe_lanes(job, made["settings"]),
        "env_steps": planned.last,
        "wall_clock_s": wall,
        "lane_steps_per_s": round(rate, 1),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    } | ({"score": score} if score else {})
    add_program(results, description, tables)
    clean_up(folder)
    return Rate(hardware, job.agent, job.preset, len(job.lanes), rate)


def join_exploration(rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a job, those of mazes with what exploration.csv tells of them."""
    from ace.run.explore import CSV, layout_of
    from ace.run.record import read_csv

    path = folder / "run" / CSV
    found = {(row["lane"], row["env_step"]): row for row in read_csv(path)} if path.exists() else {}
    expected = {(row["lane"], row["env_step"]) for row in rows if layout_of(row["task"])}
    if differ := expected ^ set(found):
        lane, env_step = min(differ)
        lacks, has = (CSV, "eval.csv") if (lane, env_step) in expected else ("eval.csv", CSV)
        raise ResultError(
            f"{path.parent}: {lacks} has no row of lane {lane} at env step {env_step}, but {has} "
            f"has one; delete {folder} and run the suite again"
        )
    return [row | found.get((row["lane"], row["env_step"]), {}) for row in rows]


def check_complete(job: Job, tables: dict[tuple[str, str], Table]) -> None:
    """Refuse the results of a job that lacks a last evaluation."""
    for lane in job.lanes:
        last = last_env_step(make_config(lane.agent, job, lane.task))
        if last not in tables.get((lane.agent, lane.task), {}).get(lane.seed, {}):
            what = f"{lane.agent} on {lane.task}, seed {lane.seed}"
            raise ResultError(f"{what}, has no evaluation at env step {last}")


def clean_up(folder: Path) -> None:
    """Delete the checkpoints of a job whose results are in; agents and curves stay."""
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)


def command_line(argv: Sequence[str]) -> str:
    """The command that made results, without what only this call needs."""
    return shlex.join(["ace", "bench", *argv])


def bench(args: BenchArgs, argv: Sequence[str]) -> int:
    """Carry out `ace bench`; the exit status."""
    from rich.console import Console

    from ace.bench import drive
    from ace.bench.local import LocalJob, find_devices

    limit, console = read_limit(args.limit), Console()
    plan = make_plan(args)
    cluster = None
    if args.ray and not args.dry_run and plan.todo:
        from ace.bench.cluster import Cluster

        cluster = Cluster(args.ray, plan.suite)
        slots = cluster.slots(len(plan.todo), waiting=limit is None)
        hardware = cluster.hardware
    else:
        slots = find_devices()
        hardware = slots[0].kind
    rates = Rates(plan.results, args.work / "rates.json")
    estimate(plan, rates, hardware, limit)
    if not args.quiet or args.dry_run:
        shown = f"{len(slots)} x {hardware}" if len(slots) > 1 else hardware
        shown = cluster.about() if cluster else shown
        drive.show_plan(plan, shown, console, limit)
    if args.dry_run or not plan.todo:
        return 0

    def start(planned: Planned, slot: Any) -> Running:
        if cluster:
            return cluster.start(planned.job, planned.folder, args.save_minutes)
        return LocalJob(planned.job, planned.folder, args.save_minutes, slot)

    board = drive.Board(console, args.quiet)
    if cluster:
        cluster.tell = board.say
    work = drive.Drive(plan, start, slots, rates, board, command_line(argv), hardware, limit)
    try:
        signum = work.run()
    finally:
        for planned in work.running:
            planned.running.kill()
        if cluster:
            cluster.close()
    board.say(drive.summary(work), always=True)
    return 128 + signum if signum else int(bool(plan.failed))


def show_suites() -> None:
    """`ace bench list`: the suites that ship with the package."""
    for name in suites.names():
        suite = suites.load(name)
        curves = len(suite.tasks) * len(suite.entries) * len(suite.seeds)
        print(f"{name:16} {suite.about} ({curves} curves)")
