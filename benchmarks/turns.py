"""Lane-steps a second of two versions of the code, in turns on one machine.

    git worktree add ../old COMMIT
    python benchmarks/turns.py ../old . --lanes 1 --turns 10 --steps 400

Each version trains in a process of its own, which is started and compiled before the first turn; on
a GPU, XLA_PYTHON_CLIENT_MEM_FRACTION=0.4 lets both share it. Flags of `ace train` may follow.
Prints the rate of every turn, and the mean ratio of the second version to the first with its
standard error.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path


def play(flags: list[str], lanes: int) -> None:
    """Start a run; then make as many steps as each line of standard input says, and print the rate
    of each time."""
    from ace import cli

    cli.prepare_jax()
    import jax

    from ace.engine.program import Program
    from ace.engine.resources import replay_capacity
    from ace.run import request
    from ace.run.loop import Loop

    with tempfile.TemporaryDirectory() as folder:
        argv = ["--seeds", *map(str, range(lanes)), "--seed-steps", "1000", "--quiet"]
        argv += ["--save-minutes", "0", "--run", str(Path(folder) / "run")]
        run = request.plan_run([*flags, *argv])
        run.folder.mkdir()
        program = Program(run.agent, run.setups)
        with closing(Loop(run, program, replay_capacity(run.setups))) as loop, loop.recorder:

            def go(steps: int) -> float:
                jax.block_until_ready(loop.state)
                begun = time.perf_counter()
                for _ in range(steps):
                    loop.step()
                jax.block_until_ready(loop.state)
                return steps * lanes / (time.perf_counter() - begun)

            for thread in loop.compiling:
                thread.join()
            go(run.setups[0].config.seed_steps + 100)  # with the burst of updates between
            print("ready", flush=True)
            for line in sys.stdin:
                print(go(int(line)), flush=True)


def main() -> None:
    """Read the command line, let both versions take turns and print what they did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs=2, type=Path, help="folders that hold the package ace")
    parser.add_argument("--task", default="dmc/quadruped-run")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    args, flags = parser.parse_known_args()
    if args.play:
        return play([args.task, "--preset", args.preset, *flags], args.lanes)

    def start(folder: Path) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--play"],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(player: subprocess.Popen[str], line: str = "") -> str:
        assert player.stdin and player.stdout
        player.stdin.write(line)
        player.stdin.flush()
        if not (said := player.stdout.readline()):
            sys.exit("a version ended before its turn; its error is above")
        return said

    players = [start(folder.resolve()) for folder in args.versions]
    try:
        for player in players:
            ask(player)
        rates: list[list[float]] = [[], []]
        for turn in range(args.turns):
            for i in (0, 1) if turn % 2 == 0 else (1, 0):  # neither is always first
                rates[i].append(float(ask(players[i], f"{args.steps}\n")))
    finally:
        for player in players:
            player.kill()
    for folder, each in zip(args.versions, rates, strict=True):
        print(f"{folder}: {statistics.mean(each):.1f} of {[round(x) for x in each]}")
    ratios = [new / old for old, new in zip(*rates, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    print(f"ratio {statistics.mean(ratios):.3f} +- {error:.3f}")


if __name__ == "__main__":
    main()
