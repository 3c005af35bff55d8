"""`ace compare`: differences between settings with intervals over seeds, and the main effects of a
factorial run, so that a choice is made on evidence and not on the last points of five seeds."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from ace.bench import stats
from ace.bench.curves import column_names
from ace.bench.page import finite
from ace.bench.results import ResultError, write_text
from ace.bench.scores import SCORINGS, Entry, Score, Task, read, take
from ace.bench.summary import choose_tasks
from ace.bench.tables import NONE, Grid, interval, latex, markdown, number, plain, unit_of

Numbers = dict[str, Any]
FEW = 10  # seeds; with fewer, the reader is warned
ALL = "mean over tasks"
FACTOR = re.compile(r"(?:^|[ -])([A-Za-z_][\w.]*)=(.+?)(?=[ -][A-Za-z_][\w.]*=|$)")


@dataclass(frozen=True)
class CompareArgs:
    """Compare settings: the difference from the first one on every task, with its interval."""

    results: tyro.conf.Positional[tuple[Path, ...]]
    """Two or more of results/SUITE/AGENT or runs; or one suite or run with several settings."""
    at: int | None = None
    """Env step of the scores; by default the last one that all seeds of a task share."""
    column: str = ""
    """Column of the results to compare instead of the score, such as policy_return."""
    out: Path | None = None
    """Folder for the tables as Markdown, LaTeX and JSON; by default they are only printed."""


def compare(args: CompareArgs) -> Numbers:
    """Print the comparison, and write it if asked to."""
    if args.at is not None and args.at <= 0:
        raise ResultError(f"--at is {args.at}; give an env step, such as 500000")
    entries, notes = read(args.results)
    known = column_names(entries)
    if args.column and args.column not in known:
        raise ResultError(f"no column {args.column!r} to compare; there are: {', '.join(known)}")
    data = differences(entries, notes, at=args.at, column=args.column)
    found = [*_difference_grids(data), *_effect_grids(data)]
    print("\n".join(plain(grid) for grid in found))
    for note in data["notes"]:
        print(f"note: {note}")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        write_text(args.out / "compare.md", markdown(found))
        write_text(args.out / "compare.tex", latex(found))
        text = json.dumps(finite(data), indent=1, allow_nan=False)
        write_text(args.out / "compare.json", text + "\n")
    return data


def differences(
    entries: Sequence[Entry],
    notes: Sequence[str] = (),
    *,
    at: int | None = None,
    column: str = "",
) -> Numbers:
    """The numbers of a comparison of all methods with the first one, on the tasks of all: of their
    scores, or of a column of the results."""
    if len(entries) < 2:
        raise ResultError(
            f"there is only {entries[0].name} to compare; name a second folder, or a run with "
            "several settings (--vary)"
        )
    notes = list(notes)
    shared = [t for t in entries[0].tasks if all(t in entry.tasks for entry in entries)]
    if left := sorted({t for entry in entries for t in entry.tasks} - set(shared)):
        notes.append(f"left out, because not all have them: {', '.join(left)}")
    if not shared:
        raise ResultError("the results have no task in common, so there is nothing to compare")
    entries = [entry._replace(tasks={t: entry.tasks[t] for t in shared}) for entry in entries]
    scales: list[str] = []  # its notes on aggregates are dropped: a comparison has none
    tasks = choose_tasks(entries, at, scales, column)
    notes += [note for note in scales if "aggregates" not in note]
    scored = [task for task in tasks if task.env_step is not None]
    scores = {e.name: {t.name: _score(e, t, notes) for t in scored} for e in entries}
    paired = _paired(scores)
    if not paired:
        notes.append("the seeds differ, so the differences are not paired by seed")
    fewest = min(len(score.seeds) for found in scores.values() for score in found.values())
    if fewest < FEW:
        notes.append(
            f"with {fewest} seeds a bootstrap interval is too narrow (the 95 % interval of a mean "
            "covers about 85 % with 5 seeds, 90 % with 10): take a clear difference as a hint"
        )
    data: Numbers = {"format": 1, "reference": entries[0].name, "paired": paired}
    data["column"] = column
    data["tasks"] = [task._asdict() for task in scored]
    data["methods"] = [entry.name for entry in entries]
    for scoring in SCORINGS:
        data[scoring] = _differences(scores, scored, scoring, paired)
    data["effects"] = {s: _effects(scores, scored, s, paired, notes) for s in SCORINGS}
    data["notes"] = list(dict.fromkeys(notes))
    return data


def _score(entry: Entry, task: Task, notes: list[str]) -> Score:
    step = task.env_step or 0
    score = take(entry.tasks[task.name], step, task.column)
    if score is None:
        raise ResultError(
            f"{entry.name}: no seed of {task.name} was evaluated at env step {step:,}; "
            "leave --at out, or choose another"
        )
    if score.missing:
        seeds = ", ".join(map(str, score.missing))
        notes.append(f"{entry.name}: {task.name} without seed {seeds}, not evaluated at {step:,}")
    return score


def _paired(scores: Mapping[str, Mapping[str, Score]]) -> bool:
    """Whether all methods have the same seeds on every task."""
    first, *others = scores.values()
    return all(set(o[task].seeds) == set(first[task].seeds) for o in others for task in first)


def _by_seed(score: Score, scoring: str) -> dict[Any, float]:
    runs = getattr(score, scoring)
    return dict(zip(score.seeds, map(float, runs), strict=True))


def _differences(
    scores: Mapping[str, Mapping[str, Score]], tasks: Sequence[Task], scoring: str, paired: bool
) -> list[Numbers]:
    """One row per method and task: means, and the difference from the first method."""
    usable = [
        task
        for task in tasks
        if all(np.isfinite(getattr(found[task.name], scoring)).all() for found in scores.values())
    ]
    if not usable:
        return []
    first, *others = scores
    # A mean over tasks needs scores of one scale.
    joint = len(usable) > 1 and len({task.scale for task in usable}) == 1 and usable[0].scale
    rows = []
    for name in others:
        x, y = ([_by_seed(scores[n][t.name], scoring) for t in usable] for n in (name, first))
        found = stats.difference(x, y, paired=paired)
        many = [min(len(a), len(b)) > 1 for a, b in zip(x, y, strict=True)]
        for i, task in enumerate(usable):
            about: Numbers = {"method": name, "task": task.name, "env_step": task.env_step}
            about |= {"seeds": len(x[i]), "reference_seeds": len(y[i])}
            means = [float(np.mean(list(each[i].values()))) for each in (x, y)]
            about |= {"mean": means[0], "reference": means[1]}
            rows.append(about | _ends([float(part[i]) for part in found.tasks], many[i]))
        if joint:
            means = [np.mean([np.mean(list(s.values())) for s in each]) for each in (x, y)]
            about = {"method": name, "task": ALL, "env_step": None, "seeds": None}
            about |= {"reference_seeds": None, "mean": float(means[0])}
            about |= {"reference": float(means[1])}
            rows.append(about | _ends([float(part) for part in found.mean], all(many)))
    return rows


def _ends(parts: Sequence[float], known: bool) -> Numbers:
    value, low, high = parts
    ends = (low, high) if known else (None, None)
    return {"difference": {"value": value, "low": ends[0], "high": ends[1]}}


def factors(name: str) -> dict[str, float | str]:
    """The settings in the name of a method: `ace-td_lambda=0.2`, or `run plan.horizon=4`."""
    found: dict[str, float | str] = {}
    for key, text in FACTOR.findall(name):
        try:
            found[key] = float(text)
        except ValueError:
            found[key] = text
    return found


def _effects(
    scores: Mapping[str, Mapping[str, Score]],
    tasks: Sequence[Task],
    scoring: str,
    paired: bool,
    notes: list[str],
) -> list[Numbers]:
    """Main effects of the settings that the methods' names vary: per task, and over all of them."""
    settings = {name: factors(name) for name in scores}
    if not all(settings.values()):
        return []
    rows: list[Numbers] = []
    cells: dict[str, list[dict[Any, float]]] = {}
    for task in tasks:
        runs = [_by_seed(found[task.name], scoring) for found in scores.values()]
        if all(np.isfinite(list(each.values())).all() for each in runs):
            cells[task.name] = runs
    same = len({frozenset(each) for runs in cells.values() for each in runs}) == 1
    if len(cells) > 1 and same and len({task.scale for task in tasks}) == 1 and tasks[0].scale:
        seeds = next(iter(cells.values()))[0]
        cells[ALL] = [
            {seed: float(np.mean([runs[i][seed] for runs in cells.values()])) for seed in seeds}
            for i in range(len(scores))
        ]
    for task, runs in cells.items():
        pairs = list(zip(settings.values(), runs, strict=True))
        try:
            found = stats.main_effects(pairs, paired=paired)
        except ValueError as error:
            notes.append(f"no main effects: {error}")
            return []
        for factor, levels in found.items():
            for level in levels:
                rows.append({"task": task, "factor": factor, **level._asdict()})
    if any(np.isnan(row["error"]) for row in rows):
        notes.append(
            "each cell has one run, and there are too few cells to estimate a task's errors; that "
            "of the mean over tasks is how much the tasks' effects differ (run two seeds per cell)"
        )
        _errors_over_tasks(rows)
    return rows


def _errors_over_tasks(rows: Sequence[Numbers]) -> None:
    """Effects on the mean over tasks get the standard error of a mean of the tasks' effects."""
    for row in rows:
        if row["task"] == ALL and np.isnan(row["error"]):
            of_tasks = [
                each["effect"]
                for each in rows
                if each["task"] != ALL
                and (each["factor"], each["level"]) == (row["factor"], row["level"])
            ]
            row["error"] = float(np.std(of_tasks, ddof=1) / np.sqrt(len(of_tasks)))
            row["ratio"] = row["effect"] / row["error"] if row["error"] else np.nan


def _units(data: Numbers) -> dict[str, float]:
    """The largest possible score of every task, and of the mean over them: they share a scale."""
    units = {task["name"]: unit_of(task) for task in data["tasks"]}
    return {**units, ALL: max(units.values())}


def _of(data: Numbers) -> str:
    """The column that was asked for, in words."""
    return f"{data['column']}, " if data["column"] else ""


def _difference_grids(data: Numbers) -> list[Grid]:
    grids = []
    how = "paired by seed" if data["paired"] else "not paired"
    units = _units(data)
    for scoring, words in SCORINGS.items():
        rows = []
        for row in data[scoring]:
            unit = units[row["task"]]
            found = row["difference"]
            known = found["low"] is not None
            clear = NONE if not known else "yes" if found["low"] > 0 or found["high"] < 0 else "no"
            seeds = {row["seeds"], row["reference_seeds"]}
            counts = NONE if seeds == {None} else " / ".join(map(str, sorted(seeds)))
            step = NONE if row["env_step"] is None else f"{row['env_step']:,}"
            means = [number(row[key], unit) for key in ("reference", "mean")]
            cells = [row["method"], row["task"], step, counts, *means, interval(found, unit), clear]
            rows.append(cells)
        caption = (
            f"Difference from {data['reference']} ({_of(data)}{words}; {how}), with 95 % bootstrap "
            "intervals over seeds. Clear: the interval excludes zero."
        )
        header = [
            "method",
            "task",
            "env step",
            "seeds",
            data["reference"],
            "method's",
            "difference",
        ]
        if rows:
            grids.append(Grid(caption, [*header, "clear"], rows))
    return grids


def _effect_grids(data: Numbers) -> list[Grid]:
    grids, units = [], _units(data)
    for scoring, words in SCORINGS.items():
        rows, before = [], None
        for row in data["effects"][scoring]:
            setting, unit = (row["task"], row["factor"]), units[row["task"]]
            digits = 1 if unit > 1 else 3
            level = row["level"]
            cells = [*setting, f"{level:g}" if isinstance(level, float) else str(level)]
            effect = [f"{row['effect']:+.{digits}f}", f"{row['error']:.{digits}f}"]
            effect[1] = NONE if np.isnan(row["error"]) else effect[1]
            # The first level is the one that the others are compared with.
            effect = effect if setting == before else [NONE, NONE]
            rows.append([*cells, number(row["mean"], unit), *effect])
            before = setting
        caption = (
            f"Main effects ({_of(data)}{words}): the mean at each level of a setting over all "
            "cells, and its difference from the setting's first level with the standard error."
        )
        if rows:
            header = ["task", "setting", "level", "mean", "effect", "standard error"]
            grids.append(Grid(caption, header, rows))
    return grids
