"""What a call of `ace bench` plans: limits, shards, jobs cut to fit, parts that go on."""

import json
from typing import Any

import pytest

from ace.bench import bench, plan
from ace.settings.config import ConfigError
from tests.bench.pretend import Scene


@pytest.mark.parametrize(
    "text, seconds", [("25m", 1500), ("2h", 7200), ("90s", 90), ("90", 90), ("1.5m", 90)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert bench.read_limit(text) == seconds


@pytest.mark.parametrize("text", ["m", "soon", "-5m", "0", "infm", "nan"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="25m, 2h or 90s"):
        bench.read_limit(text)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/2"])
def test_wrong_shards_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="as in 1/4"):
        plan.read_shard(text)


@pytest.mark.parametrize(
    "limit, lanes",
    [
        (None, [6]),
        (300.0, [6]),  # 15 s and 6 * 1000 / 30, a tenth more: 236.5, and 20 s to save
        (250.0, [5, 1]),  # 199.8 and 53.2 s
        (100.0, [1] * 6),
        (50.0, [6]),  # not even one lane would be finished: nothing is gained
    ],
)
def test_jobs_that_a_limit_would_never_let_finish_are_cut(limit, lanes, tmp_path, monkeypatch):
    how = {"rates": [(1, 30.0), (6, 30.0)], "cut": limit}
    scene = Scene(tmp_path, monkeypatch, [6], **how)
    assert [len(p.job.lanes) for p in scene.plan.todo] == lanes
    assert {p.packed for p in scene.plan.todo} == {6}
    seeds = sorted(lane.seed for p in scene.plan.todo for lane in p.job.lanes)
    assert seeds == list(range(6))
    assert len({p.folder for p in scene.plan.todo}) == len(lanes)


def begin(part: plan.Planned, agent_step: int) -> None:
    """Leave a checkpoint of a job, as a call that was interrupted does."""
    (part.folder / "run" / "checkpoints" / str(agent_step)).mkdir(parents=True)
    (part.folder / "job.json").write_text(json.dumps(part.job.to_json()))


@pytest.mark.parametrize(
    "limit, memory, lanes",
    [
        (None, 60, [6]),  # 48 of 60 bytes, for six lanes of 8
        (None, 59, [5, 1]),
        (None, 25, [2, 2, 2]),
        (100.0, 25, [1] * 6),  # the time allows one lane, the memory two
        (50.0, 25, [2, 2, 2]),  # no part fits the time
        (None, None, [6]),
    ],
)
def test_jobs_that_do_not_fit_the_memory_are_cut(limit, memory, lanes, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "bytes_needed", lambda job: 8 * len(job.lanes))
    how: dict[str, Any] = {"rates": [(1, 30.0), (6, 30.0)], "cut": limit, "memory": memory}
    scene = Scene(tmp_path, monkeypatch, [6], **how)
    assert [len(p.job.lanes) for p in scene.plan.todo] == lanes


def test_a_lane_that_does_not_fit_the_memory_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "bytes_needed", lambda job: 3 * 2**30 * len(job.lanes))
    message = r"ace on probe/0: a lane needs at least 3\.0 GiB, and the device has 512 MiB; set"
    with pytest.raises(ConfigError, match=message):
        Scene(tmp_path, monkeypatch, [2], memory=2**29)


@pytest.mark.parametrize(
    "limit, others",
    [
        (100.0, [3, 2]),  # twice as fast as when it was cut: now three lanes fit
        (None, [5]),
        (10_000.0, [5]),
    ],
)
def test_parts_that_an_earlier_call_has_begun_go_on(limit, others, tmp_path, monkeypatch) -> None:
    how: dict[str, Any] = {"rates": [(1, 30.0), (6, 30.0)], "cut": 100.0}
    begun = Scene(tmp_path, monkeypatch, [6], **how).plan.todo[2]
    begin(begun, 500)
    how = {"rates": [(1, 60.0), (6, 60.0)], "cut": limit}
    scene = Scene(tmp_path, monkeypatch, [6], **how)
    first, *rest = scene.plan.todo
    assert (first.folder, first.made, len(first.job.lanes)) == (begun.folder, 500, 1)
    assert sorted((len(p.job.lanes) for p in rest), reverse=True) == others
    lanes = [lane for p in scene.plan.todo for lane in p.job.lanes]
    assert len(lanes) == len(set(lanes)) == 6


def test_parts_that_share_a_lane_are_not_both_continued(tmp_path, monkeypatch) -> None:
    whole = Scene(tmp_path, monkeypatch, [4]).planned[0]
    lanes = whole.job.lanes
    for chosen, agent_step in ((lanes[:3], 100), (lanes[2:], 200), (lanes[:1], 250)):
        begin(whole.part(chosen), agent_step)
    found = Scene(tmp_path, monkeypatch, [4]).plan.todo
    made = {p.job.lanes: p.made for p in found}
    assert made == {lanes[2:]: 200, lanes[:1]: 250, lanes[1:2]: 0}  # 400 lane-steps come first


def test_progress_is_that_of_the_newest_checkpoint(tmp_path, monkeypatch) -> None:
    """Rows without one, as after results were moved away, are made again."""
    folder = Scene(tmp_path, monkeypatch, [1]).planned[0].folder
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "train.csv").write_text("lane,env_step\n0,900\n")
    assert Scene(tmp_path, monkeypatch, [1]).plan.todo[0].made == 0
    (folder / "run" / "checkpoints" / "400").mkdir(parents=True)
    assert Scene(tmp_path, monkeypatch, [1]).plan.todo[0].made == 400
