"""Training episodes of runs, as means over the lanes of a task, which share their starts if they
have one seed: `results/refine/episodes.csv`.

    python benchmarks/episodes.py runs/bench/SUITE/*/run/train.csv > episodes.csv

On standard error: for each task, the mean of the last episodes, the deviation between their means,
which starts make, and what that is for a mean of ten starts.
"""

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

COLUMNS = ("return", "q", "saturated")


def main() -> None:
    """Read the command line and print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path, nargs="+", help="train.csv of runs")
    parser.add_argument("--last", type=int, default=60, help="episodes that are summed up")
    args = parser.parse_args()
    found = defaultdict(list)  # (task, env step) -> rows of its lanes
    for path in args.train:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                numbers = [float(row[name] or "nan") for name in COLUMNS]
                found[row["task"], int(row["env_step"])].append(numbers)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("task", "env_step", *COLUMNS))
    means = defaultdict(list)
    for (task, env_step), rows in sorted(found.items()):
        mean = np.mean(rows, 0)
        means[task].append(mean[0])
        writer.writerow((task, env_step, *(f"{x:.4g}" for x in mean)))
    for task, returns in means.items():
        spread = np.std(returns[-args.last :])
        told = f"mean {np.mean(returns[-args.last :]):.0f}, starts {spread:.0f}"
        print(f"{task}: {told}, ten starts {spread / 10**0.5:.0f}", file=sys.stderr)


if __name__ == "__main__":
    main()
