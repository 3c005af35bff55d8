"""Other people's numbers in the form of a report's: per-seed curves of public methods, and the
values of the paper, which are means without seeds."""

import csv
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ace.bench import anchors
from ace.bench.results import Series
from ace.bench.scores import Entry, Task

DATA = Path(__file__).parent / "data"
PAPER_SOURCE = "the paper's learning-curve figure, digitised to about +-3 return; means of 5 seeds"
TABLE_SOURCE = "the paper's table of DMC15-500k results; 5 seeds per task"
# Shown from the start; the others can be switched on in the page.
SHOWN = ("TD-MPC2", "TD-MPC", "SR-SAC (UTD128)", "SAC (pytorch_sac)", "ACE (paper)")
PAPER_STEP = 500_000
PAPER_TASKS = frozenset(
    f"dmc/{name}"
    for name in (
        *("acrobot-swingup", "cheetah-run", "finger-turn_hard", "fish-swim", "hopper-hop"),
        *("hopper-stand", "humanoid-run", "humanoid-stand", "humanoid-walk", "pendulum-swingup"),
        *("quadruped-run", "quadruped-walk", "reacher-hard", "swimmer-swimmer6", "walker-run"),
    )
)
Points = dict[str, dict[int, float]]  # task -> env step -> mean return


def entries(tasks: Sequence[Task], taken: Collection[str]) -> list[Entry]:
    """The public methods that have one of the tasks, with a name that is not `taken`."""
    wanted = [task.name for task in tasks if task.column == "return"]
    sources = anchors.sources()
    known = anchors.curves()
    if PAPER_STEP in {task.env_step for task in tasks}:
        known = {**_points(), **known}
    found = []
    for method, curves in known.items():
        mine = {
            task: {seed: _series(points) for seed, points in curves[task].items()}
            for task in wanted
            if task in curves
        }
        if mine:
            name = f"{method} (public)" if method in taken else method
            found.append(Entry(name, "public", sources.get(method, ""), mine))
    # Those that are shown come first, so that they get the colours that differ most.
    return sorted(found, key=lambda e: SHOWN.index(e.name) if e.name in SHOWN else len(SHOWN))


def _points() -> anchors.Curves:
    """The scores of methods without curves, as curves of one point: each run's evaluation nearest
    to 500k env steps."""
    return {
        method: {
            task: {seed: [(PAPER_STEP, score)] for seed, score in seeds.items()}
            for task, seeds in tasks.items()
        }
        for method, tasks in anchors.final_scores().items()
    }


def _series(points: Sequence[tuple[int, float]]) -> Series:
    steps, returns = zip(*points, strict=True)
    return Series(np.array(steps), {"return": np.array(returns, float)}, None)


def paper(tasks: Sequence[Task]) -> dict[str, Points]:
    """The paper's learning curves of these tasks, by a name that says so."""
    wanted = {task.name for task in tasks if task.column == "return"}
    found: dict[str, Points] = {}
    for row in _rows("paper.csv"):
        if row["task"] in wanted:
            points = found.setdefault(f"{row['method']} (paper)", {}).setdefault(row["task"], {})
            points[int(row["env_step"])] = float(row["return"])
    return found


def scores(points: Points, tasks: Sequence[Task]) -> dict[str, Any]:
    """The paper's values at the env steps of the tasks, where it has them."""
    found = {}
    for task in tasks:
        value = points.get(task.name, {}).get(task.env_step or -1)
        if value is not None:
            only = {"value": value, "low": None, "high": None, "runs": []}
            about = {"env_step": task.env_step, "column": "return", "seeds": [], "missing": []}
            found[task.name] = about | {"window": [], "programs": [], "last": only, "last3": None}
    return found


def curves(points: Points) -> dict[str, Any]:
    """The paper's curves as a report has them: a mean, no seeds, no wall-clock."""
    found = {}
    for task, curve in points.items():
        line = {"env_step": sorted(curve), "value": [curve[step] for step in sorted(curve)]}
        found[task] = {"last": line | {"count": None, "thinned": False}}
    return found


def aggregates(tasks: Sequence[Task], curves: Mapping[str, Points]) -> dict[str, Any]:
    """The paper's table, if the report is on its tasks and its budget, else nothing."""
    found: dict[str, Any] = {name: {"of": 0, "last": None, "last3": None} for name in curves}
    at = {task.name: task.env_step for task in tasks if task.scale}
    if set(at) != PAPER_TASKS or set(at.values()) != {PAPER_STEP}:
        return found
    for row in _rows("paper_aggregates.csv"):
        about = found.setdefault(f"{row['method']} (paper)", {"last3": None})
        about |= {"of": len(at), "last": about.get("last") or {"tasks": len(at), "runs": 75}}
        ends = {key: float(row[key]) for key in ("value", "low", "high")}
        about["last"][row["statistic"]] = ends
    return found


def about(curves: Mapping[str, Points], table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the page says of the paper's methods."""
    return [
        {
            "name": name,
            "kind": "paper",
            "source": PAPER_SOURCE if name in curves else TABLE_SOURCE,
            "shown": name in SHOWN,
            "tasks": len(curves.get(name, {})),
            "programs": [],
            "unknown": False,
        }
        for name in dict.fromkeys([*curves, *table])
    ]


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
