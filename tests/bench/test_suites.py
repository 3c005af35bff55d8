"""Suites as data, and how their lanes are packed into programs."""

from typing import Any

import pytest

from ace.bench import suites
from ace.bench.jobs import Job, LaneSpec, make_jobs, make_run
from ace.engine.lanes import check_compatible
from ace.settings.config import ConfigError, flatten

SMALL: dict[str, Any] = {
    "tasks": ["probe/point", "probe/long"],
    "seeds": "0-2",
    "env_steps": 100,
    "preset": "debug",
    "lanes": 6,
    "agents": {"ace": {}},
}


def parse(**changes: Any) -> suites.Suite:
    return suites.parse("mine", {**SMALL, **changes}, "mine.toml")


@pytest.mark.parametrize("name", suites.names())
def test_every_suite_of_the_package_can_be_packed(name: str, tmp_path) -> None:
    suite = suites.load(name)
    jobs = make_jobs(suite)
    lanes = [lane for job in jobs for lane in job.lanes]
    wanted = len(suite.tasks) * len(suite.entries) * len(suite.seeds)
    assert suite.about and len(lanes) == len(set(lanes)) == wanted
    for job in jobs:
        assert 0 < len(job.lanes) <= suite.lanes and set(job.settings) == {x[0] for x in job.lanes}
        run = make_run(job, tmp_path)
        check_compatible(run.setups)
        assert Job.from_json(job.to_json()) == job


def test_the_papers_table_is_its_fifteen_tasks() -> None:
    from ace.settings.presets import DMC15

    suite = suites.load("dmc15-500k")
    assert sorted(suite.tasks) == sorted(DMC15) and suite.seeds == (0, 1, 2, 3, 4)


def test_floats_tasks_and_seeds_share_a_program_and_shapes_and_repeats_do_not() -> None:
    agents = {
        "ace": {},
        "ace-blind": {"settings": {"learn.novelty_weight": 0.0}},
        "ace-wide": {"settings": {"net": {"mlp": 32}}},
        "ace-slow": {"settings": {"action_repeat": 2}},
    }
    jobs = make_jobs(parse(agents=agents, lanes=100))
    found = sorted(sorted({lane.agent for lane in job.lanes}) for job in jobs)
    assert found == [["ace", "ace-blind"], ["ace-slow"], ["ace-wide"]]
    both = next(job for job in jobs if len(job.settings) == 2)
    assert len(both.lanes) == 12


def test_seeds_stay_together_and_nothing_depends_on_the_order_of_calls() -> None:
    jobs = make_jobs(parse(lanes=4))
    assert [len(job.lanes) for job in jobs] == [3, 3]
    assert [job.id for job in jobs] == [job.id for job in make_jobs(parse(lanes=4))]
    assert len({job.id for job in jobs} | {job.id for job in make_jobs(parse(env_steps=200))}) == 3
    parts = make_jobs(parse(lanes=2))  # three seeds do not fit: they are cut
    assert [len(job.lanes) for job in parts] == [2, 2, 2]


def test_settings_of_the_suite_are_for_the_agents_that_read_them() -> None:
    agents = {"ace": {"settings": {"plan.elites": 3}}, "sac": {}}
    found = make_jobs(parse(agents=agents, settings={"plan.horizon": 2, "seed_steps": 50}))
    settings = {name: dict(job.settings[name]) for job in found for name in job.settings}
    assert settings == {
        "ace": {"plan.horizon": 2, "plan.elites": 3, "seed_steps": 50},
        "sac": {"seed_steps": 50},
    }


def test_a_sweep_names_its_agents_by_their_values(tmp_path) -> None:
    sweep = {"learn.td_lambda": [0.0, 0.4], "plan": {"noise_beta": [2.0]}}
    suite = parse(agents={"ace": {"sweep": sweep}}, seeds="7")
    assert [e.name for e in suite.entries] == [
        "ace-td_lambda=0.0-noise_beta=2.0",
        "ace-td_lambda=0.4-noise_beta=2.0",
    ]
    [job] = make_jobs(suite)
    run = make_run(job, tmp_path)
    by_lane = dict(zip(job.lanes, run.setups, strict=True))
    setup = by_lane[LaneSpec(suite.entries[1].name, "probe/long", 7)]
    assert flatten(setup.config)["learn.td_lambda"] == 0.4 and setup.config.env_steps == 100
    assert list(run.labels) == [lane.agent for lane in job.lanes]


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"task": ["x"]}, "did you mean tasks"),
        ({"tasks": []}, "has no tasks"),
        ({"tasks": ["probe/point", "probe/point"]}, "must be different"),
        ({"env_steps": "many"}, "env_steps must be a int"),
        ({"env_steps": -5}, "at least 1"),
        ({"lanes": 0}, "at least 1"),
        ({"seeds": "4-0"}, "a range goes up"),
        ({"agents": {}}, "has no agents"),
        ({"agents": {"../x": {}}}, "is not a name"),
        ({"agents": {"programs": {}}}, "is not a name"),
        ({"agents": {"ace": {"setting": {}}}}, "did you mean settings"),
        ({"agents": {"ace": {"sweep": {"learn.td_lambda": 0.5}}}}, "must be a list"),
        ({"agents": {"ace": {"sweep": {"plan.select": ["best/worst"]}}}}, "is not a name"),
    ],
)
def test_a_wrong_suite_is_refused_in_one_line(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"agents": {"ace": {"settings": {"learn.tdlambda": 0.5}}}}, "td_lambda"),
        ({"agents": {"ace": {"settings": {"learn.td_lambda": "much"}}}}, "must be of type float"),
        ({"agents": {"nobody": {}}}, "agent 'nobody' unknown"),
        ({"agents": {"sac": {"settings": {"plan.horizon": 5}}}}, "does nothing for agent sac"),
        ({"preset": "defualt"}, "preset 'defualt' unknown"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(changes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_jobs(parse(**changes))


def test_a_suite_may_be_a_file_of_the_users(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('tasks = ["probe/point"]\nenv_steps = 100\npreset = "debug"\n[agents.ace]\n')
    suite = suites.load(str(path))
    assert suite.name == "mine" and suite.seeds == (0, 1, 2, 3, 4) and suite.lanes == 15
    path.write_text("tasks = [")
    with pytest.raises(ConfigError, match="is not a TOML file"):
        suites.load(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        suites.load(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="did you mean smoke"):
        suites.load("smokes")
