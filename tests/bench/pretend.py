"""Jobs that only pretend to run, and a clock for them."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ace.bench import drive, plan
from ace.bench.jobs import Job, LaneSpec
from ace.bench.rates import Rate, Rates
from ace.bench.suites import Entry, Suite
from ace.bench.worker import STOPPED

STEPS = 1000


@dataclass
class Pretend:
    """A job that ends after some looks at it."""

    looks: int = 2
    status: int = 0
    seen: int = 0
    asked: list[str] = field(default_factory=list)

    def poll(self) -> int | None:
        self.seen += 1
        if self.asked:
            return STOPPED if self.asked[-1] == "stop" else -9
        return self.status if self.seen > self.looks else None

    def env_step(self) -> int:
        return 10 * self.seen

    def stop(self) -> None:
        self.asked.append("stop")

    def kill(self) -> None:
        self.asked.append("kill")

    def log(self) -> str:
        return "one line\nthe last line"


class Clock:
    """A time that passes only when the loop waits."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(drive.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(drive.time, "sleep", self.wait)

    def wait(self, seconds: float) -> None:
        self.now += 1.0


class Timed(Pretend):
    """A job that takes some seconds of a clock."""

    def __init__(self, clock: Clock, seconds: float):
        super().__init__()
        self.clock, self.seconds, self.ends = clock, seconds, None

    def poll(self) -> int | None:
        self.ends = self.clock.now + self.seconds if self.ends is None else self.ends
        return 0 if self.clock.now >= self.ends else None


class Scene:
    """A plan of jobs with given lanes, and what was started when."""

    def __init__(self, folder: Path, monkeypatch, lanes: list[int], slots: int = 1, **how: Any):
        monkeypatch.setattr(drive, "POLL_SECONDS", 0.0)
        monkeypatch.setattr("ace.bench.rates.agent_steps", lambda job: STEPS)
        self.folder, self.started, self.jobs = folder, [], how.get("jobs", {})
        agents = (Entry("ace", "ace"),)
        suite = Suite("mine", "", ("probe/point",), agents, (0,), STEPS, "debug", 9, ())
        self.planned = [self.one(i, count) for i, count in enumerate(lanes)]
        self.plan = plan.Plan(suite, folder / "results", list(self.planned))
        self.rates = Rates(folder / "results" / "mine", folder / "rates.json")
        for rate in how.get("rates", ()):
            self.rates.known.append(Rate("cpu", "ace", "debug", *rate))
        plan.estimate(self.plan, self.rates, "cpu", how.get("cut"), how.get("memory"))
        monkeypatch.setattr(drive, "collect", self.collect)
        self.text = io.StringIO()
        board = drive.Board(Console(file=self.text, width=200), quiet=False)
        given = (board, "ace bench mine", "cpu", how.get("limit"))
        self.drive = drive.Drive(self.plan, self.start, range(slots), self.rates, *given)

    def one(self, index: int, count: int) -> plan.Planned:
        lanes = tuple(LaneSpec("ace", f"probe/{index}", seed) for seed in range(count))
        job = Job("mine", "ace", "debug", STEPS, (), {"ace": {}}, lanes)
        return plan.Planned(job, self.folder / job.id, STEPS, 1, count)

    def start(self, planned: plan.Planned, slot: Any) -> Pretend:
        index = int(planned.job.lanes[0].task.rpartition("/")[2])
        self.started.append(index)
        return self.jobs.get(index, Pretend())

    def collect(self, planned: plan.Planned, *_: Any) -> Rate:
        return Rate("cpu", "ace", "debug", len(planned.job.lanes), 100.0)
