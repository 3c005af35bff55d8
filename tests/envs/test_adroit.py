"""The Adroit tasks: goals in states set by hand, rewards by another route, and hindsight."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from ace.envs import EpisodeNumbers, TaskError, get_spec, make, relabel, task_names, validate
from ace.envs.adroit import AdroitEnv, make_env
from tests.envs.goal_rules import check_rule

LENGTHS = {"pen": 100, "door": 200, "hammer": 200}
SIZES = {"pen": (45, 24), "door": (45, 28), "hammer": (57, 26)}
HINGE, LATCH = -2, -1  # in the door's positions
NAIL, UP, TILT = 26, 28, 32  # in the hammer's


def placed(name: str, **changed: float) -> AdroitEnv:
    """A task at the start of an episode, with some joints moved."""
    env = make_env(name, seed=0)
    env.reset(0)
    where = {"hinge": HINGE, "latch": LATCH, "nail": NAIL, "up": UP, "tilt": TILT}
    place = env.simulation.data.qpos.copy()
    for joint, value in changed.items():
        place[where[joint]] += value
    env.simulation.set_state(place, np.zeros(env.simulation.model.nv))
    return env


def rest(env: Any) -> np.ndarray:
    return np.zeros(env.spec.action_size, np.float32)


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("reward", ["", "-dense"])
def test_episodes_have_their_length_and_never_terminate(name: str, reward: str) -> None:
    env = make(f"adroit/{name}{reward}", 0, action_repeat=2)
    assert (env.spec.obs_size, env.spec.action_size) == SIZES[name]
    assert env.spec.max_episode_steps == LENGTHS[name] and env.spec.fixed_length
    env.reset(1)
    ends = [env.step(rest(env))[2:4] for _ in range(LENGTHS[name] // 2)]
    assert ends == [(False, False)] * (len(ends) - 1) + [(False, True)]
    assert f"adroit/{name}{reward}" in task_names()


@pytest.mark.parametrize(
    ("name", "changed", "reward", "at_goal"),
    [
        ("door", {}, 0.0, 0),
        ("door", {"hinge": 1.30}, 0.0, 0),
        ("door", {"hinge": 1.30, "latch": 1.85}, 0.1, 0),
        ("door", {"hinge": 1.40, "latch": 1.70}, 0.4, 1),
        ("door", {"hinge": 1.40, "latch": 1.85}, 0.5, 1),
        ("hammer", {}, 0.0, 0),
        ("hammer", {"nail": 0.070}, 0.0, 0),  # 21 mm are left
        ("hammer", {"nail": 0.085}, 0.4, 1),
        ("hammer", {"up": 0.10}, 0.1, 0),
        ("hammer", {"up": 0.003}, 0.0, 0),  # 38 mm above the table
        ("hammer", {"up": 0.03, "tilt": 0.2}, 0.0, 0),  # the head still hangs down to 25 mm
        ("hammer", {"nail": 0.085, "up": 0.10}, 0.5, 1),
    ],
)
def test_rewards_of_states(name: str, changed: dict, reward: float, at_goal: int) -> None:
    env = placed(name, **changed)
    result = env.step(rest(env))
    assert result.reward == reward and result.numbers == (at_goal, 0)
    dense = placed(f"{name}-dense", **changed)
    assert dense.step(rest(dense)).numbers == result.numbers  # the same goals


def test_success_takes_more_than_five_env_steps_at_the_goal() -> None:
    env = placed("door", hinge=1.4)
    numbers = [env.step(rest(env)).numbers for _ in range(8)]
    assert numbers == [(1.0, 0.0)] * 5 + [(1.0, 1.0)] * 3


def test_a_latch_that_is_pushed_to_its_stop_counts_as_turned() -> None:
    # 1.80 is the joint's limit: what holds it there presses it a little further, and friction
    # keeps it.
    env = placed("door")
    for torque in [10.0] * 60 + [0.0] * 60:
        env.simulation.data.qfrc_applied[LATCH] = torque
        result = env.step(rest(env))
    assert env.simulation.data.qpos[LATCH] < 1.81 and result.reward == 0.1


def test_a_pen_that_points_like_the_target_is_at_the_goal() -> None:
    env = make_env("pen", seed=0)
    env.reset(0)
    assert env.step(rest(env)).reward == 0.0
    simulation = env.simulation
    turned = simulation.data.xquat[simulation.obj_body_id]
    simulation.model.body_quat[simulation.target_obj_body_id] = turned
    simulation.set_state(simulation.init_qpos, simulation.init_qvel)
    result = env.step(rest(env))
    assert result.reward == 1.0 and result.numbers == (1.0, 0.0)
    pen, target = result.obs[33:36], result.obs[36:39]
    assert pen @ target > 0.95


def test_numbers_of_an_episode() -> None:
    env = make("adroit/door", 0, action_repeat=2)
    kept = EpisodeNumbers([env.spec])
    env.reset(0)
    simulation = env.env.env.simulation  # type: ignore[attr-defined]
    opened = []
    for agent_step in range(100):
        at = simulation.data.qpos.copy()
        at[HINGE] = 1.4 if agent_step in (10, 11, 50) else 0.2
        simulation.set_state(at, np.zeros_like(simulation.data.qvel))
        result = env.step(rest(env))
        kept.add(np.array([result.numbers], np.float32), np.ones(1, bool))
        opened.append(result.numbers[1])
    # Six of 200 env steps; the sixth of them makes it a success.
    assert kept.read(0) == {"at_goal": pytest.approx(6 / 200), "success": 1.0}
    assert opened.index(1.0) == 50
    env.reset(0)
    assert env.step(rest(env)).numbers == (0.0, 0.0)


@pytest.mark.parametrize("changed", [{}, {"hinge": 0.5}, {"hinge": 1.2}, {"hinge": 1.4}])
def test_the_dense_reward_of_the_door_is_that_of_the_original(changed: dict) -> None:
    env = placed("door-dense", **changed)
    reward = env.step(rest(env)).reward
    simulation = env.simulation
    palm, handle = (simulation.data.site(name).xpos for name in ("S_grasp", "S_handle"))
    hinge = simulation.data.joint("door_hinge").qpos[0]
    expected = -0.1 * np.linalg.norm(palm - handle) - 0.1 * (hinge - 1.57) ** 2
    expected += -1e-5 * np.sum(simulation.data.qvel**2)
    expected += 2 * (hinge > 0.2) + 8 * (hinge > 1.0) + 10 * (hinge > 1.35)
    assert reward == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("changed", [{}, {"up": 0.2}, {"nail": 0.075}, {"nail": 0.085}])
def test_the_dense_reward_of_the_hammer_is_that_of_the_original(changed: dict) -> None:
    env = placed("hammer-dense", **changed)
    reward = env.step(rest(env)).reward
    data = env.simulation.data
    names = ("S_grasp", "tool", "S_target", "nail_goal")
    palm, head, nail, goal = (data.site(name).xpos for name in names)
    hammer, left = data.body("Object").xpos, np.linalg.norm(nail - goal)
    expected = -0.1 * np.linalg.norm(palm - hammer) - np.linalg.norm(head - nail) - 10 * left
    expected -= 1e-2 * np.linalg.norm(data.qvel)
    expected += 2 * (min(hammer[2], head[2]) > 0.04) + 25 * (left < 0.02) + 75 * (left < 0.01)
    assert reward == pytest.approx(expected, abs=1e-9)


def test_the_dense_reward_of_the_pen_is_the_simulators() -> None:
    env = make_env("pen-dense", seed=0)
    obs = env.reset(0)
    for _ in range(20):
        result = env.step(np.full(24, 0.3, np.float32))
        obs = result.obs.astype(np.float64)
        distance, aligned = np.linalg.norm(obs[39:42]), obs[33:36] @ obs[36:39]
        near = distance < 0.075
        expected = -distance + aligned + 10 * (near and aligned > 0.9)
        expected += 50 * (near and aligned > 0.95) - 5 * (obs[26] < 0.075)
        assert result.reward == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "reached", "rewards"),
    [
        ("door", {"hinge": 1.4, "latch": 1.82}, {0.0, 0.5}),
        ("hammer", {"nail": 0.085, "up": 0.12}, {0.0, 0.4, 0.5}),  # it falls back to the table
    ],
)
def test_rewards_follow_from_the_goal(name: str, reached: dict, rewards: set) -> None:
    goal = get_spec(f"adroit/{name}").goal
    assert goal is not None and get_spec(f"adroit/{name}-dense").goal is None
    rng, steps = np.random.default_rng(0), []
    for changed in ({}, reached):
        env = placed(name, **changed)
        actions = rng.uniform(-1, 1, (20, env.spec.action_size)).astype(np.float32)
        steps += [env.step(action) for action in actions]
    assert set(check_rule(goal, steps)) == rewards


def test_hindsight_keeps_the_height_of_a_lifted_hammer() -> None:
    goal = get_spec("adroit/hammer").goal
    assert goal is not None
    env = placed("hammer", nail=0.05)
    obs = env.step(rest(env)).obs
    other = relabel(goal, obs, obs[slice(*goal.achieved)])
    desired = other[slice(*goal.desired)]
    np.testing.assert_array_equal(desired[:3], obs[42:45])
    assert desired[3] == np.float32(0.04)
    assert goal.rule(np, obs[slice(*goal.achieved)], desired) == 0.4  # the hammer lies there
    np.testing.assert_array_equal(other[slice(*goal.error)], 0)  # type: ignore[misc]


@pytest.mark.parametrize("name", LENGTHS)
def test_seeds_decide_the_episodes(name: str) -> None:
    def play(make_seed: int, reset_seed: int | None) -> np.ndarray:
        env = make(f"adroit/{name}", make_seed, action_repeat=2)
        first = env.reset(reset_seed)
        rng = np.random.default_rng(0)
        actions = rng.uniform(-1, 1, (5, env.spec.action_size)).astype(np.float32)
        return np.stack([first, *[env.step(action).obs for action in actions]])

    np.testing.assert_array_equal(play(0, 7), play(3, 7))
    np.testing.assert_array_equal(play(7, None), play(3, 7))
    assert not np.array_equal(play(0, 7)[0], play(0, 8)[0])


def test_rewards_of_a_repeat_are_summed() -> None:
    env = make("adroit/door", 0, action_repeat=2)
    env.reset(0)
    simulation = env.env.env.simulation  # type: ignore[attr-defined]
    place = simulation.data.qpos.copy()
    place[[HINGE, LATCH]] = 1.4, 1.85
    simulation.set_state(place, np.zeros_like(simulation.data.qvel))
    result = env.step(rest(env))
    assert result.reward == 1.0 and result.numbers == (1.0, 0.0)


def test_without_the_simulator_the_error_says_what_to_type(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = "adroit tasks need the package gymnasium_robotics; install it with: pip install"
    for call in (validate, get_spec.__wrapped__):
        with pytest.raises(TaskError, match=f"{line} gymnasium-robotics==1.4.2"):
            call("adroit/pen")
    assert "dmc/humanoid-run" in task_names() and "adroit/pen" not in task_names()


def test_another_version_of_the_simulator_is_refused(monkeypatch) -> None:
    import gymnasium_robotics

    monkeypatch.setattr(gymnasium_robotics, "__version__", "1.5.0")
    with pytest.raises(TaskError, match=r"1\.4\.2, not 1\.5\.0, .*pip install gymnasium-robotics="):
        make("adroit/door-dense", 0)
