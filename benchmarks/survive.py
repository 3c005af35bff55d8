"""Runs that are shot at: does anything get lost?

    python benchmarks/survive.py kills --count 50      # SIGKILL to the run, at random moments
    python benchmarks/survive.py workers --every 30    # SIGKILL to a simulator process

`kills` makes one run that is left alone and one that is killed again and again, a part of the times
while a checkpoint is being written, and compares every array and every CSV row of the two.
`workers` kills a simulator process at fixed intervals and shows what the run made of it.
"""

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from ace.run.checkpoint import Checkpoints

TASKS = ("probe/long", "probe/point")


def train_command(folder: Path, *argv: str) -> list[str]:
    """`ace train` in a process of its own, saving as often as it can."""
    often = ("--save-minutes", "0.001", "--quiet", "--run", str(folder))
    return [sys.executable, "-m", "ace", "train", *argv, *often]


def flags(env_steps: int, agent: str = "ace") -> tuple[str, ...]:
    """What the runs train."""
    argv = (*TASKS, "--agent", agent, "--preset", "debug", "--env-steps", str(env_steps))
    # Soon compiled, and with all updates of the seed phase at once, to be killed in.
    quick = ("--plan.iterations", "1") if agent == "ace" else ()
    return (*argv, "--eval-every", str(env_steps // 4), "--learn.seed-updates", "1", *quick)


def kills(folder: Path, count: int, seed: int, env_steps: int) -> dict[str, int]:
    """Make a run that is left alone and one that is killed `count` times; give what the kills were
    aimed at. Raises if anything differs."""
    whole, shot = folder / "whole", folder / "shot"
    subprocess.run(train_command(whole, *flags(env_steps)), check=True)
    hit = shoot(shot, count, seed, env_steps)
    subprocess.run(train_command(shot, *flags(env_steps)), check=True)
    compare(whole, shot)
    return hit


def shoot(shot: Path, count: int, seed: int, env_steps: int, agent: str = "ace") -> dict[str, int]:
    """Kill a run `count` times; give what the kills were aimed at."""
    argv = flags(env_steps, agent)
    rng, hit = random.Random(seed), {"start": 0, "save": 0, "step": 0}
    # Each aim once, then at random, with steps twice as likely.
    aims = [*rng.sample(sorted(hit), 3), *rng.choices([*hit, "step"], k=max(count - 3, 0))]

    def half_written() -> set[Path]:
        while True:
            with suppress(FileNotFoundError):  # a checkpoint may be deleted while it is looked at
                return set((shot / "checkpoints").rglob("*.new"))

    for number, where in enumerate(aims[:count]):
        old = half_written()
        process = subprocess.Popen(train_command(shot, *argv))
        # Steps of this life: on average the run is through six tenths when the last kill comes.
        goal = newest(shot) + rng.randint(1, int(1.6 * env_steps / count))
        goal = min(goal, int(0.6 * env_steps))  # the rest is for this process to be late in
        if where == "start":
            time.sleep(rng.uniform(0, 2))
        else:
            wait_until(process, lambda goal=goal: newest(shot) >= goal)
            time.sleep(rng.uniform(0, 0.1))
        if where == "save":
            wait_until(process, lambda old=old: half_written() - old, rest=0)
        if process.poll() is not None:
            raise RuntimeError(f"the run ended after {number} kills; give it more --env-steps")
        process.kill()
        process.wait()
        hit[where] += 1
        left = "inside a save" if half_written() - old else "between saves"
        print(f"kill {number + 1:3}  saved up to agent step {newest(shot):5}  {left}", flush=True)
    return hit


def newest(folder: Path) -> int:
    """Agent step of the newest checkpoint."""
    return max(Checkpoints(folder).steps(), default=0)


def wait_until(process: subprocess.Popen, happened, rest: float = 0.005) -> None:
    """Until something has happened or the process is over."""
    while process.poll() is None and not happened():
        time.sleep(rest)


def compare(one: Path, other: Path) -> None:
    """Raise unless two finished runs are the same, wall time aside."""
    for name in ("train.csv", "eval.csv"):
        if rows(one / name) != rows(other / name):
            raise AssertionError(f"{name} differs")
    a, b = arrays(one), arrays(other)
    if a.keys() != b.keys():
        raise AssertionError(f"other arrays: {sorted(a.keys() ^ b.keys())}")
    for name in a:
        if not np.array_equal(a[name], b[name], equal_nan=True):
            raise AssertionError(f"{name} differs")
    print(
        f"equal: {len(a)} arrays, {sum(x.size for x in a.values()):,} numbers, and both CSV files"
    )


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file without the wall time."""
    with path.open(newline="") as f:
        return [{**row, "wall_time": ""} for row in csv.DictReader(f)]


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """Every array of the last checkpoint, with the replay rows of each lane put together."""
    files = Checkpoints(folder)
    step = files.steps()[-1]
    found = dict(load_file(files.folder / str(step) / "state.safetensors"))
    parts: dict[str, list[np.ndarray]] = {}
    for path in sorted((files.folder / "replay").iterdir()):
        block = load_file(path)
        lane = np.repeat(np.arange(len(block["count"])), block["count"])
        for name in block.keys() - {"start", "count"}:
            for i in range(len(block["count"])):
                parts.setdefault(f"replay.{name}.{i}", []).append(block[name][lane == i])
    return found | {name: np.concatenate(blocks) for name, blocks in parts.items()}


def workers(folder: Path, every: float, argv: list[str]) -> None:
    """Train while a simulator process is killed at fixed intervals."""
    run = folder / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "ace", "train", *argv, "--run", str(run)], start_new_session=True
    )
    rng, count, due = random.Random(0), 0, time.monotonic() + every
    while process.poll() is None:
        time.sleep(0.2)
        if time.monotonic() >= due and (found := simulators(process.pid)):
            os.kill(rng.choice(found), signal.SIGKILL)
            count, due = count + 1, due + every
    if process.returncode:
        raise RuntimeError(f"the run failed after {count} kills")
    last: dict[str, dict[str, str]] = {}
    with (run / "train.csv").open(newline="") as f:
        for row in csv.DictReader(f):
            last[row["lane"]] = row
    print(f"the run is complete after {count} kills")
    for lane, row in last.items():
        print(f"lane {lane}: {row['env_step']} env steps, {row['faults']} episodes dropped")


def simulators(parent: int) -> list[int]:
    """Process ids of a run's simulator processes (from /proc)."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if (
                int(fields[1]) == parent
                and b"ace.envs.pool.worker" in (path / "cmdline").read_bytes()
            ):
                found.append(int(path.name))
        except (OSError, IndexError):  # it ended meanwhile
            continue
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    of_run = commands.add_parser("kills")
    of_run.add_argument("--count", type=int, default=50)
    of_run.add_argument("--seed", type=int, default=0)
    of_run.add_argument("--env-steps", type=int, default=3_000)
    of_worker = commands.add_parser("workers")
    of_worker.add_argument("--every", type=float, default=30.0)
    args, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.command == "kills":
            hit = kills(Path(folder), args.count, args.seed, args.env_steps)
            print(", ".join(f"{n} kills aimed at a {where}" for where, n in hit.items()))
        else:
            argv = more or ["dmc/cartpole-swingup", "--preset", "cpu", "--action-repeat", "4"]
            argv += [] if more else ["--seeds", "0", "1", "--workers", "2"]
            workers(Path(folder), args.every, argv)


if __name__ == "__main__":
    main()
