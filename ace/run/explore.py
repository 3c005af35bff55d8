"""What a run on the point mazes tells about exploration, recorded with every evaluation: the cells
that training and evaluation have visited, the model's error on data that no agent has chosen, and
how much the critics value each place (docs/maze.md). All of it is computed from the
replay and the evaluated agents, so a continued run writes the same files."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ace.engine.program import Program, RunState, Survey
from ace.envs.maze.grid import LAYOUTS, Grid, read_grid
from ace.envs.maze.navigator import make_test_set
from ace.replay import Replay
from ace.run import checkpoint
from ace.run.evaluate import Evaluator
from ace.run.record import CsvLog, read_csv

CSV, FOLDER = "exploration.csv", "exploration"
COLUMNS = ("lane", "seed", "task", "env_step", "train_coverage", "eval_coverage")
COLUMNS += ("model_error", "cumulative_error")
SPACING = 0.25  # of the map's places, in both directions
SPEEDS = 0.5, 2.0  # at each place: at rest, and with these speeds in 8 directions
SEGMENTS, TEST_SEED = 1600, 0  # of the offline test set: so many visit every cell


def layout_of(task: str) -> str | None:
    """The layout of a maze task; None for another task."""
    family, _, name = task.partition("/")
    return name if family == "maze" and name in LAYOUTS else None


def places(grid: Grid) -> np.ndarray:
    """The places [P, 2] of a maze's map, in every free cell at equal distances."""
    each = np.arange(SPACING / 2, 1, SPACING) - 0.5
    offsets = np.stack(np.meshgrid(each, each, indexing="ij"), -1).reshape(-1, 2)
    return (grid.centres[:, None] + offsets).reshape(-1, 2).astype(np.float32)


def velocities() -> np.ndarray:
    """The velocities [V, 2] over which a place's value is averaged."""
    angle = np.arange(8) * np.pi / 4
    around = np.stack([np.cos(angle), np.sin(angle)], -1)
    return np.concatenate([np.zeros((1, 2)), *(speed * around for speed in SPEEDS)])


def states_of(grid: Grid) -> np.ndarray:
    """The observations [V, P, 4] at a map's places, with every velocity."""
    at, moving = places(grid)[None], velocities()[:, None]
    shape = len(moving[:, 0]), len(at[0]), 2
    both = np.broadcast_to(at, shape), np.broadcast_to(moving, shape)
    return np.concatenate(both, -1).astype(np.float32)


def make_survey(program: Program, grids: Mapping[int, Grid]) -> Survey:
    """The states and segments that a program's agents are asked about, for the lanes in `grids`."""
    config, lanes = program.config, len(program.setups)
    horizon, repeat = program.agent.segment(config), config.action_repeat
    found = {lane: states_of(grid) for lane, grid in grids.items()}
    count = max(x.shape[1] for x in found.values())
    states = np.zeros((lanes, len(velocities()), count, program.obs_size), np.float32)
    obs = np.zeros((lanes, SEGMENTS, horizon + 1, program.obs_size), np.float32)
    action = np.zeros((lanes, SEGMENTS, horizon, program.action_size), np.float32)
    names = {grid.name for grid in grids.values()}
    tests = {name: make_test_set(name, SEGMENTS, horizon, TEST_SEED, repeat) for name in names}
    for lane, grid in grids.items():
        states[lane, :, : found[lane].shape[1], :4] = found[lane]
        obs[lane, ..., :4] = tests[grid.name]["obs"]
        action[lane, ..., :2] = tests[grid.name]["action"]
    return Survey(*jax.device_put((states, obs, action)))


def stored_path(
    obs: np.ndarray, final: np.ndarray, cursor: int, stored: int, now: int
) -> tuple[np.ndarray, np.ndarray]:
    """The observations [n, O] of one lane's replay from the oldest to the newest, and the agent
    step [n] after which each was made; `now` is that of the newest.

    After a simulator fault the steps of the dropped episode are missing, and older observations
    count as that much newer.
    """
    order = (cursor - np.arange(stored)[::-1]) % len(obs)
    # A slot with an action leads one step on; one with an episode's last observation does not.
    leads = ~final[order[:-1]]
    later = np.append(np.cumsum(leads[::-1])[::-1], 0)
    return obs[order], now - later


class Explorer:
    """Writes the instruments of exploration into a run folder, for the lanes that are mazes."""

    def __init__(self, folder: Path, program: Program, until: int):
        """Rows and files past the env step `until` are dropped: the run will write them again."""
        layouts = [layout_of(setup.task) for setup in program.setups]
        self.grids = {lane: read_grid(name) for lane, name in enumerate(layouts) if name}
        self.program, self.folder = program, folder / FOLDER
        self.folder.mkdir(exist_ok=True)
        for path in self.folder.glob("*.safetensors"):
            if path.stem.isdigit() and int(path.stem) > until:
                path.unlink()
        self._log = CsvLog(folder / CSV, COLUMNS, until)
        rows = read_csv(folder / CSV)
        self._before = max((row["env_step"] for row in rows), default=-1)
        self._error = {
            lane: sum((row["model_error"] for row in rows if row["lane"] == lane), 0.0)
            for lane in self.grids
        }

    @functools.cached_property
    def survey(self) -> Survey:
        """What the agents are asked with every evaluation."""
        return make_survey(self.program, self.grids)

    def record(self, evaluated: int, now: int, state: RunState, evaluator: Evaluator) -> None:
        """Record an evaluation of the agents of agent step `evaluated`; the replay holds the steps
        up to `now`, and those after `evaluated` do not count."""
        repeat, lanes = self.program.config.action_repeat, list(self.grids)
        env_step, before = evaluated * repeat, self._before / repeat
        values, errors = self.program.survey(evaluator.acting, self.survey)
        paths, seen = self._paths(state.replay, lanes, now), evaluator.seen
        arrays, rows = {}, []
        for lane, grid in self.grids.items():
            obs, steps = paths[lane]
            row = self._identity(lane, env_step)
            row["train_coverage"] = grid.coverage(obs[steps <= evaluated])
            row["eval_coverage"] = grid.coverage(seen[:, lane])
            if errors is not None:
                row["model_error"] = float(errors[lane])
                self._error[lane] += row["model_error"]
                row["cumulative_error"] = self._error[lane]
            rows.append(row)
            newest = (before < steps) & (steps <= evaluated)
            arrays[f"lane-{lane}.trace"] = obs[newest, :2]
            if values is not None:
                arrays[f"lane-{lane}.place"] = places(grid)
                arrays[f"lane-{lane}.value"] = values[lane, : len(places(grid))]
        checkpoint.write_arrays(self.folder / f"{env_step}.safetensors", arrays)
        for row in rows:
            self._log.write(row)
        self._before = env_step

    def _identity(self, lane: int, env_step: int) -> dict[str, Any]:
        setup = self.program.setups[lane]
        return {"lane": lane, "seed": setup.seed, "task": setup.task, "env_step": env_step}

    def _paths(
        self, store: Replay, lanes: list[int], now: int
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """`stored_path` of the lanes."""
        mine = np.array(lanes)
        # Copies on the device: the replay itself is given away with the next step.
        parts = jax.device_get([x[mine] for x in (store.obs, store.final)])
        cursor, stored = jax.device_get((store.cursor, store.stored))
        return {
            lane: stored_path(obs, final, int(cursor[lane]), int(stored[lane]), now)
            for lane, obs, final in zip(lanes, *parts, strict=True)
        }

    def close(self) -> None:
        """Close the file."""
        self._log.close()
