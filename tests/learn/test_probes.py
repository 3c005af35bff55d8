"""Learning on environments whose values are known by hand. All of them are lanes of one program, so
the test is one short run; novelty is off, so that values are those of the environment alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.method import model
from tests.run.helpers import optimised_updates, small_run

DISCOUNT = 0.9
TASKS = ("constant", "observation", "discount", "action", "action_observation", "truncation")
FLAGS = (
    "--env-steps 400 --seed-steps 200 --eval-every 400 --net.mlp 32 --learn.batch 64 "
    f"--learn.discount {DISCOUNT} --learn.novelty-weight 0 --learn.target-momentum 0.9 "
    "--learn.updates-per-step 2 --learn.learning-rate 2e-3 --learn.policy-learning-rate 1e-3 "
    "--plan.iterations 1"
)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Parameters of every lane after the run."""
    folder = tmp_path_factory.mktemp("probes") / "run"
    with optimised_updates():
        state, _ = small_run(folder, *[f"probe/{t}" for t in TASKS], *FLAGS.split())
    return state.learner.params


def judge(learned, task: str, obs: float) -> tuple[float, float]:
    """The critics' value of the policy's action at an observation, and that action."""
    params = jax.tree.map(lambda x: x[TASKS.index(task)], learned)
    z = model.encode(params, jnp.array([obs]))
    action = model.policy(params, z)
    return float(model.value(params, z, action).min()), float(action[0])


VALUES = [
    ("constant", 0.0, 1.0),
    ("observation", 1.0, 1.0),
    ("observation", -1.0, -1.0),
    ("discount", 0.0, DISCOUNT),
    ("discount", 1.0, 1.0),
    ("action", 0.0, 1.0),
    ("action_observation", 0.5, 1.0),
    ("action_observation", -0.5, 1.0),
    ("truncation", 0.0, 1 / (1 - DISCOUNT)),
]


@pytest.mark.parametrize("task, obs, value", VALUES)
def test_value(learned, task, obs, value):
    np.testing.assert_allclose(judge(learned, task, obs)[0], value, rtol=0.1, atol=0.1)


ACTIONS = [
    ("action", 0.0, 0.5),
    ("action_observation", 0.5, 0.5),
    ("action_observation", -0.5, -0.5),
]


@pytest.mark.parametrize("task, obs, action", ACTIONS)
def test_action(learned, task, obs, action):
    np.testing.assert_allclose(judge(learned, task, obs)[1], action, atol=0.2)
