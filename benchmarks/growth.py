"""How the time of an update grows with batch, horizon and width, and of sampling with the replay.

    python benchmarks/growth.py --lanes 16 --csv results/speed/growth.csv

One setting is changed at a time from the preset's values; sampling is drawing a batch and writing
its new priorities, which should not depend on how much can be stored.
"""

import argparse
import csv
import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp

from ace import cli, replay
from ace.engine import resources
from ace.engine.program import Program
from ace.run import request
from ace.settings import keys
from ace.tools.speed import Bench, timed

CHANGES = {
    "learn.batch": (128, 256, 512, 1024),
    "plan.horizon": (3, 6, 9, 12),
    "net.mlp": (128, 256, 512, 1024),
}
CAPACITIES = (2_000, 10_000, 50_000, 125_000, 500_000, 1_000_000)


def program_of(args: argparse.Namespace, flags: list[str], *settings: str) -> Program:
    """A program with some settings changed."""
    seeds = [str(s) for s in range(args.lanes)]
    argv = [args.task, "--seeds", *seeds, "--preset", args.preset, "--run", "unused"]
    run = request.plan_run([*argv, *settings, *flags])
    return Program(run.agent, run.setups)


def sampling(program: Program, capacity: int, steps: int) -> dict[str, float]:
    """Times of drawing a batch from a replay of some capacity and writing priorities."""
    bench = Bench(program, capacity)
    config, store = program.config, bench.state.replay

    def one(seed, store):
        key = keys.key(seed, "update", 0)
        batch = replay.sample(store, config.replay, key, config.learn.batch, config.plan.horizon)
        priority = jnp.abs(batch.reward).sum(0)
        return replay.set_priorities(
            store, config.replay, batch.index, priority, jnp.bool_(True), batch.weight
        )

    both = jax.jit(jax.vmap(one), donate_argnums=1)
    seeds = jnp.arange(len(program.setups), dtype=jnp.uint32)

    def call() -> replay.Replay:
        nonlocal store
        store = both(seeds, store)
        return store

    return timed(call, steps)


def main() -> None:
    """Read the command line and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="dmc/quadruped-run")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--csv", type=Path)
    args, flags = parser.parse_known_args()
    cli.prepare_jax()
    rows = []

    def add(what: str, setting: str, value: int, times: dict[str, float]) -> None:
        rows.append(
            {"what": what, "setting": setting, "value": value, "lanes": args.lanes, **times}
        )
        print(f"{what:8} {setting:14} {value:9,} {times['ms']:9.3f} ms", flush=True)
        if args.csv:  # after every row: a run may be cut short
            args.csv.parent.mkdir(parents=True, exist_ok=True)
            with args.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)

    program = program_of(args, flags)
    for capacity in CAPACITIES:
        add("sampling", "capacity", capacity, sampling(program, capacity, args.steps))
    programs = {
        (name, value): program_of(args, flags, f"--{name}", str(value))
        for name, values in CHANGES.items()
        for value in values
    }
    benches: dict[str, Bench] = {}  # the preset's own values are among those of each setting
    with ThreadPoolExecutor(resources.cores()) as pool:  # they compile at the same time
        for program in programs.values():
            if repr(program.config) not in benches:
                benches[repr(program.config)] = bench = Bench(program, 20_000)
                function, arguments = program.parts(bench.state)["update"]
                pool.submit(function.compile, *arguments)
    found: dict[str, dict[str, float]] = {}
    for (name, value), program in programs.items():
        config = repr(program.config)
        if config not in found:
            found[config] = timed(functools.partial(benches[config].call, "update"), args.steps)
        add("update", name, value, found[config])


if __name__ == "__main__":
    sys.exit(main())
