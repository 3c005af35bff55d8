"""Runs of TCRL: values and actions known by hand on the probe tasks, and a run that was broken off.
One short run serves both; its tasks are lanes of one program."""

import numpy as np
import pytest

from tests.learn.known import DISCOUNT, VALUES, cases, judge
from tests.run.helpers import check_broken_run, most_skipped, small_run

TASKS = ("discount", "action_observation", "truncation")
STEPS, SEED = 500, 440
FLAGS = (
    f"--agent tcrl --env-steps {STEPS} --seed-steps {SEED} --eval-every {STEPS} --net.mlp 32 "
    f"--net.encoder 32 --learn.batch 64 --learn.discount {DISCOUNT} --learn.target-momentum 0.8 "
    "--learn.learning-rate 5e-3 --learn.policy-learning-rate 5e-3 --learn.updates-per-step 1 "
    "--learn.seed-updates 1"
)
ARGV = (*[f"probe/{t}" for t in TASKS], *FLAGS.split())


@pytest.mark.parametrize("task, obs, value", cases(VALUES, TASKS))
def test_value(whole, task, obs, value):
    np.testing.assert_allclose(judge(whole, task, obs)[0], value, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("obs", [0.5, -0.5])
def test_action(whole, obs):
    np.testing.assert_allclose(judge(whole, "action_observation", obs)[1], obs, atol=0.2)


def test_every_two_steps_share_their_updates(whole):
    """`learn.update_every` is 2: an update for two agent steps, those of the seed phase in a burst.
    The last two have earned theirs only when the run ends."""
    assert whole[0].learner.update_step.tolist() == [STEPS // 2 - 1] * 3


def test_blocks_of_shared_updates(whole, tmp_path):
    """Updates are made in the step after the end of an episode, of those earned until then: the
    last such ends are after 498, 499 and 495 of the 500 steps."""
    state, _ = small_run(tmp_path / "run", *ARGV, "--learn.update-mode", "block")
    assert state.learner.update_step.tolist() == [498 // 2, 499 // 2, 495 // 2]


def test_a_broken_run_ends_like_the_whole_one(whole, tmp_path):
    check_broken_run(whole, tmp_path / "run", [({STEPS - 25}, STEPS - 18)], *ARGV)


def test_nothing_was_left_out(whole):
    assert most_skipped(whole[1]) == 0
