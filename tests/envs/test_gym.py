"""Gymnasium environments: what is accepted, and what is refused with advice."""

import warnings

import numpy as np
import pytest

from ace.envs import EnvError, TaskError, get_spec, make, validate

HERE = "tests.envs.bad_envs"


def test_registered_environment_runs() -> None:
    env = make("gym/Pendulum-v1", seed=0)
    assert (env.spec.obs_size, env.spec.action_size) == (3, 1)
    assert env.spec.max_episode_steps == 200
    assert not env.spec.fixed_length
    assert env.reset().dtype == np.float32
    results = [env.step(np.ones(1, np.float32)) for _ in range(200)]
    assert results[-1].truncated and not results[-2].truncated
    env.close()


def test_seeds_decide_the_episodes() -> None:
    first, same, other = (make("gym/Pendulum-v1", seed=s) for s in (1, 1, 2))
    episodes = [[env.reset() for _ in range(2)] for env in (first, same, other)]
    np.testing.assert_array_equal(episodes[0], episodes[1])
    assert not np.array_equal(episodes[0][0], episodes[0][1])
    assert not np.array_equal(episodes[0], episodes[2])
    np.testing.assert_array_equal(other.reset(seed=1), episodes[0][0])


def test_own_environment_by_import_string() -> None:
    spec = get_spec(f"{HERE}:Counter")
    assert (spec.obs_size, spec.action_size) == (2, 2)


def test_actions_are_rescaled_to_the_bounds() -> None:
    env = make(f"{HERE}:Scaled", seed=0)
    env.reset()
    assert env.step(np.array([1, 1], np.float32)).reward == pytest.approx(10 - 2)
    assert env.step(np.array([-1, 0], np.float32)).reward == pytest.approx(0 - 3)


def test_action_repeat_sums_rewards_and_stops_at_the_end() -> None:
    env = make(f"{HERE}:Counter", seed=0, action_repeat=3)
    env.reset()
    action = np.array([1, 0.5], np.float32)
    first, second = env.step(action), env.step(action)
    assert first.reward == pytest.approx(4.5) and not first.terminated
    assert second.reward == pytest.approx(3.0) and second.terminated
    assert second.obs[1] == 5


def test_an_environment_without_pictures_is_told_how_to_be_made() -> None:
    for task in (f"{HERE}:Counter", "gym/Pendulum-v1"):  # neither is made to render
        env = make(task, seed=0)
        env.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium warns about that too
            with pytest.raises(EnvError, match='made with render_mode="rgb_array"'):
                env.render()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Discrete", "Discrete action space .* only continuous Box actions"),
        ("DictObs", "Dict observation space .*FlattenObservation"),
        ("Unbounded", "without finite bounds .*gymnasium.wrappers"),
        ("Image", "pixels are not supported"),
        ("not_an_env", "return a gymnasium.Env"),
        ("missing", "no callable 'missing'"),
    ],
)
def test_unsupported_environments_are_refused_with_advice(name: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make(f"{HERE}:{name}", seed=0)


def test_discrete_gym_task_is_refused() -> None:
    with pytest.raises(TaskError, match="Discrete action space"):
        make("gym/CartPole-v1", seed=0)


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        ("gym/Pendulumm-v1", "did you mean gym/Pendulum-v1"),
        ("gym/Pendulum", "did you mean gym/Pendulum-v1"),
        ("gym/no_such_module_here:Thing-v0", "no_such_module_here"),
        ("no_such_module_here:make", "PYTHONPATH"),
    ],
)
def test_unknown_environments_are_refused(task: str, hint: str) -> None:
    with pytest.raises(TaskError, match=f"{task}.*{hint}"):
        validate(task)


def test_id_of_a_module_that_registers_it() -> None:
    assert get_spec("gym/gymnasium:Pendulum-v1").obs_size == 3


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [
        ("NanObs", 3, "observation has 2 non-finite entries"),
        ("NanReward", 1, "reward is nan"),
        ("WrongShape", 1, r"observation has shape \(3,\), expected \(2,\)"),
    ],
)
def test_bad_numbers_are_caught(name: str, steps: int, message: str) -> None:
    env = make(f"{HERE}:{name}", seed=0)
    env.reset()
    for _ in range(steps - 1):
        env.step(np.zeros(2, np.float32))
    with pytest.raises(EnvError, match=message):
        env.step(np.zeros(2, np.float32))
