"""From which starts finger-turn_hard is won in training: by how far the spinner must be turned.

    python benchmarks/finger.py runs/RUN/train.csv

A training episode is won if it returns more than 100. Starts are made again from the lanes' seeds,
so the run must have had no simulator faults, which change an episode's number.
"""

import argparse
import csv
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from ace.envs import make
from ace.settings import keys

TASK, EPISODE = "dmc/finger-turn_hard", 1000  # env steps
ANGLES = (0.0, 0.5, 1.0, 1.5, 2.1, np.pi)


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path, help="train.csv of a run")
    parser.add_argument("--every", type=int, default=50, help="episodes in each row of the table")
    args = parser.parse_args()
    won = defaultdict(list)  # (rows of the table, part of ANGLES) -> whether each episode was won
    angles: dict[tuple[int, int], float] = {}
    with open(args.train, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == TASK]
    for row in rows:
        seed, episode = int(row["seed"]), int(row["env_step"]) // EPISODE - 1
        if (seed, episode) not in angles:
            angles[seed, episode] = angle(seed, episode)
        part = np.searchsorted(ANGLES, angles[seed, episode], side="right") - 1
        won[episode // args.every, min(part, len(ANGLES) - 2)].append(float(row["return"]) > 100)
    bounds = [f"{a:.1f} to {b:.1f}" for a, b in pairwise(ANGLES)]
    print(f"{'episodes':>12}", *(f"{text + ' rad':>18}" for text in bounds))
    for block in sorted({block for block, _ in won}):
        found = [won[block, part] for part in range(len(bounds))]
        cells = [f"{np.mean(x):.2f} of {len(x)}" if x else "-" for x in found]
        name = f"{block * args.every} to {(block + 1) * args.every - 1}"
        print(f"{name:>12}", *(f"{text:>18}" for text in cells))


def angle(seed: int, episode: int) -> float:
    """By how much the spinner must be turned at the start of a training episode."""
    entropy = np.random.SeedSequence([keys.host_seed(seed, "env"), episode])
    obs = START.reset(int(entropy.generate_state(1)[0]))
    # The spinner's tip and the target, both as seen from the hinge.
    tip, target = np.arctan2(obs[3], obs[2]), np.arctan2(obs[10], obs[9])
    return float(abs(np.angle(np.exp(1j * (target - tip)))))


START = make(TASK, 0, 1)

if __name__ == "__main__":
    main()
