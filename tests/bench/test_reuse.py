"""`ace bench --reuse`: curves that another suite has made with the same settings."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ace import cli
from ace.bench import jobs, local, results, suites
from ace.bench.rates import Rates
from ace.settings import config as settings

MAIN = """
about = "Two tasks."
tasks = ["probe/point", "probe/long"]
seeds = "0-2"
env_steps = 400
preset = "debug"
lanes = 3

[agents.ace]
"""
SWEEP = """
about = "One of its three values is the preset's."
tasks = ["probe/point"]
seeds = "0-1"
env_steps = 400
preset = "debug"
lanes = 6
columns = ["value_bias"]

[agents.ace]
sweep = { "learn.novelty_weight" = [0.0, 0.25, 0.5] }
"""
SAME = "ace-novelty_weight=0.25"


def pretend(folder: Path, text: str, **numbers: float) -> None:
    """Results as the programs of a suite would leave them; seed s returns s."""
    path = folder / "main.toml"
    path.write_text(text)
    for job in jobs.make_jobs(suites.load(str(path))):
        configs = [jobs.make_config(lane.agent, job, lane.task) for lane in job.lanes]
        shared, own = jobs.describe_config(configs)
        lanes = [
            lane._asdict() | {"settings": some} for lane, some in zip(job.lanes, own, strict=True)
        ]
        tables: dict[tuple[str, str], results.Table] = {}
        for lane, config in zip(job.lanes, configs, strict=True):
            row = {"return": float(lane.seed), "policy_return": 1.0, "episode_length": 9.0}
            steps = {100: row | numbers, jobs.last_env_step(config): row | numbers}
            tables.setdefault((lane.agent, lane.task), {})[lane.seed] = steps
        about = {"id": job.id, "suite": "main", "agent": job.agent, "preset": job.preset}
        about |= {"config": json.loads(json.dumps(shared)), "lanes": lanes, "commit": "abc1234"}
        about |= {"hardware": "card", "lane_steps_per_s": 9.0, "score": "farthest"}
        results.add_program(folder / "results" / "main", about, tables)


Bench = Callable[..., tuple[int, str]]


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys) -> Bench:
    """The sweep: the exit status, and what is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(local, "find_devices", lambda: [local.Device("card")])

    def call(*flags: str, text: str = SWEEP) -> tuple[int, str]:
        Path("sweep.toml").write_text(text)
        status = 0
        try:
            cli.main(["bench", "sweep.toml", "--reuse", "results/main", *flags])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    return call


def test_curves_with_the_same_settings_are_taken(tmp_path, bench) -> None:
    pretend(tmp_path, MAIN, value_bias=0.5)
    status, text = bench("--dry-run")
    assert status == 0 and "2 of 6 curves are in results/sweep" in text
    assert "2 of them come from results/main, made with the same settings (commit abc1234)" in text
    assert not Path("results/sweep").exists()
    status, text = bench("--agents", SAME)  # nothing is left to run
    assert status == 0 and "2 of 2 curves are in results/sweep; 0 programs" in text
    (method,) = results.read_suite(Path("results/sweep"))
    assert method.agent == SAME and list(method.tasks) == ["probe/point"]
    series = method.tasks["probe/point"]
    assert {seed: s.columns["return"].tolist() for seed, s in series.items()} == {
        0: [0.0, 0.0],
        1: [1.0, 1.0],
    }
    program = series[0].program
    assert program and program["commit"] == "abc1234" and program["suite"] == "sweep"
    assert program["columns"] == ["value_bias"] and "score" not in program
    assert program["note"].startswith("2 of the 3 lanes of main: ace-")
    assert [(lane["agent"], lane["seed"]) for lane in program["lanes"]] == [(SAME, 0), (SAME, 1)]
    # The program's rate is that of three lanes: it says nothing about two.
    known = Rates(Path("results/x"), tmp_path / "none").known
    assert {rate.lanes for rate in known if rate.hardware == "card"} == {3}
    status, text = bench("--dry-run")  # now they are the suite's own
    assert status == 0 and "2 of 6 curves are in" in text and "come from" not in text
    status, text = bench("--dry-run", "--reuse", "results/main", "results/sweep")
    assert status == 0 and "come from" not in text


def test_the_settings_of_taken_curves_are_those_of_the_suite(tmp_path, bench) -> None:
    pretend(tmp_path, MAIN, value_bias=0.5)
    bench("--agents", SAME)
    (program,) = results.read_programs(Path("results/sweep"))
    suite = suites.load(str(tmp_path / "sweep.toml"))
    (job,) = jobs.make_jobs(suite)
    here = json.loads(json.dumps(settings.flatten(jobs.make_config(SAME, job, "probe/point"))))
    for lane in program["lanes"]:
        assert program["config"] | lane["settings"] == here
    assert jobs.finished_lanes([job], Path("results/sweep")) == {
        jobs.LaneSpec(SAME, "probe/point", seed) for seed in (0, 1)
    }


@pytest.mark.parametrize("value, found", [(0.6, 2), (0.5, 0)])
def test_a_setting_that_is_younger_than_the_curves(value, found, tmp_path, bench) -> None:
    """They were made with its default, which keeps the behaviour from before there was a choice;
    after a setting was added no curve of before was taken."""
    pretend(tmp_path, MAIN, value_bias=0.5)
    for path in Path("results/main/programs").iterdir():
        program = json.loads(path.read_text())
        assert program["config"].pop("replay.priority_power") == 0.6
        path.write_text(json.dumps(program))
    text = SWEEP + f'settings = {{ "replay.priority_power" = {value} }}\n'
    status, shown = bench("--dry-run", text=text)
    assert status == 0 and f"{found} of 6 curves are in" in shown


@pytest.mark.parametrize(
    "old, new",
    [
        ("[agents.ace]", '[settings]\n"learn.discount" = 0.9\n[agents.ace]'),
        ("[agents.ace]", "[settings]\neval_episodes = 3\n[agents.ace]"),
        ("env_steps = 400", "env_steps = 500"),
        ('seeds = "0-2"', 'seeds = "5-7"'),
        ('["probe/point", "probe/long"]', '["probe/long"]'),
        ("[agents.ace]", "[agents.ace-blind]"),
    ],
)
def test_others_are_not(old, new, tmp_path, bench) -> None:
    pretend(tmp_path, MAIN.replace(old, new), value_bias=0.5)
    status, text = bench("--dry-run")
    # `ace-blind` is the sweep's first value, 0.
    found = 2 if "blind" in new else 0
    assert status == 0 and f"{found} of 6 curves are in" in text


def test_a_curve_without_the_columns_of_the_suite_is_not_taken(tmp_path, bench) -> None:
    pretend(tmp_path, MAIN)
    status, text = bench("--dry-run")
    assert status == 0 and "0 of 6 curves are in" in text
    status, text = bench("--dry-run", text=SWEEP.replace('columns = ["value_bias"]', ""))
    assert status == 0 and "2 of 6 curves are in" in text


def test_a_folder_without_programs_is_refused(tmp_path, bench) -> None:
    status, text = bench("--dry-run")
    assert status == 1 and "results/main has no programs; give a suite" in text
