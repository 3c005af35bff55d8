"""The probes give the rewards and ends that their known values rest on."""

import numpy as np
import pytest

from ace.envs import StepResult, get_spec, make
from ace.envs.probe import PROBES


def episode(task: str, action: float, seed: int = 0) -> tuple[np.ndarray, list[StepResult]]:
    """Play one episode with a constant action."""
    env = make(task, seed)
    first = env.reset()
    results: list[StepResult] = []
    while not results or not (results[-1].terminated or results[-1].truncated):
        results.append(env.step(np.full(env.spec.action_size, action, np.float32)))
    return first, results


@pytest.mark.parametrize("name", PROBES)
def test_spec_tells_the_truth(name: str) -> None:
    spec = get_spec(f"probe/{name}")
    first, results = episode(f"probe/{name}", 0.0)
    assert first.shape == (spec.obs_size,)
    assert first.dtype == np.float32
    assert spec.max_episode_steps is not None
    assert len(results) <= spec.max_episode_steps
    assert not spec.fixed_length or len(results) == spec.max_episode_steps


def test_constant() -> None:
    first, results = episode("probe/constant", 0.3)
    assert first == [0]
    assert results[0][1:4] == (1.0, True, False)


@pytest.mark.parametrize("seed", range(4))
def test_observation(seed: int) -> None:
    first, results = episode("probe/observation", 0.3, seed)
    assert abs(first[0]) == 1
    assert results[0][1:4] == (first[0], True, False)


def test_discount() -> None:
    first, results = episode("probe/discount", 0.3)
    assert [first[0], results[0].obs[0]] == [0, 1]
    assert [r[1:4] for r in results] == [(0.0, False, False), (1.0, True, False)]


def test_action() -> None:
    assert episode("probe/action", 0.5)[1][0][1:4] == (1.0, True, False)
    assert episode("probe/action", -0.5)[1][0].reward == 0.0


def test_action_observation() -> None:
    first, results = episode("probe/action_observation", 0.5)
    assert results[0].reward == (1.0 if first[0] > 0 else 0.0)


def test_truncation() -> None:
    _, results = episode("probe/truncation", 0.3)
    assert [r[1:4] for r in results] == [(1.0, False, False)] * 4 + [(1.0, False, True)]


def test_point_rewards_control() -> None:
    env = make("probe/point", seed=0)
    obs = env.reset()
    rewards = []
    for _ in range(50):
        action = np.clip(-4 * obs[:1] - 4 * obs[1:], -1, 1)
        result = env.step(action)
        obs = result.obs
        rewards.append(result.reward)
    assert result.truncated
    assert sum(rewards) > 35
    assert sum(rewards) > 2 * sum(r.reward for r in episode("probe/point", 1.0)[1])


def test_long_names_episodes_and_mixes_ends() -> None:
    env = make("probe/long", seed=0)
    lengths, terminations, names = [], 0, set()
    for _ in range(120):
        number = env.reset()[0]
        names.add(float(number))
        steps = 0
        while True:
            steps += 1
            result = env.step(np.zeros(2, np.float32))
            np.testing.assert_array_equal(result.obs, [number, steps])
            if result.terminated or result.truncated:
                break
        lengths.append(steps)
        terminations += result.terminated
    assert len(names) == 120
    assert set(lengths) == set(range(1, 13))
    assert 40 < terminations < 80


@pytest.mark.parametrize("name", ["observation", "point", "long"])
def test_seeds_decide_the_episodes(name: str) -> None:
    def play(seed: int) -> np.ndarray:
        env = make(f"probe/{name}", seed)
        starts = []
        for _ in range(8):
            obs = env.reset()
            result = env.step(np.zeros(env.spec.action_size, np.float32))
            starts.append([*obs, result.reward])
        return np.array(starts)

    np.testing.assert_array_equal(play(1), play(1))
    assert not np.array_equal(play(1), play(2))


def test_picture() -> None:
    env = make("probe/point", seed=0)
    env.reset()
    frame = env.render(64, 48)
    assert frame.shape == (48, 64, 3)
    assert frame.dtype == np.uint8
