"""Curves of other columns than the score in a report: their numbers by hand, gaps, and which files
are there afterwards."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ace.bench import anchors, figures
from ace.bench.report import ReportArgs, report
from ace.bench.results import ResultError, add_program
from ace.bench.scores import read
from ace.bench.summary import summarise
from tests.bench.made import EVIL, STEPS, make_row, make_run, make_suite

NAN = math.nan
TASK = "dmc/hopper-hop"
# Both seeds have a value at 10,000 and 30,000, with the means -0.2 and 0.4.
BIAS = {0: (0.1, NAN, 0.6), 1: (-0.5, 0.3, 0.2)}


def add_column(
    suite: Path, agent: str, column: str, values: Mapping[int, Sequence[float]], task: str = TASK
) -> Path:
    """Add an agent whose seeds have these values of a column."""
    rows = {
        seed: {
            step: make_row(5.0 + seed, **{column: x}) for step, x in zip(STEPS, mine, strict=True)
        }
        for seed, mine in values.items()
    }
    lanes = [{"agent": agent, "task": task, "seed": seed} for seed in values]
    made = {
        "id": f"p-{agent}-{len(column)}",
        "lanes": lanes,
        "wall_clock_s": 60.0,
        "env_steps": 30_000,
    }
    add_program(suite, made, {(agent, task): rows})
    return suite


def of_columns(suite: Path, *columns: str, **options) -> dict:
    entries, notes = read([suite])
    options = {"anchors": False, "samples": 100, **options}
    return summarise(entries, notes, columns=columns, **options)


def test_a_column_is_drawn_where_all_seeds_have_a_value(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s", tasks=(TASK, "dmc/walker-run"))
    data = of_columns(add_column(suite, "three", "value_bias", BIAS), "value_bias")
    found = data["columns"]["value_bias"]
    assert [(task["name"], task["column"]) for task in found["tasks"]] == [(TASK, "value_bias")]
    assert found["curves"]["one"] == {} and list(found["curves"]["three"]) == [TASK]
    line = found["curves"]["three"][TASK]["last"]
    assert line["env_step"] == [10_000, 30_000] and line["count"] == 2
    assert line["value"] == pytest.approx([-0.2, 0.4])
    assert line["low"] == pytest.approx([-0.5, 0.2]) and line["high"] == pytest.approx([0.1, 0.6])
    assert line["seeds"] == {"0": [0.1, 0.6], "1": [-0.5, 0.2]} and line["wall"] == [20, 60]
    assert line["thinned"]  # seed 1 has a point more
    assert "last3" not in found["curves"]["three"][TASK]  # seed 0 has only two values
    # All other numbers are those of a report without columns.
    assert {**data, "columns": {}} == of_columns(suite)


def test_seeds_of_which_one_has_no_value_give_no_curve_but_a_note(tmp_path: Path) -> None:
    suite = add_column(tmp_path / "s", "one", "success", {0: (0.5, 0.5, 1), 1: (NAN, NAN, NAN)})
    data = of_columns(suite, "success", "policy_return")
    assert list(data["columns"]) == ["policy_return"]
    note = f"one: no curve of success on {TASK}, because at no env step all its seeds have a value"
    assert note in data["notes"]
    line = data["columns"]["policy_return"]["curves"]["one"][TASK]
    assert line["last"]["value"] == [5.5] * 3 and line["last3"]["value"] == [5.5]
    # The curve counts the seeds that the score does, which `--at` may choose.
    add_column(suite, "two", "success", {0: (0.25, 0.5, 0.75), 1: (0.25, 0.5, 1.25)})
    line = of_columns(suite, "success", at=30_000)["columns"]["success"]["curves"]["two"]
    assert line[TASK]["last"]["value"] == [0.25, 0.5, 1.0]


def test_public_results_are_not_in_the_curves_of_columns(tmp_path: Path, monkeypatch) -> None:
    few = {"TD-MPC": anchors.curves()["TD-MPC"]}
    monkeypatch.setattr(anchors, "curves", lambda: few)
    suite = make_suite(tmp_path / "s")
    data = of_columns(suite, "return", anchors=True)
    assert {"TD-MPC", "ACE (paper)"} <= set(data["curves"])
    assert list(data["columns"]["return"]["curves"]) == ["one", "two"]


@pytest.fixture
def drawn(monkeypatch) -> dict[str, Any]:
    """The figures of a report by file name; the files are empty, because real ones take seconds."""
    found: dict[str, Any] = {}

    def save(figure: Any, path: Path) -> None:
        found[path.name] = figure
        path.touch()

    monkeypatch.setattr(figures, "_save", save)
    return found


def test_columns_are_files_and_old_ones_go(tmp_path: Path, capsys, drawn) -> None:
    out = tmp_path / "out"
    suite = add_column(tmp_path / "s", "one", "value_bias", {0: BIAS[1], 1: BIAS[1]})
    add_column(suite, "two", EVIL, {0: (1, 2, 3)})
    hint = "not drawn, but could be: --columns"
    written = report(ReportArgs((suite,), out, anchors=False, columns=("value_bias", EVIL)))
    assert hint not in capsys.readouterr().out
    kinds = [f"{end}.{kind}" for end in ("", "-last3") for kind in ("png", "pdf")]
    score = {"curves-last3.png", "curves-last3.pdf"}
    bias = {f"curves-value_bias{kind}" for kind in kinds}
    there = {path.name for path in out.glob("curves-*")}
    assert score | bias < there and len(there - score - bias) == len(kinds)  # EVIL, with a slash
    (panel,) = drawn["curves-value_bias.png"].axes
    assert (panel.get_title("left"), panel.get_ylabel()) == (TASK, "value_bias")
    assert [list(line.get_ydata()) for line in panel.lines] == [[-0.5, 0.3, 0.2]]
    assert all(path.is_file() and path.parent == out for path in written)
    rows = list(csv.DictReader((out / "columns.csv").open(newline="")))
    mine = [row for row in rows if (row["column"], row["scoring"]) == ("value_bias", "last")]
    assert [(row["env_step"], float(row["mean"])) for row in mine] == [
        *(("10000", -0.5), ("20000", 0.3), ("30000", 0.2))
    ]
    assert {row["column"] for row in rows} == {"value_bias", EVIL}
    assert "columns" not in json.loads((out / "summary.json").read_text())

    # A second report draws less: what it does not draw is gone, what is not ours stays.
    (out / "curves-mine.png").write_bytes(b"mine")
    report(ReportArgs((suite,), out, anchors=False, columns=("value_bias", "value_bias")))
    assert {path.name for path in out.glob("curves-*")} == score | bias | {"curves-mine.png"}
    capsys.readouterr()
    report(ReportArgs((suite,), out, anchors=False))
    assert {path.name for path in out.glob("curves-*")} == score | {"curves-mine.png"}
    assert not (out / "columns.csv").exists()
    assert f"{hint} {EVIL} value_bias" in capsys.readouterr().out


def test_a_suite_chooses_columns_that_its_report_draws(tmp_path: Path, capsys, drawn) -> None:
    suite = add_column(tmp_path / "s", "one", "value_bias", BIAS)
    add_column(suite, "two", "other", {0: (1, 2, 3)})
    path = suite / "programs" / "p-one-10.json"
    asked = {"columns": ["value_bias", "not_recorded"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | asked))
    report(ReportArgs((suite,), tmp_path / "out", anchors=False))
    assert "curves-value_bias.png" in drawn and "curves-other.png" not in drawn
    drawn.clear()
    report(ReportArgs((suite,), tmp_path / "out", anchors=False, columns=("other",)))
    assert "curves-value_bias.png" not in drawn and "curves-other.png" in drawn


def test_unknown_columns_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    suite = add_column(tmp_path / "s", "one", "value_bias", BIAS)
    add_column(suite, "two", "empty", {0: (NAN, NAN, NAN)})
    known = "there are: return, policy_return, episode_length, value_bias$"
    for column in ("value-bias", "empty", "wall_time", "seed"):
        with pytest.raises(ResultError, match=f"no column '{column}' to draw; {known}"):
            report(ReportArgs((suite,), tmp_path / "out", columns=("value_bias", column)))
    assert not (tmp_path / "out").exists()


def test_usual_columns_and_the_score_need_no_hint(tmp_path: Path, capsys, drawn) -> None:
    suite = make_suite(tmp_path / "s")
    add_column(suite, "one", "success", {0: (0, 0, 1)}, task="metaworld/push")
    report(ReportArgs((suite,), tmp_path / "out", anchors=False))
    assert "--columns" not in capsys.readouterr().out and "curves.png" in drawn
    run = make_run(tmp_path / "run", {"": (1, 2, 3)})
    with pytest.raises(ResultError, match=r"there are: return, episode_length$"):
        report(ReportArgs((run,), tmp_path / "out", columns=("wall_time",)))
