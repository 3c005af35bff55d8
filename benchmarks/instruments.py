"""Means of a run's instruments, one row for each lane, as `results/*/instruments.csv` has them.

    python benchmarks/instruments.py runs/bench/SUITE/PROGRAM/run --after 20000 > instruments.csv

`no_policy_gradient` is the share of rows of `train.csv` whose `policy_grad_norm` is exactly 0,
`longest_without` the most env steps of such rows in succession. docs/metrics.md explains the rest.
"""

import argparse
import csv
import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path

MEANS = ("saturated", "capped", "clipped", "policy_clipped", "latent_gap", "value_loss", "novelty")


def main() -> None:
    """Read the command line and print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--after", type=int, default=20_000, help="env step; later rows count")
    args = parser.parse_args()
    about = json.loads((args.run / "config.json").read_text())
    lanes = defaultdict(list)
    with open(args.run / "train.csv", newline="") as file:
        for row in csv.DictReader(file):
            if int(row["env_step"]) > args.after:
                lanes[int(row["lane"])].append(row)
    rows = sorted(
        (
            {
                "task": about["lanes"][lane]["task"],
                "agent": about["lanes"][lane]["label"] or about["agent"],
                "seed": about["lanes"][lane]["seed"],
                **summary(found),
            }
            for lane, found in lanes.items()
        ),
        key=lambda row: (row["task"], row["agent"], row["seed"]),
    )
    if not rows:
        sys.exit(f"{args.run / 'train.csv'} has no row after env step {args.after}")
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def summary(rows: list[dict[str, str]]) -> dict[str, str]:
    """What the rows of one lane come to."""
    none = [float(row["policy_grad_norm"]) == 0 for row in rows]
    longest = max((len(list(run)) for gone, run in itertools.groupby(none) if gone), default=0)
    between = int(rows[1]["env_step"]) - int(rows[0]["env_step"]) if len(rows) > 1 else 0
    means = {name: sum(float(row[name]) for row in rows) / len(rows) for name in MEANS}
    means["no_policy_gradient"] = sum(none) / len(none)
    shown = {name: f"{value:.4g}" for name, value in means.items()}
    return {"rows": str(len(rows)), **shown, "longest_without": str(longest * between)}


if __name__ == "__main__":
    main()
