"""Results on disk: `results/SUITE/AGENT/TASK.csv` with one row per seed and evaluation, and one
JSON file per program in `results/SUITE/programs/`, which says what made them."""

import csv
import fcntl
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np

COLUMNS = ("seed", "env_step", "return", "policy_return", "episode_length")
PROGRAMS = "programs"  # folder of the descriptions

Row = dict[str, float]  # values of one evaluation by column name
Table = dict[int, dict[int, Row]]  # seed -> env step -> row


class ResultError(Exception):
    """Result files that cannot be used; the message says which and what to do."""


class Series(NamedTuple):
    """The evaluations of one seed."""

    env_step: np.ndarray  # int [P], increasing
    columns: dict[str, np.ndarray]  # float [P] by name; NaN where a value is missing
    program: Mapping[str, Any] | None  # the description of the program that made it, if it is known


class Method(NamedTuple):
    """All results of one agent in one suite."""

    suite: str
    agent: str
    tasks: dict[str, dict[int, Series]]  # task -> seed -> evaluations


def task_path(folder: Path, agent: str, task: str) -> Path:
    """The CSV file of a task. Characters that a file name cannot hold everywhere are escaped."""
    parts = [quote(part, safe=":@=+") for part in task.split("/")]
    parts = [part.replace(".", "%2E") if set(part) <= {"."} else part for part in parts]
    return folder.joinpath(agent, *parts[:-1], f"{parts[-1]}.csv")


def task_of(folder: Path, path: Path) -> tuple[str, str]:
    """Agent and task of a CSV file below a suite's folder."""
    agent, *rest = path.relative_to(folder).with_suffix("").parts
    return agent, "/".join(unquote(part) for part in rest)


def read_table(path: Path) -> Table:
    """The rows of a CSV file, checked."""
    text = _read(path)
    lines = csv.reader(io.StringIO(text))
    header = next(lines, [])
    if tuple(header[: len(COLUMNS)]) != COLUMNS or len(set(header)) < len(header):
        expected = ",".join(COLUMNS)
        raise ResultError(f"{path}: the first line must start with {expected}")
    if not text.endswith("\n"):
        raise ResultError(f"{path}: the last line is cut off; delete it, then run the suite again")
    table: Table = {}
    for number, fields in enumerate(lines, start=2):
        where = f"{path}, line {number}"
        if len(fields) != len(header):
            raise ResultError(f"{where}: {len(fields)} fields instead of {len(header)}")
        seed, env_step, row = _parse(header, fields, where)
        known = table.setdefault(seed, {})
        if differing(known.setdefault(env_step, row), row):
            raise ResultError(f"{where}: seed {seed} at env step {env_step} has two results")
    if not table:
        raise ResultError(f"{path}: no rows; delete the file")
    return table


def _read(path: Path) -> str:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"{path} cannot be read: {error}") from error


def _parse(header: Sequence[str], fields: Sequence[str], where: str) -> tuple[int, int, Row]:
    try:
        seed, env_step = int(fields[0]), int(fields[1])
        values = [float(field) if field else math.nan for field in fields[2:]]
    except ValueError as error:
        raise ResultError(f"{where}: {error}") from None
    row = dict(zip(header[2:], values, strict=True))
    if not math.isfinite(row["return"]):
        raise ResultError(f"{where}: return is {row['return']}; it must be a finite number")
    if seed < 0 or env_step < 0:
        raise ResultError(f"{where}: seed and env_step must not be negative")
    return seed, env_step, row


def differing(a: Row, b: Row) -> list[str]:
    """The columns in which two rows have other numbers; one that is missing counts as NaN."""
    pairs = {name: (a.get(name, math.nan), b.get(name, math.nan)) for name in (a | b)}
    return [n for n, (x, y) in pairs.items() if x != y and not (math.isnan(x) and math.isnan(y))]


def write_table(path: Path, table: Table) -> None:
    """Write rows sorted by seed and env step, atomically."""
    rows = [row for steps in table.values() for row in steps.values()]
    numbers = sorted({name for row in rows for name in row} - set(COLUMNS))
    names = (*COLUMNS[2:], *numbers)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*COLUMNS[:2], *names))
    for seed in sorted(table):
        for env_step in sorted(table[seed]):
            row = table[seed][env_step]
            values = (row.get(name, math.nan) for name in names)
            writer.writerow([seed, env_step, *("" if math.isnan(v) else repr(v) for v in values)])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change the results of a suite."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def add_program(
    folder: Path, description: Mapping[str, Any], tables: Mapping[tuple, Table]
) -> None:
    """Add the results of a finished program: `tables` by (agent, task). Rows that are there already
    must have equal numbers; nothing is written if one does not."""
    name = description["id"]
    with locked(folder):
        merged = {}
        for (agent, task), table in tables.items():
            path = task_path(folder, agent, task)
            old = read_table(path) if path.exists() else {}
            merged[path] = _merged(old, table, path, name, folder)
        (folder / PROGRAMS).mkdir(exist_ok=True)
        # The description comes first: rows without one would be taken for results of strangers.
        text = json.dumps(description, indent=1, sort_keys=True) + "\n"
        write_text(folder / PROGRAMS / f"{name}.json", text)
        for path, table in merged.items():
            write_table(path, table)


def _merged(old: Table, new: Table, path: Path, program: str, folder: Path) -> Table:
    table = {seed: dict(steps) for seed, steps in old.items()}
    for seed, steps in new.items():
        for env_step, row in steps.items():
            there = table.setdefault(seed, {}).setdefault(env_step, row)
            if names := differing(there, row):
                agent, task = task_of(folder, path)
                maker = _maker(read_programs(folder), agent, task, seed)
                first = maker["id"] if maker else "an unknown program"
                one, other = (x.get(names[0], math.nan) for x in (there, row))
                raise ResultError(
                    f"{path}: seed {seed} at env step {env_step} has {names[0]} {one} of {first} "
                    f"and {other} of {program}; keep one of the two programs' results "
                    f"(descriptions in {folder / PROGRAMS})"
                )
    return table


def read_programs(folder: Path) -> list[dict[str, Any]]:
    """The descriptions of all programs of a suite."""
    found = []
    for path in sorted((folder / PROGRAMS).glob("*.json")):
        try:
            description = json.loads(_read(path))
            for lane in description["lanes"]:
                _ = str(lane["agent"]), str(lane["task"]), int(lane["seed"])
        except (ValueError, KeyError, TypeError) as error:
            raise ResultError(f"{path} does not describe a program: {error!r}") from error
        found.append(description)
    return found


def _maker(programs: Sequence[dict], agent: str, task: str, seed: int) -> dict[str, Any] | None:
    wanted = (agent, task, seed)
    for program in programs:
        if any((x["agent"], x["task"], int(x["seed"])) == wanted for x in program["lanes"]):
            return program
    return None


def read_suite(folder: Path) -> list[Method]:
    """All results below a suite's folder, one `Method` per agent."""
    if not folder.is_dir():
        raise ResultError(f"{folder} is not a folder; give a folder such as results/smoke")
    makers = {
        (lane["agent"], lane["task"], int(lane["seed"])): program
        for program in read_programs(folder)
        for lane in program["lanes"]
    }
    methods: dict[str, Method] = {}
    for path in sorted(folder.glob("*/**/*.csv")):
        agent, task = task_of(folder, path)
        method = methods.setdefault(agent, Method(folder.name, agent, {}))
        method.tasks[task] = {
            seed: _series(steps, makers.get((agent, task, seed)))
            for seed, steps in sorted(read_table(path).items())
        }
    if not methods:
        raise ResultError(f"{folder} has no results (AGENT/TASK.csv); `ace bench` makes them")
    return list(methods.values())


def _series(steps: Mapping[int, Row], program: Mapping[str, Any] | None) -> Series:
    order = sorted(steps)
    names = list(dict.fromkeys(name for row in steps.values() for name in row))
    columns = {n: np.array([steps[s].get(n, math.nan) for s in order]) for n in names}
    return Series(np.array(order), columns, program)
