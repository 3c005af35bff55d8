"""From result files and run folders to scores: which env step they are taken at, of which seeds, as
the last evaluation and as the mean of the last three."""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ace.bench.results import PROGRAMS, Method, ResultError, Series, read_suite

NEAR = 0.01  # of an env step: how far public results may be from it
LAST = 3  # evaluations in the less noisy score
SCORINGS = {"last": "last evaluation", "last3": "mean of the last three evaluations"}
RUN_COLUMNS = ("lane", "seed", "task", "env_step", "return")
RETURN_SCALE = 1000.0  # the largest return of a DMC episode
RETURNS = ("return", "policy_return", "train_return")  # columns of that scale
# What scores a family's tasks: the return, or a named number between 0 and 1. Others: `success`.
SCORES = {"dmc": "return", "adroit": "at_goal", "maze": "coverage"}


Seed = Any  # an int; public results have names for some


class Entry(NamedTuple):
    """A method in a report: our results, or public ones."""

    name: str
    kind: str  # "ours" or "public"
    source: str  # the folder, or who published it
    tasks: Mapping[str, Mapping[Seed, Series]]  # task -> seed -> evaluations


class Score(NamedTuple):
    """The scores of one method on one task, seed by seed."""

    env_step: int
    column: str  # "return", or the named number that scores the task
    seeds: tuple[Seed, ...]
    last: np.ndarray  # [S]: the evaluation at `env_step`
    last3: np.ndarray  # [S]: the mean of the last three up to `env_step`; NaN if there are fewer
    window: tuple[int, ...]  # the env steps of these three; empty if seeds differ in them
    missing: tuple[Seed, ...]  # seeds without an evaluation at `env_step`


class Task(NamedTuple):
    """How a task is scored."""

    name: str
    env_step: int | None  # None: its seeds share none
    column: str
    scale: (
        float | None
    )  # the score that counts as 1 in aggregates; None: unknown, so it is left out


class Table(NamedTuple):
    """Everything that the parts of a report are computed from."""

    entries: list[Entry]
    tasks: list[Task]
    scores: dict[str, dict[str, Score]]  # method -> task
    unit: float  # what a normalised score of 1 is shown as
    samples: int  # of the bootstrap

    def scored(self) -> list[Task]:
        """The tasks in the aggregates."""
        return [task for task in self.tasks if task.scale and task.env_step is not None]

    def normalised(self, name: str, scoring: str) -> dict[str, np.ndarray]:
        """A method's scores for the aggregates, by task, in the shown unit."""
        found = {}
        for task in self.scored():
            score = self.scores[name].get(task.name)
            if score is not None and np.isfinite(runs := getattr(score, scoring)).all():
                found[task.name] = runs * (self.unit / float(task.scale or 1.0))
        return found


def read(paths: Sequence[Path]) -> tuple[list[Entry], list[str]]:
    """The methods of all folders, under names that differ, and notes for the reader. A folder is
    results/SUITE, results/SUITE/AGENT or a run."""
    if not paths:
        raise ResultError("name at least one folder with results, such as results/smoke")
    found: dict[tuple[Path, str], Method] = {}
    notes = []
    for path in dict.fromkeys(paths):
        for place, method in read_folder(path, notes):
            if (place.resolve(), method.agent) in found:
                notes.append(f"{path}: {method.agent} was given twice and is used once")
            found[place.resolve(), method.agent] = method
    names = _names(list(found))
    entries = [
        Entry(name, "ours", _shown(place / agent), method.tasks)
        for name, ((place, agent), method) in zip(names, found.items(), strict=True)
    ]
    return entries, list(dict.fromkeys(notes))


def read_folder(path: Path, notes: list[str]) -> list[tuple[Path, Method]]:
    """The methods of one folder, each with the folder that it lies in."""
    if not path.is_dir():
        raise ResultError(
            f"{path} is not a folder; give results/SUITE, results/SUITE/AGENT or a run"
        )
    if (path / "eval.csv").exists():
        return [(path.parent, method) for method in read_run(path, notes)]
    if (path / PROGRAMS).is_dir():
        return [(path, method) for method in read_suite(path, notes)]
    if (path.parent / PROGRAMS).is_dir():
        chosen = [m for m in read_suite(path.parent, notes) if m.agent == path.name]
        if not chosen:
            raise ResultError(f"{path} has no results (TASK.csv); `ace bench` makes them")
        return [(path.parent, method) for method in chosen]
    if suites := sorted(p.parent.name for p in path.glob(f"*/{PROGRAMS}")):
        raise ResultError(f"{path} holds several suites; name those you want: {', '.join(suites)}")
    return [(path, method) for method in read_suite(path, notes)]


def _names(keys: Sequence[tuple[Path, str]]) -> list[str]:
    """A short name for every method: its agent, with the suite or the whole path in front where
    another would have the same."""
    forms = (lambda p, a: a, lambda p, a: f"{p.name}/{a}", lambda p, a: _shown(p / a))
    names: dict[tuple[Path, str], str] = {}
    for form in forms:
        left = {key: form(*key) for key in keys if key not in names}
        counts = Counter([*names.values(), *left.values()])
        names |= {key: name for key, name in left.items() if counts[name] == 1}
    return [names.get((place, agent), str(place / agent)) for place, agent in keys]


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def read_run(folder: Path, notes: list[str] | None = None) -> list[Method]:
    """The evaluations of a run folder, one method per varied setting."""
    labels, program = _describe_run(folder)
    found: dict[str, dict[str, dict[int, dict[int, dict]]]] = {}
    for where, row in _run_rows(folder / "eval.csv", notes if notes is not None else []):
        label = labels.get(row["lane"], "")
        steps = found.setdefault(label, {}).setdefault(row["task"], {}).setdefault(row["seed"], {})
        known = steps.setdefault(row["env_step"], row)
        if repr(known) != repr(row):
            raise ResultError(
                f"{where}: seed {row['seed']} of {row['task']} has two results at env step "
                f"{row['env_step']}; delete the wrong row"
            )
    if not found:
        raise ResultError(f"{folder / 'eval.csv'} has no evaluations yet; wait for the first one")
    methods = []
    for label, tasks in found.items():
        made = {
            task: {seed: _run_series(steps, program) for seed, steps in sorted(seeds.items())}
            for task, seeds in tasks.items()
        }
        methods.append(Method(folder.name, f"{folder.name} {label}".strip(), made))
    return methods


def _run_rows(path: Path, notes: list[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The rows of an eval.csv with the place of each, without a last line that a crash cut off."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"{path} cannot be read: {error}") from error
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        notes.append(f"{path}: the last line is cut off and was left out")
        lines = lines[:-1]
    reader = csv.reader(lines)
    header = next(reader, [])
    if missing := [name for name in RUN_COLUMNS if name not in header]:
        raise ResultError(f"{path}: no column {missing[0]!r}; is it the eval.csv of a run?")
    for number, fields in enumerate(reader, start=2):
        where = f"{path}, line {number}"
        if len(fields) != len(header):
            raise ResultError(f"{where}: {len(fields)} fields instead of {len(header)}")
        yield where, _run_row(dict(zip(header, fields, strict=True)), where)


def _run_row(fields: dict[str, str], where: str) -> dict[str, Any]:
    row: dict[str, Any] = {"task": fields.pop("task")}
    try:
        row |= {name: int(fields.pop(name)) for name in ("lane", "seed", "env_step")}
        row |= {name: float(text) if text else math.nan for name, text in fields.items()}
    except ValueError as error:
        raise ResultError(f"{where}: {error}") from None
    if not math.isfinite(row["return"]):
        raise ResultError(f"{where}: return is {row['return']}; it must be a finite number")
    return row


def _run_series(steps: Mapping[int, Mapping[str, Any]], program: Mapping[str, Any]) -> Series:
    order = sorted(steps)
    names = [n for n in steps[order[0]] if n not in ("task", "lane", "seed", "env_step")]
    columns = {n: np.array([float(steps[s][n]) for s in order]) for n in names}
    return Series(np.array(order), columns, program)


def _describe_run(folder: Path) -> tuple[dict[int, str], dict[str, Any]]:
    """The label of every lane, and what is known of the program."""
    found: dict[str, Any] = {}
    for name in ("config", "versions"):
        path = folder / f"{name}.json"
        try:
            content = json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            raise ResultError(f"{path} is damaged ({error}); restore or delete it") from None
        found[name] = content if isinstance(content, dict) else {}
    lanes = found["config"].get("lanes", [])
    versions = found["versions"]
    program = {
        "id": f"run-{folder.name}",
        "command": versions.get("command"),
        "commit": versions.get("commit"),
        "hardware": versions.get("device"),
        "versions": versions,
        "preset": found["config"].get("preset"),
        "config": lanes[0].get("config") if lanes else None,
        "note": f"run folder {folder}; `ace resume {folder}` continues it",
    }
    return {i: str(lane.get("label") or "") for i, lane in enumerate(lanes)}, program


def score_column(task: str, chosen: str = "") -> str:
    """The column that should score a task: what its suite has chosen, or that of its family."""
    return chosen or SCORES.get(task.partition("/")[0], "success")


def column_of(entries: Iterable[Entry], task: str) -> str:
    """The column that scores a task in a report: the return if some results lack another one."""
    series = [s for entry in entries for s in entry.tasks.get(task, {}).values()]
    chosen = {str((s.program or {}).get("score") or "") for s in series}
    column = score_column(task, chosen.pop() if len(chosen) == 1 else "")
    known = all(np.isfinite(values(s, column)).any() for s in series)
    return column if known else "return"


def trained_elsewhere(entry: Entry, task: str) -> set[str]:
    """The tasks other than `task` that a method was trained on for its results on `task`."""
    found = set()
    for series in entry.tasks[task].values():
        for lane in (series.program or {}).get("lanes") or ():
            mine = (lane["agent"], lane["task"]) == (Path(entry.source).name, task)
            if mine and lane.get("trained_on"):
                found.add(lane["trained_on"])
    return found


def shared_steps(series: Iterable[Series], column: str = "return") -> np.ndarray:
    """The env steps at which all of them have a value, increasing."""
    steps = [s.env_step[np.isfinite(values(s, column))] for s in series]
    if not steps:
        return np.empty(0, int)
    # One count instead of pairwise intersections: seeds have tens of thousands of rows at worst.
    found, counts = np.unique(np.concatenate(steps), return_counts=True)
    return found[counts == len(steps)].astype(int)


def values(series: Series, column: str) -> np.ndarray:
    """A column of a series; NaN everywhere if there is none."""
    empty = np.full(len(series.env_step), math.nan)
    return series.columns.get(column, empty)


def take(seeds: Mapping[Any, Series], env_step: int, column: str = "return") -> Score | None:
    """The scores at an env step; None if no seed was evaluated there."""
    last, last3, windows, missing = {}, {}, set(), []
    for seed, series in seeds.items():
        numbers = values(series, column)
        known = np.isfinite(numbers) & (series.env_step <= env_step)
        steps, numbers = series.env_step[known], numbers[known]
        if not len(steps) or steps[-1] != env_step:
            missing.append(seed)
            continue
        last[seed] = float(numbers[-1])
        enough = len(steps) >= LAST
        last3[seed] = float(numbers[-LAST:].mean()) if enough else math.nan
        windows.add(tuple(int(step) for step in steps[-LAST:]) if enough else ())
    if not last:
        return None
    window = windows.pop() if len(windows) == 1 else ()
    arrays = (np.array(list(last.values())), np.array(list(last3.values())))
    return Score(env_step, column, tuple(last), *arrays, window, tuple(missing))


def choose_step(
    entries: Sequence[Entry], task: str, column: str, at: int | None
) -> tuple[int | None, str]:
    """The env step of a task's scores: `at`, or the largest one that all seeds of all methods
    share; and what the reader must know about it, '' if nothing."""
    if at is not None:
        return at, ""
    found = [(e.name, s) for e in entries for s in e.tasks.get(task, {}).values()]
    steps = shared_steps([series for _, series in found], column)
    if not len(steps):
        return None, "the seeds share no evaluated env step, so there is no score; give one: --at N"
    ends = [(name, int(series.env_step[-1])) for name, series in found]
    longest = max(end for _, end in ends)
    if steps[-1] == longest:
        return longest, ""
    early = Counter((name, end) for name, end in ends if end < longest)
    shown = [
        f"{count} seed{'s' * (count > 1)} of {name} end{'s' * (count == 1)} at {end:,}"
        for (name, end), count in early.most_common(3)
    ]
    more = f" and {len(early) - 3} more such" if len(early) > 3 else ""
    why = f" ({', '.join(shown)}{more})" if early else ""
    return int(steps[-1]), (
        f"scored at {steps[-1]:,} env steps, the last that all seeds share{why}; "
        f"--at {longest} takes the scores there, of the seeds that reach it"
    )


def nearest_step(seeds: Mapping[Any, Series], env_step: int) -> int:
    """The evaluated env step of public results that stands for `env_step`: itself, or the nearest
    within 1 %, since some count the first episode too and report at 501,000 for 500,000."""
    found, counts = np.unique(
        np.concatenate([series.env_step for series in seeds.values()]), return_counts=True
    )
    if env_step in found:
        return env_step
    distance = np.abs(found - env_step)
    near = np.flatnonzero(distance <= env_step * NEAR)
    return int(found[max(near, key=lambda i: (counts[i], -distance[i]))]) if len(near) else env_step


def wall_time(series: Series) -> np.ndarray | None:
    """Seconds of wall-clock at every evaluation: recorded, or else the program's time shared out
    evenly over its env steps; None if neither is known."""
    recorded = values(series, "wall_time")
    if np.isfinite(recorded).all():
        return recorded
    program = series.program or {}
    seconds, steps = (_positive(program.get(key)) for key in ("wall_clock_s", "env_steps"))
    return series.env_step * (seconds / steps) if seconds and steps else None


def _positive(value: Any) -> float | None:
    known = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if known else None
