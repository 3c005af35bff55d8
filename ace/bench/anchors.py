"""Published per-seed results of other methods on the DeepMind Control Suite, to hold ours against.

The files, their sources and their traps are described in `data/README.md`. Tasks have this
project's names, as in "dmc/finger-turn_hard". Seeds are strings, since not all are numbers.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parent / "data"
FINAL = DATA / "dmc15_500k.csv"
CURVES = DATA / "learning_curves.csv"

FinalScores = dict[str, dict[str, dict[str, float]]]
Curves = dict[str, dict[str, dict[str, list[tuple[int, float]]]]]

MEAN = "mean"  # stands for the seed where only the mean over seeds was published
_RENAMED = {"finger-turn-hard": "finger-turn_hard"}
# Their humanoid runs with seed "...#2" are runs 0 to 4000 once more, in reverse order.
_LISTED_TWICE = {"SimBaV2 (UTD1)", "SimBaV2 (UTD4)", "SimBaV2 (UTD8)"}


def final_scores(*, means: bool = False) -> FinalScores:
    """Return after about 500k env steps: method -> task -> seed -> score.

    Methods of which only the mean over seeds is public are left out, because a mean is no run: an
    IQM or an interval of means is not comparable with one of runs. With `means` they are there,
    with the seed "mean".
    """
    scores: FinalScores = {}
    for row in _rows(FINAL, means):
        tasks = scores.setdefault(row["method"], {})
        tasks.setdefault(row["task"], {})[row["seed"]] = float(row["return"])
    return scores


def curves(method: str | None = None, *, means: bool = False) -> Curves:
    """Learning curves: method -> task -> seed -> [(env_step, return)], in order of env steps.

    `method` selects one. Grids of env steps differ between methods, and some runs have gaps.
    """
    found: Curves = {}
    for row in _rows(CURVES, means):
        tasks = found.setdefault(row["method"], {})
        if method in (None, row["method"]):
            seeds = tasks.setdefault(row["task"], {})
            point = (int(row["env_steps"]), float(row["return"]))
            seeds.setdefault(row["seed"], []).append(point)
    if method is None:
        return found
    if method not in found:
        hint = "" if means else "; those with means alone need means=True"
        raise ValueError(f"no curves of {method!r}; there are {', '.join(sorted(found))}{hint}")
    return {method: found[method]}


def sources() -> dict[str, str]:
    """Method -> the repository and file that its numbers come from, those of means included."""
    return {row["method"]: row["source"] for row in _rows(FINAL, means=True)}


def _rows(path: Path, means: bool) -> Iterator[dict[str, str]]:
    """Rows of a file with this project's task names, without runs that are listed twice."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["seed"] == MEAN and not means:
                continue
            if row["method"] in _LISTED_TWICE and row["seed"].endswith("#2"):
                continue
            row["task"] = f"dmc/{_RENAMED.get(row['task'], row['task'])}"
            yield row
