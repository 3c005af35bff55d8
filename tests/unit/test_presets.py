"""Presets resolve for every task and hold the paper's tables (8.2)."""

import json
import re
from pathlib import Path

import pytest

from ace.agents import AGENTS
from ace.envs import EnvSpec, registry
from ace.settings.checks import validate
from ace.settings.config import Config, ConfigError, Ramp, RepairConfig, flatten
from ace.settings.presets import DMC15, PRESETS, resolve, task_settings

# Section 8.2: action repeat, beta and lambda of the paper, novelty weight; and beta of the code.
TABLE = {
    "acrobot-swingup": (4, 2.5, 0.8, 0.25, 2.5),
    "cheetah-run": (4, 0.5, 0.4, 0.25, 2.5),
    "finger-turn_hard": (4, 2.5, 0.2, 0.25, 2.5),
    "fish-swim": (4, 2.5, 0.2, 0.25, 2.5),
    "hopper-hop": (4, 2.5, 0.4, 0.25, 2.5),
    "hopper-stand": (4, 2.5, 0.4, 0.25, 2.5),
    "humanoid-run": (2, 2.5, 0.4, 0.25, 0.5),
    "humanoid-stand": (2, 2.5, 0.4, 0.25, 0.5),
    "humanoid-walk": (2, 2.5, 0.4, 0.25, 0.5),
    "pendulum-swingup": (4, 0.5, 0.2, 0.25, 2.5),
    "quadruped-run": (4, 0.5, 0.2, 0.25, 2.5),
    "quadruped-walk": (4, 0.5, 0.2, 0.25, 2.5),
    "reacher-hard": (4, 2.5, 0.2, 0.25, 2.5),
    "swimmer-swimmer6": (4, 0.5, 0.2, 0.25, 2.5),
    "walker-run": (2, 2.5, 0.4, 0.25, 2.5),
    "acrobot-swingup_sparse": (4, 2.5, 0.8, 0.5, 2.5),
}


def spec_of(name: str) -> EnvSpec:
    return EnvSpec(f"dmc/{name}", 5, 2, max_episode_steps=1000, fixed_length=True)


def resolve_ace(preset: str, task: str, spec: EnvSpec) -> Config:
    return resolve(preset, task, spec, AGENTS["ace"].defaults_of(task))


def test_the_fifteen_tasks() -> None:
    assert set(DMC15) == {f"dmc/{name}" for name in TABLE if not name.endswith("sparse")}
    assert len(DMC15) == 15


@pytest.mark.parametrize("name", TABLE)
def test_every_preset_resolves(name: str) -> None:
    for preset in PRESETS:
        validate(resolve_ace(preset, f"dmc/{name}", spec_of(name)))


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("name", TABLE)
def test_values_per_task(preset: str, name: str) -> None:
    repeat, beta, td_lambda, novelty, _ = TABLE[name]
    c = resolve_ace(preset, f"dmc/{name}", spec_of(name))
    assert (c.action_repeat, c.plan.noise_beta, c.learn.td_lambda) == (repeat, beta, td_lambda)
    assert c.learn.novelty_weight == novelty
    assert (c.plan.horizon, c.plan.population, c.env_steps) == (6, 256, 500_000)
    assert c.net.latent == (100 if name.startswith("humanoid") else 50)
    if preset == "default":  # seed phases of 20k or 10k environment steps
        assert c.seed_steps * c.action_repeat == {4: 20_000, 2: 10_000}[repeat]
        ramp = 30_000 if name.startswith("humanoid") else 5_000
        assert c.learn.novelty_ramp.duration == ramp
    else:  # five episodes (D11, D35)
        assert c.seed_steps * c.action_repeat == 5_000


@pytest.mark.parametrize("name", TABLE)
def test_released_values_per_task(name: str) -> None:
    repeat, _, _, _, beta = TABLE[name]
    c = resolve_ace("released", f"dmc/{name}", spec_of(name))
    assert (c.action_repeat, c.plan.noise_beta, c.learn.td_lambda) == (repeat, beta, 0.0)
    assert c.learn.novelty_weight == 0.25 and c.learn.beta2 == 0.99
    assert c.parity.bc_weight == (0.0 if name.startswith("humanoid") else 0.1)
    assert c.plan.variant == "policy_first" and c.seed_steps == 5_000


def test_paper_reads_the_tables_literally() -> None:
    c = flatten(resolve_ace("paper", "dmc/acrobot-swingup", spec_of("acrobot-swingup")))
    wanted = {
        "plan.variant": "mixed",
        "plan.temperature": 2.0,  # dividing by 0.5 (D7)
        "plan.select": "best",
        "plan.select_eval": "best",
        "plan.act_noise": 0.0,
        "learn.beta2": 0.999,
        "learn.novelty_moments": "ema",
        "parity.model_time_decay": True,
        "parity.policy_delay": 2,
        "parity.reward_input": "all",
        "parity.bc_weight": 0.0,
    }
    assert {k: c[k] for k in wanted} == wanted


def test_every_task_with_settings_exists() -> None:
    known = set(registry.task_names())
    for name in TABLE:
        assert f"dmc/{name}" in known
        assert task_settings(f"dmc/{name}")
    assert set(DMC15) <= known


def test_tasks_without_settings_get_the_defaults() -> None:
    spec = EnvSpec("gym/Pendulum-v1", 3, 1, 200)
    for preset in PRESETS:
        config = resolve_ace(preset, "gym/Pendulum-v1", spec)
        validate(config)
        assert config.action_repeat == 1


def test_unknown_preset() -> None:
    with pytest.raises(ConfigError, match="default, paper, released"):
        resolve("best", DMC15[0], spec_of("acrobot-swingup"))


def test_defaults_of_an_agent_lie_between_the_task_and_the_preset() -> None:
    def values(preset: str, defaults: dict) -> tuple[int, float, int]:
        c = resolve(preset, "dmc/humanoid-run", spec_of("humanoid-run"), defaults)
        return c.action_repeat, c.learn.novelty_ramp.duration, c.learn.batch

    assert values("default", {}) == (2, 5_000.0, 512)
    assert values("default", {"action_repeat": 8, "learn.batch": 8}) == (8, 5_000.0, 8)
    assert values("cpu", {"action_repeat": 8, "learn.batch": 8}) == (8, 500.0, 128)
    # A whole ramp, of which the preset sets a part: each in its turn.
    assert values("default", {"learn.novelty_ramp": Ramp(0.0, 7.0)}) == (2, 7.0, 512)
    assert values("cpu", {"learn.novelty_ramp": Ramp(0.0, 7.0)}) == (2, 500.0, 128)
    with pytest.raises(ConfigError, match="nothing"):
        values("default", {"learn.nothing": 1})


def documented() -> tuple[dict, dict]:
    """Section 13 of docs/algorithm.md: the values that are off, and ours."""
    text = (Path(__file__).parents[2] / "docs" / "algorithm.md").read_text()
    table = text[text.index("## 13.") :]
    rows = re.findall(r"^\| `([\w.]+)`[^|]*\| (\S+) \| (\S+) \|", table, re.M)
    off, ours = ({name: json.loads(row[at]) for name, *row in rows} for at in (0, 1))
    return off | {"learn.loss_clip": 1e4}, ours | {"learn.loss_clip": 1e9}


@pytest.mark.parametrize("agent", ["ace", "ace-blind", "tdmpc-s"])
def test_the_repairs_are_aces_and_the_letter_has_none(agent: str) -> None:
    off, ours = documented()
    defaults = AGENTS[agent].defaults_of("dmc/cheetah-run")
    for preset in PRESETS:
        c = resolve(preset, "dmc/cheetah-run", spec_of("cheetah-run"), defaults)
        wanted = off if preset in ("paper", "released") else ours
        assert {name: flatten(c)[name] for name in wanted} == wanted
    assert {n for n in off if n.startswith("repair.")} == {
        n for n in flatten(Config()) if n.startswith("repair.")
    }


def test_other_agents_have_no_repairs() -> None:
    for name, agent in AGENTS.items():
        if "ace" not in (name, agent.variant_of):
            own = agent.settings and agent.settings()
            c = resolve("default", DMC15[0], spec_of("x"), agent.defaults_of(DMC15[0]), own=own)
            assert c.repair == RepairConfig() and c.learn.loss_clip == 1e4


@pytest.mark.parametrize(
    "task", ["dmc/humanoid-run", "adroit/door", "metaworld/push", "maze/large"]
)
def test_other_agents_get_the_protocol_of_a_task_and_none_of_aces_settings(task: str) -> None:
    """Hindsight on a robot's task, ACE's lambda or its larger latent would make another method."""
    steps = ("action_repeat", "env_steps", "seed_steps", "eval_every")
    ours, spec = flatten(resolve_ace("default", task, spec_of("x"))), spec_of("x")
    for name, agent in AGENTS.items():
        if "ace" in (name, agent.variant_of):
            continue
        own, defaults = agent.settings and agent.settings(), agent.defaults_of(task)
        c = flatten(resolve("default", task, spec, defaults, own=own))
        bare = flatten(resolve("default", "gym/Pendulum-v1", spec, defaults, own=own))
        assert {n: c[n] for n in c if n not in steps} == {n: bare[n] for n in c if n not in steps}
        assert all(c[n] == ours[n] or n in defaults for n in steps)
        assert c["replay.hindsight"] == 0.0


# Sections 2.7 and 8.2: seed steps, ramps of std, horizon and novelty, beta, lambda, H, S, latent.
ROBOTS = {
    "adroit/pen": (1_000, 5_000, 5_000, 1_000, 0.5, 0.2, 7, 700, 100),
    "adroit/door": (2_000, 10_000, 10_000, 2_000, 2.5, 0.2, 7, 700, 100),
    "adroit/hammer": (2_000, 20_000, 10_000, 2_000, 2.5, 0.2, 7, 700, 100),
    "metaworld/push-wall": (2_000, 10_000, 10_000, 2_000, 2.5, 0.8, 6, 256, 50),
    # B18: the released code takes the hand's settings for this one.
    "metaworld/hammer": (2_000, 10_000, 10_000, 2_000, 2.5, 0.8, 6, 256, 50),
}


@pytest.mark.parametrize("task", ROBOTS)
def test_values_of_the_hand_and_the_arm(task: str) -> None:
    spec = EnvSpec(task, 30, 4, max_episode_steps=100, fixed_length=True)
    for name, novelty in ((task, 0.5), (f"{task}-dense", 0.25)):
        c = resolve_ace("default", name, spec)
        p = c.plan
        ramps = (p.std_ramp.duration, p.horizon_ramp.duration, c.learn.novelty_ramp.duration)
        sizes = (p.horizon, p.population, c.net.latent)
        assert (c.seed_steps, *ramps, p.noise_beta, c.learn.td_lambda, *sizes) == ROBOTS[task]
        assert p.std_ramp.after_seed and p.horizon_ramp.after_seed
        assert (p.std_ramp.start, p.horizon_ramp.start) == (0.5, 2.0)
        assert (c.action_repeat, c.env_steps, c.learn.novelty_weight) == (2, 200_000, novelty)
        assert c.learn.time_decay == (0.2 if task.endswith("pen") else 0.5)
        in_hindsight = name == task != "adroit/pen"  # D40: four goals for one that was given
        assert c.replay.hindsight == (0.8 if in_hindsight else 0.0)
        assert name in registry.task_names()
    for preset in PRESETS:
        validate(resolve_ace(preset, task, spec))
    paper = resolve_ace("paper", task, spec)
    assert paper.plan.std_ramp == Ramp(0.5, 250.0) and paper.plan.horizon_ramp == Ramp(2.0, 250.0)
