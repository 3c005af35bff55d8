"""The node's side of a job on a cluster: an object that Ray keeps alive on one node and whose
methods the driver calls. It starts the same process as a job on this machine, and says how far that
is. It knows nothing of Ray."""

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

LOG_BYTES = 2**20  # of a log that travel at once


class Opened(NamedTuple):
    """Where a job landed."""

    node: str
    shared: bool  # the driver's folder is visible here


class Report(NamedTuple):
    """How far a job is."""

    status: int | None  # exit status, or None while it runs
    env_step: int
    newest: int  # agent step of the newest checkpoint, -1 if there is none
    log: bytes  # what was printed since the report before


def about_node() -> tuple[str, str, int]:
    """Version of ace on this node, and name and bytes of its first GPU, or of its CPU without
    one."""
    from ace import __version__
    from ace.bench.local import device_name, host_memory

    processor = (__version__, device_name("cpu"), host_memory())
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:  # not JAX: it would need a free GPU, and take memory of it
        # No time limit: a busy node would pass for one without a GPU. The caller has a limit.
        said = subprocess.run(asked, capture_output=True, text=True)
        name, _, megabytes = said.stdout.splitlines()[0].rpartition(",")
        return __version__, name.strip(), int(megabytes) * 2**20
    except (OSError, IndexError, ValueError):
        return processor


def make_room(base: Path | None = None) -> tuple[Path, IO[str]]:
    """A new folder for a job on this node's disk, and the lock that keeps it. Folders whose lock
    nobody holds are left over from killed workers: remove them."""
    base = base or Path(tempfile.gettempdir()) / f"ace-bench-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    for path in base.glob("*.lock"):
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(suffix=".lock", dir=base)
    os.close(handle)
    lock = open(name, "a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    room = Path(name).with_suffix("")
    room.mkdir()
    return room, lock


class Host:
    """One job on one node."""

    def __init__(self) -> None:
        self.room, self._lock = make_room()
        self.folder = self.room / "job"
        self._process: Any = None

    def open(self, folder: str, token: str) -> Opened:
        """Say where this is, and use the driver's folder if it is visible: it holds a file with
        the name of the token."""
        shared = bool(token) and (Path(folder) / token).is_file() and os.access(folder, os.W_OK)
        if shared:
            self.folder = Path(folder)
        return Opened(socket.gethostname(), shared)

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Take a part of a file of the driver."""
        from ace.bench.mirror import write_part

        write_part(self.folder / name, offset, data)

    def begin(
        self, job: Mapping[str, Any], save_minutes: float, modules: Mapping[str, bytes]
    ) -> None:
        """Start the program, with the user's modules on its path."""
        from ace.bench.jobs import Job
        from ace.bench.local import LocalJob

        if self._process is not None:  # the driver asks again if it got no answer
            return
        if modules:
            for name, data in modules.items():
                path = self.room / "modules" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            paths = [str(self.room / "modules"), os.environ.get("PYTHONPATH", "")]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._process = LocalJob(Job.from_json(job), self.folder, save_minutes)

    def look(self, log_at: int | None) -> Report:
        """How far the job is, and its log from a byte on, if that is asked for."""
        from ace.bench.mirror import newest

        status = self._process.poll()  # first: a log read before the end would lack its last lines
        log = b""
        if log_at is not None:
            with (self.folder / "log.txt").open("rb") as file:
                file.seek(log_at)
                log = file.read(LOG_BYTES if status is None else -1)
        return Report(status, self._process.env_step(), newest(self.folder), log)

    def snapshot(self, checkpoint: bool) -> list[Any]:
        """Fix the job's files as they are now, for `get`."""
        from ace.bench.mirror import take_snapshot

        return take_snapshot(self.folder, self.room / "snapshot", checkpoint)

    def get(self, name: str, offset: int) -> bytes:
        """A part of a file of the snapshot."""
        from ace.bench.mirror import read_part

        return read_part(self.room / "snapshot" / name, offset)

    def stop(self) -> None:
        """Ask the program to save and end."""
        self._process.stop()

    def end(self) -> None:
        """End the program, if it still runs, and delete what was kept here."""
        if self._process is not None:
            self._process.kill()
        shutil.rmtree(self.room, ignore_errors=True)
        Path(self._lock.name).unlink(missing_ok=True)
        self._lock.close()
