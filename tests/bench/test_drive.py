"""What `ace bench` does with jobs, tried on jobs that only pretend: order, limits, failures,
signals."""

import dataclasses
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ace.bench import drive, plan, results
from ace.bench.jobs import LaneSpec
from ace.bench.rates import Rate, Rates, measure
from ace.bench.worker import STOPPED
from tests.bench.pretend import STEPS, Clock, Pretend, Scene, Timed


@pytest.mark.parametrize(
    ("agents", "said"),
    [(["sac"], "sac"), (["a", "b", "c"], "a, b, c"), (list("abcd"), "ace in 4 settings")],
)
def test_a_job_is_described_in_a_few_words(agents, said):
    lanes = tuple(LaneSpec(name, "dmc/walker-run", 0) for name in agents)
    planned: Any = type(
        "Planned", (), {"job": type("J", (), dict(lanes=lanes, agent="ace", suffixes={}))}
    )
    assert drive.describe(planned) == f"{said} on dmc/walker-run"


def test_jobs_that_finish_the_most_curves_in_a_second_come_first(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, [1, 4, 2], rates=[(1, 50.0), (4, 160.0)])
    assert [len(p.job.lanes) for p in scene.plan.todo] == [4, 2, 1]
    # Between one and four lanes, on logarithmic scales: the geometric mean of the rates.
    expected = {len(p.job.lanes): p.expected for p in scene.plan.todo}
    assert expected[2] == pytest.approx(15 + 2 * STEPS / (50 * 160) ** 0.5)
    assert expected[1] == pytest.approx(15 + STEPS / 50)


def test_rates_beyond_what_was_measured(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, [1, 8], rates=[(2, 100.0), (4, 150.0)])
    assert scene.rates.find(scene.planned[0].job, "cpu") == pytest.approx(50.0)
    assert scene.rates.find(scene.planned[1].job, "cpu") == pytest.approx(150.0)
    assert scene.rates.find(scene.planned[0].job, "another card") is None


def test_all_jobs_run_and_those_with_the_fewest_missing_curves_come_first(
    tmp_path, monkeypatch
) -> None:
    scene = Scene(tmp_path, monkeypatch, [5, 1, 3])
    assert scene.drive.run() == 0
    assert scene.started == [1, 2, 0] and len(scene.plan.finished) == 3
    assert "3 programs finished, 9 curves added" in drive.summary(scene.drive)


def test_as_many_jobs_run_at_once_as_there_are_devices(tmp_path, monkeypatch) -> None:
    most = []
    scene = Scene(tmp_path, monkeypatch, [1, 2, 3, 4], slots=2)
    watch = scene.drive.watch

    def watched(planned: plan.Planned, stopping: bool) -> None:
        most.append(len(scene.drive.running))
        watch(planned, stopping)

    scene.drive.watch = watched
    scene.drive.run()
    assert max(most) == 2 and sorted(scene.started) == [0, 1, 2, 3]


def test_a_failed_job_is_named_and_the_others_go_on(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, [1, 2, 3], jobs={1: Pretend(status=1)})
    scene.drive.run()
    assert len(scene.plan.finished) == 2 and len(scene.plan.failed) == 1
    assert "ended with status 1" in scene.text.getvalue()
    assert "the last line" in scene.text.getvalue()
    assert f"failed: {scene.planned[1].job.id}" in drive.summary(scene.drive)


def test_a_job_that_somebody_stopped_counts_as_failed(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, [1], jobs={0: Pretend(status=STOPPED)})
    scene.drive.run()
    assert "was stopped" in scene.plan.failed[0].failure


def test_results_that_cannot_be_used_fail_one_job_only(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, [1, 2])

    def broken(planned: plan.Planned, *_: Any) -> Rate:
        if planned is scene.planned[0]:
            raise ValueError("two results")
        return scene.collect(planned)

    monkeypatch.setattr(drive, "collect", broken)
    scene.drive.run()
    assert "two results" in scene.plan.failed[0].failure and len(scene.plan.finished) == 1


def test_only_what_fits_the_time_is_started_and_the_rest_is_listed(tmp_path, monkeypatch) -> None:
    """100 lane-steps/s with four lanes: 40 s and the start for one of them, 10 s with one lane."""
    Clock(monkeypatch)
    scene = Scene(tmp_path, monkeypatch, [4, 1], limit=75.0, rates=[(1, 100.0), (4, 100.0)])
    assert scene.planned[0].expected == pytest.approx(15 + 40)
    assert scene.planned[1].expected == pytest.approx(15 + 10)
    scene.drive.run()
    assert scene.started == [1]  # 55 s and a tenth more do not fit into 75 less 20 for saving
    left = drive.summary(scene.drive)
    assert f"left: {scene.planned[0].job.id}" in left and "expected 55 s" in left


@pytest.mark.parametrize(
    "slots, limit, count",
    [
        (1, None, 4),
        (1, 47.4, 0),  # 15 s and 10 s, a tenth more, and 20 s to save: 47.5 s
        (1, 47.6, 1),
        (2, 47.6, 2),
        (1, 75.0, 2),  # 25 s later, and up to 2 s until it is noticed, 47.5 s more
        (2, 75.0, 4),
    ],
)
def test_the_plan_names_the_jobs_that_will_start(slots, limit, count, tmp_path, monkeypatch):
    how: dict[str, Any] = {"rates": [(1, 100.0)], "cut": limit, "limit": limit, "slots": slots}
    clock = Clock(monkeypatch)
    jobs = {index: Timed(clock, 25.0) for index in range(4)}
    scene = Scene(tmp_path, monkeypatch, [1] * 4, jobs=jobs, **how)
    starting = list(plan.to_start(scene.plan.todo, slots, limit))
    assert len(starting) == count
    monkeypatch.setattr(plan, "bytes_needed", lambda job: 0)
    drive.show_plan(scene.plan, "cpu", scene.drive.board, starting)
    assert scene.text.getvalue().count("later") == 4 - count
    scene.drive.run()
    assert len(scene.started) == count


def test_a_limit_that_nothing_fits_says_how_long_it_must_be(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, [2, 1], rates=[(1, 100.0), (2, 100.0)], limit=47.0)
    said = drive.why_nothing_starts(scene.plan, "47s")
    assert scene.planned[1].job.id in said and "needs --for 48s; --for is 47s" in said
    assert "expected to take 25 s" in said
    scene = Scene(tmp_path / "new", monkeypatch, [1], limit=20.0)  # nothing is measured yet
    said = drive.why_nothing_starts(scene.plan, "20s")
    assert "the last 20 s of --for are kept for saving, and --for is 20s" in said


def test_at_the_end_of_the_time_jobs_save_and_are_listed(tmp_path, monkeypatch) -> None:
    Clock(monkeypatch)
    job = Pretend(looks=10**9)
    scene = Scene(tmp_path, monkeypatch, [1], limit=25.0, jobs={0: job})  # nothing is measured yet
    assert scene.drive.run() == 0
    assert job.asked == ["stop"] and not scene.plan.failed
    assert "the same command goes on" in scene.text.getvalue()
    assert scene.drive.pending == [scene.planned[0]]


def test_a_measured_rate_counts_for_the_jobs_that_follow(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, [1, 1], slots=1)
    assert scene.planned[1].expected is None
    scene.drive.run()
    assert scene.rates.find(scene.planned[1].job, "cpu") == pytest.approx(100.0)
    assert Rates(tmp_path / "none", tmp_path / "rates.json").known[-1].lane_steps_per_s == 100.0


def record(folder: Path, rows: Sequence[tuple[int, float]], name: str = "train.csv") -> None:
    """Write rows of (env step, wall-clock) as a run does."""
    (folder / "run").mkdir(parents=True, exist_ok=True)
    lines = ["lane,env_step,wall_time", *(f"0,{step},{wall}" for step, wall in rows)]
    (folder / "run" / name).write_text("\n".join(lines) + "\n0,9999")  # being written


def test_the_start_does_not_count_in_a_rate(tmp_path) -> None:
    """60 s of compiling before the first update, then 50 env steps a second: 25 agent steps."""
    record(tmp_path, [(100, 1.0), (200, 64.0), (400, 68.0), (600, 72.0)])
    record(tmp_path, [(600, 73.0), (1200, 84.0)], "eval.csv")
    assert measure(tmp_path / "run", 4, 2, after=100) == pytest.approx(4 * 500 / 20)
    assert measure(tmp_path / "run", 4, 2, after=400) == pytest.approx(4 * 300 / 12)
    assert measure(tmp_path / "run", 4, 2, after=600) is None  # one row
    assert measure(tmp_path / "none", 4, 2, after=0) is None


def test_a_job_that_is_stopped_leaves_its_rate(tmp_path, monkeypatch) -> None:
    """So that a limit on unknown hardware starts blindly only once."""
    job = Pretend(looks=10**9)
    scene = Scene(tmp_path, monkeypatch, [2], limit=20.1, jobs={0: job})
    record(scene.planned[0].folder, [(100, 30.0), (400, 40.0)])
    scene.drive.run()
    assert scene.planned[0].expected == pytest.approx(15 + 2 * STEPS / 60)
    again = Rates(tmp_path / "none", tmp_path / "rates.json")
    assert again.find(scene.planned[0].job, "cpu") == pytest.approx(60.0)


def test_a_failed_job_leaves_its_rate(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, [1], jobs={0: Pretend(status=1)})
    record(scene.planned[0].folder, [(100, 30.0), (400, 40.0)])
    scene.drive.run()
    assert scene.rates.find(scene.planned[0].job, "cpu") == pytest.approx(30.0)


def test_of_several_rates_the_newest_counts(tmp_path, monkeypatch) -> None:
    job = Scene(tmp_path / "x", monkeypatch, [1]).planned[0].job
    lanes = [{"agent": "ace", "task": "probe/0", "seed": 0}]
    for name, rate, month in (("z", 10.0, "01"), ("a", 20.0, "03")):
        about = {"id": name, "lanes": lanes, "hardware": "cpu", "agent": "ace", "preset": "debug"}
        about |= {"lane_steps_per_s": rate, "finished": f"2026-{month}-01T00:00:00Z"}
        results.add_program(tmp_path / "results" / "mine", about, {})
    given = (tmp_path / "results" / "mine", tmp_path / "rates.json")
    own = Rate("cpu", "ace", "debug", 1, 15.0, "2026-02-01T00:00:00Z")
    Rates(*given).add(own)
    assert Rates(*given).find(job, "cpu") == pytest.approx(20.0)
    Rates(*given).add(own._replace(when="2026-04-01T00:00:00Z"))
    assert Rates(*given).find(job, "cpu") == pytest.approx(15.0)


def test_the_whole_suite_has_a_share_and_a_time_beside_the_jobs(tmp_path, monkeypatch) -> None:
    """Two lanes of 1,000 env steps run, one waits, three are done; 25 and 35 s are expected."""
    clock = Clock(monkeypatch)
    scene = Scene(tmp_path, monkeypatch, [1, 2], rates=[(1, 100.0), (2, 100.0)])
    scene.plan.done = [STEPS] * 3
    scene.plan.suite = dataclasses.replace(scene.plan.suite, env_steps=STEPS)
    scene.drive.start_jobs()
    clock.now = 5.0
    (running,) = scene.drive.running
    running.running.seen = 40
    lanes = len(running.job.lanes)
    suite, job = scene.drive.progress()
    assert (job.at, job.of, job.left) == (400, STEPS, pytest.approx(10 + 10 * lanes))
    assert (suite.at, suite.of) == (3 * STEPS + lanes * 400, 6 * STEPS)
    assert suite.left == pytest.approx(25 + 35 - 5)
    clock.now = 100.0  # no terminal: a line every minute
    scene.drive.board.update([suite, job])
    text = scene.text.getvalue()
    assert "suite mine: 63% of 6,000 env steps, 55 s left" in text
    assert f"{running.job.id}: 40% of 1,000 env steps" in text


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_jobs_to_save(tmp_path, monkeypatch, signum) -> None:
    class Signalling(Pretend):
        def poll(self) -> int | None:
            if self.seen == 2:
                signal.raise_signal(signum)
            return super().poll()

    job = Signalling(looks=10**9)
    scene = Scene(tmp_path, monkeypatch, [1, 2], jobs={0: job})
    assert scene.drive.run() == signum
    assert job.asked == ["stop"] and len(scene.started) == 1 and len(scene.drive.pending) == 2


def test_a_job_that_does_not_stop_is_killed(tmp_path, monkeypatch) -> None:
    class Deaf(Pretend):
        def poll(self) -> int | None:
            return -9 if "kill" in self.asked else None

    Clock(monkeypatch)
    job = Deaf()
    scene = Scene(tmp_path, monkeypatch, [1], limit=25.0, jobs={0: job})
    scene.drive.run()
    assert job.asked[0] == "stop" and job.asked[-1] == "kill"
