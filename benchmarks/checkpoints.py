"""Time and bytes of a checkpoint against the length of the run.

    python benchmarks/checkpoints.py --task dmc/quadruped-run --seeds 1

Fills the replay of a run of 500k environment steps and saves on the way, each time with the same
number of new steps. A row shows the median of the last three saves: `blocked` is how long training
waits (the copy off the device), `written` how long the thread beside it takes, to the last fsync.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from ace import cli, replay
from ace.engine.program import Program
from ace.engine.resources import replay_capacity
from ace.method.types import Transition
from ace.run import request
from ace.run.resume import Keeper, Progress

EPISODE = 250


def filler(program: Program, steps: int):
    """A function that stores `steps` random transitions in every lane."""
    sizes = program.obs_size, program.action_size

    def one(store: replay.Replay, seed: jax.Array) -> replay.Replay:
        def add(i: jax.Array, store: replay.Replay) -> replay.Replay:
            obs = jax.random.normal(jax.random.fold_in(jax.random.key(seed), i), (sizes[0],))
            done = store.length == EPISODE - 1
            step = Transition(jnp.tanh(obs[: sizes[1]]), obs[0], jnp.bool_(False), done, obs, obs)
            return replay.add(store, step)

        return jax.lax.fori_loop(0, steps, add, store)

    return jax.jit(jax.vmap(one, (0, None)), donate_argnums=0)


def measure(program: Program, capacity: int, marks: list[int], interval: int, folder: Path) -> None:
    """Print one row of the table for every mark."""
    lanes, repeat = len(program.setups), program.config.action_repeat
    state = program.init_state(np.zeros((lanes, program.obs_size), np.float32), capacity)
    keeper = Keeper(program, folder, capacity)
    fill, step = filler(program, interval), 0
    metrics = jnp.zeros((lanes, len(program.agent.metrics)))
    print("| env steps | blocked ms | written ms | state MiB | new rows MiB | folder MiB |")
    print("|---:|---:|---:|---:|---:|---:|")
    for mark in marks:
        times, sizes = [], (0.0, 0.0)
        while step < mark // repeat:
            store = fill(state.replay, jnp.uint32(step))
            state, step = replace(state, replay=store), step + interval
            jax.block_until_ready(state)
            zeros = np.zeros(lanes, int)
            episodes = zeros + step // EPISODE
            collector = SimpleNamespace(
                state=lambda: {}, rows=lambda n, episodes=episodes: n + episodes
            )
            at = Progress(step, 0, None, zeros, zeros > 0, metrics)
            begun = time.perf_counter()
            keeper.save(state, at, collector)  # type: ignore[arg-type]
            blocked = time.perf_counter() - begun
            keeper.wait()
            if step > interval:  # the very first save compiles
                times.append((blocked, time.perf_counter() - begun - blocked))
            files = keeper.files.folder
            sizes = (
                (files / str(step) / "state.safetensors").stat().st_size / 2**20,
                (files / "replay" / f"{step:010d}.safetensors").stat().st_size / 2**20,
            )
        blocked, written = 1e3 * np.median(times[-3:], 0)
        whole = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 2**20
        row = f"| {step * repeat:,} | {blocked:.0f} | {written:.0f} | {sizes[0]:.1f} "
        print(f"{row}| {sizes[1]:.2f} | {whole:.1f} |", flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="dmc/quadruped-run")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--interval", type=int, default=1_250, help="agent steps between saves")
    parser.add_argument(
        "--marks", type=int, nargs="+", default=[10_000, 20_000, 50_000, 100_000, 200_000, 500_000]
    )
    args, flags = parser.parse_known_args()
    cli.prepare_jax()
    seeds = [str(s) for s in range(args.seeds)]
    argv = [args.task, "--seeds", *seeds, "--run", "unused", "--env-steps", str(max(args.marks))]
    run = request.plan_run([*argv, *flags])
    capacity = replay_capacity(run.setups)
    program = Program(run.agent, run.setups)
    with tempfile.TemporaryDirectory() as folder:
        measure(program, capacity, args.marks, args.interval, Path(folder))


if __name__ == "__main__":
    main()
