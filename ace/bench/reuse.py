"""`ace bench --reuse`: curves that a suite need not make, since another has them already."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ace.bench.jobs import Job, LaneSpec, last_env_step, make_config, that_matter
from ace.bench.results import Part, Table, check_suite, read_programs, read_table, task_path
from ace.bench.suites import Suite
from ace.settings import config as settings


def find(
    suite: Suite, jobs: Sequence[Job], done: Collection[LaneSpec], folders: Sequence[Path]
) -> list[Part]:
    """Curves of other suites that were made with the agent, task, seed and all settings of lanes
    that are not done, as programs of this suite."""
    wanted: dict[str, list[tuple[LaneSpec, int]]] = {}
    for job in jobs:
        for lane in job.lanes:
            if lane not in done:
                config = make_config(lane.agent, job, lane.task)
                task = job.trained_on(lane.agent, lane.task)
                key = _key(job.agent, task, lane.seed, settings.flatten(config))
                wanted.setdefault(key, []).append((lane, last_env_step(config)))
    parts, agents = [], {job.agent for job in jobs}
    for folder in folders:
        check_suite(folder)
        for program in read_programs(folder):
            if program.get("agent") not in agents:
                continue
            lanes: list[dict[str, Any]] = []
            tables: dict[tuple[str, str], Table] = {}
            for there, lane, rows in _matches(suite, program, folder, wanted):
                lanes.append({**there, **lane._asdict()})
                tables.setdefault((lane.agent, lane.task), {})[lane.seed] = rows
            if lanes:
                description = _description(suite, program, lanes, folder)
                parts.append(Part(description, tables, str(folder)))
    return parts


def lanes_of(parts: Sequence[Part]) -> set[LaneSpec]:
    """The lanes whose curves were found."""
    return {
        LaneSpec(*key, seed)
        for part in parts
        for key, table in part.tables.items()
        for seed in table
    }


def about(part: Part) -> str:
    """What is taken, for the plan."""
    program = part.program or {}
    curves, commit = len(program["lanes"]), program.get("commit") or "not known"
    return f"{curves} of them come from {part.place}, made with the same settings (commit {commit})"


def _key(agent: str, task: str, seed: int, flat: Mapping[str, Any]) -> str:
    return json.dumps([agent, task, seed, that_matter(agent, flat)], sort_keys=True)


def _matches(
    suite: Suite,
    program: Mapping[str, Any],
    folder: Path,
    wanted: dict[str, list[tuple[LaneSpec, int]]],
) -> Iterator[tuple[Mapping[str, Any], LaneSpec, dict[int, dict[str, float]]]]:
    """The lanes of a program whose curves are wanted, complete and have the suite's columns; they
    are wanted no more."""
    for there in program["lanes"]:
        flat = {**(program.get("config") or {}), **(there.get("settings") or {})}
        task, seed = there.get("trained_on", there["task"]), int(there["seed"])
        key = _key(program["agent"], task, seed, flat)
        path = task_path(folder, there["agent"], there["task"])
        rows = read_table(path).get(seed, {}) if key in wanted and path.exists() else {}
        columns = {name for row in rows.values() for name in row}
        if rows and columns.issuperset(suite.columns):
            for lane, last in [*wanted[key]]:
                if last in rows:
                    wanted[key].remove((lane, last))
                    yield there, lane, rows


def _description(
    suite: Suite, program: Mapping[str, Any], lanes: list[dict[str, Any]], folder: Path
) -> dict[str, Any]:
    """The program's description with the lanes that were taken. Its rate is left out: it is that
    of more lanes."""
    taken = hashlib.sha256(json.dumps(lanes, sort_keys=True).encode()).hexdigest()[:10]
    note = f"{len(lanes)} of the {len(program['lanes'])} lanes of {folder.name}: {program['id']}"
    kept = {n: value for n, value in program.items() if n not in ("score", "columns")}
    return {
        **kept,
        "id": f"{program['id']}-{taken}",
        "suite": suite.name,
        "lanes": lanes,
        "lane_steps_per_s": None,
        "note": "; ".join(filter(None, (program.get("note"), note))),
        **suite.for_report(),
    }
