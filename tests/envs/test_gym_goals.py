"""Gymnasium environments with a goal in a dictionary: they are flattened, and their own
`compute_reward` serves as the rule, on the device too."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.engine.lanes import LaneSetup, hindsight_of
from ace.envs import EnvError, Goal, TaskError, get_spec, make
from ace.envs.gym import ComputeReward, _judges
from ace.settings.config import Config, ConfigError, replace
from tests.envs import goal_envs

HERE = "tests.envs.goal_envs"


def goal_of(task: str) -> Goal:
    goal = get_spec(task).goal
    assert goal is not None
    return goal


def use(task: str) -> Any:
    config = replace(Config(), {"replay.hindsight": 0.8})
    return hindsight_of([LaneSetup(task, 0, config, (7, 2))])


def test_parts_are_flattened_in_a_fixed_order() -> None:
    env = make(f"{HERE}:GoalEnv", seed=3)
    goal = goal_of(f"{HERE}:GoalEnv")
    assert env.spec.obs_size == 7
    assert (goal.achieved, goal.desired, goal.error) == ((3, 5), (5, 7), None)
    first = env.reset()
    plain = goal_envs.GoalEnv()
    parts: Any = plain.reset(seed=3)[0]
    expected = [0, 0, 0, *parts["achieved_goal"], *parts["desired_goal"]]
    np.testing.assert_array_equal(first, np.array(expected, np.float32))
    action = np.array([0.5, -1], np.float32)
    np.testing.assert_allclose(env.step(action).obs[3:5] - first[3:5], action, atol=1e-6)


@pytest.mark.parametrize("name", ["GoalEnv", "wrapped_goal", "GivesRule"])
def test_the_rule_is_the_environments_own_with_numpy_and_jax(name: str) -> None:
    assert use(f"{HERE}:{name}").goal == goal_of(f"{HERE}:{name}")
    goal = goal_of(f"{HERE}:{name}")
    plain = goal_envs.GivesRule() if name == "GivesRule" else goal_envs.GoalEnv()
    rng = np.random.default_rng(0)
    achieved, desired = rng.normal(size=(2, 4, 50, 2)).astype(np.float32)
    expected = plain.compute_reward(achieved, desired, {})
    np.testing.assert_allclose(goal.rule(np, achieved, desired), expected, rtol=1e-6)
    there = jax.jit(lambda a, d: goal.rule(jnp, a, d))(achieved, desired)
    assert there.dtype == jnp.float32 and there.shape == (4, 50)
    np.testing.assert_allclose(there, expected, rtol=1e-5, atol=1e-6)


def test_the_rule_can_be_sent_to_another_process() -> None:
    rule = pickle.loads(pickle.dumps(goal_of(f"{HERE}:GoalEnv").rule))
    assert rule == ComputeReward(f"{HERE}:GoalEnv")
    _judges.pop(rule.task)  # as if this were the other one
    assert rule(np, np.zeros((1, 2)), np.full((1, 2), 0.5)).shape == (1,)


def test_fetch_reaches_by_its_own_rule() -> None:
    pytest.importorskip("gymnasium_robotics")
    env, goal = make("gym/FetchReach-v4", seed=0), use("gym/FetchReach-v4").goal
    assert (env.spec.obs_size, env.spec.action_size, env.spec.max_episode_steps) == (16, 4, 50)
    assert (goal.achieved, goal.desired) == ((10, 13), (13, 16))
    env.reset()
    steps = [env.step(np.ones(4, np.float32)) for _ in range(8)]
    obs = np.stack([step.obs for step in steps])
    rewards = [step.reward for step in steps]
    np.testing.assert_array_equal(goal.rule(np, obs[:, 10:13], obs[:, 13:16]), rewards)
    # The arm moves, so a later place is a goal that was missed at first and reached then.
    later = np.repeat(obs[-1:, 10:13], 8, 0)
    found = jax.jit(lambda a, d: goal.rule(jnp, a, d))(obs[:, 10:13], later)
    assert found[0] == -1 and found[-1] == 0
    env.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("UnevenGoal", r"declares a goal.*widths of .* differ; make them equal"),
        ("OneGoal", r"declares a goal that does not fit: its rule failed"),
    ],
)
def test_goals_that_do_not_fit_are_refused_when_the_task_is_made(name: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make(f"{HERE}:{name}", seed=0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WritesEntries", "fails with JAX .*entries .*cannot be written .*goal_envs.py, line"),
        ("NoRule", "declares no goal"),
    ],
)
def test_rewards_that_the_device_cannot_compute_serve_only_without_hindsight(
    name: str, message: str
) -> None:
    task = f"{HERE}:{name}"
    env = make(task, seed=0)
    env.reset()
    assert np.isfinite(env.step(np.zeros(2, np.float32)).reward)
    with pytest.raises(ConfigError, match=f"task {task} {message}.*set --replay.hindsight 0"):
        use(task)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MovedGoal", "'observation' of the observation has 2 entries, expected 3"),
        ("NoGoalPart", "no 'achieved_goal'; add it"),
    ],
)
def test_observations_that_do_not_fit_are_caught(name: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make(f"{HERE}:{name}", seed=0).reset()
