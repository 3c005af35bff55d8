"""Small suites and runs on disk with numbers that are easy to work out by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ace.bench import results

EVIL = "a<img src=x onerror=window.broken=1></script>|_$&'\"-b"
STEPS = (10_000, 20_000, 30_000)
RETURNS = {"one": (10.0, 20.0, 30.0), "two": (5.0, 25.0, 60.0)}  # by agent, the same for all seeds


def make_suite(
    folder: Path,
    returns: Mapping[str, Sequence[float]] = RETURNS,
    tasks: Sequence[str] = ("dmc/hopper-hop",),
    seeds: Sequence[int] = (0, 1, 2),
    spread: float = 3.0,
    steps: Sequence[int] = STEPS,
) -> Path:
    """A suite with one program per agent; seed s is `spread` * (s - 1) above the returns. The
    program of agent `two` has no wall-clock."""
    for agent, values in returns.items():
        lanes = [{"agent": agent, "task": t, "seed": s} for t in tasks for s in seeds]
        about: dict[str, Any] = {"id": f"p-{agent}", "lanes": lanes, "commit": "abc1234"}
        about |= {"command": f"ace train --{agent}", "wall_clock_s": 60.0, "env_steps": steps[-1]}
        if agent == "two":
            about["wall_clock_s"] = None
        tables = {
            (agent, task): {
                seed: {
                    step: make_row(value + spread * (seed - 1))
                    for step, value in zip(steps, values, strict=True)
                }
                for seed in seeds
            }
            for task in tasks
        }
        results.add_program(folder, about, tables)
    return folder


def make_row(value: float, **numbers: float) -> results.Row:
    return {"return": value, "policy_return": value, "episode_length": 1000.0, **numbers}


def make_run(
    folder: Path, cells: Mapping[str, Sequence[float]], seeds: Sequence[int] = (0, 1)
) -> Path:
    """A run folder with a lane per cell and seed; seed s is s above the cell's returns."""
    folder.mkdir(parents=True)
    lanes, lines = [], ["lane,seed,task,env_step,return,policy_return,episode_length,wall_time"]
    for label, values in cells.items():
        for seed in seeds:
            lane = len(lanes)
            lanes.append({"task": "dmc/cheetah-run", "seed": seed, "label": label, "config": {}})
            for step, value in zip(STEPS, values, strict=True):
                numbers = (lane, seed, "dmc/cheetah-run", step, value + seed, "", 1000, step / 100)
                lines.append(",".join(map(str, numbers)))
    (folder / "eval.csv").write_text("\n".join(lines) + "\n")
    (folder / "config.json").write_text(json.dumps({"agent": "ace", "lanes": lanes}))
    return folder
