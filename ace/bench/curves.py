"""The curves of a report: scores and other columns as a function of env steps and of wall-clock,
for each task, scores also over all of them, and the env steps that a method needs to reach a
score."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ace.bench import stats
from ace.bench.results import COLUMNS, Series
from ace.bench.scores import LAST, SCORINGS, Entry, Seed, Table, Task, values, wall_time

LEVELS = (0.5, 0.75, 0.9)  # of the best score at the budget, for the env steps to reach it
MOST_POINTS = 250  # of a drawn curve; no screen shows more
# Wall-clock is an axis, and a figure curves-last3 is there already.
NOT_DRAWN = ("", "wall_time", *SCORINGS)
Numbers = dict[str, Any]
Curve = tuple[np.ndarray, np.ndarray]  # env steps [P], values [P]


def seed_curve(series: Series, column: str, scoring: str) -> Curve:
    """The score of one seed that every evaluated env step would have as a budget."""
    numbers = values(series, column)
    known = np.isfinite(numbers)
    steps, numbers = series.env_step[known], numbers[known]
    if scoring == "last":
        return steps, numbers
    if len(steps) < LAST:
        return steps[:0], numbers[:0]
    windows = np.lib.stride_tricks.sliding_window_view(numbers, LAST)
    return steps[LAST - 1 :], windows.mean(axis=-1)


def stacked(curves: Sequence[Curve]) -> Curve:
    """Env steps [P] that all curves share, and their values there [curves, P]."""
    if not curves:
        return np.empty(0, int), np.empty((0, 0))
    # One count instead of pairwise intersections: curves may have tens of thousands of points.
    found, counts = np.unique(np.concatenate([steps for steps, _ in curves]), return_counts=True)
    shared = found[counts == len(curves)].astype(int)
    rows = [numbers[np.searchsorted(steps, shared)] for steps, numbers in curves]
    return shared, np.stack(rows)


def counted(table: Table, entry: Entry, task: Task) -> dict[Seed, Series]:
    """The seeds that the task's score counts, or all if it has none: curves and scores agree."""
    score = table.scores[entry.name].get(task.name)
    seeds = entry.tasks.get(task.name, {})
    return {seed: seeds[seed] for seed in (score.seeds if score else seeds)}


def thin(count: int) -> np.ndarray:
    """Indices of the points of a curve with `count` points that are drawn: at most `MOST_POINTS`,
    evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int))


def clock(series: Sequence[Series], steps: np.ndarray) -> np.ndarray | None:
    """Mean wall-clock over seeds at each of the env steps, if it is known of all of them."""
    times = []
    for one in series:
        if (seconds := wall_time(one)) is None:
            return None
        times.append(seconds[np.searchsorted(one.env_step, steps)])
    return np.mean(times, axis=0) if times else None


def task_curves(table: Table, entry: Entry) -> Numbers:
    """Mean over seeds, interval and seeds at the env steps that all seeds share, by task."""
    found: Numbers = {}
    for task in table.tasks:
        seeds = counted(table, entry, task)
        for scoring in SCORINGS if seeds else ():
            curves = [seed_curve(series, task.column, scoring) for series in seeds.values()]
            steps, rows = stacked(curves)
            if not len(steps):
                continue
            shown = thin(len(steps))
            steps, rows = steps[shown], rows[:, shown]
            line = {"env_step": steps.tolist(), "count": len(rows), **_band(rows, table.samples)}
            line["thinned"] = len(shown) < max(len(at) for at, _ in curves)
            if entry.kind == "ours":
                line["seeds"] = {
                    str(seed): row for seed, row in zip(seeds, rows.tolist(), strict=True)
                }
            if (times := clock(list(seeds.values()), steps)) is not None:
                line["wall"] = times.tolist()
            found.setdefault(task.name, {})[scoring] = line
    return found


def column_names(entries: Sequence[Entry]) -> list[str]:
    """The columns of results that can be drawn: those with a value, the usual ones first."""
    found = {
        name
        for entry in entries
        for seeds in entry.tasks.values()
        for series in seeds.values()
        for name, numbers in series.columns.items()
        if np.isfinite(numbers).any()
    }
    return [n for n in COLUMNS if n in found] + sorted(found - {*COLUMNS, *NOT_DRAWN})


def suite_columns(entries: Sequence[Entry]) -> list[str]:
    """The columns that the suites of results ask for."""
    series = (s for e in entries for seeds in e.tasks.values() for s in seeds.values())
    asked = (s.program.get("columns") or () for s in series if s.program)
    return list(dict.fromkeys(str(name) for names in asked for name in names))


def column_curves(table: Table, column: str, notes: list[str]) -> Numbers:
    """The curves of a column of our results, by method, and the tasks that have one."""
    tasks = [task._replace(column=column) for task in table.tasks]
    ours = [entry for entry in table.entries if entry.kind == "ours"]
    curves = {entry.name: task_curves(table._replace(tasks=tasks), entry) for entry in ours}
    for entry in ours:
        for task in tasks:
            series = entry.tasks.get(task.name, {}).values()
            some = any(np.isfinite(values(one, column)).any() for one in series)
            if some and task.name not in curves[entry.name]:
                notes.append(
                    f"{entry.name}: no curve of {column} on {task.name}, because at no env step "
                    "all its seeds have a value"
                )
    drawn = [task for task in tasks if any(task.name in found for found in curves.values())]
    return {"tasks": [task._asdict() for task in drawn], "curves": curves}


def _band(rows: np.ndarray, samples: int) -> Numbers:
    """Mean over seeds [S, P] with its bootstrap interval, at every point."""
    line: Numbers = {"value": rows.mean(axis=0).tolist()}
    if len(rows) > 1:
        # `stats.interval` of the mean, with its draws for all points: one product for all.
        (picks,) = stats.draw([rows], samples, np.random.default_rng(0))
        counts = (picks[:, :, None] == np.arange(len(rows))).sum(axis=1)
        low, high = np.quantile(counts @ rows / len(rows), [0.025, 0.975], axis=0)
        line |= {"low": low.tolist(), "high": high.tolist()}
    return line


def aggregate_curves(table: Table, entry: Entry) -> Numbers:
    """IQM over all tasks of a method at the env steps that all its seeds share."""
    tasks = [task for task in table.scored() if counted(table, entry, task)]
    seeds = [list(counted(table, entry, task).values()) for task in tasks]
    found: Numbers = {}
    for scoring in SCORINGS if tasks else ():
        curves = [
            [seed_curve(one, task.column, scoring) for one in series]
            for task, series in zip(tasks, seeds, strict=True)
        ]
        steps, rows = stacked([curve for task in curves for curve in task])
        if not len(steps):
            continue
        shown = thin(len(steps))
        steps, rows = steps[shown], rows[:, shown]
        ends = np.cumsum([len(task) for task in curves])[:-1]
        # Scores [env steps, seeds] per task: the statistic reduces the last axis.
        cube = [
            part.T * (table.unit / float(task.scale or 1.0))
            for task, part in zip(tasks, np.split(rows, ends), strict=True)
        ]
        line: Numbers = {"env_step": steps.tolist(), "value": stats.iqm(cube).tolist()}
        line |= {"tasks": len(tasks), "of": len(table.scored())}
        if entry.kind == "ours" and any(len(task) > 1 for task in curves):
            spans = [
                stats.interval(stats.iqm, [runs[point] for runs in cube], samples=table.samples)
                for point in range(len(steps))
            ]
            line |= {"low": [float(x) for x, _ in spans], "high": [float(x) for _, x in spans]}
        if (times := clock([one for task in seeds for one in task], steps)) is not None:
            line["wall"] = times.tolist()
        found[scoring] = line
    return found


def efficiency(table: Table) -> list[Numbers]:
    """For every task, the env steps and the wall-clock until the mean over seeds first reaches
    parts of the best score that one of our methods has at the budget."""
    found = []
    for task in table.tasks:
        for scoring in SCORINGS:
            means = {
                entry.name: float(np.mean(getattr(score, scoring)))
                for entry in table.entries
                if entry.kind == "ours" and (score := table.scores[entry.name].get(task.name))
            }
            means = {name: mean for name, mean in means.items() if math.isfinite(mean)}
            if not means or max(means.values()) <= 0:
                continue
            best = max(means, key=lambda name: means[name])
            bars = [part * means[best] for part in LEVELS]
            about: Numbers = {"task": task.name, "scoring": scoring, "best": best}
            about |= {"env_step": task.env_step, "parts": list(LEVELS), "scores": bars}
            about["reached"] = {
                entry.name: _reached(counted(table, entry, task), task, scoring, bars)
                for entry in table.entries
                if task.name in table.scores[entry.name]
            }
            found.append(about)
    return found


def _reached(
    seeds: Mapping[Seed, Series], task: Task, scoring: str, bars: Sequence[float]
) -> list[Numbers]:
    series = list(seeds.values())
    steps, rows = stacked([seed_curve(one, task.column, scoring) for one in series])
    times = clock(series, steps)
    found = []
    for bar in bars:
        above = np.flatnonzero((rows.mean(axis=0) >= bar) & (steps <= (task.env_step or 0)))
        if not len(above):
            found.append({"env_step": None, "seconds": None})
            continue
        seconds = None if times is None else float(times[above[0]])
        found.append({"env_step": int(steps[above[0]]), "seconds": seconds})
    return found
