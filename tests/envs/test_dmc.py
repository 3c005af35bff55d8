"""The DeepMind Control tasks: sizes, names, action bounds, seeds, and equality with the suite."""

import os

import numpy as np
import pytest

from ace.envs import EnvError, TaskError, get_spec, make, task_names, validate
from ace.envs.api import ActionRepeat
from ace.envs.dmc.suite import DmcEnv, load_suite

DMC15 = {
    "acrobot-swingup": (6, 1),
    "cheetah-run": (17, 6),
    "finger-turn_hard": (12, 2),
    "fish-swim": (24, 5),
    "hopper-hop": (15, 4),
    "hopper-stand": (15, 4),
    "humanoid-run": (67, 21),
    "humanoid-stand": (67, 21),
    "humanoid-walk": (67, 21),
    "pendulum-swingup": (3, 1),
    "quadruped-run": (78, 12),
    "quadruped-walk": (78, 12),
    "reacher-hard": (6, 2),
    "swimmer-swimmer6": (25, 5),
    "walker-run": (24, 6),
}


@pytest.mark.parametrize("name", DMC15)
def test_benchmark_tasks_have_the_published_sizes(name: str) -> None:
    spec = get_spec(f"dmc/{name}")
    assert (spec.obs_size, spec.action_size) == DMC15[name]
    assert spec.max_episode_steps == 1000
    assert spec.fixed_length
    assert spec.task == f"dmc/{name}"


def test_every_suite_task_has_a_name() -> None:
    names = task_names()
    for domain, task in load_suite().ALL_TASKS:
        assert f"dmc/{domain}-{task}" in names
        validate(f"dmc/{domain}-{task}")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("humanoid_run", "dmc/humanoid-run"),
        ("humanoid-run", "dmc/humanoid-run"),
        ("dmc/humanod-run", "dmc/humanoid-run"),
        ("acrobot-swingup-sparse", "dmc/acrobot-swingup_sparse"),
        ("dmc/cup-catch", "dmc/ball_in_cup-catch"),
        ("probe/const", "probe/constant"),
    ],
)
def test_unknown_task_suggests_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(TaskError, match=f"'{wrong}' unknown; did you mean {right}\\?"):
        validate(wrong)


def test_hopeless_task_points_at_the_list() -> None:
    with pytest.raises(TaskError, match="unknown; `ace tasks` lists them all"):
        make("zzzzzz", seed=0)


def test_quadruped_actions_reach_the_bounds_of_each_joint() -> None:
    env = DmcEnv("quadruped-run", seed=0)
    env.reset()
    for value, per_leg in ((1.0, [1.0, 1.1, 0.8]), (-1.0, [-1.0, -1.0, -0.8]), (0.0, [0, 0.05, 0])):
        env.step(np.full(12, value, np.float32))
        np.testing.assert_allclose(env._physics.control(), per_leg * 4, atol=1e-7)


def test_actions_are_not_clipped() -> None:
    env = DmcEnv("cheetah-run", seed=0)
    env.reset()
    env.step(np.full(6, 1.5, np.float32))
    np.testing.assert_allclose(env._physics.control(), 1.5)


@pytest.mark.parametrize("name", ["quadruped-run", "humanoid-run", "finger-turn_hard"])
def test_trajectory_equals_the_suite_with_repeat(name: str) -> None:
    env = make(f"dmc/{name}", seed=3, action_repeat=4)
    reference = load_suite().load(*name.split("-", 1), task_kwargs={"random": 3})
    low, high = reference.action_spec().minimum, reference.action_spec().maximum
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(env.reset(), _flat(reference.reset()))
    for _ in range(10):
        action = rng.uniform(-1, 1, env.spec.action_size).astype(np.float32)
        control = low + (high - low) * 0.5 * (action.astype(np.float64) + 1)
        steps = [reference.step(control) for _ in range(4)]
        result = env.step(action)
        np.testing.assert_allclose(result.obs, _flat(steps[-1]), rtol=1e-5, atol=1e-5)
        assert result.reward == pytest.approx(sum(s.reward for s in steps))


def test_fast_repeat_equals_the_plain_loop() -> None:
    fast, plain = (ActionRepeat(DmcEnv("cheetah-run", seed=5), 4) for _ in range(2))
    plain._step_repeat = plain._step_in_loop
    np.testing.assert_array_equal(fast.reset(), plain.reset())
    for _ in range(5):
        action = np.full(6, 0.7, np.float32)
        left, right = fast.step(action), plain.step(action)
        np.testing.assert_array_equal(left.obs, right.obs)
        assert left[1:] == right[1:]


def test_episode_is_truncated_at_the_limit_even_inside_a_repeat() -> None:
    env = make("dmc/pendulum-swingup", seed=0, action_repeat=300)
    env.reset()
    action = np.zeros(1, np.float32)
    ends = [env.step(action)[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


def test_task_without_limit_is_truncated_and_its_actions_are_not_scaled_up() -> None:
    env = make("dmc/lqr-lqr_2_1", seed=0, action_repeat=500)
    assert env.spec.max_episode_steps == 1000
    assert not env.spec.fixed_length
    env.reset()
    action = np.ones(1, np.float32)
    ends = [env.step(action)[2:4] for _ in range(2)]
    assert ends == [(False, False), (False, True)]


def test_seeds_decide_the_episodes() -> None:
    first, same, other = (make("dmc/reacher-hard", seed=s) for s in (1, 1, 2))
    episodes = [[env.reset() for _ in range(2)] for env in (first, same, other)]
    np.testing.assert_array_equal(episodes[0], episodes[1])
    assert not np.array_equal(episodes[0][0], episodes[0][1])
    assert not np.array_equal(episodes[0], episodes[2])
    np.testing.assert_array_equal(other.reset(seed=1), episodes[0][0])


def test_picture() -> None:
    env = make("dmc/cheetah-run", seed=0, render=True)
    env.reset()
    try:
        frames = [env.render(), env.render(64, 48), env.render(64, 48)]
    except EnvError as error:
        assert "libegl1" in str(error)
        pytest.skip("no OpenGL here")
    assert [frame.shape for frame in frames] == [(240, 320, 3), (48, 64, 3), (48, 64, 3)]
    assert all(frame.dtype == np.uint8 for frame in frames)
    assert frames[0].std() > 5
    env.close()


def test_escape_resets_without_opengl() -> None:
    assert make("dmc/quadruped-escape", seed=0).reset().shape == (101,)


def test_loading_the_suite_leaves_the_settings_alone() -> None:
    before = os.environ.get("MUJOCO_GL")
    load_suite()
    assert os.environ.get("MUJOCO_GL") == before


def _flat(timestep) -> np.ndarray:
    parts = [np.ravel(value) for value in timestep.observation.values()]
    return np.concatenate(parts).astype(np.float32)
