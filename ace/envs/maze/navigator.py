"""A hand-made navigator that drives the ball to goal after goal, and the offline test set that it
collects. The error of a learned model on such data, which no agent has chosen, tells how much of
the maze the model knows. The gains of the controller are those of D4RL's data collection."""

from collections import deque

import numpy as np

from ace.envs.maze.grid import Grid, read_grid
from ace.envs.maze.point import Ball

STIFFNESS, DAMPING = 10.0, 1.0  # action per metre of distance, and per metre/second of velocity
NEAR = 0.1  # a waypoint is reached within this distance
JITTER = 0.2  # waypoints lie at most this far from the centre of their cell, per axis


def shortest_path(grid: Grid, start: int, goal: int) -> list[int]:
    """The numbers of the cells from `start` to `goal`, both included, by breadth-first search."""
    # Searched from the goal, so that every cell found knows the next one on its way there.
    following = {goal: goal}
    queue = deque([goal])
    while start not in following:
        cell = queue.popleft()
        for near in neighbours(grid, cell):
            if near not in following:
                following[near] = cell
                queue.append(near)
    path = [start]
    while path[-1] != goal:
        path.append(following[path[-1]])
    return path


def neighbours(grid: Grid, cell: int) -> list[int]:
    """The numbers of the free cells above, below, left and right of a cell."""
    row, column = grid.cells[cell]
    around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
    # Walls are all around every maze, so these indices exist.
    return [int(grid.numbers[place]) for place in around if grid.numbers[place] >= 0]


class Navigator:
    """Drives to one goal cell after the other, in random order, each once before any again."""

    def __init__(self, grid: Grid, seed: int) -> None:
        self.goals_reached = 0
        self._grid = grid
        self._rng = np.random.default_rng(seed)
        self._goals: deque[int] = deque()
        self._waypoints: deque[np.ndarray] = deque()

    def act(self, state: np.ndarray) -> np.ndarray:
        """The action [2] at a state [4]: towards the next waypoint, slower when it is near."""
        position, velocity = state[:2], state[2:]
        if self._waypoints and np.linalg.norm(self._waypoints[0] - position) < NEAR:
            self._waypoints.popleft()
            self.goals_reached += not self._waypoints
        if not self._waypoints:
            self._plan(position)
        pull = self._waypoints[0] - position
        return np.clip(STIFFNESS * pull - DAMPING * velocity, -1.0, 1.0)

    def _plan(self, position: np.ndarray) -> None:
        if not self._goals:
            self._goals.extend(self._rng.permutation(self._grid.count).tolist())
        start = int(self._grid.cell_of(position))
        path = shortest_path(self._grid, start, self._goals.popleft())
        path = path[1:] or path  # the goal may be the cell that the ball is in
        around = self._rng.uniform(-JITTER, JITTER, (len(path), 2))
        self._waypoints.extend(self._grid.centres[path] + around)


def make_test_set(
    layout: str, segments: int, horizon: int, seed: int, action_repeat: int = 2
) -> dict[str, np.ndarray]:
    """Drive through a maze and cut the way into segments of `horizon` agent steps.

    Gives `obs` [segments, horizon + 1, 4] and `action` [segments, horizon, 2], both float32; each
    action is held for `action_repeat` env steps. A segment begins where the one before ended.
    """
    grid = read_grid(layout)
    ball, navigator = Ball(grid), Navigator(grid, seed)
    start = grid.centres[np.random.default_rng(seed).integers(grid.count)]
    ball.place(np.concatenate([start, np.zeros(2)]))
    obs, actions = [ball.state], []
    for _ in range(segments * horizon):
        # Rounded before it is applied, so that the stored action is the one that was taken.
        action = navigator.act(obs[-1]).astype(np.float32)
        for _ in range(action_repeat):
            ball.step(action)
        obs.append(ball.state)
        actions.append(action)
    begins = horizon * np.arange(segments)[:, None]
    return {
        "obs": np.array(obs, np.float32)[begins + np.arange(horizon + 1)],
        "action": np.array(actions, np.float32)[begins + np.arange(horizon)],
    }
