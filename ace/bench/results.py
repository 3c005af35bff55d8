"""Results on disk: `results/SUITE/AGENT/TASK.csv` with one row per seed and evaluation, and one
JSON file per program in `results/SUITE/programs/`, which says what made them."""

import csv
import fcntl
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    _check_row(seed, env_step, row, where)
    return seed, env_step, row


def _check_row(seed: int, env_step: int, row: Row, where: str) -> None:
    """Refuse an evaluation that a report could not use."""
    if not math.isfinite(value := row.get("return", math.nan)):
        raise ResultError(f"{where}: return is {value}; it must be a finite number")
    if seed < 0 or env_step < 0:
        raise ResultError(f"{where}: seed and env_step must not be negative")


def _check_rows(table: Table, where: str) -> None:
    """Refuse a table that could not be read again, before anything is written."""
    if not any(table.values()):
        raise ResultError(f"{where}: no rows")
    for seed, steps in table.items():
        for env_step, row in steps.items():
            _check_row(seed, env_step, row, f"{where}, seed {seed} at env step {env_step}")


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


class Part(NamedTuple):
    """What one program adds to the results of a suite."""

    program: Mapping[str, Any] | None  # its description; None: rows that no program describes
    tables: Mapping[tuple[str, str], Table]  # by (agent, task)
    place: str = ""  # the folder that it comes from, for messages

    def name(self) -> str:
        """What a message calls the program."""
        known = self.program["id"] if self.program else "an unknown program"
        return known + (f" in {self.place}" if self.place else "")


def add_program(
    folder: Path, description: Mapping[str, Any], tables: Mapping[tuple[str, str], Table]
) -> None:
    """Add the results of a finished program: `tables` by (agent, task)."""
    add_parts(folder, [Part(description, tables)])


def add_parts(folder: Path, parts: Sequence[Part]) -> None:
    """Add results of programs. Rows that are there already must have equal numbers; nothing is
    written if one does not."""
    with locked(folder):
        there = [Part(program, {}) for program in read_programs(folder)]
        merged: dict[Path, Table] = {}
        for part in parts:
            _check_description(part, there, folder)
            for key, table in part.tables.items():
                path = task_path(folder, *key)
                _check_rows(table, f"{path}, from {part.name()}")
                if path not in merged:
                    merged[path] = read_table(path) if path.exists() else {}
                merged[path] = _merged(merged[path], table, path, key, part, there)
            there.append(part)
        (folder / PROGRAMS).mkdir(exist_ok=True)
        # Descriptions come first: rows without one would be taken for results of strangers.
        for program in (part.program for part in parts if part.program):
            text = json.dumps(program, indent=1, sort_keys=True) + "\n"
            write_text(folder / PROGRAMS / f"{program['id']}.json", text)
        for path, table in merged.items():
            write_table(path, table)


def _lanes(program: Mapping[str, Any]) -> set[tuple[str, str, int]]:
    return {(lane["agent"], lane["task"], int(lane["seed"])) for lane in program["lanes"]}


def _check_description(part: Part, there: Sequence[Part], folder: Path) -> None:
    """Refuse another program of the same name, since one description would replace the other, and a
    name that leads out of the folder."""
    if part.program and Path(name := str(part.program["id"])).name != name:
        raise ResultError(f"{name!r} in {part.place or folder} cannot be the name of a program")
    for program in (other.program for other in there):
        same = program and part.program and program["id"] == part.program["id"]
        if program and part.program and same and _lanes(program) != _lanes(part.program):
            raise ResultError(
                f"{folder / PROGRAMS}: {part.name()} has other lanes than the program of that name "
                "already there; rename one of them (file name and id)"
            )


def _merged(
    old: Table, new: Table, path: Path, key: tuple[str, str], part: Part, there: Sequence[Part]
) -> Table:
    table = {seed: dict(steps) for seed, steps in old.items()}
    for seed, steps in new.items():
        for env_step, row in steps.items():
            known = table.setdefault(seed, {}).setdefault(env_step, row)
            if names := differing(known, row):
                makers = [p for p in there if p.program and (*key, seed) in _lanes(p.program)]
                first = makers[0].name() if makers else "an unknown program"
                one, other = (x.get(names[0], math.nan) for x in (known, row))
                raise ResultError(
                    f"{path}: seed {seed} at env step {env_step} has {names[0]} {one} of {first} "
                    f"and {other} of {part.name()}; keep one of the two programs' results "
                    f"(descriptions in {PROGRAMS})"
                )
    return table


def check_suite(folder: Path) -> None:
    """Refuse a folder that has no programs: it is not that of a suite."""
    if not (folder / PROGRAMS).is_dir():
        raise ResultError(f"{folder} has no {PROGRAMS}; give a suite, such as results/smoke")


def read_programs(folder: Path) -> list[dict[str, Any]]:
    """The descriptions of all programs of a suite."""
    found = []
    for path in sorted((folder / PROGRAMS).glob("*.json")):
        try:
            description = json.loads(_read(path))
            _lanes(description)
            description.setdefault("id", path.stem)
        except (ValueError, KeyError, TypeError) as error:
            raise ResultError(f"{path} does not describe a program: {error!r}") from error
        found.append(description)
    return found


def read_parts(folder: Path) -> list[Part]:
    """All results below a suite's folder, program by program, for `add_parts` of another."""
    programs = {program["id"]: program for program in read_programs(folder)}
    makers = {lane: name for name, program in programs.items() for lane in _lanes(program)}
    found: dict[str, dict[tuple[str, str], Table]] = {name: {} for name in programs}
    for path in sorted(folder.glob("*/**/*.csv")):
        key = task_of(folder, path)
        for seed, steps in read_table(path).items():
            tables = found.setdefault(makers.get((*key, seed), ""), {})
            tables.setdefault(key, {})[seed] = steps
    return [Part(programs.get(name), tables, str(folder)) for name, tables in found.items()]


def lost_seeds(folder: Path, programs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Notes on seeds that a program's description names and the suite's CSV files lack."""
    there: dict[Path, Table] = {}
    lost: dict[tuple[Path, str], list[int]] = {}
    for program in programs:
        for agent, task, seed in sorted(_lanes(program)):
            path = task_path(folder, agent, task)
            if path not in there:
                there[path] = read_table(path) if path.exists() else {}
            if seed not in there[path]:
                lost.setdefault((path, program["id"]), []).append(seed)
    return [
        f"{path} lacks seed {', '.join(map(str, seeds))} of program {name}: overwritten or "
        "deleted; `ace merge` adds them from a copy, `ace bench` makes them again"
        for (path, name), seeds in lost.items()
    ]


def read_suite(folder: Path, notes: list[str] | None = None) -> list[Method]:
    """All results below a suite's folder, one `Method` per agent; notes say what is lost."""
    if not folder.is_dir():
        raise ResultError(f"{folder} is not a folder; give a folder such as results/smoke")
    programs = read_programs(folder)
    makers = {lane: program for program in programs for lane in _lanes(program)}
    if notes is not None:
        notes += lost_seeds(folder, programs)
    methods: dict[str, Method] = {}
    paths = {task_of(folder, path): path for path in folder.glob("*/**/*.csv")}
    for (agent, task), path in sorted(paths.items()):
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
