"""One job in a process of its own: `python -m ace.bench.worker FOLDER`, where FOLDER/job.json says
what to do. It continues where an earlier process stopped, and ends when its parent does."""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

LOCK_SECONDS = 120  # an earlier process may still be saving
STOPPED = 75  # exit status after a signal, with the state saved


def end_with_parent() -> None:
    """Ask for a SIGTERM when the parent dies, so that no job goes on unseen."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
    if parent != os.getppid() or parent == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        return

    def watch() -> None:  # the thread of the parent that started this process may end before it
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def work(folder: Path, save_minutes: float) -> int:
    """Train the job's lanes to their end and write what they were trained with."""
    from ace import cli

    cli.prepare_jax()
    from ace.bench.jobs import Job, describe_config, make_run
    from ace.run import loop
    from ace.run.record import versions, write_json
    from ace.settings.config import ConfigError

    job = Job.from_json(json.loads((folder / "job.json").read_text()))
    run = make_run(job, folder / "run", save_minutes=save_minutes)
    begun = time.monotonic()
    while True:
        try:
            loop.train(run)
            break
        except loop.Stopped as stop:
            print(stop, flush=True)
            return STOPPED
        except ConfigError as error:
            if "is in use by" not in str(error) or time.monotonic() - begun > LOCK_SECONDS:
                raise
            time.sleep(1)
    shared, own = describe_config([setup.config for setup in run.setups])
    there = run.folder / "versions.json"
    used: dict[str, Any] = json.loads(there.read_text()) if there.exists() else versions()
    write_json(folder / "done.json", {"config": shared, "settings": own, "versions": used})
    return 0


def main() -> None:
    """Read the command line; errors that the user can fix are one line."""
    from ace import cli

    end_with_parent()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        status = work(Path(sys.argv[1]), float(sys.argv[2]))
    except Exception as error:
        if (line := cli.explained(error)) is None:
            raise
        print(f"ace: {line}", file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # background threads of XLA may still compile what nobody needs any more


if __name__ == "__main__":
    main()
