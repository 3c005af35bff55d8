"""Draws curves.png in this folder: our learning curves, the paper's, and public ones."""

import re
from pathlib import Path

from ace.run.record import read_csv
from ace.tools.plots import comparison

FOLDER = Path(__file__).parent
TASKS = ("acrobot-swingup", "hopper-hop", "quadruped-run")


def main() -> None:
    """Read the CSV files beside this script and write the figure."""
    ours = {path.stem: read_csv(path) for path in sorted((FOLDER / "ace" / "dmc").glob("*.csv"))}
    tasks = list(dict.fromkeys([*TASKS, *ours]))
    paper: dict[str, dict[int, float]] = {task: {} for task in tasks}
    for row in read_csv(FOLDER / "paper.csv"):
        if row["method"] == "ACE" and row["task"] in paper:
            paper[row["task"]][row["env_step"]] = row["return"]
    public = read_csv(FOLDER / "public.csv")
    for row in public:
        # The README tells which variant; the figure has room for the name only.
        row["method"] = re.sub(r" (UTD|\().*", "", row["method"])
    comparison({task: ours.get(task, []) for task in tasks}, paper, public, FOLDER / "curves.png")


if __name__ == "__main__":
    main()
