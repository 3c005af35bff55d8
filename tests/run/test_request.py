"""From flags to a run and back from its folder: spelling, an agent's own section, modules of the
user, names of folders, and runs that are made longer."""

import dataclasses
import importlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import ace.envs
from ace.agents import AGENTS
from ace.envs import TaskError
from ace.planners import PLANNERS
from ace.run import request
from ace.run.record import write_json
from ace.settings.config import Config, ConfigError, flatten, settings

POINT = ["probe/point", "--preset", "debug"]


@settings
@dataclass(frozen=True)
class Toy:
    """Settings of the toy agent."""

    heat: float = 0.5
    """How hot."""
    layers: int = 2
    """How many."""
    cold: bool = False
    """Not hot."""


@pytest.fixture
def toy(monkeypatch):
    """An agent with a section of its own, which reads two of the common ones."""
    agent = dataclasses.replace(
        AGENTS["ace"],
        settings=Toy,
        sections=("learn", "replay"),
        defaults={"learn.batch": 7, "learn.discount": 0.5},
        segment=lambda config: 9,
    )
    monkeypatch.setitem(AGENTS, "toy", agent)
    return agent


def plan(*argv: str) -> request.Run:
    return request.plan_run([*POINT, *argv])


@pytest.mark.parametrize(
    "more, told",
    [
        ({"metrics": ("loss", "return")}, "a metric 'return', which is a column of every run"),
        ({"metrics": ("faults",)}, "a metric 'faults'"),
        ({"segment": lambda config: 0}, "agent toy draws segments of 0 steps"),
    ],
)
def test_an_agent_whose_run_could_not_be_recorded_is_refused(monkeypatch, toy, more, told) -> None:
    monkeypatch.setitem(AGENTS, "toy", dataclasses.replace(toy, **more))
    with pytest.raises(ConfigError, match=told):
        plan("--agent", "toy")


def saved(run: request.Run, folder: Path) -> Path:
    folder.mkdir()
    write_json(folder / "config.json", run.describe())
    return folder


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--env-steps 1e6", {"env_steps": 1_000_000}),
        ("--env-steps=2e3", {"env_steps": 2000}),
        ("--env-steps 500_000", {"env_steps": 500_000}),
        ("--learn.batch 3.0", {"learn.batch": 3}),
        ("--learn.td_lambda 1", {"learn.td_lambda": 1.0}),
        ("--parity.no-clip-action", {"parity.clip_action": False}),
        ("--parity.clip-action false", {"parity.clip_action": False}),
        ("--parity.clip-action=True", {"parity.clip_action": True}),
        ("--plan.horizon 3 --plan.horizon 4", {"plan.horizon": 4}),
        ("--kernels off", {"kernels": "off"}),
        ("--plan.horizon-ramp.start 1 --plan.horizon 1", {"plan.horizon": 1}),
    ],
)
def test_values_may_be_written_in_several_ways(argv, expected):
    found = flatten(plan(*argv.split()).setups[0].config)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("argv", "seeds"),
    [
        ("--seeds 0 1 2", [0, 1, 2]),
        ("--seeds 0,1,2", [0, 1, 2]),
        ("--seeds 0-4", [0, 1, 2, 3, 4]),
        ("--seeds 7 2-3,9", [7, 2, 3, 9]),
        ("--seed 3", [3]),
        ("--seed=3", [3]),
    ],
)
def test_seeds_may_be_lists_and_ranges(argv, seeds):
    assert [setup.seed for setup in plan(*argv.split()).setups] == seeds


def test_a_segment_may_be_a_plan_of_one_step(monkeypatch, toy):
    """The ramp of the working horizon is ACE's: for an agent without one it was checked too, and
    then the flag that the message advised was refused."""
    agent = dataclasses.replace(
        toy,
        sections=("learn", "plan.horizon"),
        segment=lambda config: config.plan.horizon,
        check=lambda config: None,
    )
    monkeypatch.setitem(AGENTS, "toy", agent)
    assert plan("--agent", "toy", "--plan.horizon", "1").setups[0].config.plan.horizon == 1


@pytest.mark.parametrize("agent", ["ace", "tdmpc"])
@pytest.mark.parametrize("flags", ["--plan.horizon-ramp.start 0", "--plan.horizon-ramp.start 9"])
def test_the_working_horizon_begins_inside_the_plan(agent, flags):
    with pytest.raises(ConfigError, match=r"plan\.horizon_ramp\.start"):
        plan("--agent", agent, *flags.split())


def test_names_and_flags_may_come_in_any_order():
    argv = "--seeds 0 1 probe/point --preset debug --vary learn.td-lambda=0,1 probe/long --quiet"
    run = request.plan_run(argv.split())
    assert [s.task for s in run.setups] == ["probe/point"] * 4 + ["probe/long"] * 4
    assert run.quiet and run.preset == "debug"
    assert run.labels[:4] == ["learn.td_lambda=0"] * 2 + ["learn.td_lambda=1"] * 2


def test_varied_settings_are_crossed_wherever_they_stand():
    one = plan("--vary", "learn.td-lambda=0,1", "learn.discount=0.9,0.8")
    two = plan("--vary", "learn.td-lambda=0,1", "--vary", "learn.discount=0.9,0.8")
    assert one.describe() == two.describe() and len(one.setups) == 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "--vary net.mlp=8,16",
            "lanes net.mlp=8 and net.mlp=16 differ in net.mlp, which shapes the program and so "
            "cannot be varied in one run; train a run for each value",
        ),
        (
            "--vary learn.td-lambda=0,1 plan.horizon=3,4",
            "lanes learn.td_lambda=0 plan.horizon=3 and learn.td_lambda=0 plan.horizon=4 differ in "
            "plan.horizon, which",
        ),
        ("--agent toy --vary toy.layers=1,2", "differ in toy.layers, which shapes"),
    ],
)
def test_settings_that_shape_the_program_are_not_varied(toy, argv, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(*argv.split())


def test_an_agent_has_flags_of_its_own(toy, tmp_path):
    run = plan("--agent", "toy", "--toy.heat", "-0.25", "--toy.layers", "3", "--toy.cold")
    assert run.setups[0].config.own == Toy(-0.25, 3, True)
    assert run.setups[0].config.learn.batch == 16  # the preset's, which beats the agent's
    assert run.setups[0].config.learn.discount == 0.5
    stored = run.describe()["lanes"][0]["config"]["own"]
    assert stored == {"heat": -0.25, "layers": 3, "cold": True}
    _, agent, setups, _ = request.read_run(saved(run, tmp_path / "run"))
    assert agent == "toy" and setups == run.setups


def test_an_agents_own_settings_can_be_varied(toy):
    run = plan("--agent", "toy", "--vary", "toy.heat=0.1,0.2")
    assert [s.config.own.heat for s in run.setups] == [0.1, 0.2]
    assert run.labels == ["toy.heat=0.1", "toy.heat=0.2"]
    assert run.folder == Path("runs/point-debug-toy-toy.heat=0.1,0.2")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--agent toy --plan.horizon 4", "--plan.horizon does nothing for agent toy"),
        ("--agent toy --plan.horizon-ramp.start 1", "--plan.horizon-ramp.start does nothing"),
        ("--agent toy --vary net.mlp=8,16", "--net.mlp does nothing for agent toy"),
        ("--agent toy --toy.heat nan", "toy.heat is nan"),
        ("--agent toy --toy.heet 1", "did you mean --toy.heat?"),
        ("--agent toy --toy.layers 1.5", "--toy.layers is '1.5'; it must be a whole number"),
        ("--toy.heat 1", "add --agent toy"),
        ("--agent toy --seed-steps 8", "seed_steps (8) is shorter than a segment (9 steps)"),
        ("--agent toy --replay.capacity 35", "replay.capacity (35) is too small for segments of 9"),
        ("--replay.capacity 11", "set it to at least 12, or to 0 to keep the whole run"),
    ],
)
def test_what_an_agent_does_not_read_is_refused(toy, argv, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(*argv.split())


def test_what_an_agent_refuses_is_refused_with_the_request():
    with pytest.raises(ConfigError, match="give 0 for no resets"):
        plan("--agent", "srsac", "--srsac.reset-every", "-1")


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_presets_about_ace_are_for_ace_and_its_variants(preset):
    for name in ("sac", "tdmpc"):
        with pytest.raises(ConfigError, match=f"preset {preset} does not apply to agent {name}"):
            plan("--agent", name, "--preset", preset)
    for name in ("ace", "tdmpc-s"):
        assert plan("--agent", name, "--preset", preset).setups


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--plan.planner cem --plan.elite-reuse 0.5", "--plan.elite-reuse does nothing for agent"),
        ("--plan.planner cem --parity.elite-tail repeat", "agent ace with planner cem"),
        ("--agent greedy --plan.population 8", "agent greedy with planner policy"),
        ("--agent tdmpc --plan.init-std 1", "agent tdmpc with planner cem"),
        ("--plan.population 4 --plan.elites 5", "plan.population (4) is smaller than plan.elites"),
        ("--plan.planner cem --plan.population 4 --plan.elites 5", "raise the population"),
        ("--plan.population-decay 0.9", "plan.population_decay is 0.9; it must be at least 1"),
        ("--plan.planner icm", "did you mean icem?"),
        ("--agent tdmpc --plan.planner icm", "did you mean icem?"),
    ],
)
def test_a_planner_refuses_what_it_does_not_read_and_what_cannot_work(argv, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(*argv.split())


@pytest.mark.parametrize(
    "argv",
    [
        "--agent tdmpc --plan.planner icem --parity.elite-tail repeat --plan.elites 4",
        "--plan.planner policy --plan.policy-std 0.3",
        "--plan.planner cem --plan.population-decay 1.25",  # the default: nothing is changed
        "--parity.elite-tail repeat --plan.elite-reuse 0.5 --parity.no-clip-action",
    ],
)
def test_what_an_agents_planner_reads_may_be_set(argv):
    assert plan(*argv.split()).setups


def test_a_planner_of_ones_own_has_its_own_limits(monkeypatch):
    """Elites and shrinking populations are iCEM's: another planner may have fewer sequences."""
    planner = PLANNERS["policy"]._replace(reads=("plan.population",))
    monkeypatch.setitem(PLANNERS, "few", planner)
    assert plan("--plan.planner", "few", "--plan.population", "2").setups
    with pytest.raises(ConfigError, match="elites does nothing for agent ace with planner few"):
        plan("--plan.planner", "few", "--plan.elites", "2")
    monkeypatch.setitem(PLANNERS, "few", planner._replace(reads=("plan",)))
    assert plan("--plan.planner", "few", "--plan.elites", "2").setups

    def refuse(config):
        raise ConfigError("plan.population is odd")

    monkeypatch.setitem(PLANNERS, "few", planner._replace(check=refuse))
    with pytest.raises(ConfigError, match="odd"):
        plan("--plan.planner", "few")


def test_settings_that_every_agent_has_are_never_refused(toy):
    same = ["--plan.horizon", "3"]  # what the preset says anyway
    least = ["--seed-steps", "9", "--replay.capacity", "36"]
    run = plan("--agent", "toy", *same, *least, "--learn.td-lambda", "1")
    assert run.setups[0].config.seed_steps == 9


def test_modules_of_the_user_are_imported_first_and_again(tmp_path, monkeypatch):
    (tmp_path / "their_planner.py").write_text(
        "from ace.planners import PLANNERS, register\nregister('theirs', PLANNERS['icem'])\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(ConfigError, match="planner 'theirs' unknown"):
        plan("--plan.planner", "theirs")
    try:
        run = plan("--plan.planner", "theirs", "--import", "their_planner")
        assert run.imports == ("their_planner",)
        folder = saved(run, tmp_path / "run")
        del PLANNERS["theirs"], sys.modules["their_planner"]
        again = request.open_run(folder)
        assert again.imports == run.imports and again.describe() == run.describe()
        assert "theirs" in PLANNERS
    finally:
        PLANNERS.pop("theirs", None)
        sys.modules.pop("their_planner", None)


@pytest.mark.parametrize(("kind", "taken"), [("agent", "sac"), ("planner", "cem")])
def test_a_taken_name_is_refused_but_a_module_may_register_again(
    kind, taken, tmp_path, monkeypatch
):
    table = {"agent": AGENTS, "planner": PLANNERS}[kind]
    module, before = f"their_{kind}", dict(table)
    code = f"import ace.{kind}s as room\nroom.register(NAME, room.{kind.upper()}S[{taken!r}])\n"
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    try:
        (tmp_path / f"{module}.py").write_text(code.replace("NAME", repr(f"their-{taken}")))
        request.import_modules([module])
        importlib.reload(sys.modules[module])
        assert table.pop(f"their-{taken}") is table[taken]
        (tmp_path / f"{module}_too.py").write_text(code.replace("NAME", repr(taken)))
        line = f"{kind} '{taken}' of {module}_too is taken by ace.{kind}s; choose another name"
        with pytest.raises(TaskError, match=re.escape(line)):
            request.import_modules([f"{module}_too"])
        assert table == before
    finally:
        sys.modules.pop(module, None)


def test_notes_of_the_tasks_are_kept_for_the_start(monkeypatch):
    monkeypatch.setattr(ace.envs, "notes", lambda task: [f"{task} is slow", "a line"])
    run = request.plan_run(["probe/point", "probe/long", "--preset", "debug"])
    assert run.notes == ("probe/point is slow", "a line", "probe/long is slow")
    assert "notes" not in run.describe()


def test_the_folder_tells_what_was_changed():
    acrobot = "dmc/acrobot-swingup"
    first = request.plan_run([acrobot, *"--learn.td-lambda 0.4 --plan.horizon 5".split()])
    second = request.plan_run([acrobot, *"--seeds 0 1 2 --vary learn.td-lambda=0,0.4".split()])
    assert first.folder == Path("runs/acrobot-swingup-default-horizon=5-td_lambda=0.4")
    assert second.folder == Path("runs/acrobot-swingup-default-td_lambda=0,0.4")
    same = request.plan_run([acrobot, *"--seeds 5 --env-steps 1e6 --learn.td-lambda 0.8".split()])
    assert same.folder == Path("runs/acrobot-swingup-default")  # 0.8 is what this task has anyway


def test_a_long_name_ends_in_a_digest():
    many = [f"--learn.{n}-weight" for n in ("similarity", "reward", "value", "novelty")]
    argv = [word for flag in many for word in (flag, "0.123456")]
    name = plan(*argv).folder.name
    assert name == plan(*argv).folder.name and len(name) == len("point-debug-") + 6
    assert name != plan(*argv, "--learn.grad-clip", "1").folder.name


def test_no_two_common_sections_share_a_name():
    """Folders are named without the section."""
    short = [name.partition(".")[2] for name in flatten(Config()) if "." in name]
    assert len(set(short)) == len(short)


def test_a_folder_with_another_run_says_what_differs(tmp_path):
    folder = saved(plan("--learn.discount", "0.9"), tmp_path / "run")
    same = plan("--learn.discount", "0.9", "--run", str(folder))
    assert same.folder == folder
    with pytest.raises(ConfigError) as refused:
        plan("--learn.discount", "0.8", "--seed", "3", "--run", str(folder))
    message = str(refused.value)
    assert "learn.discount (0.9 there, 0.8 here)" in message and "--run" in message
    assert "seeds ([0] there, [3] here)" in message
    with pytest.raises(ConfigError, match=r"ace resume .* \(--env-steps N makes it longer\)"):
        plan("--learn.discount", "0.9", "--env-steps", "1e6", "--run", str(folder))


def test_a_folder_from_before_the_new_settings_is_the_same_run(tmp_path):
    folder = saved(plan(), tmp_path / "run")
    content = json.loads((folder / "config.json").read_text())
    del content["imports"]
    config = content["lanes"][0]["config"]
    del config["own"], config["kernels"], config["plan"]["planner"]
    write_json(folder / "config.json", content)
    assert plan("--run", str(folder)).describe() == request.open_run(folder).describe()


def test_a_run_is_made_longer_and_never_shorter(tmp_path):
    folder = saved(plan("--seeds", "0-1"), tmp_path / "run")
    before = (folder / "config.json").read_bytes()
    longer = request.open_run(folder, env_steps=500, quiet=True)
    assert [s.config.env_steps for s in longer.setups] == [500, 500] and longer.quiet
    assert (folder / "config.json").read_bytes() == before
    for steps in (120, 60):
        with pytest.raises(ConfigError, match="was made for 120"):
            request.open_run(folder, env_steps=steps)


def test_tensorboard_is_looked_for_before_anything_starts(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install tensorboardX"):
        plan("--tensorboard")
