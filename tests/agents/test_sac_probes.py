"""Soft actor-critic on environments whose values are known by hand. All are lanes of one program,
half of them with a temperature so small that soft values are the plain ones; the rest adapt it."""

import csv
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import sac
from tests.learn.known import ACTIONS, DISCOUNT, VALUES, cases
from tests.run.helpers import most_skipped, optimised_updates, small_run

TASKS = ("constant", "discount", "truncation", "action", "action_observation")
RATES = (0.0, 0.01)
FLAGS = (
    "--agent sac --env-steps 900 --seed-steps 200 --eval-every 900 --net.mlp 32 --learn.batch 64 "
    f"--learn.discount {DISCOUNT} --learn.target-momentum 0.9 --learn.updates-per-step 2 "
    "--learn.learning-rate 3e-3 --learn.policy-learning-rate 1e-3 --sac.init-temperature 1e-3 "
    "--vary sac.temperature-learning-rate=0,0.01"
)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The run, and the parameters of every lane after it."""
    folder = tmp_path_factory.mktemp("probes") / "run"
    with optimised_updates():
        state, run = small_run(folder, *[f"probe/{t}" for t in TASKS], *FLAGS.split())
    return run, state.learner.params


def judge(learned, task: str, obs: float) -> tuple[float, float]:
    """The critics' value of the mean action at an observation, and that action."""
    run, params = learned
    lane = TASKS.index(task) * len(RATES)
    params = jax.tree.map(lambda x: x[lane], params)
    mean, _ = sac.gaussian(run.setups[lane].config.own, params["policy"], jnp.array([obs]))
    # Programs are padded to the largest sizes of their lanes: one of each here.
    action = jnp.tanh(mean)
    return float(sac.value(params["critics"], jnp.array([obs]), action).min()), float(action[0])


@pytest.mark.parametrize("task, obs, value", cases(VALUES, TASKS))
def test_value(learned, task, obs, value):
    np.testing.assert_allclose(judge(learned, task, obs)[0], value, rtol=0.1)


@pytest.mark.parametrize("task, obs, action", cases(ACTIONS, TASKS))
def test_action(learned, task, obs, action):
    np.testing.assert_allclose(judge(learned, task, obs)[1], action, atol=0.15)


def test_the_temperature_finds_its_fixed_point(learned):
    """With the reward 1 - (a - 0.5)^2 the best policy is a Gaussian of variance alpha / 2, whose
    entropy log(pi e alpha) / 2 is the target, -1, at alpha = exp(-3) / pi."""
    run, params = learned
    lane = TASKS.index("action") * len(RATES) + 1
    found = float(jnp.exp(params["temperature"]["log"][lane]))
    np.testing.assert_allclose(found, math.exp(-3) / math.pi, rtol=0.4)
    rows = [r for r in csv.DictReader(open(run.folder / "train.csv")) if int(r["lane"]) == lane]
    entropy = np.mean([float(r["entropy"]) for r in rows[-100:]])
    np.testing.assert_allclose(entropy, -1.0, atol=0.2)


def test_nothing_was_left_out(learned):
    assert most_skipped(learned[0]) == 0
