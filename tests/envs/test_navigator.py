"""The navigator finds shortest ways and reaches its goals; its test set can be simulated again."""

import itertools

import numpy as np
import pytest

from ace.envs.maze.grid import LAYOUTS, read_grid
from ace.envs.maze.navigator import Navigator, make_test_set, shortest_path
from ace.envs.maze.point import Ball


@pytest.mark.parametrize("name", LAYOUTS)
def test_paths_are_shortest(name: str) -> None:
    """Lengths by powers of the adjacency matrix: d is the first power that joins two cells."""
    grid = read_grid(name)
    apart = np.abs(grid.cells[:, None] - grid.cells[None]).sum(axis=-1)
    joined = np.eye(grid.count, dtype=bool)
    distance = np.full(apart.shape, -1)
    for length in range(grid.count):
        distance[joined & (distance < 0)] = length
        joined = joined @ (apart <= 1)
    assert (distance >= 0).all()  # no cell is cut off
    for start, goal in itertools.product(range(0, grid.count, 3), range(grid.count)):
        path = shortest_path(grid, start, goal)
        assert (path[0], path[-1], len(path)) == (start, goal, distance[start, goal] + 1)
        assert all(apart[a, b] == 1 for a, b in itertools.pairwise(path))


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_reaches_every_goal(name: str) -> None:
    grid = read_grid(name)
    ball, navigator = Ball(grid), Navigator(grid, seed=1)
    ball.place(np.array([*grid.centres[0], 0.0, 0.0]))
    seen, arrivals = [ball.state], [0]
    for step in range(1, 8000):
        action = navigator.act(ball.state)
        assert np.abs(action).max() <= 1
        for _ in range(2):
            seen.append(ball.step(action))
        if navigator.goals_reached == len(arrivals):
            arrivals.append(step)
    # At the mean speed of about 2 m/s a cell takes 25 steps of 20 ms; no way is 30 cells long.
    assert np.diff(arrivals).max() < 30 * 25 and arrivals[-1] > 8000 - 30 * 25
    # Each round of goals is every free cell once.
    assert len(arrivals) > grid.count and grid.coverage(np.array(seen)) == 1


def test_the_set_can_be_simulated_again() -> None:
    made = make_test_set("medium", segments=60, horizon=5, seed=0, action_repeat=2)
    obs, action = made["obs"], made["action"]
    assert obs.shape == (60, 6, 4) and action.shape == (60, 5, 2)
    assert obs.dtype == action.dtype == np.float32 and np.abs(action).max() <= 1
    ball, again = Ball(read_grid("medium")), np.zeros_like(obs)
    for segment in range(60):
        ball.place(obs[segment, 0])
        again[segment, 0] = ball.state
        for step in range(5):
            for _ in range(2):
                ball.step(action[segment, step])
            again[segment, step + 1] = ball.state
    np.testing.assert_allclose(again, obs, atol=2e-5)
    assert np.abs(np.diff(obs[..., :2], axis=1)).max() > 0.05  # it moves


def test_segments_join_and_longer_sets_begin_alike() -> None:
    made = make_test_set("large", 20, 6, seed=3)
    np.testing.assert_array_equal(made["obs"][1:, 0], made["obs"][:-1, -1])
    longer = make_test_set("large", 30, 6, seed=3)
    np.testing.assert_array_equal(longer["obs"][:20], made["obs"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_set_covers_the_maze(name: str) -> None:
    made = make_test_set(name, 1600, 6, seed=0)
    grid = read_grid(name)
    assert grid.coverage(made["obs"]) == 1 and (grid.cell_of(made["obs"]) >= 0).all()


def test_a_seed_names_a_set() -> None:
    first, again = (make_test_set("umaze", 30, 6, seed=7) for _ in range(2))
    other = make_test_set("umaze", 30, 6, seed=8)
    for name in ("obs", "action"):
        assert first[name].tobytes() == again[name].tobytes() != other[name].tobytes()
    once = make_test_set("umaze", 30, 6, seed=7, action_repeat=1)
    np.testing.assert_array_equal(once["action"][0, 0], first["action"][0, 0])
    assert (once["obs"][0, 1] != first["obs"][0, 1]).any()
