"""Many environments stepped in parallel by worker processes. Arrays are in shared memory; short
messages over pipes start and end a step."""

import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ace.envs.pool.remote import Remote, Reply, WorkerLost
from ace.envs.pool.worker import (
    STEP,
    EnvRequest,
    Fault,
    Group,
    Sizes,
    arrays_nbytes,
    arrays_over,
)

__all__ = ["EnvRequest", "Fault", "VectorEnv", "VectorStep"]

START_SECONDS = 60.0  # for a new process to import its simulators, perhaps from a busy disk
NEXT_CALL = {
    "new": "call reset() first",
    "beginning": "call end_reset() first",
    "idle": "call send() first",
    "waiting": "call recv() first",
    "closed": "it is closed; make a new VectorEnv",
}


class VectorStep(NamedTuple):
    """The result of one step of all environments."""

    obs: np.ndarray  # float32 [N, O]; where an episode ended, the first of the next one
    final_obs: np.ndarray  # float32 [N, O]; the true next observation of the transition
    reward: np.ndarray  # float32 [N]
    terminated: np.ndarray  # bool [N]
    truncated: np.ndarray  # bool [N]
    numbers: np.ndarray  # float32 [N, K]; NaN in unused columns, and in rows with a fault
    faults: Sequence[Fault] = ()  # rows where no step was made: a new episode begins with obs


class VectorEnv:
    """N environments that are reset and stepped together, spread over `workers` processes.

    `obs_size` and `action_size` may exceed an environment's own: observations are padded with
    zeros and actions cut. With workers=0 the environments live in this process. A step replaces an
    environment that raises or returns non-finite numbers, and a worker that dies or does not answer
    within `timeout` seconds, with all of its environments; time in which a worker waits for a core
    does not count. `VectorStep.faults` lists them. Any other error closes the whole pool. Workers
    in the `background` run only on idle cores; `awake` workers busy-wait between steps. `numbers`
    is the largest count of named numbers of the tasks, or 0 if they are not wanted. Without `wait`
    the environments are made in the background, and the first episodes begin when they are.
    """

    def __init__(
        self,
        requests: Sequence[EnvRequest],
        workers: int,
        obs_size: int,
        action_size: int,
        timeout: float = 120.0,
        background: bool = False,
        awake: bool = False,
        numbers: int = 0,
        wait: bool = True,
    ) -> None:
        if not requests:
            raise ValueError("VectorEnv needs at least one request")
        if workers < 0:
            raise ValueError(f"workers is {workers}; use 0 for this process, or more")
        self._requests = list(requests)
        self._count = len(requests)
        self._timeout, self._background, self._awake = timeout, background, awake
        self._state, self._made, self._waiting = "new", False, b""
        self._groups: list[_Local | Remote] = []
        self._sizes = Sizes(self._count, obs_size, action_size, numbers)
        self._memory_fd = _memory_file(arrays_nbytes(self._sizes))
        self._finalizer = weakref.finalize(self, _close_all, self._groups, self._memory_fd)
        self._episodes = np.full(self._count, -1)
        with self._closed_on_error():
            memory = mmap.mmap(self._memory_fd, arrays_nbytes(self._sizes))
            self._arrays = arrays_over(memory, self._sizes)
            self._arrays.numbers[:] = np.nan
            if workers == 0:
                self._groups.append(_Local(Group(requests, 0, self._arrays)))
            for start, stop in _split(self._count, workers):
                self._groups.append(self._start(start, stop))
        if wait:
            self.wait_until_made()

    def wait_until_made(self) -> None:
        """Wait until all environments are made; raises the error of one that cannot be."""
        if not self._made:
            with self._closed_on_error():
                for reply in self._replies(None):
                    if isinstance(reply, Exception):
                        raise reply
                self._yield_processor(self._groups)
            self._made = True

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Start new episodes in all environments, with new seeds if any; returns obs [N, O]."""
        self.begin_reset(seeds)
        return self.end_reset()

    def begin_reset(self, seeds: Sequence[int] | None = None) -> None:
        """The first half of `reset`, which returns at once."""
        if seeds is not None and len(seeds) != self._count:
            raise ValueError(f"{len(seeds)} seeds for {self._count} environments")
        if seeds is not None:
            seeds = [int(s) for s in seeds]
            for row, seed in enumerate(seeds):
                self._requests[row] = replace(self._requests[row], seed=seed)
            self._episodes[:] = -1
        self._episodes += 1
        self._begin("reset", seeds)

    def end_reset(self) -> np.ndarray:
        """The second half of `reset`."""
        return self._begun(self._nothing())

    def restore(self, episodes: Iterable[int], actions: Sequence[np.ndarray]) -> np.ndarray:
        """Return to a point inside episodes by replaying their actions; returns obs [N, O]."""
        self._episodes[:] = list(episodes)
        self._begin("restore", (self._episodes.tolist(), list(actions)))
        return self._begun(list(actions))

    def _begin(self, command: str, argument: object) -> None:
        self._expect("new", "idle")
        self._state, self._waiting = "beginning", pickle.dumps((command, argument))
        if self._made:
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Send the beginning of episodes that had to wait until the environments are made."""
        self.wait_until_made()
        if self._waiting:
            with self._closed_on_error():
                for group in self._groups:
                    group.send(self._waiting)
            self._waiting = b""

    def _begun(self, actions: Sequence[np.ndarray]) -> np.ndarray:
        """Wait until all episodes have begun; a lost worker is replaced and begins them again."""
        self._expect("beginning")
        self._send_waiting()
        with self._closed_on_error():
            for index, reply in enumerate(self._replies(self._patience(actions))):
                if isinstance(reply, WorkerLost):
                    reply = self._replace(index, self._episodes, actions)
                if isinstance(reply, Exception):
                    raise reply
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

    def ready(self) -> bool:
        """Whether `recv` or `end_reset` would return at once: all have answered, or are lost.
        Raises the error of an environment that cannot be made."""
        if not self._made:
            if not all(group.ready() for group in self._groups):
                return False
            self._send_waiting()
        return all(group.ready() or group.overdue(self._timeout) for group in self._groups)

    def hurry(self, timeout: float) -> None:
        """Give every worker at most `timeout` seconds from now on; a signal's handler may call this
        while `recv` waits. Workers that replace lost ones have the usual time."""
        for group in self._groups:
            group.hurry(timeout)

    def recv(self) -> VectorStep:
        """Wait for the step that `send` started; the arrays are copies, safe to keep."""
        self._expect("waiting")
        with self._closed_on_error():
            faults = self._finish_step()
        self._state = "idle"
        shared = self._arrays
        self._episodes += shared.terminated | shared.truncated
        self._episodes[[f.row for f in faults]] += 1
        return VectorStep(
            shared.obs.copy(),
            shared.final_obs.copy(),
            shared.reward.copy(),
            shared.terminated.copy(),
            shared.truncated.copy(),
            shared.numbers.copy(),
            faults,
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

    def _start(self, start: int, stop: int) -> Remote:
        held = self._requests[start:stop]
        return Remote(held, start, self._memory_fd, self._sizes, self._awake)

    def _yield_processor(self, groups: Sequence["_Local | Remote"]) -> None:
        # Called after the workers have started: the caller waits for that, so it should be fast.
        for group in groups:
            if self._background and isinstance(group, Remote):
                group.yield_processor()

    def _replies(self, timeout: float | None) -> list[Reply]:
        """One reply of every group, each within `timeout` seconds of its request."""
        return [group.recv(timeout) for group in self._groups]

    def _finish_step(self) -> list[Fault]:
        """Collect one reply of every group and replace the workers that are lost."""
        faults: list[Fault] = []
        for index, reply in enumerate(self._replies(self._timeout)):
            if isinstance(reply, WorkerLost):
                faults += self._begin_anew(index, reply)
            elif isinstance(reply, Exception):
                raise reply
            else:
                faults += reply or []
        return faults

    def _begin_anew(self, index: int, why: WorkerLost) -> list[Fault]:
        """Replace a worker that was lost in a step; its environments begin their next episodes."""
        lost = self._groups[index]
        assert isinstance(lost, Remote)
        rows = range(lost.first_row, lost.first_row + len(lost.requests))
        self._arrays.obs[rows] = 0.0
        error = self._replace(index, self._episodes + 1, self._nothing())
        text = f"{why}\nIts replacement failed too. {error}" if error else str(why)
        for row in rows:
            self._arrays.begin_anew(row)
        return [Fault(row, text, final=error is not None) for row in rows]

    def _replace(
        self, index: int, episodes: np.ndarray, actions: Sequence[np.ndarray]
    ) -> Exception | None:
        """Replace a lost worker by a new one, restored into the same episodes."""
        lost = self._groups[index]
        assert isinstance(lost, Remote)
        lost.kill()
        group = self._start(lost.first_row, lost.first_row + len(lost.requests))
        self._groups[index] = group
        # A second more for each environment.
        reply = group.recv(self._timeout + START_SECONDS + len(lost.requests))
        if not isinstance(reply, Exception):
            self._yield_processor([group])
            group.send(pickle.dumps(("restore", (episodes.tolist(), list(actions)))))
            reply = group.recv(self._patience(actions))
        return reply if isinstance(reply, Exception) else None

    def _patience(self, actions: Sequence[np.ndarray]) -> float | None:
        """Seconds to wait until episodes have begun; None, no limit, if any is replayed."""
        return None if any(map(len, actions)) else self._timeout

    def _nothing(self) -> list[np.ndarray]:
        """No actions for any environment."""
        return [np.zeros((0, self._sizes.action), np.float32)] * self._count


class _Local:
    """A group of environments in this process."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._message: bytes | None = None

    def send(self, message: bytes) -> None:
        """Keep the message until `recv`."""
        self._message = message

    def ready(self) -> bool:
        """Always: `recv` does the work."""
        return True

    def overdue(self, timeout: float) -> bool:
        """Never: nothing runs between calls."""
        return False

    def hurry(self, timeout: float) -> None:
        """Nothing to do: a call cannot be broken off."""

    def recv(self, timeout: float | None) -> Reply:
        """Execute the message; returns the error or the faults, if any."""
        if self._message is None:  # the reply to the start
            return None
        try:
            return self._group.run(*pickle.loads(self._message))
        except Exception as error:
            return error

    def ask_to_close(self) -> None:
        """Nothing to do before `close`."""

    def close(self) -> None:
        """Close the environments."""
        self._group.close()


def _close_all(groups: list[_Local | Remote], memory_fd: int) -> None:
    for group in groups:
        group.ask_to_close()
    for group in groups:
        group.close()
    os.close(memory_fd)


def _memory_file(size: int) -> int:
    """Open an anonymous file of a size, which no crash can leave behind."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("ace-envs")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def _split(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut range(count) into contiguous, nearly equal parts, none of them empty."""
    parts = min(count, parts)
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]
