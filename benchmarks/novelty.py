"""What the novelty reward of a maze run is paid for at its last checkpoint, from its replay:

    python benchmarks/novelty.py RUN ... > novelty.csv

A row is one lane and one way to draw steps: evenly, or by priority as an update does. A step hits a
wall if its velocity changes by more than the motors can cause. `rare` are cells with less than 1 %
of all steps drawn evenly, `often` the others; novelty and value of each are means over its steps.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.engine.program import Program
from ace.engine.resources import replay_capacity
from ace.envs.maze.grid import Grid, read_grid
from ace.method import learner, model, targets
from ace.method.types import LearnerState
from ace.run.collect import Collector
from ace.run.explore import layout_of
from ace.run.request import open_run
from ace.run.resume import Keeper
from ace.settings.config import Config

FREE = 0.5  # change of a velocity in two env steps without a wall, at most
SEGMENTS, DRAWS = 1024, 4
MEASURES = (
    *("error", "error_median", "novelty", "hits", "hits_error", "hits_of_novelty"),
    *("rare", "rare_novelty", "rare_value", "often_novelty", "often_value"),
)


def draw(
    config: Config, state: LearnerState, store: replay.Replay, evenly: bool, seed: int
) -> dict[str, np.ndarray]:
    """Observation, next one, error, novelty and value of the steps of one batch."""
    if evenly:
        leaves = jnp.where(store.tree.sums[0] > 0, 1.0, 0.0)
        store = store._replace(tree=replay.build_tree(leaves))
    batch = replay.sample(store, config.replay, jax.random.key(seed), SEGMENTS, config.plan.horizon)
    obs, following, stored = batch.obs[:-1], batch.obs[1:], batch.mask > 0
    batch = batch._replace(obs=model.normalise(config, state.stats, batch.obs))
    params, target = model.cast(config, state.params), model.cast(config, state.target)
    latents = learner.Latents(model.encode(params, batch.obs), model.encode(target, batch.obs)[1:])
    error, _ = learner.one_step_error(config, params, latents, batch.action)
    moments = targets.merge_moments(state.moments, error, batch.mask, config.learn)
    z = latents.online[:-1]
    found = {
        "obs": obs,
        "following": following,
        "error": error,
        "novelty": targets.novelty_reward(error, batch.mask, moments, config.learn),
        "value": model.value(params, z, model.policy(params, z)).min(0),
    }
    return {name: np.asarray(x)[np.asarray(stored)] for name, x in found.items()}


def measure(steps: dict[str, np.ndarray], rare: np.ndarray, grid: Grid) -> dict[str, float]:
    """What the steps say; `rare` [cells] are the rare cells."""
    change = np.abs(steps["following"][:, 2:] - steps["obs"][:, 2:]).max(1)
    hits, seldom = change > 1.2 * FREE, rare[grid.cell_of(steps["obs"][:, :2])]
    error, novelty, value = steps["error"], steps["novelty"], steps["value"]
    found = (
        *(error.mean(), np.median(error), novelty.mean()),
        *(hits.mean(), error[hits].mean(), novelty[hits].sum() / novelty.sum()),
        *(seldom.mean(), novelty[seldom].mean(), value[seldom].mean()),
        *(novelty[~seldom].mean(), value[~seldom].mean()),
    )
    return dict(zip(MEASURES, map(float, found), strict=True))


def lanes(folder: Path) -> list[Any]:
    """Settings, learner and replay of every lane."""
    run = open_run(folder)
    program = Program(run.agent, run.setups)
    collector = Collector(program, 0, awake=False)
    found = Keeper(program, folder, replay_capacity(run.setups)).load(collector)
    collector.close()
    assert found, f"{folder} has no checkpoint"
    trees = found[0].trees()
    return [
        (setup, *jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), (trees.learner, trees.replay)))
        for i, setup in enumerate(run.setups)
    ]


def main(folders: list[Path]) -> None:
    """Print two rows for every lane of the runs."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("run", "seed", "drawn", *MEASURES))
    for folder in folders:
        for setup, state, store in lanes(folder):
            layout = layout_of(setup.task)
            assert layout and setup.config.action_repeat == 2, "FREE is for mazes, two steps"
            grid, rare = read_grid(layout), np.zeros(0)
            for how in ("evenly", "by priority"):
                drawn = [
                    draw(setup.config, state, store, how == "evenly", seed) for seed in range(DRAWS)
                ]
                steps = {name: np.concatenate([d[name] for d in drawn]) for name in drawn[0]}
                if how == "evenly":
                    cells = grid.cell_of(steps["obs"][:, :2])
                    rare = np.bincount(cells, minlength=grid.count) < 0.01 * len(cells)
                found = measure(steps, rare, grid)
                row = (f"{found[name]:.4g}" for name in MEASURES)
                writer.writerow((folder.name, setup.seed, how, *row))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
