"""`ace bench` that is killed again and again, or cut into slices: are the results those of one
call?

    python benchmarks/slices.py --kills 8 --slices 3 --limit 2m

A suite of three small programs of the real agent is run once as a whole; once with SIGKILL to
`ace bench` at random moments, its programs finding out by themselves; and once by several calls
with `--for`. All CSV files must be equal byte for byte.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUITE = """
about = "Three small programs."
tasks = ["probe/point", "probe/long"]
seeds = "0-1"
env_steps = {steps}
preset = "debug"
lanes = 4

[settings]
eval_every = 500

[agents.ace]
[agents.ace-blind]
settings = {{ "learn.novelty_weight" = 0.0 }}
[agents.ace-cem]
settings = {{ "plan.planner" = "cem" }}
"""


def command(*flags: str) -> list[str]:
    """`ace bench` with checkpoints as often as it can."""
    return [sys.executable, "-m", "ace", "bench", "small.toml", "--save-minutes", "0.005", *flags]


def tables(folder: Path) -> dict[str, bytes]:
    """All result files."""
    root = folder / "results" / "small"
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.csv"))}


def finished(folder: Path, *flags: str) -> str:
    """Run a whole call; what it printed."""
    done = subprocess.run(command(*flags), cwd=folder, text=True, capture_output=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def killed(folder: Path, count: int, rng: random.Random) -> int:
    """Kill `ace bench` at random moments; how often it was still running."""
    hits = 0
    for _ in range(count):
        process = subprocess.Popen(
            command(), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(1.0, 20.0))
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    return hits


def main() -> None:
    """Read the command line, run everything, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--slices", type=int, default=3)
    parser.add_argument("--limit", default="2m")
    parser.add_argument("--env-steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: Path(temporary) / name for name in ("whole", "killed", "slices")}
        for folder in folders.values():
            folder.mkdir()
            (folder / "small.toml").write_text(SUITE.format(steps=args.env_steps))
        begun = time.monotonic()
        finished(folders["whole"])
        print(f"one call: {time.monotonic() - begun:.0f} s, {len(tables(folders['whole']))} files")
        hits = killed(folders["killed"], args.kills, random.Random(args.seed))
        finished(folders["killed"])
        same = tables(folders["killed"]) == tables(folders["whole"])
        print(f"killed {hits} times: {'equal' if same else 'DIFFERENT'}")
        for number in range(args.slices):
            said = finished(folders["slices"], "--for", args.limit).splitlines()
            summary = [line for line in said if "finished," in line or line.startswith("left:")]
            print(f"slice {number + 1} of {args.limit}: {'; '.join(summary) or said[0]}")
        also = tables(folders["slices"]) == tables(folders["whole"])
        print(f"slices: {'equal' if also else 'DIFFERENT'}")
        sys.exit(not (same and also))


if __name__ == "__main__":
    main()
