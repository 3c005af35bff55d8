"""Runs of TD-MPC: values known by hand on the probe tasks, and a run that was broken off. One
short run serves both; its tasks are lanes of one program."""

import numpy as np
import pytest

from tests.learn.known import ACTIONS, DISCOUNT, VALUES, cases, judge
from tests.run.helpers import check_broken_run, csv_rows, most_skipped

TASKS = ("discount", "action_observation", "truncation")
FLAGS = (
    "--agent tdmpc --env-steps 240 --seed-steps 200 --eval-every 240 --net.mlp 32 --learn.batch 64 "
    f"--learn.discount {DISCOUNT} --learn.target-momentum 0.8 --learn.updates-per-step 1 "
    "--learn.learning-rate 5e-3 --plan.iterations 1 --plan.policy-fraction 0.2"
)
ARGV = (*[f"probe/{t}" for t in TASKS], *FLAGS.split())


@pytest.mark.parametrize("task, obs, value", cases(VALUES, TASKS))
def test_value(whole, task, obs, value):
    np.testing.assert_allclose(judge(whole, task, obs)[0], value, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("task, obs, action", cases(ACTIONS, TASKS))
def test_action(whole, task, obs, action):
    np.testing.assert_allclose(judge(whole, task, obs)[1], action, atol=0.2)


def test_a_broken_run_ends_like_the_whole_one(whole, tmp_path):
    check_broken_run(whole, tmp_path / "run", [({215}, 222)], *ARGV)  # some updates after the burst


def test_nothing_was_left_out(whole):
    assert most_skipped(whole[1]) == 0
    assert all(float(r["policy_return"]) > 0 for r in csv_rows(whole[1].folder, "eval.csv"))
