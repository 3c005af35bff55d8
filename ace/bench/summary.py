"""The numbers of a report as one dictionary of plain values, from which the tables, the figures,
`summary.json` and the page are all written, so that they cannot disagree."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ace.bench import published, stats
from ace.bench.curves import (
    Numbers,
    aggregate_curves,
    column_curves,
    efficiency,
    task_curves,
)
from ace.bench.results import ResultError
from ace.bench.scores import (
    LAST,
    RETURN_SCALE,
    RETURNS,
    SCORINGS,
    Entry,
    Score,
    Table,
    Task,
    choose_step,
    column_of,
    nearest_step,
    take,
    trained_elsewhere,
)

STATISTICS = {
    "iqm": "IQM",
    "median": "Median",
    "mean": "Mean",
    "optimality_gap": "Optimality gap",
}


def summarise(
    entries: Sequence[Entry],
    notes: Sequence[str] = (),
    *,
    at: int | None = None,
    anchors: bool = True,
    columns: Sequence[str] = (),
    samples: int = 2000,
) -> Numbers:
    """All numbers of a report on our methods, beside public results if `anchors`, with the curves
    of further `columns`."""
    notes = list(notes)
    tasks = choose_tasks(entries, at, notes)
    methods = list(entries)
    if anchors:
        methods += published.entries(tasks, {entry.name for entry in entries})
    scores = {entry.name: _scores(entry, tasks) for entry in methods}
    if not any(scores[entry.name] for entry in entries):
        where = f"at env step {at:,}; leave --at out, or choose" if at is not None else "at"
        raise ResultError(f"no seed was evaluated {where} an env step that the seeds share")
    unit = RETURN_SCALE if any(task.scale == RETURN_SCALE for task in tasks) else 1.0
    table = Table(methods, tasks, scores, unit, samples)
    _tell(table, notes)
    paper = published.paper(tasks) if anchors else {}
    programs, makers = _programs(entries)
    printed = published.aggregates(tasks, paper) if anchors else {}
    curves = {entry.name: task_curves(table, entry) for entry in methods}
    further = {column: column_curves(table, column, notes) for column in columns}
    return {
        "format": 1,
        "unit": unit,
        "tasks": [task._asdict() for task in tasks],
        "methods": [_method(table, entry, makers) for entry in methods]
        + published.about(paper, printed),
        "scores": {name: _score_numbers(table, name, makers) for name in scores}
        | {name: published.scores(points, tasks) for name, points in paper.items()},
        "aggregates": {entry.name: _aggregates(table, entry.name) for entry in methods} | printed,
        "profiles": _profiles(table),
        "improvement": {scoring: _improvement(table, scoring) for scoring in SCORINGS},
        "curves": curves | {name: published.curves(points) for name, points in paper.items()},
        "columns": {column: found for column, found in further.items() if found["tasks"]},
        "aggregate_curves": {entry.name: aggregate_curves(table, entry) for entry in methods},
        "efficiency": efficiency(table),
        "programs": programs,
        "notes": notes,
    }


def choose_tasks(
    entries: Sequence[Entry], at: int | None, notes: list[str], column: str = ""
) -> list[Task]:
    """Env step, column and scale of every task of our methods; `column` replaces the scores'."""
    names = list(dict.fromkeys(task for entry in entries for task in entry.tasks))
    tasks = []
    tasks_of: dict[str, list[str]] = {}
    for name in names:
        chosen = column or column_of(entries, name)
        scale = 1.0 if chosen not in RETURNS else RETURN_SCALE if name.startswith("dmc/") else None
        step, note = choose_step(entries, name, chosen, at)
        tasks_of.setdefault(note, []).append(name)
        tasks.append(Task(name, step, chosen, scale))
    _tell_scales(tasks, notes)
    # Most tasks stop for the same reason: one sentence for all of them.
    notes += [f"{_listed(which)}: {note}" for note, which in tasks_of.items() if note]
    return tasks


def _tell_scales(tasks: Sequence[Task], notes: list[str]) -> None:
    """Say what the aggregates leave out, and what they join."""
    if others := [task.name for task in tasks if task.scale is None]:
        notes.append(
            f"not in the aggregates, because the scale of their returns is not known and not all "
            f"have a success rate: {', '.join(others)}"
        )
    columns = {task.column for task in tasks if task.scale}
    if len(columns) > 1:
        shown = [f"{t.column} of {t.name}" for t in tasks if t.column != "return"]
        returns = f"returns divided by {RETURN_SCALE:g}, " if "return" in columns else ""
        notes.append(f"the aggregates join {returns}{', '.join(shown)}")


def _listed(names: Sequence[str]) -> str:
    if len(names) <= 5:
        return ", ".join(names)
    return f"{', '.join(names[:4])} and {len(names) - 4} more tasks"


def _scores(entry: Entry, tasks: Sequence[Task]) -> dict[str, Score]:
    found = {}
    for task in tasks:
        if task.env_step is not None and task.name in entry.tasks:
            seeds, step = entry.tasks[task.name], task.env_step
            step = nearest_step(seeds, step) if entry.kind == "public" else step
            score = take(seeds, step, task.column)
            if score is not None:
                found[task.name] = score
    return found


def _tell(table: Table, notes: list[str]) -> None:
    """Say of our methods which seeds are missing and where evaluations are too few or differ."""
    for entry in table.entries:
        elsewhere, few = [], []
        for name in entry.tasks if entry.kind == "ours" else ():
            score = table.scores[entry.name].get(name)
            if learned := trained_elsewhere(entry, name):
                elsewhere.append(f"{name} was trained on {', '.join(sorted(learned))}")
            if score is None:
                notes.append(
                    f"{entry.name}: no seed of {name} was evaluated at the chosen env step"
                )
                continue
            if score.missing:
                seeds = ", ".join(map(str, score.missing))
                notes.append(
                    f"{entry.name}: {name} counts {len(score.seeds)} of "
                    f"{len(score.seeds) + len(score.missing)} seeds; no evaluation at env step "
                    f"{score.env_step:,} of seed {seeds}"
                )
            if not np.isfinite(score.last3).all():
                few.append(name)
        if elsewhere:
            notes.append(f"{entry.name}: {'; '.join(elsewhere)}")
        if few:
            notes.append(
                f"{entry.name}: seeds with fewer than {LAST} evaluations on {_listed(few)}"
            )
    ours = [entry.name for entry in table.entries if entry.kind == "ours"]
    differ = []
    for task in table.tasks:
        found = [table.scores[name][task.name] for name in ours if task.name in table.scores[name]]
        if len({score.window for score in found if np.isfinite(score.last3).all()}) > 1:
            differ.append(task.name)
    if differ:
        notes.append(
            f"{_listed(differ)}: the last three evaluations are not at the same env steps for all"
        )
    _tell_equal(table, notes)
    if table.unit == 1.0 and not table.scored():
        notes.append("no task has a known scale, so there are no aggregates")


def _tell_equal(table: Table, notes: list[str]) -> None:
    """Say which of our methods have the same scores: they may be the same runs."""
    ours = [entry.name for entry in table.entries if entry.kind == "ours"]
    for index, first in enumerate(ours):
        for second in ours[index + 1 :]:
            both = [task for task in table.scores[first] if task in table.scores[second]]
            pairs = [(table.scores[first][task], table.scores[second][task]) for task in both]
            equal = (a.seeds == b.seeds and np.array_equal(a.last, b.last) for a, b in pairs)
            if pairs and all(equal) and any(pair[0].last.any() for pair in pairs):
                notes.append(f"{first} and {second} have equal scores: the same runs, twice?")


def estimate(statistic: Callable[..., Any], *scores: Sequence[np.ndarray], samples: int) -> Numbers:
    """A statistic with its 95 % interval, which is unknown if every task has a single seed."""
    value = float(statistic(*scores))
    if all(len(runs) < 2 for tasks in scores for runs in tasks):
        return {"value": value, "low": None, "high": None}
    low, high = stats.interval(statistic, *scores, samples=samples)
    return {"value": value, "low": float(low), "high": float(high)}


def _score_numbers(table: Table, name: str, makers: Mapping[tuple, str]) -> Numbers:
    found = {}
    for task, score in table.scores[name].items():
        made = {makers.get((name, task, seed)) for seed in score.seeds}
        numbers: Numbers = {
            "env_step": score.env_step,
            "column": score.column,
            "seeds": list(score.seeds),
            "missing": list(score.missing),
            "window": list(score.window),
            "programs": sorted(p for p in made if p),
            "unknown": None in made,  # seeds whose program is not described
        }
        for scoring in SCORINGS:
            runs = getattr(score, scoring)
            numbers[scoring] = None
            if np.isfinite(runs).all():
                average = estimate(stats.mean, [runs], samples=table.samples)
                numbers[scoring] = average | {"runs": [float(x) for x in runs]}
        found[task] = numbers
    return found


def _aggregates(table: Table, name: str) -> Numbers:
    found: Numbers = {"of": len(table.scored())}
    for scoring in SCORINGS:
        tasks = table.normalised(name, scoring)
        found[scoring] = None
        if tasks:
            runs = list(tasks.values())
            gap = partial(stats.optimality_gap, target=table.unit)
            functions = (stats.iqm, stats.median, stats.mean, gap)
            found[scoring] = {
                "tasks": len(tasks),
                "runs": sum(map(len, runs)),
                **{
                    key: estimate(function, runs, samples=table.samples)
                    for key, function in zip(STATISTICS, functions, strict=True)
                },
            }
    return found


def _profiles(table: Table) -> Numbers:
    """The fraction of runs above every score from 0 to the highest possible one."""
    bars = np.linspace(0, table.unit, 51)
    found: Numbers = {"scores": bars.tolist()}
    statistic = partial(stats.performance_profile, thresholds=bars)
    for entry in table.entries:
        found[entry.name] = {}
        for scoring in SCORINGS:
            tasks = list(table.normalised(entry.name, scoring).values())
            if not tasks:
                continue
            lines = {"value": statistic(tasks).tolist(), "low": None, "high": None}
            if entry.kind == "ours" and any(len(runs) > 1 for runs in tasks):
                low, high = stats.interval(statistic, tasks, samples=min(table.samples, 1000))
                lines |= {"low": low.tolist(), "high": high.tolist()}
            found[entry.name][scoring] = lines
    return found


def _improvement(table: Table, scoring: str) -> list[Numbers]:
    """How probably a run of one method beats a run of the other, for each of our methods against
    our later ones and the public ones, on the tasks that both have."""
    found = []
    scored = {e.name: table.normalised(e.name, scoring) for e in table.entries}
    for index, first in enumerate(table.entries):
        for second in table.entries[index + 1 :] if first.kind == "ours" else ():
            both = [task for task in scored[first.name] if task in scored[second.name]]
            if both:
                pair = [[scored[e.name][task] for task in both] for e in (first, second)]
                samples = table.samples if second.kind == "ours" else min(table.samples, 500)
                number = estimate(stats.probability_of_improvement, *pair, samples=samples)
                names = {"x": first.name, "y": second.name, "tasks": len(both)}
                found.append(names | number)
    return found


def _programs(entries: Sequence[Entry]) -> tuple[dict[str, Numbers], dict[tuple, str]]:
    """The descriptions of all programs by a key of the page, and the key of every seed's."""
    keys: dict[tuple[str, str], str] = {}
    found: dict[str, Numbers] = {}
    makers = {}
    for entry in entries:
        suite = entry.source.rpartition("/")[0]
        for task, seeds in entry.tasks.items():
            for seed, series in seeds.items():
                if series.program is None:
                    continue
                name = (suite, str(series.program.get("id")))
                key = keys.setdefault(name, f"program-{len(keys) + 1}")
                makers[entry.name, task, seed] = key
                if key not in found:
                    found[key] = _program(series.program, *name)
    return found, makers


def _program(program: Mapping[str, Any], suite: str, name: str) -> Numbers:
    kept = ("command", "commit", "hardware", "wall_clock_s", "env_steps", "lane_steps_per_s")
    found: Numbers = {"suite": suite, "id": name} | {key: program.get(key) for key in kept}
    lanes = program.get("lanes")
    found["lanes"] = len(lanes) if isinstance(lanes, list) else None
    for key in ("note", "preset", "versions", "config"):
        found[key] = program.get(key)
    if not found["commit"] and isinstance(found["versions"], Mapping):
        found["commit"] = found["versions"].get("commit")
    return found


def _method(table: Table, entry: Entry, makers: Mapping[tuple, str]) -> Numbers:
    mine = [key for (name, _, _), key in makers.items() if name == entry.name]
    known = sum(len(seeds) for seeds in entry.tasks.values())
    return {
        "name": entry.name,
        "kind": entry.kind,
        "source": entry.source,
        "shown": entry.kind == "ours" or entry.name in published.SHOWN,
        "tasks": len(table.scores[entry.name]),
        "programs": list(dict.fromkeys(mine)),
        "unknown": entry.kind == "ours" and len(mine) < known,
    }
