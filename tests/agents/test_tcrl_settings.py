"""The numbers of TCRL's public runs, for all tasks and per task."""

import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import AGENTS, tcrl
from ace.agents.tcrl import AGENT, TcrlConfig
from ace.bench import suites
from ace.bench.jobs import make_config, make_jobs
from ace.envs import EnvSpec
from ace.run import request
from ace.settings.checks import validate
from ace.settings.config import Config, ConfigError, flatten
from ace.settings.presets import resolve


def spec_of(task: str) -> EnvSpec:
    return EnvSpec(task, 5, 2, max_episode_steps=1000, fixed_length=True)


def settings_of(task: str, preset: str = "default") -> Config:
    defaults = AGENT.defaults_of(task)
    return resolve(preset, task, spec_of(task), defaults, AGENT.overrides, TcrlConfig())


def test_the_public_numbers() -> None:
    assert AGENTS["tcrl"] is AGENT
    found = flatten(settings_of("dmc/quadruped-run"))
    wanted = {
        "plan.horizon": 5,
        "own.n_step": 3,
        "learn.batch": 512,
        "learn.learning_rate": 3e-4,
        "learn.policy_learning_rate": 3e-4,
        "learn.weight_decay": 1e-6,
        "learn.grad_clip": 10.0,
        "learn.discount": 0.99,
        "learn.time_decay": 0.9,
        "learn.similarity_weight": 1.0,
        "learn.reward_weight": 1.0,
        "learn.loss_clip": 1e4,
        "learn.smoothing_clip": 0.3,
        "learn.target_momentum": 0.995,
        "learn.target_period": 1,
        "learn.updates_per_step": 1,
        "learn.update_every": 2,
        "learn.seed_updates": 0.0,
        "replay.hindsight": 0.0,
        "net.latent": 50,
        "net.encoder": 512,
        "net.mlp": 512,
        "seed_steps": 5_000,
        "precision": "f32",
    }
    assert {k: found[k] for k in wanted} == wanted
    assert AGENT.segment(settings_of("dmc/quadruped-run")) == 5 and AGENT.plays == ("policy",)


@pytest.mark.parametrize(
    ("task", "repeat", "latent", "n_step", "final", "duration"),
    [
        ("dmc/acrobot-swingup", 2, 50, 3, 0.1, 75_000),
        ("dmc/ball_in_cup-catch", 2, 50, 3, 0.1, 25_000),
        ("dmc/cartpole-balance_sparse", 8, 50, 3, 0.1, 6_250),
        ("dmc/cartpole-swingup", 2, 50, 3, 0.1, 25_000),
        ("dmc/cartpole-swingup_sparse", 2, 50, 3, 0.1, 75_000),
        ("dmc/dog-run", 2, 100, 3, 0.2, 250_000),
        ("dmc/humanoid-walk", 2, 100, 1, 0.2, 250_000),
        ("dmc/humanoid_CMU-run", 2, 50, 3, 0.1, 75_000),
        ("dmc/walker-run", 2, 50, 3, 0.1, 75_000),
        ("dmc/walker-walk", 2, 50, 3, 0.1, 25_000),
        ("gym/Pendulum-v1", 1, 50, 3, 0.1, 25_000),
        ("metaworld/basketball", 2, 50, 3, 0.1, 25_000),
    ],
)
def test_values_per_task(
    task: str, repeat: int, latent: int, n_step: int, final: float, duration: int
) -> None:
    c = settings_of(task)
    assert (c.action_repeat, c.net.latent, c.own.n_step) == (repeat, latent, n_step)
    for step, wanted in ((0, 1.0), (duration // 2, (1 + final) / 2), (duration, final)):
        np.testing.assert_allclose(tcrl.noise_of(c, jnp.int32(step)), wanted, rtol=1e-5)
    for preset in ("default", "cpu", "debug"):
        validate(settings_of(task, preset))
        AGENT.check(settings_of(task, preset))
    assert settings_of(task, "cpu").plan.std_ramp.duration == 2_000


def test_the_flags_win_over_the_values_of_a_task(tmp_path) -> None:
    flags = ["dmc/humanoid-walk", "--agent", "tcrl", "--run", str(tmp_path / "run")]
    (plain,) = request.plan_run(flags).setups
    assert (plain.config.own.n_step, plain.config.net.latent) == (1, 100)
    (asked,) = request.plan_run([*flags, "--tcrl.n-step", "2"]).setups
    assert asked.config.own.n_step == 2
    with pytest.raises(ConfigError, match=r"tcrl\.n_step is 6"):
        request.plan_run([*flags, "--tcrl.n-step", "6"])
    assert not (tmp_path / "run").exists()


def test_a_suite_has_it_with_the_public_action_repeat() -> None:
    (job,) = [j for j in make_jobs(suites.load("baselines")) if j.agent == "tcrl"]
    found = [make_config(lane.agent, job, lane.task) for lane in job.lanes]
    assert len(found) == 15 and {c.action_repeat for c in found} == {2}
