"""The Meta-World tasks: scripted episodes, states set by hand, one layout per seed, hindsight."""

import importlib.util
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ace.envs import (
    EnvError,
    EnvRequest,
    EpisodeNumbers,
    TaskError,
    VectorEnv,
    get_spec,
    make,
    relabel,
    task_names,
    validate,
)
from ace.envs.manipulation import ManipulationEnv
from ace.envs.metaworld import TASKS, MetaworldEnv, make_env
from ace.run import collect, evaluate
from tests.envs.goal_rules import check_rule

REST = np.zeros(4, np.float32)
PLACING = [name for name in TASKS if name != "hammer"]
# Positions in the observation of every task but hammer.
TURN, VELOCITY, OBJECT, GOAL = slice(7, 13), slice(13, 16), slice(16, 19), slice(20, 23)


def put(env: MetaworldEnv, place: Any, quaternion: Any = (1, 0, 0, 0)) -> None:
    """Put the object somewhere, at rest; its free joint is the one after nine of the arm."""
    data = env.simulation.data
    qpos, qvel = data.qpos.copy(), data.qvel.copy()
    qpos[9:16] = [*place, *quaternion]
    qvel[9:15] = 0
    env.simulation.set_state(qpos, qvel)


def play_script(env: MetaworldEnv) -> tuple[list, np.ndarray]:
    """One episode of the policy that Meta-World ships; steps, and (reward, grasp, success) [T, 3]
    as the simulator reports them."""
    import metaworld.policies

    name = env.spec.task.partition("/")[2].removesuffix("-dense")
    words = "".join(word.capitalize() for word in name.split("-"))
    policy = getattr(metaworld.policies, f"Sawyer{words}V3Policy")()
    told, inner = [], env.simulation.step

    def listen(action: np.ndarray) -> tuple:
        told.append(inner(action))
        return told[-1]

    env.simulation.step = listen
    env.reset()
    raw, steps = env.simulation._get_obs(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the policies warn that they push hard
        for _ in range(100):
            steps.append(env.step(np.clip(policy.get_action(raw), -1, 1).astype(np.float32)))
            raw = told[-1][0]
    infos = [(r, i["grasp_success"], i["success"]) for _, r, _, _, i in told]
    return steps, np.array(infos, float)


@pytest.mark.parametrize("name", TASKS)
def test_a_scripted_policy_gets_the_rewards_of_sub_goal_and_goal(name: str) -> None:
    env = make_env(name, seed=0)
    steps, told = play_script(env)
    grasp, success = told[:, 1], told[:, 2]
    rewards = check_rule(env.goal, steps)  # type: ignore[arg-type]
    np.testing.assert_allclose(rewards, 0.1 * grasp + 0.4 * success, atol=1e-12)
    assert success[-1] == 1 and 5 < success.sum() < 60 and rewards.max() == 0.5
    # Success is where the episode stands; success_5 counts from the fifth env step at the goal.
    numbers = np.array([step.numbers for step in steps])
    np.testing.assert_array_equal(numbers[:, 0], success)
    np.testing.assert_array_equal(numbers[:, 1], np.cumsum(success) >= 5)
    assert [step.truncated for step in steps] == [False] * 99 + [True]
    assert not any(step.terminated for step in steps)


@pytest.mark.parametrize("name", TASKS)
def test_dense_tasks_have_the_simulators_reward_and_the_same_numbers(name: str) -> None:
    sparse, told = play_script(make_env(name, seed=0))
    dense, _ = play_script(make_env(f"{name}-dense", seed=0))
    np.testing.assert_array_equal([step.reward for step in dense], told[:, 0])
    assert [step.numbers for step in dense] == [step.numbers for step in sparse]
    np.testing.assert_array_equal([step.obs for step in dense], [step.obs for step in sparse])
    spec = get_spec(f"metaworld/{name}-dense")
    assert spec.goal is None and spec.task in task_names()
    assert (spec.obs_size, spec.action_size) == ((33 if name == "hammer" else 27), 4)
    assert spec.max_episode_steps == 100 and spec.fixed_length


@pytest.mark.parametrize(
    ("name", "offset", "reward"),
    [
        ("basketball", (0, 0, 0), 0.5),  # lifted from the table: Meta-World calls that a grasp
        ("basketball", (0, 0, 0.05), 0.1),  # height counts twice
        ("basketball", (0.06, 0, 0), 0.5),
        ("pick-place", (0, 0, 0), 0.4),
        ("pick-place", (0.06, 0, 0), 0.4),
        ("pick-place", (0.08, 0, 0), 0.0),
        ("pick-place-wall", (0, 0.06, 0), 0.4),
        ("push", (0.045, 0, 0), 0.4),
        ("push", (0.06, 0, 0), 0.0),
        ("push-wall", (0.06, 0, 0), 0.4),
        ("push-wall", (0.08, 0, 0), 0.0),
    ],
)
def test_rewards_of_states(name: str, offset: tuple, reward: float) -> None:
    env = make_env(name, seed=1)
    goal = env.reset()[GOAL]
    put(env, goal + np.array(offset))
    assert env.step(REST).reward == reward
    assert env.step(REST).numbers[0] == (reward >= 0.4)


def test_a_nail_that_is_driven_in() -> None:
    env = make_env("hammer", seed=0)
    for depth, reward in ((0.08, 0.0), (0.095, 0.4)):
        env.reset()
        env.simulation.data.joint("NailSlideJoint").qpos[0] = depth
        result = env.step(REST)
        assert result.reward == reward
        np.testing.assert_allclose(result.obs[28:], [depth, 0, 0.09, 1, 0.09 - depth], atol=1e-3)


def test_the_goal_above_the_basket_is_the_one_that_counts() -> None:
    env = make_env("basketball", seed=0)
    obs = env.reset()
    ring = env.simulation.data.site("goal").xpos
    np.testing.assert_allclose(obs[GOAL], [ring[0], ring[1], 0.3], atol=1e-6)


@pytest.mark.parametrize("name", PLACING)
def test_the_velocity_is_that_of_the_object(name: str) -> None:
    env = make_env(name, seed=0)
    goal = env.reset()[GOAL]
    put(env, (goal[0], goal[1] - 0.1, 0.45))  # in free air
    first, second = env.step(REST).obs, env.step(REST).obs
    seconds = 0.0125  # of an env step
    fallen = (second - first)[OBJECT] / seconds
    np.testing.assert_allclose((first + second)[VELOCITY] / 2, fallen, atol=0.02)
    np.testing.assert_allclose(second[VELOCITY], [0, 0, -9.81 * 2 * seconds], atol=0.02)


@pytest.mark.parametrize("name", TASKS)
def test_the_turn_of_the_object_is_right_in_every_task(name: str) -> None:
    # By 90 degrees around the vertical: x points where y was, y points to -x.
    env = make_env(name, seed=0)
    env.reset()
    put(env, (0, 0.6, 0.45), (np.sqrt(0.5), 0, 0, np.sqrt(0.5)))
    obs = env.step(REST).obs
    np.testing.assert_allclose(obs[TURN], [0, 1, 0, -1, 0, 0], atol=0.01)
    if name == "hammer":  # the head lies 16 cm from the handle along x and 6 cm along y
        handle, target = obs[22:25], obs[25:28]
        np.testing.assert_allclose(obs[19:22], target - handle - [-0.06, 0.16, 0], atol=0.003)
        speed = env.simulation.data.qvel[9:15]
        np.testing.assert_allclose(obs[13:19], speed, atol=1e-6)


def test_parts_of_the_observation() -> None:
    env = make_env("push", seed=0)
    obs = env.reset()
    hand = env.simulation.data.body("hand").xpos
    puck = env.simulation.data.body("obj").xpos
    np.testing.assert_allclose(obs[0:3], hand, atol=1e-6)
    np.testing.assert_allclose(obs[4:7], puck - hand, atol=1e-6)
    np.testing.assert_allclose(obs[OBJECT], puck, atol=1e-6)
    np.testing.assert_allclose(obs[GOAL], env.simulation._target_pos, atol=1e-6)
    np.testing.assert_array_equal(obs[24:27], obs[GOAL] - obs[OBJECT])
    assert obs[19] == 0 and obs[23] == 1  # not grasped, but should be


@pytest.mark.parametrize("name", TASKS)
def test_the_layout_follows_from_the_seed_of_the_environment_alone(name: str) -> None:
    def play(env: Any, reset_seed: int | None) -> np.ndarray:
        actions = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
        return np.stack([env.reset(reset_seed), *[env.step(action).obs for action in actions]])

    env = make(f"metaworld/{name}", 3)
    first = play(env, 0)
    for _ in range(2):  # later episodes, and other seeds of them
        np.testing.assert_array_equal(play(env, 1), first)
    np.testing.assert_array_equal(play(make(f"metaworld/{name}", 3), None), first)
    assert not np.array_equal(play(make(f"metaworld/{name}", 4), 0)[0], first[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_training_and_evaluation_see_the_same_layout(workers: int) -> None:
    asked = [EnvRequest("metaworld/push", seed, 2, "lane", layout=5) for seed in (0, 1)]
    asked.append(EnvRequest("metaworld/push", 0, 2, "lane"))
    with VectorEnv(asked, workers, 27, 4) as envs:
        obs = envs.reset([7, 8, 9])
    expected = make("metaworld/push", 5).reset()
    np.testing.assert_array_equal(obs[:2], [expected] * 2)
    assert not np.array_equal(obs[2], expected)


def test_a_run_asks_for_the_layout_of_its_seed(monkeypatch) -> None:
    config = SimpleNamespace(action_repeat=2, env_timeout=9)
    setups = [SimpleNamespace(task="metaworld/push", seed=s, config=config) for s in (3, 4)]
    asked: dict[str, list[EnvRequest]] = {"train": collect.train_requests(setups)}  # type: ignore
    monkeypatch.setattr(evaluate, "phases", lambda program: 1)
    monkeypatch.setattr(
        evaluate, "VectorEnv", lambda requests, *_, **__: asked.update(eval=requests)
    )
    program: Any = SimpleNamespace(
        setups=setups,
        config=config,
        agent=SimpleNamespace(plays=("agent",), value=None),
        player=lambda who, episodes: None,
        obs_size=27,
        action_size=4,
    )
    evaluate.Evaluator(program, 2, 0)
    assert [request.layout for request in asked["train"]] == [3, 4]
    assert [request.layout for request in asked["eval"]] == [3, 3, 4, 4]
    assert len({request.seed for request in asked["train"] + asked["eval"]}) == 6


def test_numbers_and_rewards_of_a_repeat() -> None:
    env = make("metaworld/pick-place", 0, action_repeat=2)
    kept = EpisodeNumbers([env.spec])
    goal = env.reset()[GOAL]
    inner = env.env.env  # type: ignore[attr-defined]
    for agent_step in range(50):
        put(inner, goal if agent_step in (10, 11, 12) else (0, 0.6, 0.02))
        result = env.step(REST)
        assert result.reward == pytest.approx(0.8 if agent_step in (10, 11, 12) else 0.0)
        kept.add(np.array([result.numbers], np.float32), np.ones(1, bool))
    assert result.truncated
    # Six env steps at the goal, but not the last one.
    assert kept.read(0) == {"success": 0.0, "success_5": 1.0}
    env.reset()
    assert env.step(REST).numbers == (0.0, 0.0)


def test_hindsight_keeps_the_grasp() -> None:
    goal = get_spec("metaworld/push").goal
    assert goal is not None
    env = make_env("push", seed=0)
    obs = env.reset()
    other = relabel(goal, obs, obs[slice(*goal.achieved)])
    np.testing.assert_array_equal(other[GOAL], obs[OBJECT])
    np.testing.assert_array_equal(other[24:27], 0)
    assert other[23] == 1
    assert goal.rule(np, other[slice(*goal.achieved)], other[slice(*goal.desired)]) == 0.4


def test_pictures_stand_upright() -> None:
    env = make_env("push", seed=0)
    env.reset()
    try:
        frame = env.render(64, 48)
    except EnvError:
        pytest.skip("no OpenGL here")
    assert frame.shape == (48, 64, 3) and frame.dtype == np.uint8 and frame.std() > 5
    hanging = ManipulationEnv.render(env, 64, 48)
    np.testing.assert_array_equal(frame, np.rot90(hanging, 2))
    env.close()


def test_without_the_simulator_the_error_says_what_to_type(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = "metaworld tasks need the package metaworld; install it with: pip install --no-deps"
    for call in (validate, get_spec.__wrapped__):
        with pytest.raises(TaskError, match=f"{line} metaworld==3.1.1"):
            call("metaworld/push")
    assert "dmc/humanoid-run" in task_names() and "metaworld/push" not in task_names()
