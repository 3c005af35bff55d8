"""Runs of TD-MPC: values known by hand on the probe tasks, and a run that was broken off. One
short run serves both; its tasks are lanes of one program."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import told
from ace.method import model
from ace.run.loop import Loop

# A fixture: with it the broken run compiles nothing anew.
from tests.run.conftest import shared_programs  # noqa: F401
from tests.run.helpers import csv_rows, optimised_updates, same, small_run

DISCOUNT = 0.9
TASKS = ("discount", "action_observation", "truncation")
FLAGS = (
    "--agent tdmpc --env-steps 240 --seed-steps 200 --eval-every 240 --net.mlp 32 --learn.batch 64 "
    f"--learn.discount {DISCOUNT} --learn.target-momentum 0.8 --learn.updates-per-step 1 "
    "--learn.learning-rate 5e-3 --plan.iterations 1 --plan.policy-fraction 0.2"
)


class Killed(Exception):
    """Stands for a kill that leaves no time to save."""


def run(folder: Path, **how):
    return small_run(folder, *[f"probe/{t}" for t in TASKS], *FLAGS.split(), **how)[0]


@pytest.fixture(scope="module")
def optimised():
    """Compile the updates of all runs here alike."""
    with optimised_updates():
        yield


@pytest.fixture(scope="module")
def whole(optimised, tmp_path_factory):
    """The final state of the uninterrupted run, and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return run(folder), folder


def judge(whole, task: str, obs: float) -> tuple[float, float]:
    """The critics' value of the policy's action at an observation, and that action."""
    params = jax.tree.map(lambda x: x[TASKS.index(task)], whole[0].learner.params)
    z = told.encode(params, jnp.array([obs]))
    action = model.policy(params, z)
    return float(told.critics(params, z, action).min()), float(action[0])


VALUES = [
    ("discount", 0.0, DISCOUNT),
    ("discount", 1.0, 1.0),
    ("action_observation", 0.5, 1.0),
    ("action_observation", -0.5, 1.0),
    ("truncation", 0.0, 1 / (1 - DISCOUNT)),
]


@pytest.mark.parametrize("task, obs, value", VALUES)
def test_value(whole, task, obs, value):
    np.testing.assert_allclose(judge(whole, task, obs)[0], value, rtol=0.1, atol=0.1)


ACTIONS = [
    ("action_observation", 0.5, 0.5),
    ("action_observation", -0.5, -0.5),
]


@pytest.mark.parametrize("task, obs, action", ACTIONS)
def test_action(whole, task, obs, action):
    np.testing.assert_allclose(judge(whole, task, obs)[1], action, atol=0.2)


def test_a_broken_run_ends_like_the_whole_one(whole, tmp_path, monkeypatch):
    step = Loop.step

    def broken(self) -> None:
        if self.agent_step == 215:  # some updates after the burst
            self.save()
        if self.agent_step == 222:
            self.keeper.wait()
            raise Killed
        step(self)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", broken)
        with pytest.raises(Killed):
            run(folder)
    same(run(folder), whole[0])
    for name in ("train.csv", "eval.csv"):
        assert csv_rows(folder, name) == csv_rows(whole[1], name)


def test_nothing_was_left_out(whole):
    rows = csv_rows(whole[1], "train.csv")
    assert max(float(r["skipped_updates"] or 0) for r in rows) == 0
    assert all(float(r["policy_return"]) > 0 for r in csv_rows(whole[1], "eval.csv"))
