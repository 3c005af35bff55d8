"""One job in a process of its own: `python -m ace.bench.worker FOLDER MINUTES PARENT [DEVICE]`,
where FOLDER/job.json says what to do, and DEVICE is the kind of device it was planned for. It
continues where an earlier process stopped, and ends when the process PARENT does, which started
it."""

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


def end_with_parent(parent: int) -> None:
    """Send this process a SIGTERM when its parent dies, so that no job goes on unseen. Not with
    Linux's PR_SET_PDEATHSIG, which sends it when the thread that started this process ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def check_device(planned: str) -> None:
    """Refuse another kind of device: JAX falls back to the CPU where it cannot reach a card."""
    import jax

    from ace.settings.config import ConfigError

    found = jax.devices()[0].device_kind
    if found != ("cpu" if planned.startswith("cpu") else planned):
        raise ConfigError(f"this job was planned for {planned}, but JAX finds {found} here")


def check_begun(run: Any) -> None:
    """Refuse to go on with a job that began with other settings: another version of ace may have
    others for the same suite, and results would say that the whole curve was made with them."""
    from ace.bench.jobs import OF_THE_MACHINE
    from ace.run.checkpoint import Checkpoints
    from ace.run.folders import differences, listed
    from ace.settings.config import ConfigError

    path = run.folder / "config.json"
    if not path.exists() or not Checkpoints(run.folder).steps():
        return
    found = differences(path, run.describe())
    if found := [each for each in found if each[0] not in OF_THE_MACHINE]:
        raise ConfigError(
            f"{run.folder} was begun with other settings: {listed(found)}; delete it to begin "
            "anew, or finish it with the version of ace that began it"
        )


def work(folder: Path, save_minutes: float, device: str | None = None) -> int:
    """Train the job's lanes to their end and write what they were trained with."""
    from ace.engine import prepare

    prepare.keep_memory()
    prepare.load_jax()
    if device:
        check_device(device)
    import jax

    from ace.bench.jobs import Job, describe_config, make_run
    from ace.bench.local import device_name
    from ace.run import loop
    from ace.run.record import versions, write_json
    from ace.settings.config import ConfigError

    job = Job.from_json(json.loads((folder / "job.json").read_text()))
    run = make_run(job, folder / "run", save_minutes=save_minutes)
    check_begun(run)
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
    about = {"hardware": device_name(jax.devices()[0].device_kind), "versions": used}
    write_json(folder / "done.json", {"config": shared, "settings": own, **about})
    return 0


def main() -> None:
    """Read the command line; errors that the user can fix are one line."""
    from ace.run.errors import explained

    end_with_parent(int(sys.argv[3]))
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        status = work(Path(sys.argv[1]), float(sys.argv[2]), *sys.argv[4:])
    except Exception as error:
        if (line := explained(error)) is None:
            raise
        print(f"ace: {line}", file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # background threads of XLA may still compile what nobody needs any more


if __name__ == "__main__":
    main()
