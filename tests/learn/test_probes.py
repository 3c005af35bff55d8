"""Learning on environments whose values are known by hand. All of them are lanes of one program, so
the test is one short run; novelty is off, so that values are those of the environment alone."""

import numpy as np
import pytest

from tests.learn.known import ACTIONS, DISCOUNT, VALUES, cases, judge
from tests.run.helpers import small_run

TASKS = ("constant", "observation", "discount", "action", "action_observation", "truncation")
FLAGS = (
    "--env-steps 400 --seed-steps 200 --eval-every 400 --net.mlp 16 --learn.batch 32 "
    f"--learn.discount {DISCOUNT} --learn.novelty-weight 0 --learn.target-momentum 0.9 "
    "--learn.updates-per-step 2 --learn.learning-rate 2e-3 --learn.policy-learning-rate 1e-3 "
    "--plan.iterations 1 --plan.horizon 2"
)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The final state of the run, and the run."""
    folder = tmp_path_factory.mktemp("probes") / "run"
    return small_run(folder, *[f"probe/{t}" for t in TASKS], *FLAGS.split())


@pytest.mark.parametrize("task, obs, value", cases(VALUES, TASKS))
def test_value(learned, task, obs, value):
    np.testing.assert_allclose(judge(learned, task, obs)[0], value, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("task, obs, action", cases(ACTIONS, TASKS))
def test_action(learned, task, obs, action):
    np.testing.assert_allclose(judge(learned, task, obs)[1], action, atol=0.2)
