"""The loop of `ace bench`: starts jobs where there is room and time, watches them, collects their
results, and goes on when one fails."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table as Grid

from ace.bench import reuse
from ace.bench.bench import collect
from ace.bench.mirror import newest
from ace.bench.plan import SAVE_SECONDS, Plan, Planned, fits, show_bytes, time_for_jobs
from ace.bench.rates import Rate, Rates, now
from ace.bench.worker import STOPPED
from ace.run.signals import Signals
from ace.settings.words import counted

POLL_SECONDS = 0.2
PLAIN_SECONDS = 60.0  # between two lines about running jobs, where there is no terminal
KILL_SECONDS = 60.0  # for a job to save after it was asked to stop


class Running(Protocol):
    """A job in progress."""

    def poll(self) -> int | None: ...
    def env_step(self) -> int: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def log(self) -> str: ...


Start = Callable[[Planned, Any], Running]


def duration(seconds: float | None) -> str:
    """A time for people."""
    if seconds is None:
        return "unknown"
    minutes = seconds / 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def describe(planned: Planned) -> str:
    """What a job trains, in a few words."""
    job = planned.job
    suffixes = {name: f" (TASK{suffix})" for name, suffix in job.suffixes.items()}
    agents = sorted({lane.agent + suffixes.get(lane.agent, "") for lane in job.lanes})
    tasks = sorted({lane.task for lane in job.lanes})
    shown = ", ".join(tasks[:3]) + (f" and {len(tasks) - 3} more" if len(tasks) > 3 else "")
    who = ", ".join(agents) if len(agents) <= 3 else f"{job.agent} in {len(agents)} settings"
    return f"{who} on {shown}"


def show_plan(plan: Plan, hardware: str, board: "Board", starting: Sequence[Planned]) -> None:
    """A table of what is to do, and which jobs are `starting`."""
    lanes, done = sum(len(p.job.lanes) for p in plan.todo), len(plan.done)
    budgets = " to ".join(f"{steps:,}" for steps in sorted(set(plan.suite.budgets())))
    board.say(
        f"suite {plan.suite.name}, {budgets} env steps: "
        f"{done} of {lanes + done} curves are in {plan.results}; "
        f"{counted(len(plan.todo), 'program')} to run on {hardware}"
    )
    for note in (*plan.notes, *map(reuse.about, plan.reused)):
        board.say(f"note: {note}")
    if not plan.todo or board.quiet:
        return
    grid = Grid(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("program", "what", "lanes", "state", "memory", "expected"):
        left = name in ("program", "what")
        how: Any = {"no_wrap": name != "what", "overflow": "fold"}
        grid.add_column(name, justify="left" if left else "right", **how)
    ids = {p.job.id for p in starting}
    for p in plan.todo:
        state = f"at {p.made * p.repeat:,}" if p.made else "new"
        state += "" if p.job.id in ids else ", later"
        state += f", part of {p.packed}" if p.is_part else ""
        row = (p.job.id, escape(describe(p)), str(len(p.job.lanes)), state)
        grid.add_row(*row, show_bytes(p.size), duration(p.expected))
    board.console.print(grid)
    if parts := sum(p.is_part for p in plan.todo):
        board.say(
            f"note: {counted(parts, 'program')} with fewer lanes than the suite packs together: "
            "the rest is done, or was cut for the time or the memory. The numbers differ by "
            "rounding from those of the whole program"
        )


def why_nothing_starts(plan: Plan, limit: str) -> str:
    """What a limit lacks, if no job fits it."""
    least = min(plan.todo, key=lambda p: p.needed)
    if least.expected is None:
        return (
            f"nothing starts: the last {SAVE_SECONDS:.0f} s of --for are kept for saving, and "
            f"--for is {limit}; give it more. How long a program takes on this hardware is not "
            "known before one has run"
        )
    return (
        f"nothing starts: the shortest program, {least.job.id}, is expected to take "
        f"{duration(least.expected)}, and with a tenth more and {SAVE_SECONDS:.0f} s to save it "
        f"needs --for {math.ceil(least.needed + SAVE_SECONDS)}s; --for is {limit}"
    )


class Line(NamedTuple):
    """How far the suite, or one of its jobs, is."""

    name: str
    at: int  # env steps; of the suite, those of all lanes
    of: int
    left: float | None  # expected seconds

    def share(self) -> str:
        """How far it is, in words."""
        time_left = "" if self.left is None else f", {duration(self.left)} left"
        return f"{self.at / self.of:.0%} of {self.of:,} env steps{time_left}"


class Board:
    """Shows all running jobs: bars in a terminal, else a line now and then."""

    def __init__(self, console: Console, quiet: bool):
        self.console, self.quiet = console, quiet
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.fields[share]}"),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._bars: dict[str, Any] = {}
        self._said = time.monotonic()

    def say(self, text: str, always: bool = False) -> None:
        """Print a line."""
        if always or not self.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, lines: Sequence["Line"]) -> None:
        """Show how far the suite and the running jobs are; what is not among them goes away."""
        for name in set(self._bars) - {line.name for line in lines}:
            self.progress.remove_task(self._bars.pop(name))
        for line in lines:
            if line.name not in self._bars:
                self._bars[line.name] = self.progress.add_task(line.name, total=line.of, share="")
            bar = self._bars[line.name]
            self.progress.update(bar, completed=line.at, share=line.share())
        if not self.console.is_terminal and time.monotonic() - self._said > PLAIN_SECONDS:
            self._said = time.monotonic()
            for line in lines:
                self.say(f"{line.name}: {line.share()}")


class Drive:
    """One call of `ace bench`."""

    def __init__(
        self,
        plan: Plan,
        start: Start,
        slots: Sequence[Any],
        rates: Rates,
        board: Board,
        command: str,
        hardware: str,
        limit: float | None,
        devices: int | None = None,  # that share the work, if not one per slot
    ):
        self.plan, self.start, self.free = plan, start, list(slots)
        self.devices = devices or len(slots)
        self.rates, self.board, self.command = rates, board, command
        self.hardware = hardware
        self.deadline = None if limit is None else time.monotonic() + limit
        self.pending, self.running = list(plan.todo), []
        self.places: dict[str, Any] = {}

    def run(self) -> int:
        """Run jobs until none is left, or none that fits; the number of a signal that ended it."""
        signals = Signals()
        with signals, self.board.progress:
            while self.pending or self.running:
                if not signals.signum:
                    self.start_jobs()
                if not self.running:
                    break
                for planned in list(self.running):
                    self.watch(planned, bool(signals.signum))
                self.board.update(self.progress())
                time.sleep(POLL_SECONDS)
        return signals.signum

    def left(self) -> float:
        """Seconds until jobs must save."""
        return time_for_jobs(None if self.deadline is None else self.deadline - time.monotonic())

    def progress(self) -> list[Line]:
        """How far the whole suite is, and each running job. The devices share what is left."""
        plan, now = self.plan, time.monotonic()
        lines = []
        for p in self.running:
            left = None if p.expected is None else max(p.expected - (now - p.begun), 0.0)
            lines.append(Line(p.job.id, p.running.env_step(), p.last, left))
        times = [line.left for line in lines] + [p.expected for p in self.pending]
        known = [seconds for seconds in times if seconds is not None]
        left = sum(known) / self.devices if len(known) == len(times) else None
        before = sum(plan.done)
        made = [(p, line.at) for p, line in zip(self.running, lines, strict=True)]
        made += [(p, p.made * p.repeat) for p in self.pending]
        made += [(p, p.last) for p in plan.finished]
        at = before + sum(steps * len(p.job.lanes) for p, steps in made)
        of = before + sum(p.last * len(p.job.lanes) for p in plan.todo)
        return [Line(f"suite {plan.suite.name}", at, of, left), *lines]

    def start_jobs(self) -> None:
        """Start the next jobs that fit the devices and the time."""
        for planned in list(self.pending):
            if not self.free:
                return
            if not fits(planned, self.left()):
                continue
            place = self.free.pop(0)
            self.pending.remove(planned)
            self.running.append(planned)
            self.places[planned.job.id] = place
            planned.begun = time.monotonic()
            planned.running = self.start(planned, place)
            about = f"{describe(planned)}, {counted(len(planned.job.lanes), 'lane')}"
            self.board.say(
                f"started {planned.job.id}: {about}, expected {duration(planned.expected)}"
            )

    def watch(self, planned: Planned, stopping: bool) -> None:
        """See whether a job has ended; ask it to stop if its time is over."""
        status = planned.running.poll()
        if status is None:
            if (stopping or self.left() <= 0) and not planned.asked:
                planned.running.stop()
                planned.asked, planned.begun = True, time.monotonic()
            elif planned.asked and time.monotonic() - planned.begun > KILL_SECONDS:
                planned.running.kill()
            return
        self.running.remove(planned)
        self.free.append(self.places.pop(planned.job.id))
        if status == 0:
            self.collect(planned)
            return
        if rate := planned.rate():  # for later jobs, and for later calls
            job = planned.job
            lanes = len(job.lanes)
            self.learn(Rate(self.hardware, job.agent, job.preset, lanes, rate, now()))
        if planned.asked:
            self.pending.append(planned)
            planned.made = max(newest(planned.folder), 0)  # what a killed one has recorded is lost
            planned.expected = self.rates.seconds(planned.job, self.hardware, planned.made)
            at = planned.made * planned.repeat
            self.board.say(f"saved {planned.job.id} at env step {at:,}; the same command goes on")
        else:
            how = "was stopped" if status == STOPPED else f"ended with status {status}"
            self.fail(
                planned, f"{how}; {planned.folder / 'log.txt'} ends with:\n" + _last_lines(planned)
            )

    def collect(self, planned: Planned) -> None:
        """Add what a job found to the results."""
        took = time.monotonic() - planned.begun
        try:
            rate = collect(planned, self.plan.results, self.command, self.plan.suite)
        except Exception as error:  # whatever is wrong with one job, the others go on
            self.fail(planned, f"its results cannot be used: {error}")
            return
        self.learn(rate)
        self.plan.finished.append(planned)
        said = duration(planned.expected)
        self.board.say(
            f"finished {planned.job.id} in {duration(took)} (expected {said}), "
            f"{rate.lane_steps_per_s:,.0f} lane-steps/s"
        )

    def learn(self, rate: Rate) -> None:
        """Remember how fast a job was, and expect the same of those that wait."""
        self.rates.add(rate)
        for planned in self.pending:
            planned.expected = self.rates.seconds(planned.job, self.hardware, planned.made)

    def fail(self, planned: Planned, why: str) -> None:
        """Remember a job that did not end well, and go on."""
        planned.failure = why
        self.plan.failed.append(planned)
        self.board.say(f"failed {planned.job.id}: {why}", always=True)


def _last_lines(planned: Planned, count: int = 15) -> str:
    lines = planned.running.log().splitlines()
    return "\n".join(f"  {line}" for line in lines[-count:])


def summary(drive: Drive) -> str:
    """What became of a call, in a few lines."""
    plan = drive.plan
    lanes = sum(len(p.job.lanes) for p in plan.finished)
    done = f"{counted(len(plan.finished), 'program')} finished"
    lines = [f"{done}, {counted(lanes, 'curve')} added to {plan.results}"]
    for p in plan.failed:
        why = f"{p.folder / 'log.txt'} says why" if p.running else p.failure
        lines.append(f"failed: {p.job.id} ({describe(p)}); {why}")
    for p in drive.pending:
        made = f", at env step {p.made * p.repeat:,}" if p.made else ""
        lines.append(f"left: {p.job.id} ({describe(p)}){made}, expected {duration(p.expected)}")
    return "\n".join(lines)
