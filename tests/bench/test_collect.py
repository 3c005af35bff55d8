"""What a finished job adds to the results: its evaluations, and for mazes what exploration.csv
tells of them."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from ace.bench import bench, mirror
from ace.bench.jobs import Job, LaneSpec
from ace.bench.plan import Planned
from ace.bench.results import ResultError, read_programs, read_table
from ace.bench.suites import Suite

LANES = (LaneSpec("ace", "maze/umaze", 0), LaneSpec("blind", "maze/umaze", 0))
LANES += (LaneSpec("ace", "probe/point", 3),)
JOB = Job("mine", "ace", "debug", 400, (), {"ace": {}, "blind": {}}, LANES)
SUITE = Suite("mine", "", (), (), (0,), 400, "debug", 3, (), "coverage", ("model_error",))
STEPS = (200, 400)
EVAL = "lane,seed,task,env_step,return,policy_return,episode_length,coverage,wall_time"
EXPLORED = "lane,seed,task,env_step,train_coverage,eval_coverage,model_error,cumulative_error"
# Lane 1 has no model.
ROWS = ("0,0,maze/umaze,200,0.25,0.5,1.5,1.5", "1,0,maze/umaze,200,0.125,0.25,,")
ROWS += ("0,0,maze/umaze,400,0.75,0.625,0.5,2.0", "1,0,maze/umaze,400,0.375,0.5,,")


def make_job(folder: Path, explored: Sequence[str] | None = ROWS) -> Planned:
    """A job that has ended, with these rows in its exploration.csv."""
    (folder / "run").mkdir(parents=True)
    lines = [EVAL]
    for step in STEPS:
        for number, lane in enumerate(LANES):
            cover = 0.1 * (number + 1) if "maze" in lane.task else ""
            lines.append(f"{number},{lane.seed},{lane.task},{step},7.0,,300,{cover},{step / 100}")
    (folder / "run" / "eval.csv").write_text("\n".join(lines) + "\n")
    if explored is not None:
        (folder / "run" / "exploration.csv").write_text("\n".join((EXPLORED, *explored)) + "\n")
    made = {"config": {}, "settings": [{}] * len(LANES), "versions": {"device": "cpu"}}
    (folder / "done.json").write_text(json.dumps(made))
    return Planned(JOB, folder, 400, 1, len(LANES))


def numbers(results: Path, agent: str, task: str, step: int) -> dict[str, float]:
    """The further columns that results have at an env step."""
    (rows,) = read_table(results / agent / f"{task}.csv").values()
    usual = ("return", "policy_return", "episode_length")
    return {n: x for n, x in rows[step].items() if n not in usual and not math.isnan(x)}


def test_what_a_maze_records_reaches_the_results_of_its_lane_and_env_step(tmp_path) -> None:
    planned, results = make_job(tmp_path / "job"), tmp_path / "results"
    bench.collect(planned, results, "ace bench mine", SUITE)
    found = numbers(results, "ace", "maze/umaze", 400)
    assert found == {
        **{"coverage": 0.1, "train_coverage": 0.75, "eval_coverage": 0.625},
        **{"model_error": 0.5, "cumulative_error": 2.0},
    }
    assert numbers(results, "ace", "maze/umaze", 200)["train_coverage"] == 0.25
    blind = numbers(results, "blind", "maze/umaze", 200)
    assert blind == {"coverage": 0.2, "train_coverage": 0.125, "eval_coverage": 0.25}
    assert numbers(results, "ace", "probe/point", 400) == {}
    (about,) = read_programs(results)
    assert about["score"] == "coverage" and about["columns"] == ["model_error"]
    bench.collect(planned, results, "ace bench mine", SUITE)  # the same once more


def test_other_numbers_of_a_maze_are_a_conflict_that_names_the_column(tmp_path) -> None:
    results = tmp_path / "results"
    bench.collect(make_job(tmp_path / "one"), results, "ace bench mine", SUITE)
    rows = (ROWS[0].replace("0.25", "0.5"), *ROWS[1:])
    with pytest.raises(ResultError, match=r"env step 200 has train_coverage 0\.25 of ace-"):
        bench.collect(make_job(tmp_path / "two", rows), results, "ace bench mine", SUITE)


@pytest.mark.parametrize(
    "explored, message",
    [
        (None, r"exploration\.csv has no row of lane 0 at env step 200, but eval\.csv has one"),
        (ROWS[:3], r"exploration\.csv has no row of lane 1 at env step 400, but eval\.csv has one"),
        (
            (*ROWS[:3], ROWS[3].replace("400", "390")),
            r"eval\.csv has no row of lane 1 at env step 390, but exploration\.csv has one",
        ),
    ],
)
def test_a_maze_without_the_row_of_an_evaluation_is_refused(tmp_path, explored, message) -> None:
    planned, results = make_job(tmp_path / "job", explored), tmp_path / "results"
    with pytest.raises(ResultError, match=message) as caught:
        bench.collect(planned, results, "ace bench mine", SUITE)
    assert f"delete {tmp_path / 'job'}" in str(caught.value) and not results.exists()


def test_results_of_a_maze_are_complete_after_a_copy_from_another_machine(tmp_path) -> None:
    node, here = make_job(tmp_path / "node" / "job"), tmp_path / "here"
    entries = mirror.take_snapshot(node.folder, tmp_path / "node" / "snapshot", False)
    for entry in entries:
        data = mirror.read_part(tmp_path / "node" / "snapshot" / entry.name, 0)
        mirror.write_part(here / mirror.INCOMING / entry.name, 0, data)
    mirror.put_in_place(here, entries)
    bench.collect(Planned(JOB, here, 400, 1, len(LANES)), tmp_path / "results", "ace bench", SUITE)
    assert numbers(tmp_path / "results", "ace", "maze/umaze", 400)["cumulative_error"] == 2.0
