"""Draws curves.png in this folder, bf16 against float32 with TF32 products, and prints a table."""

from pathlib import Path

from ace.run.record import read_csv
from ace.tools.plots import align, bootstrap_interval, curves

FOLDER = Path(__file__).parent
RUNS = {"bf16": "ace-bf16", "tf32": "ace-tf32"}
STEPS = (100_000, 200_000)


def main() -> None:
    """Read both runs, write the figure and print means, intervals and seeds."""
    runs = {
        name: [
            {"task": f"dmc/{path.stem}", **row}
            for path in sorted((FOLDER / agent / "dmc").glob("*.csv"))
            for row in read_csv(path)
        ]
        for name, agent in RUNS.items()
    }
    tasks = sorted({row["task"] for row in runs["bf16"]})
    curves(runs, FOLDER / "curves.png")
    for task in tasks:
        for name, rows in runs.items():
            steps, values = align([row for row in rows if row["task"] == task])
            low, high = bootstrap_interval(values)
            for step in STEPS:
                i = list(steps).index(step)
                seeds = ", ".join(f"{v:.0f}" for v in values[:, i])
                interval = f"({low[i]:.0f}, {high[i]:.0f})"
                print(f"{task} {name} {step}: {values[:, i].mean():.0f} {interval}  {seeds}")


if __name__ == "__main__":
    main()
