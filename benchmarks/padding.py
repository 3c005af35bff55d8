"""What padding costs: work and memory of tasks that share programs against programs of their own.

    python benchmarks/padding.py

Lanes of one program must agree in action repeat and in every other setting that shapes it, so tasks
are grouped by those; each group is one program, padded to its largest task. The work is counted
from the shapes of the matrix products of a plan and an update.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence

import jax

from ace import replay
from ace.agents import AGENTS
from ace.engine.lanes import LaneSetup
from ace.engine.program import Program
from ace.envs import get_spec
from ace.settings.config import replace
from ace.settings.presets import resolve
from ace.tools.speed import Bench, count_flops

DMC15 = (
    "acrobot-swingup cheetah-run finger-turn_hard fish-swim hopper-hop hopper-stand humanoid-run "
    "humanoid-stand humanoid-walk pendulum-swingup quadruped-run quadruped-walk reacher-hard "
    "swimmer-swimmer6 walker-run"
)


def work(setup: LaneSetup, sizes: tuple[int, int]) -> float:
    """Operations of one lane-step in a program of some sizes."""
    plain = setup._replace(config=replace(setup.config, {"kernels": "off"}))
    bench = Bench(Program("ace", [plain], sizes), 1_000)
    parts = bench.program.parts(bench.state).values()
    return sum(count_flops(function.jitted.trace(*args).jaxpr) for function, args in parts)


def program_sizes(setups: Sequence[LaneSetup]) -> tuple[int, int]:
    """Observation and action size of a program for some lanes."""
    return max(s.sizes[0] for s in setups), max(s.sizes[1] for s in setups)


def main() -> None:
    """Read the command line and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = [f"dmc/{name}" for name in DMC15.split()]
    parser.add_argument("--tasks", nargs="+", default=default)
    args = parser.parse_args()
    groups: dict[object, list[LaneSetup]] = defaultdict(list)
    for task in args.tasks:
        spec = get_spec(task)
        config = replace(
            resolve("default", task, spec, AGENTS["ace"].defaults_of(task)), {"precision": "f32"}
        )
        setup = LaneSetup(task, 0, config, (spec.obs_size, spec.action_size))
        groups[jax.tree.structure(config)].append(setup)
    print("| task | repeat | sizes | program | GFLOP alone | padded | replay MiB alone | padded |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    totals = [0.0] * 4
    for setups in groups.values():
        sizes = program_sizes(setups)
        for s in setups:
            slots = s.config.agent_steps
            row = [work(s, s.sizes) / 1e9, work(s, sizes) / 1e9]
            row += [replay.size_in_bytes(slots, *x) / 2**20 for x in (s.sizes, sizes)]
            totals = [a + b for a, b in zip(totals, row, strict=True)]
            shape, whole = ("x".join(map(str, x)) for x in (s.sizes, sizes))
            print(f"| {s.task} | {s.config.action_repeat} | {shape} | {whole} ", end="")
            print(f"| {row[0]:.2f} | {row[1]:.2f} | {row[2]:.0f} | {row[3]:.0f} |")
    more = [f"{100 * (totals[i + 1] / totals[i] - 1):.1f} %" for i in (0, 2)]
    print(f"{len(groups)} program(s): padding adds {more[0]} of work and {more[1]} of replay")


if __name__ == "__main__":
    main()
