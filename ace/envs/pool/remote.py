"""The parent's handle of one worker process: starts it, talks to it and notices when it is dead or
hangs. Workers are fresh interpreters that import neither JAX nor the main module;
`multiprocessing` would import the main module, and with it JAX, in every worker, so `subprocess`
starts them."""

import math
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe

from ace.envs.api import EnvError
from ace.envs.pool.clock import WorkerClock
from ace.envs.pool.worker import CLOSE, DONE, EnvRequest, Fault, Sizes
from ace.envs.registry import FAMILIES

Reply = Exception | list[Fault] | None

CLOSE_SECONDS = 5.0
LOOKS = 16  # times at least that a worker's clock is read before it counts as hung
LOOK_SECONDS = 1.0  # between two of these, at most
# One thread per worker: there are as many workers as cores.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerLost(EnvError):
    """A worker process died or does not answer."""


class Remote:
    """A group of environments in a worker process."""

    def __init__(
        self,
        requests: Sequence[EnvRequest],
        first_row: int,
        memory_fd: int,
        sizes: Sizes,
        awake: bool,
    ) -> None:
        self.requests, self.first_row = list(requests), first_row
        self._connection, theirs = Pipe()
        self._life: int | None  # closed when we die, which ends a worker that hangs, too
        end, self._life = os.pipe()
        with theirs:
            self._process = _start_worker(theirs.fileno(), memory_fd, end)
        os.close(end)
        self._clock = WorkerClock(self._process.pid)
        self._yields, self._most = False, math.inf
        self._hurried: float | None = None  # seconds of `hurry`, until they are counted
        # Made once: `Connection.poll` makes a selector in every call.
        self._arrived = select.poll()
        self._arrived.register(self._connection, select.POLLIN)
        self.send(pickle.dumps((self.requests, first_row, sizes, awake, FAMILIES)))

    def yield_processor(self) -> None:
        """Let the worker run only on idle cores."""
        self._yields = True
        # SCHED_IDLE, because a merely nice process can delay a waking one by milliseconds.
        if hasattr(os, "SCHED_IDLE"):
            with suppress(OSError):
                os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))
                return
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)

    def take_processor(self) -> None:
        """Restore the normal priority of the worker, if the system allows that."""
        self._yields = False
        with suppress(OSError):  # often only root may raise it
            if hasattr(os, "SCHED_IDLE"):
                os.sched_setscheduler(self._process.pid, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 0)

    def send(self, message: bytes) -> None:
        """Pass a message to the worker."""
        self._clock.start()
        with suppress(OSError):  # a dead worker is reported by recv
            self._connection.send_bytes(message)

    def hurry(self, timeout: float) -> None:
        """Give the worker at most `timeout` seconds from now on, also for the present request. A
        signal's handler may call this while `recv` waits."""
        self._hurried = timeout

    def ready(self) -> bool:
        """Whether the worker has replied or died."""
        return bool(self._arrived.poll(0))

    def recv(self, timeout: float | None) -> Reply:
        """Wait for the worker's reply: the error or the faults, if any.

        The worker may take `timeout` seconds, not counting the time in which it waits for a core.
        """
        try:
            if timeout is not None and not self._answers(timeout):
                return WorkerLost(f"the worker of {self._held()} does not answer")
            reply = self._connection.recv_bytes()
        except (EOFError, OSError):
            return self._death()
        return None if reply == DONE else pickle.loads(reply)

    def _answers(self, timeout: float) -> bool:
        pause = min(timeout / LOOKS, LOOK_SECONDS)
        # Nearly every reply arrives here, before the clock is read.
        if self._arrived.poll(1e3 * max(pause - self._clock.wall(), 0.0)):
            return True
        left = self._left(timeout)
        while not self._arrived.poll(1e3 * max(min(left, pause), 0.0)):
            if left <= 0:
                return False
            if self._yields and self._clock.wall() > timeout / 2:
                self.take_processor()
            left = self._left(timeout)
        return True

    def _left(self, timeout: float) -> float:
        count = self._clock.count()
        if self._hurried is not None:  # a handler may have set it at any moment
            self._most, self._hurried = count + self._hurried, None
        return min(timeout, self._most) - count

    def overdue(self, timeout: float) -> bool:
        """Whether the worker ran or slept for `timeout` seconds, counted from half the timeout on,
        when it also gets its normal priority back."""
        if self._clock.wall() < timeout / 2:
            return False
        if self._yields:
            self.take_processor()
        return self._clock.count() >= timeout

    def ask_to_close(self) -> None:
        """Tell the worker to close its environments and exit."""
        with suppress(OSError):
            self._connection.send_bytes(CLOSE)

    def kill(self) -> None:
        """Kill the worker."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._forget()

    def close(self) -> None:
        """Wait until the worker exits; kill it after CLOSE_SECONDS."""
        self._connection.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        self._clock.close()
        if self._life is not None:
            os.close(self._life)
            self._life = None

    def _held(self) -> str:
        return ", ".join(f"{request.label} ({request.task})" for request in self.requests)

    def _death(self) -> WorkerLost:
        self._connection.close()
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        why = f"exit code {code}"
        if code is not None and code < 0:
            why += f", killed by {signal.Signals(-code).name}"
        return WorkerLost(f"the worker of {self._held()} died ({why})")


def _start_worker(connection_fd: int, memory_fd: int, life_fd: int) -> subprocess.Popen[bytes]:
    """Start an interpreter with our import path that runs `worker.main`."""
    path = [str(entry) for entry in sys.path]
    code = (
        f"import sys; sys.path[:] = {path!r};"
        f" from ace.envs.pool.worker import main; "
        f" main({connection_fd}, {memory_fd}, {life_fd})"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        pass_fds=(connection_fd, memory_fd, life_fd),
        env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
        stdin=subprocess.DEVNULL,
        # In its own process group, Ctrl-C in the terminal never reaches it. Not in its own session:
        # where Linux shares cores among sessions (autogroup), priorities count only inside one.
        process_group=0,
    )
