"""`ace bench`: run what is missing of a suite, as many jobs at once as there are devices, and add
what they find to the results."""

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ace.bench import suites
from ace.bench.jobs import Job, last_env_step, make_config, make_run
from ace.bench.plan import Plan, Planned, clean_up, estimate, make_plan, to_start
from ace.bench.rates import Rate, Rates, now
from ace.bench.results import ResultError, Table, add_parts, add_program
from ace.bench.worker import check_begun
from ace.run.flags import BenchArgs
from ace.settings.config import ConfigError


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


def describe_lanes(job: Job, settings: Sequence[Any]) -> list[dict[str, Any]]:
    """What a program's description says of every lane."""
    found = []
    for lane, own in zip(job.lanes, settings, strict=True):
        learned = job.trained_on(lane.agent, lane.task)
        other = {"trained_on": learned} if learned != lane.task else {}
        found.append(lane._asdict() | {"settings": own} | other)
    return found


def collect(planned: Planned, results: Path, command: str, suite: suites.Suite) -> Rate:
    """Add the results of a finished job, then delete its checkpoints."""
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
    hardware = made.get("hardware") or versions.get("device") or "unknown"
    # A short one has too few rows after its start to measure between: the start counts too.
    rate = planned.rate() or planned.steps * len(job.lanes) / max(wall, 1e-9)
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
        "finished": now(),
        **suite.for_report(),
    }
    add_program(results, description, tables)
    clean_up(folder)
    return Rate(hardware, job.agent, job.preset, len(job.lanes), rate, now())


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


def command_line(argv: Sequence[str]) -> str:
    """The command of this call, for the descriptions of results."""
    return shlex.join(["ace", "bench", *argv])


def bench(args: BenchArgs, argv: Sequence[str]) -> int:
    """Carry out `ace bench`; the exit status."""
    from rich.console import Console

    from ace.bench import drive

    read_limit(args.limit)
    for flag, path in (("--results", args.results), ("--work", args.work)):
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{flag} is {path}, which is not a folder; name one")
    board = drive.Board(Console(), args.quiet and not args.dry_run)
    plan = make_plan(args)
    if not args.ray:
        return carry_out(args, argv, plan, board)
    from ace.bench.cluster import Cluster, load_ray

    load_ray()
    if args.dry_run or not plan.todo:
        why = "the plan is for this machine" if plan.todo else "nothing is left to do"
        board.say(f"--ray {args.ray} is not asked: {why}")
        return carry_out(args, argv, plan, board)
    cluster = Cluster(args.ray, plan.suite)
    cluster.tell = board.say
    try:
        return carry_out(args, argv, plan, board, cluster)
    finally:
        cluster.close()


def carry_out(
    args: BenchArgs, argv: Sequence[str], plan: Plan, board: Any, cluster: Any = None
) -> int:
    """Show a plan and do what fits the time, on a cluster or on this machine's devices."""
    from ace.bench import drive
    from ace.bench.local import LocalJob, find_devices

    limit = read_limit(args.limit)
    if cluster:
        slots = cluster.slots(len(plan.todo), waiting=limit is None)
        hardware, shown, memory = cluster.hardware, cluster.about(), cluster.memory
    else:
        slots = find_devices()
        hardware = slots[0].kind
        memory = min((slot.memory for slot in slots if slot.memory), default=None)
        shown = f"{len(slots)} x {hardware}" if len(slots) > 1 else hardware
    rates = Rates(plan.results, args.work / "rates.json")
    estimate(plan, rates, hardware, limit, memory)
    leave_out_begun(plan, board)
    starting = list(to_start(plan.todo, len(slots), limit))
    drive.show_plan(plan, shown, board, starting)
    if plan.reused and not args.dry_run:
        add_parts(plan.results, plan.reused)
    stuck = bool(plan.todo) and not starting
    if stuck:
        board.say(drive.why_nothing_starts(plan, args.limit), always=True)
    if args.dry_run or not starting:
        return int(bool(plan.failed) or (stuck and not args.dry_run))

    def start(planned: Planned, slot: Any) -> drive.Running:
        if cluster:
            return cluster.start(planned.job, planned.folder, args.save_minutes)
        return LocalJob(planned.job, planned.folder, args.save_minutes, slot)

    given = (rates, board, command_line(argv), hardware, limit)
    devices = len(cluster.slots(len(plan.todo), waiting=False)) if cluster else len(slots)
    work = drive.Drive(plan, start, slots, *given, devices)
    try:
        signum = work.run()
    finally:
        for planned in work.running:
            planned.running.kill()
    board.say(drive.summary(work), always=True)
    return 128 + signum if signum else int(bool(plan.failed))


def leave_out_begun(plan: Plan, board: Any) -> None:
    """Take jobs out of a plan that another version of ace began with other settings. Each job looks
    for itself too, but on a node its error would name a copy of the folder."""
    for planned in [planned for planned in plan.todo if planned.made]:
        try:
            check_begun(make_run(planned.job, planned.folder / "run"))
        except ConfigError as error:
            plan.todo.remove(planned)
            planned.failure = str(error)
            plan.failed.append(planned)
            board.say(f"left out {planned.job.id}: {error}", always=True)


def show_suites() -> None:
    """`ace bench list`: the suites that ship with the package."""
    for name in suites.names():
        suite = suites.load(name)
        curves = len(suite.tasks) * len(suite.entries) * len(suite.seeds)
        print(f"{name:16} {suite.about} ({curves} curves)")
