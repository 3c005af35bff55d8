"""The numbers of TD-MPC's public runs, for all tasks and per task, and its schedules."""

import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import AGENTS
from ace.agents.planning import working_horizon
from ace.agents.tdmpc import AGENT
from ace.envs import EnvSpec
from ace.planners import PLANNERS
from ace.settings.checks import validate
from ace.settings.config import Config, flatten
from ace.settings.presets import PRESETS, resolve


def spec_of(task: str) -> EnvSpec:
    return EnvSpec(task, 5, 2, max_episode_steps=1000, fixed_length=True)


def settings_of(task: str, preset: str = "default") -> Config:
    return resolve(preset, task, spec_of(task), AGENT.defaults_of(task), AGENT.overrides)


def test_the_public_numbers() -> None:
    assert AGENTS["tdmpc"] is AGENT
    found = flatten(settings_of("dmc/quadruped-run"))
    wanted = {
        "plan.horizon": 5,
        "plan.iterations": 6,
        "plan.population": 512,
        "plan.elites": 64,
        "plan.policy_fraction": 0.05,
        "plan.temperature": 0.5,
        "plan.momentum": 0.1,
        "plan.noise_beta": 0.0,
        "plan.max_std": 2.0,
        "plan.mean_tail": "zero",
        "learn.batch": 512,
        "learn.learning_rate": 1e-3,
        "learn.policy_learning_rate": 1e-3,
        "learn.beta2": 0.999,
        "learn.weight_decay": 0.0,
        "learn.grad_clip": 10.0,
        "learn.discount": 0.99,
        "learn.td_lambda": 0.0,
        "learn.time_decay": 0.5,
        "learn.similarity_weight": 2.0,
        "learn.reward_weight": 0.5,
        "learn.value_weight": 0.1,
        "learn.loss_clip": 1e4,
        "learn.smoothing_std": 0.05,
        "learn.smoothing_clip": 0.3,
        "learn.target_momentum": 0.99,
        "learn.target_period": 2,
        "learn.updates_per_step": 1,
        "replay.priority_power": 0.6,
        "replay.importance_power": 0.4,
        "net.latent": 50,
        "net.encoder": 256,
        "net.mlp": 512,
        "seed_steps": 5_000,
        "precision": "f32",
    }
    assert {k: found[k] for k in wanted} == wanted
    config = settings_of("dmc/quadruped-run")
    assert list(PLANNERS[config.plan.planner].calls(config)) == [512 + 25] * 6
    assert AGENT.segment(config) == 5
    for name in AGENT.defaults:
        read = any(name == s or name.startswith(f"{s}.") for s in AGENT.reads("cem"))
        assert read or "." not in name, name


@pytest.mark.parametrize(
    ("task", "repeat", "latent", "iterations", "batch"),
    [
        ("dmc/acrobot-swingup", 4, 50, 6, 512),
        ("dmc/cartpole-swingup_sparse", 8, 50, 6, 512),
        ("dmc/dog-run", 2, 100, 8, 2048),
        ("dmc/finger-turn_hard", 2, 50, 6, 512),
        ("dmc/fish-upright", 4, 50, 6, 512),
        ("dmc/humanoid-walk", 2, 100, 12, 512),
        ("dmc/walker-run", 2, 50, 6, 512),
        ("gym/Pendulum-v1", 1, 50, 6, 512),
    ],
)
def test_values_per_task(task: str, repeat: int, latent: int, iterations: int, batch: int) -> None:
    c = settings_of(task)
    found = (c.action_repeat, c.net.latent, c.plan.iterations, c.learn.batch)
    assert found == (repeat, latent, iterations, batch)
    for preset in PRESETS:
        validate(settings_of(task, preset))
    assert settings_of(task, "debug").env_steps == 120 * repeat


def test_schedules() -> None:
    """The horizon grows from 1 to 5, the least deviation falls from 0.5 to 0.05, in 25,000 steps;
    the policy's own noise stays."""
    config = settings_of("dmc/acrobot-swingup")
    steps = {0: (1, 0.5), 6_249: (1, 0.3875), 6_250: (2, 0.3875), 12_500: (3, 0.275)}
    for step, (horizon, floor) in (steps | {25_000: (5, 0.05), 99_000: (5, 0.05)}).items():
        assert working_horizon(config, jnp.int32(step)) == horizon
        p = config.plan
        now = p.std_ramp.at(p.min_std, step, config.seed_steps)
        np.testing.assert_allclose(now, floor, atol=1e-4)
