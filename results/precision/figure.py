"""Draws curves.png in this folder, bf16 against float32 with TF32 products, and prints a table."""

from pathlib import Path

import matplotlib.pyplot as plt

from ace.run.record import read_csv
from ace.tools.plots import align, bootstrap_interval

FOLDER = Path(__file__).parent
COLOURS = {"bf16": "#c0392b", "tf32": "#2c5f8a"}
STEPS = (100_000, 200_000)


def main() -> None:
    """Read both runs and write the figure."""
    runs = {name: read_csv(FOLDER / name / "eval.csv") for name in COLOURS}
    tasks = sorted({row["task"] for row in runs["bf16"]})
    figure, axes = plt.subplots(1, len(tasks), figsize=(10, 2.8), constrained_layout=True)
    for axis, task in zip(axes, tasks, strict=True):
        for name, rows in runs.items():
            steps, values = align([row for row in rows if row["task"] == task])
            low, high = bootstrap_interval(values)
            axis.plot(steps / 1e3, values.mean(0), color=COLOURS[name], label=name)
            axis.fill_between(steps / 1e3, low, high, color=COLOURS[name], alpha=0.18, linewidth=0)
            for step in STEPS:
                i = list(steps).index(step)
                seeds = ", ".join(f"{v:.0f}" for v in values[:, i])
                interval = f"({low[i]:.0f}, {high[i]:.0f})"
                print(f"{task} {name} {step}: {values[:, i].mean():.0f} {interval}  {seeds}")
        axis.set_title(task.removeprefix("dmc/"), fontsize=9)
        axis.set_xlabel("thousand environment steps", fontsize=8)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("return", fontsize=8)
    axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(FOLDER / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
