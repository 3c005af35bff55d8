"""Seconds from the start of the process to the first update of a run, as `ace train` makes it.

    python benchmarks/start.py --lanes 16

Called twice, it finds compiled programs in the cache the second time. The random phase is cut to 64
steps, so that compilation has nothing to hide behind.
"""

import argparse
import tempfile
import time
from contextlib import closing
from pathlib import Path


def main() -> None:
    """Read the command line, start a run and print when what was ready."""
    begun = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="dmc/quadruped-run")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--lanes", type=int, default=16)
    args, flags = parser.parse_known_args()
    from ace import cli

    cli.prepare_jax()
    import jax

    from ace.engine.program import Program
    from ace.engine.resources import replay_capacity
    from ace.run import request
    from ace.run.loop import Loop

    def say(what: str) -> None:
        print(f"{time.perf_counter() - begun:6.1f} s  {what}", flush=True)

    say("imported")
    with tempfile.TemporaryDirectory() as folder:
        seeds = [str(s) for s in range(args.lanes)]
        argv = [args.task, "--seeds", *seeds, "--preset", args.preset, "--seed-steps", "64"]
        argv += ["--quiet", "--save-minutes", "0", "--run", str(Path(folder) / "run"), *flags]
        run = request.plan_run(argv)
        run.folder.mkdir()
        program = Program(run.agent, run.setups)
        say("settings checked")
        with closing(Loop(run, program, replay_capacity(run.setups))) as loop, loop.recorder:
            say("learners and simulators made")
            while loop.metrics is None:
                loop.wait_for_compiler()
                loop.step()
            jax.block_until_ready(loop.metrics)
            say("first updates made")


if __name__ == "__main__":
    main()
