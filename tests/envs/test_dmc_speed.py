"""The cheaper parts of dm_control against the originals: equal to the last bit."""

import importlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ace.envs.dmc.suite import DmcEnv, load_suite

SUITE: Any = load_suite()  # first: otherwise dm_control would look for OpenGL
dmc_speed: Any = importlib.import_module("ace.envs.dmc.speed")

# Every way to index, to reward and to integrate: acrobot has RK4, cartpole and lqr models made in
# Python, escape a terrain made at reset.
TASKS = [
    "acrobot-swingup",
    "ball_in_cup-catch",
    "cartpole-swingup_sparse",
    "cheetah-run",
    "dog-run",
    "finger-turn_hard",
    "fish-swim",
    "hopper-hop",
    "humanoid-run",
    "humanoid_CMU-run",
    "lqr-lqr_6_2",
    "manipulator-bring_ball",
    "pendulum-swingup",
    "point_mass-hard",
    "quadruped-escape",
    "quadruped-fetch",
    "quadruped-run",
    "reacher-hard",
    "stacker-stack_2",
    "swimmer-swimmer6",
    "walker-run",
]
INDEX, ENGINE, REWARDS = dmc_speed.index, dmc_speed.engine, dmc_speed.rewards
QUADRUPED = dmc_speed.quadruped
FieldIndexer: Any = dmc_speed.Indexer.__base__


@contextmanager
def originals() -> Iterator[None]:
    """The suite as it comes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(INDEX, "FieldIndexer", FieldIndexer)
        patch.setattr(ENGINE.Physics, "step", dmc_speed._step)
        patch.setattr(REWARDS, "tolerance", dmc_speed._tolerance)
        patch.setattr(QUADRUPED, "_find_non_contacting_height", dmc_speed._find_height)
        yield


@pytest.mark.parametrize("name", TASKS)
def test_trajectory_equals_that_of_the_suite(name: str) -> None:
    env, rng = DmcEnv(name, seed=3), np.random.default_rng(0)
    assert type(env._physics.named.data.qpos) is dmc_speed.Indexer
    assert env._physics.legacy_step
    actions = rng.uniform(-1, 1, (2, 6, env.spec.action_size)).astype(np.float32)
    ours = []
    for episode in actions:
        ours.append((env.reset(), 0.0))
        ours += [env.step_repeat(action, 4)[:2] for action in episode]
    with originals():
        reference = SUITE.load(*name.split("-", 1), task_kwargs={"random": 3})
        assert type(reference.physics.named.data.qpos) is FieldIndexer
        reference.physics._make_rendering_contexts = lambda: None
        theirs = []
        for episode in actions:
            theirs.append((env._flatten(reference.reset().observation), 0.0))
            for action in episode:
                steps = [reference.step(env._control(action)) for _ in range(4)]
                reward = sum((step.reward for step in steps), 0.0)
                theirs.append((env._flatten(steps[-1].observation), reward))
    for (obs, reward), (right_obs, right_reward) in zip(ours, theirs, strict=True):
        assert np.array_equal(obs, right_obs)
        assert reward == right_reward


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("task", ["cheetah-run", "acrobot-swingup"])
def test_a_diverging_simulation_raises_what_it_did(task: str, legacy: bool) -> None:
    def diverge() -> tuple[str, list[int]]:
        physics = env._physics
        env.reset(0)
        physics.legacy_step = legacy
        physics.data.qvel[0] = np.nan
        with pytest.raises(Exception, match="Physics state is invalid") as error:
            env.step_repeat(np.zeros(env.spec.action_size, np.float32), 4)
        return repr(error.value), physics.data.warning.number.tolist()

    env = DmcEnv(task, seed=0)
    ours = diverge()
    with originals():
        assert ours == diverge()
    assert "PhysicsError" in ours[0]
    assert sum(ours[1]) > 0


def test_earlier_warnings_and_suppressed_ones_raise_nothing() -> None:
    env = DmcEnv("cheetah-run", seed=0)
    env.reset(0)
    env._physics._warnings[:] = 3
    env.step(np.zeros(6, np.float32))
    env._physics.data.qvel[0] = np.nan
    with env._physics.suppress_physics_errors():
        env.step(np.zeros(6, np.float32))


def test_indices_are_those_of_the_original() -> None:
    env = DmcEnv("quadruped-run", seed=0)
    env.reset(0)
    data = env._physics.named.data
    rows = ["torso", "toe_front_left"]
    keys = [
        (data.xpos, ["torso", rows, ("torso", "x"), ("torso", ["x", "z"]), (rows, ["x", "z"])]),
        (data.xpos, [1, True, 1.0, [1, 0], [True, False], np.array([1]), np.array(rows), []]),
        (data.xpos, [slice(2), (slice(2), "x"), ([rows], "x"), None, "", "nobody", ("x", "torso")]),
        (data.xmat, [("torso", "zz"), ["torso", "zz"], ("torso", 8), (["torso"],), ("torso",)]),
        (data.sensordata, ["imu_gyro", ["imu_gyro", "velocimeter"], "velocimeter", [0, 1]]),
        (data.act, [["lift_front_left"], "lift_front_left", [b"lift_front_left"]]),
    ]
    for field, wanted in keys:
        for key in wanted + wanted[::-1]:  # the second time from memory
            assert outcome(field.__getitem__, key) == outcome(plain(field).__getitem__, key), key


def test_a_list_that_changed_and_a_model_that_was_reloaded_are_read_anew() -> None:
    physics, names = DmcEnv("cheetah-run", seed=0)._physics, ["torso", "bfoot"]
    xpos = physics.named.data.xpos
    before = xpos[names]
    names.reverse()
    np.testing.assert_array_equal(xpos[names], before[::-1])
    other = DmcEnv("walker-run", seed=0)._physics
    physics._reload_from_model(other.model)
    np.testing.assert_array_equal(physics.named.data.xpos["torso"], other.named.data.xpos["torso"])
    with pytest.raises(KeyError):
        physics.named.data.xpos[names]


def test_tolerance_is_that_of_the_original() -> None:
    names = "gaussian hyperbolic long_tail reciprocal cosine linear quadratic tanh_squared"
    numbers = [-3.0, -0.1, 0.0, 1 / 3, 1.0, 1.7, 1e9, np.inf, -np.inf, np.nan]
    kinds = [float, np.float64, np.asarray, np.float32, np.atleast_1d]
    bounds = [(0.0, 0.0), (0, 1), (np.float64(0.2), np.inf), (np.array([0.1]), 2), (1, 0)]
    margins = [0, 1, 0.7, np.float64(1.3), np.float32(2), -1]
    sigmoids = [(name, 0.1) for name in names.split()] + [("linear", 0)]
    for kind, bound, margin, sigmoid in itertools.product(kinds, bounds, margins, sigmoids):
        for number in numbers:
            given = (kind(number), bound, margin, *sigmoid)
            with np.errstate(all="ignore"):
                ours = outcome(dmc_speed.tolerance, *given)
                assert ours == outcome(dmc_speed._tolerance, *given), given


@pytest.mark.parametrize("task", ["quadruped-run", "quadruped-escape"])
def test_an_episode_begins_at_the_height_it_did(task: str) -> None:
    physics, rng = DmcEnv(task, seed=0)._physics, np.random.default_rng(1)
    spec = int(dmc_speed.mujoco.mjtState.mjSTATE_INTEGRATION)  # all that later steps depend on

    def begin(find: Any, *where: Any) -> list[Any]:
        find(physics, *where)
        data = physics.data
        return [physics.get_state(spec), data.sensordata.copy(), data.qacc.copy(), data.ncon]

    heights = set()
    for _ in range(12):
        orientation = rng.standard_normal(4)
        where = orientation / np.linalg.norm(orientation), *rng.uniform(-2, 2, 2)
        ours, theirs = begin(dmc_speed.find_height, *where), begin(dmc_speed._find_height, *where)
        for mine, right in zip(ours, theirs, strict=True):
            assert np.array_equal(mine, right)
        heights.add(float(physics.named.data.qpos["root"][2]))
    assert len(heights) > 6


def test_a_body_that_always_touches_is_left_to_the_original(monkeypatch) -> None:
    physics, asked = DmcEnv("quadruped-run", seed=0)._physics, []
    monkeypatch.setattr(dmc_speed, "_find_height", lambda *where: asked.append(where))
    physics.model.geom_margin[:] = 1e3  # contacts begin at this distance
    dmc_speed.find_height(physics, np.array([1.0, 0, 0, 0]))
    assert len(asked) == 1


def plain(field: Any) -> Any:
    """The same field without memory."""
    found = FieldIndexer.__new__(FieldIndexer)
    for name in FieldIndexer.__slots__:
        setattr(found, name, getattr(field, name))
    return found


def outcome(function: Any, *given: Any) -> Any:
    """What comes out, with its type, or the error."""
    try:
        value = function(*given)
    except Exception as error:
        return repr(error)
    return type(value), np.shape(value), np.asarray(value).tobytes()
