"""Many environments stepped at once by worker processes. Numbers travel through shared memory; a
few bytes over a pipe say when. Workers are fresh interpreters that import neither JAX nor the main
module; `multiprocessing` would import the main module, and with it JAX, once more in every worker,
so they are started by hand."""

import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from typing import NamedTuple

import numpy as np

from ace.envs.api import EnvError
from ace.envs.worker import CLOSE, DONE, STEP, EnvRequest, Group, arrays_nbytes, arrays_over

__all__ = ["EnvRequest", "VectorEnv", "VectorStep"]

CLOSE_SECONDS = 5.0
# One thread per worker: there are as many workers as cores.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
NEXT_CALL = {
    "new": "call reset() first",
    "idle": "call send() first",
    "waiting": "call recv() first",
    "closed": "it is closed; make a new VectorEnv",
}


class VectorStep(NamedTuple):
    """What one step of all environments gives."""

    obs: np.ndarray  # float32 [N, O]; where an episode ended, the first of the next one
    final_obs: np.ndarray  # float32 [N, O]; the true next observation of the transition
    reward: np.ndarray  # float32 [N]
    terminated: np.ndarray  # bool [N]
    truncated: np.ndarray  # bool [N]


class VectorEnv:
    """N environments that are reset and stepped together, spread over `workers` processes.

    `obs_size` and `action_size` may exceed an environment's own: observations are padded with
    zeros and actions cut. With workers=0 the environments live in this process. After an error
    the whole pool is closed.
    """

    def __init__(
        self, requests: Sequence[EnvRequest], workers: int, obs_size: int, action_size: int
    ) -> None:
        if not requests:
            raise ValueError("VectorEnv needs at least one request")
        if workers < 0:
            raise ValueError(f"workers is {workers}; use 0 for this process, or more")
        self._count = len(requests)
        self._state = "new"
        self._groups: list[_Local | _Remote] = []
        self._finalizer = weakref.finalize(self, _close_all, self._groups)
        sizes = (self._count, obs_size, action_size)
        with self._closed_on_error(), _memory_file(arrays_nbytes(*sizes)) as memory_fd:
            memory = mmap.mmap(memory_fd, arrays_nbytes(*sizes))
            self._arrays = arrays_over(memory, *sizes)
            if workers == 0:
                self._groups.append(_Local(Group(requests, 0, self._arrays)))
            for start, stop in _split(self._count, workers):
                self._groups.append(_Remote(requests[start:stop], start, memory_fd, sizes))
            self._finish()

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Start new episodes everywhere, re-seeded where seeds are given, and give obs [N, O]."""
        if seeds is not None and len(seeds) != self._count:
            raise ValueError(f"{len(seeds)} seeds for {self._count} environments")
        return self._begin("reset", None if seeds is None else [int(s) for s in seeds])

    def restore(self, episodes: Iterable[int], actions: Sequence[np.ndarray]) -> np.ndarray:
        """Go back into the given episodes by playing their actions again, and give obs [N, O]."""
        return self._begin("restore", ([int(e) for e in episodes], list(actions)))

    def _begin(self, command: str, argument: object) -> np.ndarray:
        self._expect("new", "idle")
        message = pickle.dumps((command, argument))
        with self._closed_on_error():
            for group in self._groups:
                group.send(message)
            self._finish()
        self._state = "idle"
        return self._arrays.obs.copy()

    def send(self, actions: np.ndarray) -> None:
        """Start a step with actions [N, action_size] and return at once."""
        self._expect("idle")
        actions = np.asarray(actions)
        expected = self._arrays.action.shape
        if actions.shape != expected:
            raise ValueError(f"actions have shape {actions.shape}, expected {expected}")
        finite = np.isfinite(actions)
        if not finite.all():
            rows = np.flatnonzero(~finite.all(axis=1)).tolist()
            raise ValueError(f"actions in rows {rows} are not finite")
        self._arrays.action[:] = actions
        self._state = "waiting"
        with self._closed_on_error():
            for group in self._groups:
                group.send(STEP)

    def recv(self) -> VectorStep:
        """Wait for the step that `send` started; the arrays are copies, safe to keep."""
        self._expect("waiting")
        with self._closed_on_error():
            self._finish()
        self._state = "idle"
        shared = self._arrays
        return VectorStep(
            shared.obs.copy(),
            shared.final_obs.copy(),
            shared.reward.copy(),
            shared.terminated.copy(),
            shared.truncated.copy(),
        )

    def step(self, actions: np.ndarray) -> VectorStep:
        """Step all environments and wait for them."""
        self.send(actions)
        return self.recv()

    def close(self) -> None:
        """Close all environments and end the workers; may be called twice."""
        self._state = "closed"
        self._finalizer()

    def __enter__(self) -> "VectorEnv":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _expect(self, *states: str) -> None:
        if self._state not in states:
            raise RuntimeError(f"VectorEnv: {NEXT_CALL[self._state]}")

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        # An interrupted exchange leaves replies in the pipes, so the pool cannot be used again.
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _finish(self) -> None:
        """Collect one reply of every group, then raise the first error among them."""
        errors = [group.recv() for group in self._groups]
        for error in errors:
            if error is not None:
                raise error


class _Local:
    """A group of environments in this process."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._message: bytes | None = None

    def send(self, message: bytes) -> None:
        """Keep the message until the reply is asked for."""
        self._message = message

    def recv(self) -> Exception | None:
        """Do what the message says and give the error, if any."""
        if self._message is None:  # the reply to the start
            return None
        try:
            self._group.run(*pickle.loads(self._message))
        except Exception as error:
            return error
        return None

    def ask_to_close(self) -> None:
        """Nothing to ask for."""

    def close(self) -> None:
        """Close the environments."""
        self._group.close()


class _Remote:
    """A group of environments in a worker process."""

    def __init__(
        self,
        requests: Sequence[EnvRequest],
        first_row: int,
        memory_fd: int,
        sizes: tuple[int, int, int],
    ) -> None:
        self._requests = list(requests)
        self._agent_step = 0
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _start_worker(theirs.fileno(), memory_fd)
        self.send(pickle.dumps((self._requests, first_row, sizes)))

    def send(self, message: bytes) -> None:
        """Pass a message to the worker."""
        self._agent_step += message is STEP
        with suppress(ConnectionError):  # a dead worker is reported by recv
            self._connection.send_bytes(message)

    def recv(self) -> Exception | None:
        """Wait for the worker's reply: the error, if any."""
        try:
            reply = self._connection.recv_bytes()
        except (EOFError, ConnectionError):
            return self._death()
        return None if reply == DONE else pickle.loads(reply)

    def ask_to_close(self) -> None:
        """Tell the worker to close its environments and exit."""
        with suppress(OSError):
            self._connection.send_bytes(CLOSE)

    def close(self) -> None:
        """Wait for the end of the worker, and make sure of it."""
        self._connection.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _death(self) -> EnvError:
        held = ", ".join(f"{request.label} ({request.task})" for request in self._requests)
        self._connection.close()
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        why = f"exit code {code}"
        if code is not None and code < 0:
            why += f", killed by {signal.Signals(-code).name}"
        return EnvError(f"the worker of {held} died at agent step {self._agent_step} ({why})")


def _start_worker(connection_fd: int, memory_fd: int) -> subprocess.Popen[bytes]:
    """Start an interpreter with our import path that runs `worker.main`."""
    path = [str(entry) for entry in sys.path]
    code = (
        f"import sys; sys.path[:] = {path!r};"
        f" from ace.envs.worker import main; main({connection_fd}, {memory_fd})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=(connection_fd, memory_fd),
        env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal does not reach it, not even at start
    )


def _close_all(groups: list[_Local | _Remote]) -> None:
    for group in groups:
        group.ask_to_close()
    for group in groups:
        group.close()


@contextmanager
def _memory_file(size: int) -> Iterator[int]:
    """Open a file of the given size that has no name, so that nothing can be left behind."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("ace-envs")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
        yield fd
    finally:
        os.close(fd)


def _split(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut range(count) into contiguous, nearly equal parts, none of them empty."""
    parts = min(count, parts)
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]
