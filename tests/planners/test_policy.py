"""The planner that acts with the policy: its action, and in training the noise that section 10
gives: standard deviation 0.1, bounded by 0.3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.planners import PLANNERS, Context
from ace.settings.config import Config, replace

PLANNER = PLANNERS["policy"]
CONFIG = replace(Config(), {"plan.planner": "policy"})
MEAN = np.array([0.2, -0.95, 0.0], np.float32)


def act(train: bool, key: int = 0, config: Config = CONFIG, mask=(True, True, True)):
    x = Context(
        jnp.bool_(True), jnp.int32(1), jnp.int32(0), jnp.array(mask), (), lambda: jnp.asarray(MEAN)
    )
    assert PLANNER.proposals(config) == 0 and not PLANNER.calls(config)

    def rate(*_):
        raise AssertionError("there is nothing to rate")

    memory = PLANNER.init(config, 3)
    action, after = PLANNER.plan(
        config, rate, jnp.zeros((6, 0, 3)), memory, x, jax.random.key(key), train
    )
    assert after == memory == ()
    return np.asarray(action)


def test_an_evaluation_takes_the_policys_action() -> None:
    np.testing.assert_array_equal(act(False), MEAN)
    np.testing.assert_array_equal(act(False, mask=(True, True, False)), MEAN * [1, 1, 0])


def test_training_adds_bounded_noise_and_stays_inside_the_actions() -> None:
    draws = np.stack([act(True, key) for key in range(200)])
    eps = np.stack([jax.random.normal(jax.random.key(key), (3,)) for key in range(200)])
    wanted = np.clip(MEAN + np.clip(0.1 * eps, -0.3, 0.3), -1 + 1e-6, 1 - 1e-6)
    np.testing.assert_allclose(draws, wanted, atol=1e-6)
    assert 0.08 < draws[:, 0].std() < 0.12 and draws[:, 1].min() == pytest.approx(-1, abs=1e-5)
    wide = replace(CONFIG, {"plan.policy_std": 50.0})
    assert {0.5, -0.1} >= {round(float(act(True, key, wide)[0]), 5) for key in range(9)}


def test_padding_changes_no_real_action() -> None:
    wide = act(True, 3)
    some = jnp.asarray(MEAN[:2])
    x = Context(jnp.bool_(True), jnp.int32(1), jnp.int32(0), jnp.ones(2), (), lambda: some)
    key = jax.random.key(3)
    got, _ = PLANNER.plan(CONFIG, None, jnp.zeros((6, 0, 2)), (), x, key, True)  # type: ignore[arg-type]
    np.testing.assert_array_equal(got, wide[:2])


def test_an_agent_without_a_policy_is_told() -> None:
    x = Context(jnp.bool_(True), jnp.int32(1), jnp.int32(0), jnp.ones(2), ())
    with pytest.raises(ValueError, match="needs an agent that has a policy"):
        PLANNER.plan(CONFIG, None, jnp.zeros((6, 0, 2)), (), x, jax.random.key(0), True)  # type: ignore[arg-type]
