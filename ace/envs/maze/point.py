"""The point mazes `maze/umaze`, `maze/medium` and `maze/large`: a ball is pushed through a maze and
never rewarded, which shows exploration alone. Ball, walls and motors have the constants of D4RL's
maze2d environments (github.com/Farama-Foundation/D4RL, pointmaze/maze_model.py); start and length
are those of the ACE paper: every episode begins in one cell and lasts 600 env steps."""

import importlib
from typing import Any

import numpy as np

from ace.envs.api import EnvSpec, Number, StepResult
from ace.envs.maze.grid import LAYOUTS, OFFSET, Grid, read_grid

# Imported as Any: the names of mujoco come from a compiled module without type stubs.
mujoco: Any = importlib.import_module("mujoco")

EPISODE = 600  # env steps of 10 ms
START = (1, 1)  # the free cell at the top left, in all three mazes
MAX_SPEED = 5.0  # per axis; the motors alone would not limit it
NOISE = 0.1  # at the start: half-width of the position, standard deviation of the velocity

# Contacts are frictionless (condim 1). Only walls and the ball collide. Velocities are clipped in
# `Ball.step`. Units are metres, seconds and kilograms; the ball weighs 4.2 kg.
MODEL = """
<mujoco model="{name}">
  <option timestep="0.01" gravity="0 0 0" integrator="Euler" iterations="20"/>
  <default>
    <joint type="slide" damping="1"/>
    <geom density="1000" margin="0.002" condim="1"/>
    <motor gear="100" ctrllimited="true" ctrlrange="-1 1"/>
  </default>
  <worldbody>
    <body name="ball" pos="1.2 1.2 0">
      <joint name="x" axis="1 0 0"/>
      <joint name="y" axis="0 1 0"/>
      <geom type="sphere" size="0.1" contype="1" conaffinity="0"/>
    </body>
    {walls}
  </worldbody>
  <actuator>
    <motor joint="x"/>
    <motor joint="y"/>
  </actuator>
</mujoco>
"""
WALL = '<geom type="box" size="0.5 0.5 0.2" pos="{x} {y} 0" contype="0" conaffinity="1"/>'


class Ball:
    """The simulated ball; its state is (x, y, velocity of x, velocity of y)."""

    def __init__(self, grid: Grid) -> None:
        cells = np.argwhere(grid.numbers < 0)
        # In the world the cell (row, column) is centred at (row + 1, column + 1).
        walls = "\n    ".join(WALL.format(x=row + 1, y=column + 1) for row, column in cells)
        text = MODEL.format(name=grid.name, walls=walls)
        self._model = mujoco.MjModel.from_xml_string(text)
        self._data = mujoco.MjData(self._model)

    @property
    def state(self) -> np.ndarray:
        """Position and velocity, float64 [4]."""
        return np.concatenate([self._data.qpos, self._data.qvel])

    def place(self, state: np.ndarray) -> None:
        """Put the ball into a state [4]; all that the simulator remembers is forgotten."""
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[:], self._data.qvel[:] = state[:2], state[2:]

    def step(self, action: np.ndarray) -> np.ndarray:
        """Push with an action [2] for 10 ms and give the new state, float64 [4]."""
        # The speed is limited before a step, as in D4RL, so one step may exceed it a little.
        np.clip(self._data.qvel, -MAX_SPEED, MAX_SPEED, out=self._data.qvel)
        self._data.ctrl[:] = action  # the motors clip it to [-1, 1]
        mujoco.mj_step(self._model, self._data)
        return self.state


class MazeEnv:
    """One maze. Observes (x, y, velocity of x, velocity of y); the reward is always 0."""

    def __init__(self, name: str, seed: int, start: tuple[int, int] = START) -> None:
        self.grid = read_grid(name)
        if not (np.array(start) == self.grid.cells).all(axis=1).any():
            raise ValueError(f"cell {start} of maze {name} is no free cell; choose another start")
        self.spec = EnvSpec(
            task=f"maze/{name}",
            obs_size=4,
            action_size=2,
            max_episode_steps=EPISODE,
            fixed_length=True,
            numbers=(Number("coverage"),),
        )
        self._ball = Ball(self.grid)
        self._start = start
        self._rng = np.random.default_rng(seed)
        self._visited = np.zeros(self.grid.count, bool)
        self._count = 0

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode in the start cell, with D4RL's noise of position and velocity."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        position = self._start + self._rng.uniform(-NOISE, NOISE, 2)
        self._ball.place(np.concatenate([position, NOISE * self._rng.normal(size=2)]))
        self._visited[:] = self.grid.visited(position)
        self._count = 0
        return self._ball.state.astype(np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        """Push the ball; `coverage` is the share of free cells that the episode has visited."""
        state = self._ball.step(action)
        self._visited |= self.grid.visited(state)
        self._count += 1
        coverage = float(self._visited.mean())
        return StepResult(state.astype(np.float32), 0.0, False, self._count >= EPISODE, (coverage,))

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw walls, free cells, visited cells and the ball from above, rows downwards."""
        size = np.array(self.grid.numbers.shape)
        scale = (size / (height, width)).max()  # cells per pixel, the same along both axes
        pixels = np.moveaxis(np.indices((height, width)), 0, -1) + 0.5
        place = (pixels - np.array([height, width]) / 2) * scale + size / 2  # 0 to size
        position = place - (OFFSET + 0.5)
        cell = self.grid.cell_of(position)
        free = np.where(self._visited[cell][..., None], (200, 220, 255), 255)
        frame = np.where((cell >= 0)[..., None], free, 90)
        ball = np.linalg.norm(position - self._ball.state[:2], axis=-1) < 0.2
        frame[ball] = (200, 30, 30)
        return frame.astype(np.uint8)

    def close(self) -> None:
        """Nothing to free."""


def make_env(name: str, seed: int, render: bool = False) -> MazeEnv:
    """Make the task `maze/name`."""
    del render  # a maze can always be drawn
    return MazeEnv(name, seed)


def task_names() -> list[str]:
    """List the mazes."""
    return [f"maze/{name}" for name in LAYOUTS]
