"""The driver's side of a job on a cluster: a thread that starts it, keeps a copy of its last
checkpoint, and starts it again from there when its worker or node is lost."""

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ace.bench import mirror
from ace.bench.jobs import Job
from ace.bench.local import TAIL, env_step
from ace.bench.remote import Opened, Report
from ace.bench.worker import STOPPED

RETRIES = 3  # in a row without a new checkpoint
RETRY_SECONDS = 2.0  # before the first retry, doubled for each that follows
LOOK_SECONDS = 0.5
GIVEN_UP = 70  # exit status of a job that was lost too often
KILLED = -9
SHARED = "ACE_BENCH_SHARED"  # "off": copy files even if the nodes see the driver's folder


class Lost(Exception):
    """The worker of a job, or its node, is gone; says why."""


class Withdrawn(Exception):
    """The driver no longer wants a job that waits for a node, or wants it to end at once."""


class Handle(Protocol):
    """Calls the methods of a `Host` on some node."""

    def call(self, withdrawn: Callable[[], bool], method: str, *args: Any) -> Any: ...
    def end(self) -> None: ...
    def kill(self) -> None: ...


class RemoteJob:
    """A job on a cluster."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        save_minutes: float,
        place: Callable[[], Handle],
        modules: Mapping[str, bytes],
        tell: Callable[[str], None],
    ):
        self.job, self.folder, self.save_minutes = job, folder.resolve(), save_minutes
        self._place, self._modules, self._tell = place, modules, tell
        self._stop, self._kill = threading.Event(), threading.Event()
        self._status: int | None = None
        self._host: Handle | None = None
        self._begun = False  # on a node, rather than waiting for one
        self.folder.mkdir(parents=True, exist_ok=True)
        self._env_step = env_step(self.folder)
        self._thread = threading.Thread(target=self._work, daemon=True, name=job.id)
        self._thread.start()

    def poll(self) -> int | None:
        """The exit status, or None while the job waits or runs."""
        return self._status

    def env_step(self) -> int:
        """How far the job is."""
        return self._env_step

    def stop(self) -> None:
        """Ask the job to save and end."""
        self._stop.set()

    def kill(self) -> None:
        """End the job at once."""
        self._kill.set()
        if self._host is not None and self._status is None:
            self._host.kill()

    def log(self) -> str:
        """The end of what the job printed."""
        try:
            return (self.folder / "log.txt").read_text(errors="replace")[-TAIL:].strip()
        except FileNotFoundError:
            return ""

    def _work(self) -> None:
        try:
            status = self._retry()
        except Exception as error:  # nobody else would hear of it
            self._note(f"the driver cannot watch it any more: {error!r}")
            status = GIVEN_UP
        self._status = status

    def _retry(self) -> int:
        """Run the job to its end, on as many nodes as it takes."""
        lost = 0
        while True:
            before = mirror.newest(self.folder)
            self._host, self._begun = self._place(), False
            try:
                return self._run()
            except Withdrawn:
                return KILLED if self._kill.is_set() else STOPPED
            except Lost as error:
                if self._kill.is_set() or self._stop.is_set():
                    return STOPPED  # it goes on from its last checkpoint another time
                lost = 1 if mirror.newest(self.folder) > before else lost + 1
                reason = str(error)
            finally:
                # A host that has not begun may wait for a node: it could not answer.
                quick = self._kill.is_set() or not self._begun
                self._host.kill() if quick else self._host.end()
            if lost > RETRIES:
                self._note(f"lost {lost} times in a row without a new checkpoint: {reason}")
                return GIVEN_UP
            self._env_step = env_step(self.folder)
            saved = mirror.newest(self.folder)
            where = f"its checkpoint at agent step {saved:,}" if saved >= 0 else "its beginning"
            self._note(f"lost ({reason}); it goes on from {where}")
            self._stop.wait(RETRY_SECONDS * 2 ** (lost - 1))

    def _run(self) -> int:
        """One attempt; the exit status of the program if it ended by itself or was asked to."""
        shared = self._open().shared
        if not shared:
            self._send()
        self._call("begin", self.job.to_json(), self.save_minutes, self._modules)
        self._begun = True
        log_at, asked = 0, False
        while True:
            if self._stop.is_set() and not asked:
                self._call("stop")
                asked = True
            report: Report = self._call("look", None if shared else log_at)
            self._env_step = report.env_step
            if not shared:
                log_at += len(report.log)
                self._append(report.log)
                ended = report.status is not None
                if ended or report.newest > mirror.newest(self.folder):
                    self._fetch(checkpoint=report.status != 0)
            if report.status is not None:
                if report.status < 0 or (report.status == STOPPED and not asked):
                    raise Lost(f"its process ended with status {report.status}")
                return report.status
            (self._kill if asked else self._stop).wait(LOOK_SECONDS)

    def _call(self, method: str, *args: Any) -> Any:
        assert self._host is not None
        return self._host.call(self._withdrawn, method, *args)

    def _withdrawn(self) -> bool:
        return self._kill.is_set() or (self._stop.is_set() and not self._begun)

    def _open(self) -> Opened:
        """Wait for a node, and see whether it shares the driver's disk."""
        token = "" if os.environ.get(SHARED) == "off" else f"token-{secrets.token_hex(8)}"
        path = self.folder / (token or "no-token")
        try:
            if token:
                path.touch()
            return self._call("open", str(self.folder), token)
        finally:
            path.unlink(missing_ok=True)

    def _send(self) -> None:
        """Give the node the files from which the run goes on."""
        for entry in mirror.to_send(self.folder):
            for offset in range(0, max(entry.size, 1), mirror.CHUNK):
                data = mirror.read_part(self.folder / entry.name, offset)
                self._call("put", entry.name, offset, data)

    def _fetch(self, checkpoint: bool) -> None:
        """Copy what is new on the node: either all of it gets into place or nothing does."""
        entries = self._call("snapshot", checkpoint)
        wanted = mirror.lacking(self.folder, entries)
        for entry in wanted:
            path = self.folder / mirror.INCOMING / entry.name
            for offset in range(0, max(entry.size, 1), mirror.CHUNK):
                mirror.write_part(path, offset, self._call("get", entry.name, offset))
        mirror.put_in_place(self.folder, wanted)

    def _append(self, data: bytes) -> None:
        with (self.folder / "log.txt").open("ab") as file:
            file.write(data)

    def _note(self, text: str) -> None:
        """Tell the user, and leave a line in the job's log."""
        self._append(f"ace: {text}\n".encode())
        self._tell(f"{self.job.id}: {text}")
