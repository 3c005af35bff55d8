"""In which training episodes of a Meta-World run the object was moved, and brought to the goal, by
the observations in its replay:

    python benchmarks/touched.py RUN ... > touched.csv

"Moved" is the share of episodes in which the object was ever more than 1 cm from its start,
"reached" that with an observation closer to the goal than 5 cm, both of the last sixth.
"""

import csv
import sys
from pathlib import Path

import numpy as np

from ace.envs import get_spec
from ace.run.checkpoint import read_arrays
from ace.run.request import open_run

LIMIT = 2**33  # bytes of a file


def episodes(folder: Path, lane: int, steps: int) -> np.ndarray:
    """The observations [N, steps + 1, O] of a lane's finished training episodes."""
    found = []
    for path in sorted((folder / "checkpoints/replay").glob("*.safetensors")):
        rows = read_arrays(path, LIMIT)
        end = rows["count"][: lane + 1].sum()
        found.append(rows["obs"][end - rows["count"][lane] : end])
    obs = np.concatenate(found)
    whole = len(obs) // (steps + 1)
    return obs[: whole * (steps + 1)].reshape(whole, steps + 1, -1)


def main(folders: list[Path]) -> None:
    """Print a row for every lane of the runs."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("run", "lane", "task", "seed", "episodes", "moved", "reached"))
    for folder in folders:
        for lane, setup in enumerate(open_run(folder).setups):
            # Its dense twin has the same observation, and declares no goal.
            goal = get_spec(setup.task.removesuffix("-dense")).goal
            steps = get_spec(setup.task).max_episode_steps
            assert goal and steps, f"{setup.task} has no goal"
            obs = episodes(folder, lane, steps // setup.config.action_repeat)
            place, wanted = (obs[..., at : at + 3] for at in (goal.achieved[0], goal.desired[0]))
            moved = np.linalg.norm(place - place[:, :1], axis=-1).max(1) > 0.01
            reached = np.linalg.norm(place - wanted, axis=-1).min(1) < 0.05
            last = slice(-(len(obs) // 6), None)
            shares = (f"{x[last].mean():.2f}" for x in (moved, reached))
            writer.writerow((folder.name, lane, setup.task, setup.seed, len(obs), *shares))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
