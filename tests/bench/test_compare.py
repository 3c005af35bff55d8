"""Differences and main effects against values worked out by hand."""

import json
from pathlib import Path

import pytest

from ace.bench.compare import ALL, CompareArgs, compare, differences, factors
from ace.bench.results import ResultError, add_program, write_table
from ace.bench.scores import read
from tests.bench.made import STEPS, make_row, make_run, make_suite


def test_difference_of_two_agents(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    suite = make_suite(tmp_path / "s", tasks=("dmc/a", "dmc/b"))
    data = compare(CompareArgs((suite / "one", suite / "two"), out=tmp_path / "out"))
    assert data["paired"]
    first = data["last"][0]
    assert (first["task"], first["reference"], first["mean"]) == ("dmc/a", 30, 60)
    # Paired, every seed differs by exactly 30; unpaired, the interval would have width.
    assert first["difference"] == {"value": 30, "low": 30, "high": 30}
    assert data["last3"][0]["difference"]["value"] == pytest.approx(10)
    assert data["last"][-1]["task"] == ALL
    text = capsys.readouterr().out
    assert "30 (30, 30)" in text and "yes" in text and "with 3 seeds" in text
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["paired"]
    assert "| two | dmc/a |" in (tmp_path / "out" / "compare.md").read_text()


def test_other_seeds_are_not_paired(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s")
    rows = {s: {step: make_row(10.0 * s) for step in STEPS} for s in (1, 2, 3)}
    write_table(suite / "two" / "dmc" / "hopper-hop.csv", rows)
    data = differences(*read([suite]))
    assert not data["paired"]
    found = data["last"][0]["difference"]
    assert found["value"] == pytest.approx(-10) and found["low"] < -10 < found["high"]
    assert any("not paired" in note for note in data["notes"])


def test_common_env_step_and_tasks(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s")
    make_suite(suite, {"three": (1.0, 2.0)}, tasks=("dmc/hopper-hop", "dmc/more"), steps=STEPS[:2])
    data = differences(*read([suite / "one", suite / "three"]))
    assert data["tasks"][0]["env_step"] == 20_000
    assert data["last"][0]["difference"]["value"] == -18
    assert data["last3"] == []
    assert any("left out" in note and "dmc/more" in note for note in data["notes"])
    with pytest.raises(ResultError, match="no seed of dmc/hopper-hop was evaluated"):
        differences(*read([suite / "one", suite / "three"]), at=30_000)


def test_main_effects_of_a_factorial_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    cells = {f"a={a} b={b}": (0, 0, 10 * a + b) for a in (1, 2) for b in (0, 4)}
    run = make_run(tmp_path / "run", cells, seeds=(0, 1, 2))
    data = compare(CompareArgs((run,)))
    effects = {(e["factor"], e["level"]): e for e in data["effects"]["last"]}
    assert effects["a", 2.0]["effect"] == pytest.approx(10)
    assert effects["b", 4.0]["effect"] == pytest.approx(4)
    assert effects["b", 4.0]["mean"] == pytest.approx(20)
    assert "Main effects" in capsys.readouterr().out


def test_effects_have_the_digits_of_their_score(tmp_path: Path, capsys) -> None:
    """Success 0.51 against 0.55, the same for all seeds: an effect without error is one too."""
    suite, task = tmp_path / "s", "metaworld/push"
    for level, share in ((0.1, 0.51), (0.2, 0.55)):
        agent = f"ace-weight={level}"
        about = {"id": agent, "lanes": [{"agent": agent, "task": task, "seed": n} for n in (0, 1)]}
        rows = {n: {s: make_row(n + s, success=share) for s in STEPS} for n in (0, 1)}
        add_program(suite, about, {(agent, task): rows})
    compare(CompareArgs((suite,)))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    effects = [row[2:] for row in rows if row[:2] == [task, "weight"]]
    assert effects[:2] == [["0.1", "0.51", "–", "–"], ["0.2", "0.55", "+0.040", "0.000"]]


def test_a_saturated_fraction_has_errors_over_tasks_alone(tmp_path: Path, capsys) -> None:
    """Three factors in four cells with one run each leave nothing to estimate errors from. The
    effects of `a` are 10 and 4 on the tasks, so on their mean 7 with an error of 3."""
    suite = tmp_path / "s"
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        agent, c = f"ace-a={a}-b={b}-c={a ^ b}", a ^ b
        lanes = [{"agent": agent, "task": task, "seed": 5} for task in ("dmc/one", "dmc/two")]
        found = {
            (agent, task): {5: {s: make_row(100 + effect * a + 2 * b + c) for s in STEPS}}
            for task, effect in (("dmc/one", 10), ("dmc/two", 4))
        }
        add_program(suite, {"id": agent, "lanes": lanes}, found)
    data = compare(CompareArgs((suite,)))
    effects = {(e["task"], e["factor"]): e for e in data["effects"]["last"] if e["level"] == 1}
    assert effects[ALL, "a"]["effect"] == pytest.approx(7)
    assert effects[ALL, "a"]["error"] == pytest.approx(3)
    assert effects[ALL, "b"]["effect"] == pytest.approx(2)
    assert effects["dmc/one", "a"]["effect"] == pytest.approx(10)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert next(row[4:] for row in rows if row[:3] == ["dmc/one", "a", "1"]) == ["+10.0", "–"]
    assert any("too few cells" in note for note in data["notes"])


def test_unbalanced_cells_have_no_main_effects(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", {"a=1 b=1": (0, 0, 1), "a=2 b=1": (0, 0, 2), "a=2 b=2": (0, 0, 3)}
    )
    data = differences(*read([run]))
    assert data["effects"]["last"] == []
    assert any("no main effects: unbalanced" in note for note in data["notes"])


def test_nothing_to_compare(tmp_path: Path) -> None:
    suite = make_suite(tmp_path / "s", {"one": (1.0, 2.0, 3.0)})
    with pytest.raises(ResultError, match="only one to compare"):
        compare(CompareArgs((suite,)))
    make_suite(suite, {"two": (1.0, 2.0, 3.0)}, tasks=("dmc/other",))
    with pytest.raises(ResultError, match="no task in common"):
        compare(CompareArgs((suite,)))


def test_settings_in_names() -> None:
    assert factors("ace-td_lambda=0.2-noise_beta=-0.5") == {"td_lambda": 0.2, "noise_beta": -0.5}
    assert factors("run plan.planner=cem plan.horizon=4") == {
        "plan.planner": "cem",
        "plan.horizon": 4,
    }
    assert factors("ace-rate=1e-05") == {"rate": 1e-5}
    assert factors("ace-beta-2.5") == {}


def test_another_column_than_the_score(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    suite = tmp_path / "s"
    for agent, offset in (("one", 0.0), ("two", 40.0)):
        rows = {
            seed: {step: make_row(1.0) | {"policy_return": 100.0 + offset} for step in STEPS}
            for seed in (0, 1)
        }
        for task in ("dmc/hopper-hop", "dmc/cheetah-run"):
            write_table(suite / agent / f"{task}.csv", rows)
    data = compare(CompareArgs((suite,), column="policy_return"))
    assert [row["difference"]["value"] for row in data["last"]] == [40, 40, 40]  # and their mean
    assert "(policy_return, last evaluation" in capsys.readouterr().out
    assert compare(CompareArgs((suite,)))["last"][0]["difference"]["value"] == 0
    with pytest.raises(ResultError, match="no column 'policy' to compare; there are: return, pol"):
        compare(CompareArgs((suite,), column="policy"))
