"""How long a worker has worked on a request, not counting the time in which it was ready to run but
other processes had the core. So a busy machine does not make a worker look hung."""

import os
import time
from contextlib import suppress
from typing import NamedTuple


class _Seen(NamedTuple):
    """Nanoseconds that the main thread of a process has run, and has waited for a core."""

    ran: int
    queued: int


class WorkerClock:
    """The time that counts against a process; wall time where the kernel has no statistics."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
        self.start()

    def start(self) -> None:
        """Restart from zero when a request is sent. This runs at every step of every worker, so it
        reads no file."""
        self._begun, self._counted = time.monotonic(), 0.0
        self._at: float | None = None  # when the statistics were read last
        self._seen: _Seen | None = None

    def wall(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def count(self) -> float:
        """Seconds that the process ran or slept since the first call after `start`."""
        now, seen = time.monotonic(), self._look()
        if self._at is None:
            self._at, self._seen = now, seen
        passed = now - self._at
        waited = 0.0
        if seen is not None and self._seen is not None:
            waited = 1e-9 * (seen.queued - self._seen.queued)
            # Linux adds a wait only when it is over. So a process that is ready to run now counts
            # as waiting for all the time in which it did not run; if it slept in that time, this
            # grants it at most one interval between two calls too many.
            if self._ready_to_run():
                waited = max(waited, passed - 1e-9 * (seen.ran - self._seen.ran))
        self._counted += max(passed - waited, 0.0)
        self._at, self._seen = now, seen
        return self._counted

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _look(self) -> _Seen | None:
        if self._file is None:
            return None
        try:
            ran, queued, _ = os.pread(self._file, 64, 0).split()
        except (OSError, ValueError):
            return None
        # A kernel without these statistics reports 0: a process that runs would seem to wait.
        return _Seen(int(ran), int(queued)) if int(ran) else None

    def _ready_to_run(self) -> bool:
        try:
            with open(f"/proc/{self._pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "R"
        except (OSError, IndexError):
            return False
