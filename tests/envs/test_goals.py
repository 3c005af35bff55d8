"""Goals: the declared ranges are checked, and the NumPy and JAX forms agree."""

import pickle
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.envs import EnvSpec, Goal, TaskError, get_spec, make, relabel
from ace.envs.goals import check_goal


def distance(xp: Any, achieved: Any, desired: Any) -> Any:
    """The negative distance."""
    return -xp.sqrt(xp.sum((achieved - desired) ** 2, axis=-1))


def of_one_goal(xp: Any, achieved: Any, desired: Any) -> Any:
    """A rule that forgets the leading axes."""
    return xp.sum(achieved - desired)


def broken(xp: Any, achieved: Any, desired: Any) -> Any:
    """A rule that raises."""
    raise KeyError("joint")


GOAL = Goal(achieved=(3, 5), desired=(6, 8), error=(0, 2), rule=distance)
SPEC = EnvSpec("mine", 9, 1, 100, goal=GOAL)


def test_relabel_writes_the_goal_and_its_error() -> None:
    obs = np.arange(9, dtype=np.float32)
    found = relabel(GOAL, obs, np.array([10.0, 20.0]))
    np.testing.assert_array_equal(found, [7, 16, 2, 3, 4, 5, 10, 20, 8])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(obs, np.arange(9))  # a copy
    plain = relabel(replace(GOAL, error=None), obs, np.array([10.0, 20.0]))
    np.testing.assert_array_equal(plain, [0, 1, 2, 3, 4, 5, 10, 20, 8])


@pytest.mark.parametrize("goal", [GOAL, replace(GOAL, error=None), replace(GOAL, error=(7, 9))])
def test_numpy_and_jax_agree(goal: Goal) -> None:
    goal = replace(goal, desired=(5, 7)) if goal.error == (7, 9) else goal
    check_goal(replace(SPEC, goal=goal))
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(4, 5, 9)).astype(np.float32)
    for shape in ((4, 5, 2), (5, 2), (2,)):
        desired = rng.normal(size=shape).astype(np.float32)
        here = relabel(goal, obs, desired)
        there = jax.jit(lambda o, d: relabel(goal, o, d, jnp))(obs, desired)
        np.testing.assert_array_equal(here, there)
        np.testing.assert_array_equal(here[..., slice(*goal.desired)] - desired, 0)
        achieved = here[..., slice(*goal.achieved)]
        rewards = goal.rule(np, achieved, here[..., slice(*goal.desired)])
        assert rewards.shape == (4, 5)
        other = goal.rule(jnp, jnp.asarray(achieved), jnp.asarray(desired))
        np.testing.assert_allclose(rewards, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"desired": (8, 10)}, r"desired is \(8, 10\); choose it in 0 to 9"),
        ({"achieved": (-1, 1)}, "achieved is .*choose it in 0 to 9"),
        ({"error": (2, 2)}, r"error is \(2, 2\)"),
        ({"desired": (5, 8)}, "widths of .* differ; make them equal"),
        ({"achieved": (5, 7)}, "overlap; give each its own entries"),
        ({"error": (4, 6)}, "overlap"),
        ({"rule": lambda xp, a, d: xp.sum(a - d, -1)}, "function at the top of a module"),
        ({"rule": of_one_goal}, r"rewards \(\) for goals \(3, 2, 2\); write it as rule"),
        ({"rule": broken}, "its rule failed .*KeyError: 'joint' .*test_goals.py, line"),
    ],
)
def test_goals_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    check_goal(SPEC)
    with pytest.raises(TaskError, match=f"task 'mine' declares a goal.*{message}"):
        check_goal(replace(SPEC, goal=replace(GOAL, **changed)))


FIXED = replace(GOAL, achieved=(3, 6), desired=(6, 9), fixed=1)


def test_relabel_keeps_entries_that_are_fixed() -> None:
    check_goal(replace(SPEC, goal=FIXED))
    obs = np.arange(9, dtype=np.float32)
    for xp in (np, jnp):
        found = relabel(FIXED, xp.asarray(obs), xp.asarray([10.0, 20.0, 30.0]), xp)
        np.testing.assert_array_equal(found, [7, 16, 2, 3, 4, 5, 10, 20, 8])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fixed": 3}, "fixed is 3; choose it in 0 to 2"),
        ({"fixed": -1}, "fixed is -1"),
        ({"error": (0, 3)}, "widths of .* differ; the error lacks 1 of them"),
        ({"fixed": 0}, "widths of .* differ; make them equal"),
    ],
)
def test_fixed_entries_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=f"task 'mine' declares a goal.*{message}"):
        check_goal(replace(SPEC, goal=replace(FIXED, **changed)))


def test_goals_can_be_keys_and_can_be_sent() -> None:
    assert pickle.loads(pickle.dumps(GOAL)) == GOAL
    assert {GOAL: 1}[replace(GOAL)] == 1
    assert hash(SPEC) == hash(replace(SPEC))


def test_the_reward_of_reach_follows_from_its_goal() -> None:
    goal = get_spec("probe/reach").goal
    assert goal is not None
    env = make("probe/reach", 0)
    rewards = set()
    for _ in range(20):
        obs = env.reset()
        for _ in range(50):
            result = env.step(np.clip(4 * obs[3:] - 4 * obs[1:2], -1, 1))
            obs = result.obs
            np.testing.assert_array_equal(relabel(goal, obs, obs[2:3]), obs)
            assert result.reward == goal.rule(np, obs[0:1], obs[2:3])
            assert result.reward == float(goal.rule(jnp, obs[0:1], obs[2:3]))
            assert result.numbers == (result.reward + 1,) * 2
            rewards.add(result.reward)
    assert rewards == {-1.0, 0.0}
    reached = relabel(goal, obs, obs[0:1])  # where it is, is where it should have been
    assert goal.rule(np, reached[0:1], reached[2:3]) == 0 and reached[3] == 0


def test_every_goal_is_checked_when_the_task_is_made(monkeypatch) -> None:
    from ace.envs.probe import Reach

    monkeypatch.setattr(Reach, "goal", replace(GOAL, rule=distance))
    with pytest.raises(TaskError, match="task 'probe/reach' declares a goal that does not fit"):
        make("probe/reach", 0)
