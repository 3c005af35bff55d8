"""Numbers of a report against values worked out by hand, and hostile result files."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ace.bench import anchors, curves, published, tables
from ace.bench.report import PlotArgs, ReportArgs, plot, report
from ace.bench.results import ResultError, add_program, write_table
from ace.bench.scores import Task, read, read_run, take
from ace.bench.summary import summarise
from tests.bench.made import EVIL, RETURNS, STEPS, make_row, make_run, make_suite


def numbers(*folders: Path, **options) -> dict:
    entries, notes = read(folders)
    return summarise(entries, notes, samples=200, **{"anchors": False, **options})


def test_scores_and_aggregates_by_hand(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s", tasks=("dmc/a", "dmc/b"))
    data = numbers(suite)
    score = data["scores"]["one"]["dmc/a"]
    assert score["env_step"] == 30_000 and score["seeds"] == [0, 1, 2]
    assert score["last"]["runs"] == [27.0, 30.0, 33.0]
    assert score["last3"]["runs"] == [17.0, 20.0, 23.0]
    assert score["window"] == list(STEPS)
    assert 27 <= score["last"]["low"] < 30 < score["last"]["high"] <= 33
    found = data["aggregates"]["two"]
    # Six runs: 57, 57, 60, 60, 63, 63; a quarter of six is one at each end.
    assert found["last"]["iqm"]["value"] == pytest.approx(60)
    assert found["last"]["optimality_gap"]["value"] == pytest.approx(940)
    assert found["last3"]["median"]["value"] == pytest.approx(30)
    (pair,) = data["improvement"]["last"]
    assert (pair["x"], pair["y"], pair["value"], pair["tasks"]) == ("one", "two", 0.0, 2)
    assert data["profiles"]["scores"][2] == 40
    assert data["profiles"]["two"]["last"]["value"][2] == 1
    assert data["profiles"]["one"]["last"]["value"][2] == 0


def test_tables_have_the_digits_of_their_score(tmp_path: Path) -> None:
    rows = {0: {s: make_row(s, success=x) for s, x in zip(STEPS, (0.2, 0.3, 0.62), strict=True)}}
    about = {"id": "p", "lanes": [{"agent": "ace", "task": "metaworld/push", "seed": 0}]}
    add_program(tmp_path / "s", about, {("ace", "metaworld/push"): rows})
    data = numbers(tmp_path / "s")
    scores = [row[1] for row in tables.efficiency(data, "last").rows]
    assert scores == ["50% of ace: 0.31", "75% of ace: 0.46", "90% of ace: 0.56"]
    assert tables.tasks(data, "last").rows[0][2] == "0.62, 1 seed"


def test_a_curve_has_the_interval_of_the_table(tmp_path: Path) -> None:
    """The same number with two intervals would make a reader doubt both."""
    data = numbers(make_suite(tmp_path / "s", seeds=range(5), tasks=("dmc/a", "dmc/b")))
    for scoring in ("last", "last3"):
        score = data["scores"]["two"]["dmc/a"][scoring]
        line = data["curves"]["two"]["dmc/a"][scoring]
        found = data["aggregates"]["two"][scoring]["iqm"]
        overall = data["aggregate_curves"]["two"][scoring]
        for key in ("value", "low", "high"):
            assert line[key][-1] == pytest.approx(score[key])
            assert overall[key][-1] == pytest.approx(found[key])


def test_public_methods_without_curves_are_shown_at_their_step(tmp_path: Path) -> None:
    steps = (100_000, 300_000, 500_000)
    task = "dmc/hopper-stand"
    data = numbers(make_suite(tmp_path / "s", tasks=(task,), steps=steps), anchors=True)
    score = data["scores"]["D4PG"][task]
    runs = anchors.final_scores()["D4PG"][task].values()
    assert score["env_step"] == 500_000 and score["last"]["runs"] == list(runs)
    assert score["last3"] is None and {"DMPO", "MPO"} < data["scores"].keys()
    assert "BMPC" not in data["scores"]  # means alone
    data = numbers(make_suite(tmp_path / "t", tasks=(task,)), anchors=True)
    assert "D4PG" not in data["scores"]


def test_scores_at_the_last_shared_step(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s")
    short = {s: {step: make_row(7.0) for step in STEPS[: 1 + (s > 0)]} for s in (0, 1)}
    write_table(suite / "three" / "dmc" / "hopper-hop.csv", short)
    data = numbers(suite)
    assert data["tasks"][0]["env_step"] == 10_000
    assert data["scores"]["one"]["dmc/hopper-hop"]["last"]["value"] == 10
    assert data["scores"]["one"]["dmc/hopper-hop"]["last3"] is None
    assert any("1 seed of three ends at 10,000" in note for note in data["notes"])
    data = numbers(suite, at=20_000)
    assert data["scores"]["three"]["dmc/hopper-hop"]["seeds"] == [1]
    assert data["scores"]["three"]["dmc/hopper-hop"]["last"]["low"] is None
    assert any("three: dmc/hopper-hop counts 1 of 2 seeds" in note for note in data["notes"])
    with pytest.raises(ResultError, match="no seed was evaluated at env step 5"):
        numbers(suite, at=5)


def test_mean_of_the_last_three_ends_at_the_budget() -> None:
    entry = make_series([1.0, 2.0, 6.0, 100.0], steps=(10, 20, 30, 40))
    score = take({0: entry}, 30)
    assert score is not None and score.last[0] == 6 and score.last3[0] == 3
    assert take({0: entry}, 25) is None


def make_series(values, steps=STEPS):
    from ace.bench.results import Series

    return Series(np.array(steps), {"return": np.array(values)}, None)


def test_tasks_without_a_scale_are_left_out_of_aggregates(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s", tasks=("dmc/a", "gym/Ant"))
    data = numbers(suite)
    assert data["aggregates"]["one"]["last"]["tasks"] == 1
    assert any("not in the aggregates" in note and "gym/Ant" in note for note in data["notes"])
    for agent in ("one", "two"):
        rows = {0: {step: make_row(1e6, success=0.25) for step in STEPS}}
        write_table(suite / agent / "gym" / "Ant.csv", rows)
    data = numbers(suite)
    assert data["aggregates"]["one"]["last"]["tasks"] == 2
    assert data["aggregates"]["one"]["last"]["mean"]["value"] == pytest.approx((30 + 250) / 2)
    assert data["scores"]["one"]["gym/Ant"]["column"] == "success"


@pytest.mark.parametrize(
    "task, column, value",
    [
        ("adroit/pen", "at_goal", 0.3),
        ("maze/large", "coverage", 0.8),
        ("metaworld/push", "success", 0.5),
        ("dmc/a", "return", 7.0),
    ],
)
def test_a_task_is_scored_by_its_own_number(
    tmp_path: Path, task: str, column: str, value: float
) -> None:
    found = {"at_goal": 0.3, "coverage": 0.8, "success": 0.5}
    rows = {0: {step: make_row(7.0, **found) for step in STEPS}}
    add_program(tmp_path / "s", {"id": "p", "lanes": []}, {("one", task): rows})
    data = numbers(tmp_path / "s")
    score = data["scores"]["one"][task]
    assert (score["column"], score["last"]["value"]) == (column, value)
    assert data["aggregates"]["one"]["last"]["mean"]["value"] == pytest.approx(value)
    text = tables.markdown([tables.tasks(data, "last")])
    assert f"{value:.2f}" in text if value < 1 else " 7" in text


def test_a_suite_may_choose_the_score(tmp_path: Path) -> None:
    lanes = [{"agent": "one", "task": "corridor/short", "seed": 0}]
    rows = {0: {step: make_row(7.0, success=0.5, farthest=0.25) for step in STEPS}}
    about = {"id": "p", "lanes": lanes, "score": "farthest"}
    add_program(tmp_path / "s", about, {("one", "corridor/short"): rows})
    assert numbers(tmp_path / "s")["scores"]["one"]["corridor/short"]["last"]["value"] == 0.25


def test_the_report_says_what_the_oracle_was_trained_on(tmp_path: Path) -> None:
    task = "adroit/pen"
    for agent, other in (("ace", {}), ("oracle", {"trained_on": "adroit/pen-dense"})):
        lane = {"agent": agent, "task": task, "seed": 0, **other}
        rows = {0: {step: make_row(900.0, at_goal=0.4) for step in STEPS}}
        add_program(tmp_path / "s", {"id": agent, "lanes": [lane]}, {(agent, task): rows})
    data = numbers(tmp_path / "s")
    assert data["scores"]["oracle"][task]["last"]["value"] == 0.4
    told = [note for note in data["notes"] if "trained on" in note]
    assert told == ["oracle: adroit/pen was trained on adroit/pen-dense"]


def test_one_note_for_all_tasks_with_few_evaluations(tmp_path: Path) -> None:
    """Tasks stand in the order of their names, not of their files'."""
    names = ("push", "push-wall", "basketball", "hammer", "x", "y")
    tasks = [f"metaworld/{name}" for name in names]
    lanes = [{"agent": "one", "task": task, "seed": 0} for task in tasks]
    rows = {0: {10: make_row(1.0, success=0.0)}}
    add_program(tmp_path / "s", {"id": "p", "lanes": lanes}, {("one", t): rows for t in tasks})
    told = [note for note in numbers(tmp_path / "s")["notes"] if "fewer than" in note]
    first = "metaworld/basketball, metaworld/hammer, metaworld/push, metaworld/push-wall"
    assert told == [f"one: seeds with fewer than 3 evaluations on {first} and 2 more tasks"]


def test_public_results_and_the_paper_stand_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = anchors.curves()
    few = {name: every[name] for name in ("SR-SAC (UTD128)", "TD-MPC", "TCRL")}
    monkeypatch.setattr(anchors, "curves", lambda: few)
    tasks = sorted(published.PAPER_TASKS)
    steps = (480_000, 490_000, 500_000)
    suite = make_suite(tmp_path / "s", tasks=tasks, steps=steps, seeds=(0, 1))
    data = numbers(suite, anchors=True)
    kinds = {method["name"]: method["kind"] for method in data["methods"]}
    assert kinds["SR-SAC (UTD128)"] == "public" and kinds["ACE (paper)"] == "paper"
    printed = data["aggregates"]["ACE (paper)"]["last"]["iqm"]
    assert printed == {"value": 707, "low": 698, "high": 716}
    # 740 is what others compute from the same logs.
    assert round(data["aggregates"]["SR-SAC (UTD128)"]["last"]["iqm"]["value"]) == 740
    assert data["aggregates"]["TD-MPC"]["last"]["tasks"] == 12
    assert data["scores"]["ACE (paper)"]["dmc/hopper-hop"]["last"]["value"] == 361
    assert data["scores"]["TCRL"]["dmc/cheetah-run"]["env_step"] == 501_000
    assert "| TD-MPC | 12 of 15 |" in tables.markdown([tables.aggregates(data, "last")])
    # At another step or on other tasks the paper's table does not apply.
    earlier = [Task(name, 490_000, "return", 1000.0) for name in tasks]
    printed = published.aggregates(earlier, {"ACE (paper)": {}})
    assert printed["ACE (paper)"]["last"] is None


def test_env_steps_and_wall_clock_to_a_score(tmp_path: Path) -> None:
    data = numbers(make_suite(tmp_path / "s"))
    row = next(row for row in data["efficiency"] if row["scoring"] == "last")
    assert row["best"] == "two" and row["scores"] == [30, 45, 54]
    assert row["reached"]["one"][0] == {"env_step": 30_000, "seconds": 60.0}
    assert row["reached"]["one"][1]["env_step"] is None
    assert row["reached"]["two"][0] == {"env_step": 30_000, "seconds": None}
    line = data["curves"]["one"]["dmc/hopper-hop"]["last"]
    assert line["wall"] == [20, 40, 60] and line["value"] == [10, 20, 30]


def test_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    suite = make_suite(tmp_path / "s", tasks=("dmc/a", f"dmc/{EVIL}"))
    out = tmp_path / "out"
    written = report(ReportArgs((suite,), out, anchors=False, columns=("episode_length",)))
    assert {path.suffix for path in written} >= {".png", ".pdf", ".csv", ".md", ".tex", ".html"}
    assert all(path.stat().st_size for path in written)
    assert "index.html" in capsys.readouterr().out
    for name in ("curves", "curves-episode_length", "improvement"):
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["aggregates"]["one"]["last"]["mean"]["value"] == 30
    rows = list(csv.DictReader((out / "scores.csv").open(newline="")))
    mine = [r for r in rows if (r["method"], r["task"], r["seed"]) == ("two", f"dmc/{EVIL}", "2")]
    assert [(r["last"], r["last3"], r["env_step"]) for r in mine] == [("63", "33", "30000")]
    page, text = (out / "index.html").read_text(), (out / "tasks.md").read_text()
    assert "<img" not in page + text and page.count("</script>") == 3
    assert r"\textless{}img src=x" in (out / "tasks.tex").read_text()


@pytest.mark.filterwarnings("error")
def test_names_of_many_settings_leave_room_for_the_panels(tmp_path: Path) -> None:
    """As factors name them; figures of one width warned that no room was left, and were drawn over
    each other."""
    names = [f"ace-huber={i}-penalty=0-mean=0-steps=0-scale=0-beta2=0-burst=0-rate=0" for i in "01"]
    suite = make_suite(tmp_path / "suite", dict(zip(names, RETURNS.values(), strict=True)))
    report(ReportArgs((suite,), tmp_path / "out", anchors=False))
    assert (tmp_path / "out" / "improvement.png").exists()


def test_ten_thousand_rows_are_thinned_but_scored_in_full(tmp_path: Path) -> None:
    steps = tuple(range(10, 100_010, 10))
    values = np.arange(10_000) / 20
    make_suite(tmp_path / "s", {"one": values.tolist()}, steps=steps)
    data = numbers(tmp_path / "s")
    assert data["scores"]["one"]["dmc/hopper-hop"]["last"]["value"] == pytest.approx(499.95)
    line = data["curves"]["one"]["dmc/hopper-hop"]["last"]
    assert len(line["value"]) == curves.MOST_POINTS and line["thinned"]
    assert line["env_step"][-1] == 100_000 and line["value"][-1] == pytest.approx(499.95)


def damage(text: str, how: str) -> str:
    head, first = text.splitlines(keepends=True)[:2]
    return {
        "empty": "",
        "header": head,
        "cut": text[:-4],
        "nan": text.replace("27.0", "nan"),
        "two results": text + first.replace("7.0", "8.0"),
    }[how]


@pytest.mark.parametrize("how", ["empty", "header", "cut", "nan", "two results"])
def test_damaged_results_are_refused_by_name(tmp_path: Path, how: str) -> None:
    suite = make_suite(tmp_path / "s")
    path = suite / "one" / "dmc" / "hopper-hop.csv"
    path.write_text(damage(path.read_text(), how))
    with pytest.raises(ResultError, match=r"hopper-hop\.csv"):
        numbers(suite)


def test_a_row_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s")
    before = numbers(suite)
    path = suite / "one" / "dmc" / "hopper-hop.csv"
    text = path.read_text()
    path.write_text(text + "".join(text.splitlines(keepends=True)[1:]))
    assert numbers(suite) == before


def test_folders_that_are_no_results(tmp_path: Path) -> None:
    for folder, message in ((tmp_path, "no results"), (tmp_path / "x", "is not a folder")):
        with pytest.raises(ResultError, match=message):
            read([folder])
    make_suite(tmp_path / "results" / "s")
    with pytest.raises(ResultError, match="several suites; name those you want: s"):
        read([tmp_path / "results"])
    (tmp_path / "results" / "s" / "none").mkdir()
    with pytest.raises(ResultError, match="has no results"):
        read([tmp_path / "results" / "s" / "none"])
    with pytest.raises(ResultError, match="--at is -1"):
        report(ReportArgs((tmp_path / "results" / "s",), tmp_path / "out", at=-1))


def test_names_differ_and_a_folder_given_twice_is_used_once(tmp_path: Path) -> None:
    a, b = (make_suite(tmp_path / name) for name in "ab")
    entries, notes = read([a, b])
    assert [e.name for e in entries] == ["a/one", "a/two", "b/one", "b/two"] and not notes
    told = summarise(entries, anchors=False, samples=100)["notes"]
    assert "a/one and b/one have equal scores: the same runs, twice?" in told
    entries, _ = read([a, b / "one"])
    assert [e.name for e in entries] == ["a/one", "two", "b/one"]
    entries, notes = read([a, a / "one"])
    assert [e.name for e in entries] == ["one", "two"]
    assert "given twice" in notes[0]


def test_results_of_strangers_say_so(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s")
    for path in (suite / "programs").glob("*.json"):
        path.write_text(json.dumps({"lanes": []}))
    data = numbers(suite)
    assert data["methods"][0]["unknown"] and data["scores"]["one"]["dmc/hopper-hop"]["unknown"]
    assert data["programs"] == {}


def test_plot_draws_runs_alone(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "runs" / "x", {"plan.horizon=4": (1, 2, 3), "plan.horizon=6": (2, 3, 4)}
    )
    out = plot(PlotArgs((run,), tmp_path / "figure.pdf"))
    assert out.read_bytes()[:4] == b"%PDF"
    with pytest.raises(ResultError, match="no run folder"):
        plot(PlotArgs((tmp_path,), out))
    with (run / "eval.csv").open("a") as file:
        file.write("0,0,dmc/chee")
    entries, notes = read([run])
    assert "cut off" in notes[0]
    assert entries[0].tasks["dmc/cheetah-run"][1].columns["return"].tolist() == [2, 3, 4]
    with (run / "eval.csv").open("a") as file:
        file.write("tah-run,30000,nan,,1000,5\n")
    with pytest.raises(ResultError, match="return is nan"):
        read_run(run)


def test_no_jax_is_imported(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s")
    code = (
        "import sys; from pathlib import Path; import ace.bench.report; "
        "from ace.bench.compare import *; "
        f"suite = Path({str(suite)!r}); compare(CompareArgs((suite,))); "
        "import ace.bench.figures, ace.bench.page, matplotlib.figure; "
        "sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
