"""Suites as data, and how their lanes are packed into programs."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ace.bench import suites
from ace.bench.bench import collect, describe_lanes
from ace.bench.drive import Board, show_plan
from ace.bench.jobs import (
    Job,
    LaneSpec,
    check_shared,
    entry_agent,
    finished_lanes,
    make_jobs,
    make_run,
)
from ace.bench.plan import Planned, estimate, make_plan
from ace.bench.rates import Rates
from ace.bench.results import ResultError, add_program, read_programs
from ace.bench.scores import read
from ace.bench.summary import choose_tasks
from ace.engine.lanes import check_compatible
from ace.run.flags import BenchArgs
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
    check_shared(suite)
    jobs = make_jobs(suite)
    lanes = [lane for job in jobs for lane in job.lanes]
    wanted = len(suite.tasks) * len(suite.entries) * len(suite.seeds)
    assert suite.about and len(lanes) == len(set(lanes)) == wanted
    for job in jobs:
        assert 0 < len(job.lanes) <= suite.lanes and set(job.settings) == {x[0] for x in job.lanes}
        run = make_run(job, tmp_path)
        check_compatible(run.setups)
        assert Job.from_json(job.to_json()) == job
    results = Path(__file__).parents[2] / "results" / name
    if results.is_dir() and name != "dmc-curves":  # made with the default before its repairs
        assert finished_lanes(jobs, results), "a new default: give the suite the one from before"


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


def test_a_variant_is_named_alone_and_joins_the_programs_of_its_agent() -> None:
    """Novelty weights are floats, so `ace` and `ace-blind` are lanes of one program."""
    jobs = make_jobs(parse(agents=["ace", "ace-blind", "ace-blind-td", "greedy"], lanes=100))
    found = {tuple(sorted({lane.agent for lane in job.lanes})): job for job in jobs}
    assert set(found) == {("ace", "ace-blind", "ace-blind-td"), ("greedy",)}
    assert {job.agent for job in jobs} == {"ace"}
    assert found["greedy",].settings == {"greedy": {"plan.planner": "policy"}}
    [entry] = parse(agents={"ace-blind-long": {"settings": {"plan.horizon": 4}}}).entries
    assert entry_agent(entry) == ("ace", {"learn.novelty_weight": 0.0, "plan.horizon": 4})
    # What the suite sets is the user's, and wins over the variant; the agent's own wins over both.
    settings = {"learn.novelty_weight": 0.1, "learn.td_lambda": 0.2}
    agents = {"ace-blind-td": {"settings": {"learn.td_lambda": 0.3}}}
    [entry] = parse(agents=agents, settings=settings).entries
    assert entry_agent(entry)[1] == {"learn.novelty_weight": 0.1, "learn.td_lambda": 0.3}


def test_agents_may_be_trained_for_other_numbers_of_steps() -> None:
    agents = {"ace": {}, "sac": {"settings": {"env_steps": 40}}}
    assert parse(agents=agents).budgets() == (40, 100)
    assert parse(agents=agents, settings={"env_steps": 70}).budgets() == (40, 70)
    assert suites.load("baselines").budgets() == (100_000, 500_000)


def test_the_papers_ablation_is_its_five_variants() -> None:
    suite = suites.load("ablation")
    names = ["ace", "ace-blind", "ace-blind-td", "tdmpc-s", "tdmpc-s-mve"]
    assert [entry.name for entry in suite.entries] == names and suite.env_steps == 500_000
    bias = suites.load("value-bias")
    assert bias.entries == suite.entries and set(bias.tasks) < set(suite.tasks)
    assert bias.columns == suite.columns == ("value_bias", "value_bias_std")


def test_an_agent_may_learn_a_task_for_another_ones_results(tmp_path) -> None:
    """The oracle: trained on the dense task, filed under the sparse one."""
    agents = {"ace": {}, "oracle": {"agent": "ace", "task_suffix": "-dense"}}
    tasks = {"tasks": ["metaworld/push"], "seeds": "0-1", "env_steps": 1000}
    settings = {"replay.hindsight": 0.0}
    [job] = make_jobs(parse(agents=agents, settings=settings, **tasks))
    assert {lane.task for lane in job.lanes} == {"metaworld/push"}
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    run = make_run(job, tmp_path)
    found = {(lane.agent, setup.task) for lane, setup in zip(job.lanes, run.setups, strict=True)}
    assert found == {("ace", "metaworld/push"), ("oracle", "metaworld/push-dense")}
    weights = {s.task: s.config.learn.novelty_weight for s in run.setups}
    assert weights == {"metaworld/push": 0.5, "metaworld/push-dense": 0.25}
    told = describe_lanes(job, [{}] * len(job.lanes))
    assert {(x["agent"], x["task"], x.get("trained_on")) for x in told} == {
        ("ace", "metaworld/push", None),
        ("oracle", "metaworld/push", "metaworld/push-dense"),
    }
    # Results that were made on another task do not count as done.
    [plain] = make_jobs(parse(agents={"oracle": {"agent": "ace"}}, settings=settings, **tasks))
    rows = {
        step: {"return": 1.0, "policy_return": 1.0, "episode_length": 100.0} for step in (1000,)
    }
    lanes = [x for x in told if x["agent"] == "oracle"]
    about = {"id": "p", "lanes": lanes, "config": {"env_steps": 1000}}
    add_program(tmp_path, about, {("oracle", "metaworld/push"): {0: rows, 1: rows}})
    assert {lane.agent for lane in finished_lanes([job], tmp_path)} == {"oracle"}
    with pytest.raises(ResultError, match=r"task .metaworld/push-dense there, metaworld/push now"):
        finished_lanes([plain], tmp_path)


def test_results_of_the_oracle_are_filed_under_the_sparse_task(tmp_path) -> None:
    agents = {"oracle": {"agent": "ace", "task_suffix": "-dense"}}
    suite = parse(agents=agents, tasks=["metaworld/push"], seeds="3", env_steps=1000)
    [job] = make_jobs(suite)
    planned = Planned(job, tmp_path / "work", 500, 2, 1)
    (tmp_path / "work" / "run").mkdir(parents=True)
    (tmp_path / "work" / "run" / "eval.csv").write_text(
        "lane,seed,task,env_step,return,policy_return,episode_length,wall_time,success,success_5\n"
        "0,3,metaworld/push-dense,1000,345.5,300.0,100,9.0,0.7,0.9\n"
    )
    done = {"config": {}, "settings": [{}], "versions": {"device": "cpu"}}
    (tmp_path / "work" / "done.json").write_text(json.dumps(done))
    collect(planned, tmp_path / "results", "ace bench mine.toml", parse(score="success"))
    text = (tmp_path / "results" / "oracle" / "metaworld" / "push.csv").read_text().splitlines()
    assert text[1] == "3,1000,345.5,300.0,100.0,0.7,0.9"
    [about] = read_programs(tmp_path / "results")
    assert about["lanes"][0]["trained_on"] == "metaworld/push-dense" and about["score"] == "success"
    [entry], _ = read([tmp_path / "results"])
    [task] = choose_tasks([entry], None, [])
    assert (task.name, task.column, task.scale) == ("metaworld/push", "success", 1.0)


@pytest.mark.parametrize(
    "name, count, steps",
    [
        ("maze", 3, "120,000"),
        ("adroit-sparse", 4, "200,000"),
        ("her", 2, "200,000"),
    ],
)
def test_the_plan_of_a_suite_can_be_shown(name: str, count: int, steps: str, tmp_path) -> None:
    plan = make_plan(BenchArgs(name, results=tmp_path, work=tmp_path))
    estimate(plan, Rates(tmp_path / name, tmp_path / "rates.json"), "NVIDIA H200")
    with io.StringIO() as text:
        show_plan(plan, "NVIDIA H200", Board(Console(file=text, width=200), False), plan.todo)
        shown = text.getvalue()
    assert f"{count} programs to run" in shown and "unknown" not in shown
    assert f"suite {name}, {steps} env steps: 0 of" in shown
    assert ("oracle (TASK-dense)" in shown) == (name == "adroit-sparse")


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"score": "at_goal"}, "probe/point has no number 'at_goal'; it has none"),
        ({"agents": {"ace": {"task_suffix": "er"}}}, "task 'probe/pointer' unknown"),
        (
            {"tasks": ["dmc/cartpole-swingup"], "agents": {"ace": {"task_suffix": "_sparse"}}},
            "dmc/cartpole-swingup_sparse cannot stand for dmc/cartpole-swingup",
        ),
        ({"agents": ["ace", "ace"]}, "an agent is named twice"),
        ({"agents": ["blind"]}, "agent 'blind' unknown"),
    ],
)
def test_scores_and_tasks_that_do_not_fit_are_refused(changes, why: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=why):
        make_jobs(parse(**changes))


@pytest.mark.parametrize("count", range(1, 17))
def test_main_effects_of_a_fraction_are_free_of_each_other_and_of_pairs(count: int) -> None:
    cells = 2 * np.array(suites.fraction(count)) - 1
    assert len(cells) < 4 * count and len({tuple(c) for c in cells}) == len(cells)
    pairs = [cells[:, i] * cells[:, j] for i in range(count) for j in range(i)]
    assert np.array_equal(cells.T @ cells, len(cells) * np.eye(count))
    assert not pairs or not np.any(cells.T @ np.array(pairs).T)


def test_factors_make_a_cell_for_every_combination_of_levels() -> None:
    three = {"a": {"plan.momentum": 0.2}, "b": {"learn": {"discount": 0.9}}}
    three["c"] = {"learn.td-lambda": 0.5, "plan.temperature": 2.0}
    suite = parse(agents={"ace": {"settings": {"learn.discount": 0.7}, "factors": three}})
    assert len(suite.entries) == 8 and dict(suite.entries[0].settings) == {"learn.discount": 0.7}
    found = {e.name: dict(e.settings) for e in suite.entries}
    assert found["ace-a=1-b=1-c=0"] == {"plan.momentum": 0.2, "learn.discount": 0.9}
    both = {"learn.td_lambda": 0.5, "plan.temperature": 2.0}
    assert found["ace-a=0-b=0-c=1"] == {"learn.discount": 0.7} | both


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
        ({"tasks": ["probe/point", "probe/point"]}, "given once"),
        ({"env_steps": "many"}, "env_steps must be a int"),
        ({"env_steps": -5}, "at least 1"),
        ({"lanes": 0}, "at least 1"),
        ({"seeds": "4-0"}, "a range must ascend"),
        ({"agents": {}}, "has no agents"),
        ({"agents": {"../x": {}}}, "is not a name"),
        ({"agents": {"programs": {}}}, "is not a name"),
        ({"agents": {"ace": {"setting": {}}}}, "did you mean settings"),
        ({"agents": {"ace": {"sweep": {"learn.td_lambda": 0.5}}}}, "must be a list"),
        ({"agents": {"ace": {"sweep": {"plan.select": ["best/worst"]}}}}, "is not a name"),
        ({"agents": {"ace": {"factors": {"fast": 0.5}}}}, "fast must be a table"),
        (
            {
                "agents": {
                    "ace": {"factors": {"a": {"plan.momentum": 0}, "b": {"plan.momentum": 1}}}
                }
            },
            "a and b both change plan.momentum",
        ),
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
        ({"agents": {"ace": {"settings": {"plan.planner": 5}}}}, "mine, agent ace: .*type str"),
        ({"preset": "defualt"}, "preset 'defualt' unknown"),
        (
            {"agents": {"ace": {}, "ace-none": {"settings": {"learn.batch": 0}}}},
            "suite mine, agent ace-none: learn.batch is 0",
        ),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(changes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_jobs(parse(**changes))


@pytest.mark.parametrize(
    "settings, agents, why",
    [
        ({"learn.tdlambda": 0.5}, ["ace"], "setting 'learn.tdlambda' unknown; did you mean"),
        ({"learn": {"discount": 0.9}, "sac.critics": 3}, ["ace"], "none of its agents reads sac.c"),
        ({"plan.horizon": 2}, ["sac", "redq"], "none of its agents reads plan.horizon"),
        ({"plan.horizon": 2, "sac.target_entropy": 0.5}, ["ace", "sac"], ""),
    ],
)
def test_settings_that_no_agent_of_a_suite_reads_are_refused(settings, agents, why: str) -> None:
    suite = parse(settings=settings, agents=agents)
    if why:
        with pytest.raises(ConfigError, match=f"suite mine: {why}"):
            check_shared(suite)
    else:
        check_shared(suite)


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
