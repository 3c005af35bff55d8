"""The mazes: cells, the ball's physics by hand, coverage, and what the environment promises."""

import math

import numpy as np
import pytest

from ace.agents import AGENTS
from ace.envs import EnvRequest, EpisodeNumbers, VectorEnv, get_spec, make, notes, task_names
from ace.envs.maze.grid import LAYOUTS, read_grid
from ace.envs.maze.point import Ball, MazeEnv
from ace.settings.checks import validate
from ace.settings.presets import PRESETS, resolve

MASS = 1000 * 4 / 3 * math.pi * 0.1**3  # of the ball, in kg
# Free cells of each row, counted on D4RL's drawings.
FREE = {"umaze": (3, 1, 3), "medium": (4, 5, 3, 5, 4, 5), "large": (9, 5, 9, 3, 8, 4, 8)}


def push(ball: Ball, action: tuple[float, float], steps: int) -> np.ndarray:
    for _ in range(steps):
        ball.step(np.array(action))
    return ball.state


@pytest.mark.parametrize("name", LAYOUTS)
def test_free_cells(name: str) -> None:
    grid = read_grid(name)
    assert tuple((grid.numbers[1:-1] >= 0).sum(axis=1)) == FREE[name]
    assert grid.count == {"umaze": 7, "medium": 26, "large": 46}[name]
    border = (*grid.numbers[[0, -1]], *grid.numbers.T[[0, -1]])
    assert all((line < 0).all() for line in border)
    assert tuple(grid.cells[0]) == (1, 1)
    # The ball can go straight through: a centre of a cell is a centre of its number.
    np.testing.assert_array_equal(grid.cell_of(grid.centres), np.arange(grid.count))


def test_large_has_the_goal_cell_of_d4rl() -> None:
    """D4RL evaluates at row 7, column 9 of a grid of 9 x 12."""
    grid = read_grid("large")
    assert grid.numbers.shape == (9, 12) and (grid.cells == (7, 9)).all(axis=1).any()


def test_cells_are_those_between_the_walls() -> None:
    """B12: cell w reaches from w - 0.7 to w + 0.3, a shift of 0.3 from whole numbers."""
    grid = read_grid("large")
    ends = np.array([[0.3, 0.8], [0.31, 0.31], [1.29, 3.29], [1.31, 0.8], [1.29, 0.29]])
    np.testing.assert_array_equal(grid.cell_of(ends), [0, 0, 2, 9, -1])
    far = np.array([[-9.0, 1.0], [1.0, 99.0], [np.inf, 1.0]])
    assert (grid.cell_of(far) == -1).all() and grid.cell_of(far[0]) == -1
    assert grid.cell_of(np.zeros((2, 3, 4))).shape == (2, 3)


def test_coverage_is_a_union() -> None:
    grid = read_grid("umaze")
    first, second = grid.centres[[0, 1, 1]], grid.centres[[1, 6]]
    wall = np.zeros((1, 2))
    assert grid.visited(np.concatenate([first, wall])).tolist() == [1, 1, 0, 0, 0, 0, 0]
    assert grid.coverage(first) == pytest.approx(2 / 7)
    assert (grid.visited(first) | grid.visited(second)).mean() == pytest.approx(3 / 7)
    assert grid.coverage(wall) == 0 and grid.coverage(np.zeros((0, 4))) == 0


def test_the_ball_moves_by_the_equation_of_motion() -> None:
    """Force 100 per unit of action, damping 1, implicit in the velocity, steps of 10 ms."""
    ball, dt = Ball(read_grid("large")), 0.01
    ball.place(np.array([1.0, 1.0, 0.3, -0.2]))
    action = np.array([0.5, -0.25])
    x, v = np.array([1.0, 1.0]), np.array([0.3, -0.2])
    for _ in range(4):
        v = v + dt * (100 * action - v) / (MASS + dt)
        x = x + dt * v
        np.testing.assert_allclose(ball.step(action), [*x, *v], rtol=1e-9)
    same = ball.state
    np.testing.assert_array_equal(push(ball, (9.0, -9.0), 1), _pushed(same, (1.0, -1.0)))


def _pushed(state: np.ndarray, action: tuple[float, float]) -> np.ndarray:
    ball = Ball(read_grid("large"))
    ball.place(state)
    return push(ball, action, 1)


def test_the_speed_is_limited_before_a_step() -> None:
    ball = Ball(read_grid("large"))
    ball.place(np.array([1.0, 1.0, 0.0, 50.0]))
    gain = 0.01 * (100 - 5) / (MASS + 0.01)
    assert push(ball, (0.0, 1.0), 1)[3] == pytest.approx(5 + gain, rel=1e-6)
    free = Ball(read_grid("large"))  # down the left side: two cells and more without a wall
    free.place(np.array([0.6, 0.8, 0.0, 0.0]))
    speeds = [free.step(np.array([1.0, 0.0]))[2] for _ in range(60)]
    assert 5 < max(speeds) <= 5 + gain + 1e-9


@pytest.mark.parametrize(
    ("action", "axis", "stop"),
    # From the cell (1, 1) of large: walls begin half a cell from the centre 0.8, minus the radius.
    [((-1.0, 0.0), 0, 0.8 - 0.4), ((0.0, -1.0), 1, 0.8 - 0.4), ((0.0, 1.0), 1, 3.8 + 0.4)],
)
def test_walls_stop_the_ball(action: tuple[float, float], axis: int, stop: float) -> None:
    ball = Ball(read_grid("large"))
    ball.place(np.array([0.8, 0.8, 0.0, 0.0]))
    state = push(ball, action, 400)
    assert state[axis] == pytest.approx(stop, abs=0.02)
    assert abs(state[2 + axis]) < 0.05
    assert state[1 - axis] == pytest.approx(0.8, abs=1e-6)


def test_what_the_environment_promises() -> None:
    env = make("maze/large", 0, action_repeat=2)
    spec = env.spec
    assert (spec.obs_size, spec.action_size, spec.max_episode_steps) == (4, 2, 600)
    assert spec.fixed_length and not spec.assumed_limit and notes("maze/large") == []
    rng = np.random.default_rng(0)
    seen, ends = [env.reset(3)], []
    for _ in range(300):
        result = env.step(rng.uniform(-1, 1, 2).astype(np.float32))
        assert result.reward == 0 and not result.terminated and result.obs.dtype == np.float32
        seen.append(result.obs)
        ends.append(result.truncated)
    assert ends == [False] * 299 + [True]
    assert (read_grid("large").cell_of(np.array(seen)) >= 0).all()
    assert set(task_names()) >= {f"maze/{name}" for name in LAYOUTS}


def test_every_episode_begins_in_the_start_cell() -> None:
    env = MazeEnv("large", 0)
    starts = np.array([env.reset() for _ in range(200)])
    assert np.abs(starts[:, :2] - 1).max() <= 0.1 and (starts[:, :2].std(axis=0) > 0.04).all()
    assert 0.08 < starts[:, 2:].std() < 0.12
    np.testing.assert_array_equal(env.reset(5), MazeEnv("large", 1).reset(5))
    assert (env.reset(5) != env.reset(6)).all()
    other = MazeEnv("large", 0, start=(7, 9))
    assert other.grid.cell_of(other.reset()) == np.flatnonzero((env.grid.cells == (7, 9)).all(1))
    with pytest.raises(ValueError, match=r"\(2, 2\) of maze large is no free cell"):
        MazeEnv("large", 0, start=(2, 2))


def test_coverage_of_an_episode() -> None:
    """To the right in umaze: one, two, then all three cells of the first row; then anew."""
    env = MazeEnv("umaze", 0)
    for _ in range(2):
        env.reset(0)
        columns, shares = [], []
        for _ in range(150):
            result = env.step(np.array([0.0, 0.3], np.float32))
            columns.append(result.obs[1] + 0.2)
            shares.append(result.numbers[0])
        farthest = np.maximum.accumulate(np.round(columns))
        np.testing.assert_allclose(shares, farthest / 7)
        assert shares[0] == 1 / 7 and shares[-1] == 3 / 7


def test_coverage_is_a_number_of_an_episode() -> None:
    """Through a worker, with action repeat: the value at the end of each episode."""
    spec, request = get_spec("maze/umaze"), EnvRequest("maze/umaze", 0, 2, "lane 0")
    kept, finished = EpisodeNumbers([spec]), []
    with VectorEnv([request], 1, 4, 2, numbers=kept.width) as envs:
        envs.reset()
        for step in range(600):
            right = np.array([[0.0, 0.3 if step < 300 else -0.3]], np.float32)
            result = envs.step(right)
            kept.add(result.numbers, np.ones(1, bool))
            if result.truncated[0]:
                finished.append(kept.read(0)["coverage"])
                kept.reset([0])
    assert finished == pytest.approx([3 / 7, 1 / 7])


def test_the_picture() -> None:
    env = MazeEnv("umaze", 0)
    env.reset(0)
    frame = env.render(100, 100)  # 20 pixels per cell
    assert frame.shape == (100, 100, 3) and frame.dtype == np.uint8
    wall, free, visited = frame[10, 10], frame[30, 70], frame[22, 22]
    assert (wall == 90).all() and (free == 255).all() and tuple(visited) == (200, 220, 255)
    rows, columns = np.nonzero(frame[..., 0] - frame[..., 2].astype(int) == 170)
    # Row and column of the start, (1, 1) + 0.2, in cells of 20 pixels that begin at -0.5.
    assert abs(rows.mean() - 34) < 3 and abs(columns.mean() - 34) < 3
    assert env.render(320, 240).shape == (240, 320, 3)


@pytest.mark.parametrize("name", LAYOUTS)
def test_settings(name: str) -> None:
    """8.2 and 2.7 of docs/algorithm.md, in agent steps of two env steps."""
    task = f"maze/{name}"
    defaults = AGENTS["ace"].defaults_of(task)
    for preset in PRESETS:
        validate(resolve(preset, task, get_spec(task), defaults))
    c = resolve("default", task, get_spec(task), defaults)
    assert (c.action_repeat, c.plan.noise_beta, c.learn.td_lambda) == (2, 2.5, 0.2)
    assert (c.plan.horizon, c.plan.population, c.learn.novelty_weight) == (6, 256, 0.5)
    assert (c.env_steps, c.seed_steps * c.action_repeat, c.eval_every) == (120_000, 6_000, 6_000)
    assert c.plan.horizon_ramp.duration == c.plan.std_ramp.duration == 30_000
    assert c.learn.novelty_ramp.duration == 3_000 and c.learn.novelty_ramp.after_seed
    released = resolve("released", task, get_spec(task), defaults)
    assert (released.learn.td_lambda, released.learn.novelty_weight) == (0.0, 0.5)
    assert released.parity.bc_weight == 0.1
    assert resolve("paper", task, get_spec(task), defaults).seed_steps * 2 == 5 * 600
