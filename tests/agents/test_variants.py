"""The paper's variants of ACE: each differs from it in the settings that the table lists and in
nothing else, wherever it is asked for."""

import dataclasses
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import AGENTS, register
from ace.agents.variants import VARIANTS
from ace.envs import get_spec
from ace.method.targets import lambda_targets
from ace.planners import PLANNERS
from ace.run import request
from ace.run.record import write_json
from ace.settings.checks import validate
from ace.settings.config import Config, flatten
from ace.settings.presets import PRESETS, resolve
from tests.golden import reference as ref
from tests.run.test_request import Toy

TASKS = ("dmc/acrobot-swingup", "dmc/quadruped-run", "maze/large", "probe/point")


def config_of(agent: str, task: str, preset: str) -> Config:
    found = AGENTS[agent]
    return resolve(preset, task, get_spec(task), found.defaults_of(task), found.overrides)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_differs_in_what_the_table_lists_and_in_nothing_else(name: str) -> None:
    listed, seen = dict(VARIANTS[name].settings), set()
    for task in TASKS:
        for preset in PRESETS:
            plain, other = (flatten(config_of(agent, task, preset)) for agent in ("ace", name))
            assert {n: other[n] for n in listed} == listed
            different = {n for n in plain if plain[n] != other[n]}
            assert different <= set(listed)
            seen |= different
            validate(config_of(name, task, preset))
    assert seen == set(listed)  # nothing is listed in vain


def test_a_variant_has_the_functions_of_ace() -> None:
    for name in VARIANTS:
        mine = dataclasses.replace(AGENTS[name], variant_of="", overrides={})
        assert mine == AGENTS["ace"] and AGENTS[name].variant_of == "ace"


def test_the_components_of_the_ablation() -> None:
    """Section 10: planner, novelty and target of every name; lambda of acrobot-swingup is 0.8."""
    wanted = {
        "ace": ("icem", 0.25, 0.8),
        "ace-blind": ("icem", 0.0, 0.8),
        "ace-blind-td": ("icem", 0.0, 0.0),
        "greedy": ("policy", 0.25, 0.8),
        "icem": ("icem", 0.25, 0.8),
        "tdmpc-s": ("cem", 0.0, 0.0),
        "tdmpc-s-mve": ("cem", 0.0, 0.8),
    }
    assert wanted.keys() == VARIANTS.keys() | {"ace"}
    for name, parts in wanted.items():
        c = config_of(name, "dmc/acrobot-swingup", "default")
        assert (c.plan.planner, c.learn.novelty_weight, c.learn.td_lambda) == parts
    cem = config_of("tdmpc-s", "dmc/acrobot-swingup", "default").plan
    assert (cem.population, cem.elites, cem.iterations, cem.noise_beta) == (512, 64, 6, 0.0)
    assert PLANNERS["cem"].calls(config_of("tdmpc-s", "dmc/acrobot-swingup", "default")) == (
        [512 + 25] * 6  # section 2.5
    )
    icem = config_of("icem", "maze/large", "released")
    assert PLANNERS["icem"].proposals(icem) == 0


def test_the_target_of_model_based_value_expansion() -> None:
    """Real rewards and values of a segment, weighted by lambda: the paper's MVE (3.3)."""
    learn = config_of("tdmpc-s-mve", "dmc/acrobot-swingup", "default").learn
    rng = np.random.default_rng(0)
    reward, value = rng.standard_normal((2, 6))
    given, ones = jnp.asarray(np.stack([reward, value])[..., None]), jnp.ones((6, 1))
    got = lambda_targets(given[0], given[1], ones, ones, learn.discount, learn.td_lambda)
    wanted = ref.lambda_return(reward, value, np.ones(6), 0.99, 0.8)
    np.testing.assert_allclose(got[:, 0], wanted, rtol=1e-5)
    one_step = reward + 0.99 * value  # the target of tdmpc-s
    assert np.abs(wanted - one_step).max() > 0.1


def test_the_users_settings_win_over_those_of_a_variant(tmp_path: Path) -> None:
    argv = ["dmc/acrobot-swingup", "--agent", "tdmpc-s", "--preset", "debug"]
    run = request.plan_run([*argv, "--plan.elites", "16", "--run", str(tmp_path / "run")])
    plan = run.setups[0].config.plan
    assert (plan.planner, plan.population, plan.elites, plan.iterations) == ("cem", 512, 16, 2)
    assert run.agent == run.describe()["agent"] == "tdmpc-s"
    assert request.plan_run(argv).folder == Path("runs/acrobot-swingup-debug-tdmpc-s")
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "config.json", run.describe())
    _, agent, setups, _ = request.read_run(tmp_path / "run")
    assert agent == "tdmpc-s" and setups == run.setups


def test_an_agent_with_a_hyphen_has_settings_of_its_own(monkeypatch) -> None:
    monkeypatch.setitem(AGENTS, "to-y", None)
    register("to-y", dataclasses.replace(AGENTS["ace"], settings=Toy))
    point = ["probe/point", "--preset", "debug", "--agent", "to-y"]
    run = request.plan_run([*point, "--to-y.heat", "0.25", "--to-y.layers", "3"])
    assert run.setups[0].config.own == Toy(0.25, 3)
    config = request.with_settings(run.setups[0].config, {"to-y.heat": 0.5}, "to-y")
    assert config.own.heat == 0.5
    run = request.plan_run([*point, "--vary", "to-y.heat=0.1,0.2"])
    assert [s.config.own.heat for s in run.setups] == [0.1, 0.2]
    assert run.folder == Path("runs/point-debug-to-y-to-y.heat=0.1,0.2")
    for name in ("", "-x", "a b", "a/b"):
        with pytest.raises(ValueError, match="agent name"):
            register(name, AGENTS["ace"])


def test_the_documents_table_is_this_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    for name, variant in VARIANTS.items():
        [row] = re.findall(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
        told = dict(re.findall(r"`([a-z_]+\.[a-z_]+)=([^`]*)`", row))
        assert told == {
            n: str(v).lower() if isinstance(v, bool) else str(v)
            for n, v in variant.settings.items()
        }
