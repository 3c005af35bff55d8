"""`ace speed`: how fast this machine is, part by part: planning, updates, simulators, and a whole
run.

Work is counted from the shapes of the matrix products, the limit is measured with a large one.
"""

import functools
import glob
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from ace.engine.program import Program
from ace.engine.resources import check_memory, peak_memory, replay_capacity
from ace.envs import get_spec
from ace.method.types import Transition
from ace.run.collect import Collector
from ace.run.evaluate import RESET
from ace.run.flags import SpeedArgs
from ace.run.loop import Loop
from ace.run.record import versions, write_json
from ace.run.request import Run, plan_run
from ace.settings.config import ConfigError, replace
from ace.settings.words import counted

WARM_UP = 20  # calls before those that are timed
MOST_LANES = 10_000
RUN_WARM_UP = 200  # steps of a run: processors and memory take about a second to settle
Times = dict[str, float]


def spread(seconds: list[float]) -> Times:
    """Median and quartiles in milliseconds."""
    low, mid, high = np.percentile(np.array(seconds) * 1e3, [25, 50, 75])
    return {"ms": float(mid), "ms_low": float(low), "ms_high": float(high)}


def timed(call: Callable[[], Any], repeats: int) -> Times:
    """Times of a call, waiting for the device each time."""
    for _ in range(WARM_UP):
        jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - begun)
    return spread(seconds)


def count_flops(jaxpr: Any, inside: bool = False) -> float:
    """Floating-point operations of all matrix products in a program, loops included.

    Of a loop whose rounds are data one round counts, that is one update of several in a call; such
    a loop inside another does not: it is for rare work, as a reset.
    """
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contract, _), _ = eqn.params["dimension_numbers"]
            shared = np.prod([eqn.invars[0].aval.shape[d] for d in contract])
            total += 2 * float(np.prod(eqn.outvars[0].aval.shape)) * float(shared)
        rounds_are_data = eqn.primitive.name == "while"
        if rounds_are_data and inside:
            continue
        times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        for value in eqn.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                if isinstance(inner, jex.ClosedJaxpr):
                    total += times * count_flops(inner.jaxpr, inside or rounds_are_data)
                elif isinstance(inner, jex.Jaxpr):
                    total += times * count_flops(inner, inside or rounds_are_data)
    return total


def measure_limit(precision: str) -> float:
    """TFLOP/s of a large matrix product in the type of the activations."""
    gpu = jax.default_backend() != "cpu"
    size, dtype = (8192, jnp.bfloat16) if gpu else (2048, jnp.float32)
    dtype = dtype if precision == "bf16" or not gpu else jnp.float32
    x = jax.random.normal(jax.random.key(0), (size, size), dtype)
    seconds = timed(functools.partial(jax.jit(jnp.matmul), x, x), 20)["ms"] / 1e3
    return 2 * size**3 / seconds / 1e12


class Bench:
    """The functions of one program, with a state to call them on."""

    def __init__(self, program: Program, capacity: int):
        self.program, self.lanes = program, len(program.setups)
        rng = np.random.default_rng(0)
        self.state = program.init_state(self._obs(rng), capacity)
        random, flag = program.random_actions(0), np.zeros(self.lanes, bool)
        for step in range(random.shape[1]):
            reward = rng.standard_normal(self.lanes).astype(np.float32)
            obs, final = self._obs(rng), self._obs(rng)
            transition = Transition(random[:, step], reward, flag, flag, final, obs)
            program.send(step, obs, transition=transition)
            self.state = program.add(self.state)
        # Step 30,000: past the ramps.
        program.send(30_000, self._obs(rng), active=~flag)

    def _obs(self, rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal((self.lanes, self.program.obs_size)).astype(np.float32)

    def call(self, part: str, count: int = 1) -> Any:
        """Make one call, which donates the state and replaces it; one of "update" makes `count`."""
        if part == "plan":
            out, self.state = self.program.act(self.state)
        else:
            self.state, out = self.program.update(self.state, count)
        return out


PARTS = ("plan", "update")


def compile_all(program: Program, capacity: int) -> float:
    """Seconds to compile all that a run needs, in the same way as a run."""
    jax.clear_caches()
    begun = time.perf_counter()
    for thread in program.compile_ahead(capacity):
        thread.join()
    return time.perf_counter() - begun


def count_work(run: Run) -> Times:
    """Floating-point operations of a plan and of an update of one lane by the plain functions:
    padding on a GPU does not count."""
    plain = [s._replace(config=replace(s.config, {"kernels": "off"})) for s in run.setups[:1]]
    bench = Bench(Program(run.agent, plain), 1_000)
    parts = bench.program.parts(bench.state)
    # Where a call makes one update, there is no loop over several: all such loops are rare work.
    rare = {"update": bench.program.at_once == 1}
    return {
        part: count_flops(function.jitted.trace(*args).jaxpr, rare.get(part, False))
        for part, (function, args) in parts.items()
    }


@contextmanager
def empty_cache() -> Iterator[None]:
    """Let compiled programs be cached in a new folder, which is deleted at the end."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        compilation_cache.reset_cache()  # makes JAX look at the setting again
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", before)
            compilation_cache.reset_cache()


def measure_environment(collector: Collector, shape: tuple[int, int], steps: int) -> Times:
    """Times of one step of all simulators, as the run steps them, with random actions."""
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(WARM_UP + steps):
        collector.send(rng.uniform(-1, 1, shape).astype(np.float32))
        begun = time.perf_counter()
        collector.recv()
        seconds.append(time.perf_counter() - begun)
    return spread(seconds[WARM_UP:])


def measure_run(run: Run, program: Program, steps: int) -> tuple[Times, dict[str, Any]]:
    """Times of one step of a run's simulators, and of one step of the run, alone and beside an
    evaluation: everything included."""
    config, lanes = program.config, len(run.setups)
    capacity = replay_capacity(run.setups)
    with closing(Loop(run, program, capacity)) as loop:

        def go(enough: Callable[[int], bool]) -> list[float]:
            """Seconds of each step until `enough`; the last includes what the device had queued."""
            jax.block_until_ready(loop.state)
            ends = [time.perf_counter()]
            while not enough(len(ends) - 1):
                loop.step()
                loop.recorder.progress(loop.env_step, skipped_updates=loop.skipped)
                loop.advance_evaluation()
                ends.append(time.perf_counter())
            jax.block_until_ready(loop.state)
            ends[-1] = time.perf_counter()
            return np.diff(ends).tolist()

        with loop.recorder:
            for thread in loop.compiling:
                thread.join()
            warm_up = config.seed_steps + RUN_WARM_UP  # with the burst of updates between
            go(lambda n: n == warm_up)
            alone = go(lambda n: n == steps)
            evaluator = loop.evaluations.evaluator
            jax.block_until_ready(program.acting(loop.state))  # compiles

            def over() -> bool:
                return loop.evaluations.running is None

            begun, first = time.perf_counter(), loop.agent_step
            loop.begin_evaluation()
            start = time.perf_counter() - begun
            go(lambda n: over() or evaluator.rounds == 2)  # all is compiled
            if over():  # episodes are short: measure the next evaluation from its beginning
                first = loop.agent_step
                loop.begin_evaluation()
            before = evaluator.rounds
            beside = go(lambda n: over() or (n >= steps and evaluator.between_rounds))
            a_round = len(beside) / max(evaluator.rounds - before, 1)
            length = loop.agent_step - first if over() else None
            evaluator.close()
        simulators = measure_environment(loop.collector, (lanes, program.action_size), steps)
    between = config.eval_every / config.action_repeat
    longest = get_spec(run.setups[0].task).max_episode_steps or config.eval_every
    needed = length or RESET + longest / config.action_repeat * a_round  # steps of an evaluation
    busy = min(needed, between)
    # The run waits for the rest of an evaluation when the next is due; this is an upper bound.
    wait = start + (needed - busy) * np.mean(beside)
    average = (busy * np.mean(beside) + (between - busy) * np.mean(alone) + wait) / between
    return simulators, {
        "step": spread(alone),
        "step_beside_evaluation": spread(beside),
        "evaluation_start_s": start,
        "steps_a_round_of_evaluation": a_round,
        "lane_steps_per_s_learning": lanes / np.mean(alone),
        "lane_steps_per_s": lanes / average,
    }


def measure(run: Run, steps: int, limit: float, work: Times) -> dict[str, Any]:
    """Measure one program; `limit` is the machine's TFLOP/s, `work` the operations of a lane."""
    capacity = replay_capacity(run.setups)
    replay_bytes = check_memory(run.agent, run.setups, capacity)
    program = Program(run.agent, run.setups)
    found: dict[str, Any] = {
        "lanes": len(run.setups),
        "precision": program.config.precision,
        "kernels": program.config.kernels,
        "replay_bytes": replay_bytes,
    }
    with empty_cache():
        for state in ("cold", "cached"):
            program = Program(run.agent, run.setups)
            found[f"compile_s_{state}"] = compile_all(program, capacity)
        bench = Bench(program, capacity)
        for part, flops in work.items():
            found[part] = timed(functools.partial(bench.call, part), steps)
            rate = flops * found["lanes"] / found[part]["ms"] / 1e9
            found[part] |= {"gflop": flops / 1e9, "tflops": rate, "share_of_limit": rate / limit}
        if (many := program.at_once) > 1:  # milliseconds of one of them
            times = timed(functools.partial(bench.call, "update", many), max(steps // many, 5))
            found["update_at_once"] = {name: ms / many for name, ms in times.items()}
        del bench
        found["environment"], found["end_to_end"] = measure_run(run, program, steps)
    found |= program.kernels.described()
    found["device_peak_bytes"] = peak_memory()
    return found


def profile(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The kernels of a plan and of an update. Time everything else before: once profiled, a process
    launches its kernels more slowly."""
    bench = Bench(Program(run.agent, run.setups), replay_capacity(run.setups))
    return {part: profiled(functools.partial(bench.call, part)) for part in PARTS}


def profiled(call: Callable[[], Any], calls: int = 5, most: int = 25) -> list[dict[str, Any]]:
    """What the device spends its time on in one call: name, calls and milliseconds."""
    jax.block_until_ready(call())  # compile before the trace: compiling runs kernels too
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                jax.block_until_ready(call())
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        data = jax.profiler.ProfileData.from_file(path)
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    on_device = any(plane.name.startswith("/device:GPU") for plane in data.planes)
    for plane in data.planes:
        if on_device != plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            for event in line.events:
                # On a CPU, count only events of compiled programs, not Python's frames.
                if on_device or any(key == "hlo_op" for key, _ in event.stats):
                    totals[event.name][0] += 1 / calls
                    totals[event.name][1] += event.duration_ns / 1e6 / calls
    ranked = sorted(totals.items(), key=lambda item: -item[1][1])
    return [{"name": n, "calls": round(c, 1), "ms": ms} for n, (c, ms) in ranked[:most]]


def speed(args: SpeedArgs, settings: Sequence[str]) -> None:
    """Measure a program for each number of lanes, print what was found and write it to a file if
    asked to; `settings` are flags of `ace train`."""
    if min((*args.lanes, args.steps), default=0) < 1:
        raise ConfigError("--lanes and --steps must be at least 1")
    if max(args.lanes) > MOST_LANES:
        raise ConfigError(f"--lanes is {max(args.lanes)}; it must be at most {MOST_LANES}")
    if args.json and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise ConfigError(f"--json is {args.json}; name a file in a folder that exists")
    found: dict[str, Any] = {"task": args.task, "preset": args.preset, "versions": versions()}
    found["settings"], found["lanes"], work, runs = settings, [], {}, []
    with tempfile.TemporaryDirectory() as folder:
        for lanes in args.lanes:
            seeds = [str(seed) for seed in range(lanes)]
            where = ["--quiet", "--save-minutes", "0", "--run", f"{folder}/{lanes}"]
            asked = [args.task, "--seeds", *seeds, "--preset", args.preset, "--seed-steps", "64"]
            run = plan_run([*asked, *where, *settings])
            run.folder.mkdir()
            if "limit_tflops" not in found:
                found["limit_tflops"] = measure_limit(run.setups[0].config.precision)
                work = count_work(run)
            row = measure(run, args.steps, found["limit_tflops"], work)
            found["lanes"].append(row)
            runs.append(run)
            show(found, row)
            if args.json:
                write_json(args.json, found)
        for run, row in zip(runs if args.profile else (), found["lanes"], strict=False):
            kernels = profile(run)
            show_kernels(row["lanes"], kernels)
            for part in kernels:
                row[part]["kernels"] = kernels[part]
            if args.json:
                write_json(args.json, found)


def show(found: dict[str, Any], row: dict[str, Any]) -> None:
    """Print what was measured of one program."""
    whole = row["end_to_end"]
    what = f"{found['task']}, preset {found['preset']}, {row['precision']}"
    table = Table(
        title=f"{what}, {counted(row['lanes'], 'lane')}",
        caption=f"{whole['lane_steps_per_s']:,.0f} lane-steps/s with evaluation "
        f"({whole['lane_steps_per_s_learning']:,.0f} without); compiled in "
        f"{row['compile_s_cold']:.0f} s cold, {row['compile_s_cached']:.0f} s cached; replay "
        f"{row['replay_bytes'] / 2**30:.2f} GiB, device peak "
        f"{(row['device_peak_bytes'] or 0) / 2**30:.1f} GiB; "
        f"limit {found['limit_tflops']:.1f} TFLOP/s",
    )
    for name in ("", "ms (quartiles)", "us a lane-step", "GFLOP a lane", "TFLOP/s", "of the limit"):
        table.add_column(name, justify="left" if not name else "right")
    names = ("plan", "update", "update_at_once", "environment")
    parts = {name.replace("_", " "): row[name] for name in names if name in row}
    for name, part in (parts | {"whole step": whole["step"]}).items():
        times = f"{part['ms']:.2f} ({part['ms_low']:.2f}, {part['ms_high']:.2f})"
        work = ["", "", ""]
        if "gflop" in part:
            work = [
                f"{part['gflop']:.1f}",
                f"{part['tflops']:.2f}",
                f"{part['share_of_limit']:.1%}",
            ]
        table.add_row(name, times, f"{1e3 * part['ms'] / row['lanes']:.0f}", *work)
    Console().print(table)


def show_kernels(lanes: int, found: dict[str, list[dict[str, Any]]]) -> None:
    """Print what the device spends its time on."""
    for part, ranked in found.items():
        print(f"{part}, {counted(lanes, 'lane')}:")
        for kernel in ranked:
            print(f"{kernel['ms']:8.3f} ms {kernel['calls']:6.1f} x {kernel['name']}")
