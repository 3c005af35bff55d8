"""Time of the compiled functions of a run, without simulators.

    python benchmarks/steps.py --seeds 5 --tasks dmc/acrobot-swingup dmc/quadruped-run

Fills a replay with random transitions, then times `act`, `add`, `update` and `act_eval`: seconds to
compile, and the median and quartiles of a call in milliseconds, waiting for the device each time.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from ace import cli
from ace.lanes import Program, pack


def timed(call, repeats: int) -> dict[str, float]:
    """Seconds of the first call, and quartiles of the others in milliseconds."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    first = time.perf_counter() - start
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(1e3 * (time.perf_counter() - start))
    low, mid, high = np.percentile(times, [25, 50, 75])
    return {"compile_s": first, "ms": mid, "ms_low": low, "ms_high": high}


def measure(program: Program, repeats: int, capacity: int) -> dict[str, dict[str, float]]:
    """Times of every function of one program."""
    lanes, lane = len(program.setups), program.lane
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((lanes, program.obs_size)).astype(np.float32)
    learner, memory, store = program.init_state(obs, capacity)
    reward, no = np.ones(lanes, np.float32), np.zeros(lanes, bool)
    results = {}

    def add():
        nonlocal store
        action = program.act_seed(lane, jnp.int32(0))
        store = program.add(lane, store, action, jnp.asarray(pack(obs, obs, reward, no, no)))
        return store

    def act():
        nonlocal memory
        action, memory = program.act(
            lane, learner, memory, store, jnp.int32(30_000), jnp.bool_(False)
        )
        return action

    def update():
        nonlocal learner, store
        active = jnp.ones(lanes, bool)
        learner, store, metrics = program.update(lane, learner, store, jnp.int32(30_000), active)
        return metrics

    episodes = program.config.eval_episodes
    eval_memory = program.init_memory(episodes)
    eval_obs = jnp.asarray(np.repeat(obs[:, None], episodes, 1))

    def act_eval():
        nonlocal eval_memory
        action, eval_memory = program.act_eval(
            lane, learner, eval_memory, eval_obs, jnp.int32(0), jnp.int32(30_000)
        )
        return action

    for name, call in (("add", add), ("update", update), ("act", act), ("act_eval", act_eval)):
        results[name] = timed(call, 4 * repeats if name == "add" else repeats)
        print(name, {k: round(v, 3) for k, v in results[name].items()}, flush=True)
    return results


def main() -> None:
    """Read the command line and print a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["dmc/quadruped-run"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--capacity", type=int, default=125_000)
    args, flags = parser.parse_known_args()
    cli.prepare_jax()
    seeds = [str(s) for s in range(args.seeds)]
    run = cli.plan_run([*args.tasks, "--seeds", *seeds, "--run", "unused", *flags])
    program = Program(run.agent, run.setups)
    results = measure(program, args.repeats, args.capacity)
    print(json.dumps({"lanes": len(run.setups), **results}))


if __name__ == "__main__":
    main()
