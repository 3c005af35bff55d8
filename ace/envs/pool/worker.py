"""The part of VectorEnv that steps environments: a group of them over shared arrays, and the main
loop of a worker process. The same `Group` runs in this process or in a worker."""

import mmap
import os
import pickle
import select
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from ace.envs.api import Env, EnvError, TaskError
from ace.envs.explain import explain
from ace.envs.registry import FAMILIES, make

# Messages are pickled tuples (command, argument); replies are None, an exception, or the faults of
# a step. The frequent ones are pickled once.
STEP = pickle.dumps(("step", None))
CLOSE = pickle.dumps(("close", None))
DONE = pickle.dumps(None)
IN_STEP, IN_RESET = "failed in step", "failed in reset"
AWAKE = 0.01  # seconds that an awake worker busy-waits for its next message


@dataclass(frozen=True)
class EnvRequest:
    """One environment of a VectorEnv; the label names it in errors, e.g. "lane 3"."""

    task: str
    seed: int  # 0 <= seed < 2**32, the range of dm_control's generator
    action_repeat: int
    label: str
    layout: int | None = None  # seed of what no episode changes, such as a goal; None: `seed`


class Fault(NamedTuple):
    """An environment that failed in a step."""

    row: int
    text: str
    final: bool = False  # it could not be replaced


@dataclass(frozen=True)
class Arrays:
    """The arrays that parent and workers share; row i belongs to environment i."""

    action: np.ndarray  # float32 [N, A]
    obs: np.ndarray  # float32 [N, O], after auto-reset
    final_obs: np.ndarray  # float32 [N, O], before auto-reset
    reward: np.ndarray  # float32 [N]
    terminated: np.ndarray  # bool [N]
    truncated: np.ndarray  # bool [N]
    numbers: np.ndarray  # float32 [N, K]; NaN in the columns that an environment does not have

    def begin_anew(self, row: int) -> None:
        """Make a row look like the start of an episode: no step came before its observation."""
        self.final_obs[row] = self.obs[row]
        self.reward[row] = 0.0
        self.numbers[row] = np.nan
        self.terminated[row] = self.truncated[row] = False


class Sizes(NamedTuple):
    """The shapes of the shared arrays."""

    count: int  # environments
    obs: int
    action: int
    numbers: int


def arrays_nbytes(sizes: Sizes) -> int:
    """Count the bytes that `arrays_over` needs."""
    return sizes.count * (4 * (sizes.action + 2 * sizes.obs + 1 + sizes.numbers) + 2)


def arrays_over(buffer: Any, sizes: Sizes) -> Arrays:
    """Lay the arrays out in a buffer, one after the other; widest types first, to stay aligned."""
    count, offset = sizes.count, 0

    def take(dtype: type, *shape: int) -> np.ndarray:
        nonlocal offset
        array = np.ndarray(shape, dtype, buffer, offset)
        offset += array.nbytes
        return array

    return Arrays(
        action=take(np.float32, count, sizes.action),
        obs=take(np.float32, count, sizes.obs),
        final_obs=take(np.float32, count, sizes.obs),
        reward=take(np.float32, count),
        numbers=take(np.float32, count, sizes.numbers),
        terminated=take(np.bool_, count),
        truncated=take(np.bool_, count),
    )


class Simulator:
    """One environment and its rows of the shared arrays, cut to its own sizes."""

    def __init__(self, request: EnvRequest, row: int, arrays: Arrays) -> None:
        self.request = request
        self.row = row
        self.env = self.make()
        spec = self.env.spec
        # Without columns for them, the numbers are not kept.
        numbers = len(spec.numbers) if arrays.numbers.shape[1] else 0
        for what, size, given in (
            ("observation size", spec.obs_size, arrays.obs.shape[1]),
            ("action size", spec.action_size, arrays.action.shape[1]),
            ("count of numbers", numbers, arrays.numbers.shape[1]),
        ):
            if size > given:
                raise TaskError(f"its {what} is {size}, more than the {given} allotted")
        self.action = arrays.action[row, : spec.action_size]
        self.obs = arrays.obs[row, : spec.obs_size]
        self.final_obs = arrays.final_obs[row, : spec.obs_size]
        self.numbers = arrays.numbers[row, :numbers]
        self.seed = request.seed
        self.episode = -1

    def make(self) -> Env:
        """A new environment for the request."""
        request = self.request
        layout = request.seed if request.layout is None else request.layout
        return make(request.task, layout, request.action_repeat)

    def begin(self, episode: int) -> np.ndarray:
        """Reset into an episode, which is a function of the seed, its number and the actions.

        So a run can resume inside an episode by replaying its actions, with any simulator.
        """
        self.episode = episode
        entropy = np.random.SeedSequence([self.seed, episode])
        return self.env.reset(int(entropy.generate_state(1)[0]))


class Group:
    """The environments that one process steps, one after the other."""

    def __init__(self, requests: Sequence[EnvRequest], first_row: int, arrays: Arrays) -> None:
        self.arrays = arrays
        self.simulators: list[Simulator] = []
        for row, request in enumerate(requests, first_row):
            try:
                self.simulators.append(Simulator(request, row, arrays))
            except Exception as error:
                self.close()
                raise _labelled(error, request, "could not be made") from error

    def run(self, command: str, argument: Any) -> list[Fault] | None:
        """Execute a message."""
        if command == "step":
            return self.step() or None
        if command == "restore":
            return self.restore(*argument)
        return self.reset(argument)

    def reset(self, seeds: Sequence[int] | None) -> None:
        """Start the next episodes, or the first ones of new `seeds`, which are for all rows."""
        for simulator in self.simulators:
            try:
                if seeds is not None:
                    simulator.seed, simulator.episode = seeds[simulator.row], -1
                simulator.obs[:] = simulator.begin(simulator.episode + 1)
                simulator.final_obs[:] = simulator.obs
            except Exception as error:
                raise _labelled(error, simulator.request, IN_RESET) from error

    def restore(self, episodes: Sequence[int], actions: Sequence[np.ndarray]) -> None:
        """Return to a point inside episodes by replaying their actions; both are for all rows.

        An environment for which that fails is left at the beginning of its episode.
        """
        for simulator in self.simulators:
            try:
                simulator.obs[:] = simulator.begin(episodes[simulator.row])
                try:
                    for action in actions[simulator.row]:
                        simulator.obs[:] = simulator.env.step(action[: simulator.action.size]).obs
                except Exception:
                    simulator.env = simulator.make()
                    simulator.obs[:] = simulator.begin(episodes[simulator.row])
            except Exception as error:
                raise _labelled(error, simulator.request, IN_RESET) from error

    def step(self) -> list[Fault]:
        """Step every environment once; where an episode ends, the next one starts at once.

        An environment that fails is made anew and begins its next episode; the others go on.
        """
        faults = []
        reward, terminated, truncated = (
            self.arrays.reward,
            self.arrays.terminated,
            self.arrays.truncated,
        )
        for simulator in self.simulators:
            try:
                result = simulator.env.step(simulator.action)
                ended = result.terminated or result.truncated
                simulator.final_obs[:] = result.obs
                simulator.obs[:] = simulator.begin(simulator.episode + 1) if ended else result.obs
            except Exception as error:
                faults.append(
                    self._replace(simulator, _labelled(error, simulator.request, IN_STEP))
                )
                continue
            reward[simulator.row] = result.reward
            terminated[simulator.row] = result.terminated
            truncated[simulator.row] = result.truncated
            if simulator.numbers.size:
                simulator.numbers[:] = result.numbers
        return faults

    def _replace(self, simulator: Simulator, error: Exception) -> Fault:
        with suppress(Exception):  # it is broken, so closing may fail too
            simulator.env.close()
        simulator.obs[:] = 0.0
        fault = Fault(simulator.row, str(error))
        try:
            simulator.env = simulator.make()
            simulator.obs[:] = simulator.begin(simulator.episode + 1)
        except Exception as again:
            again = _labelled(again, simulator.request, IN_RESET)
            text = f"{error}\nIts replacement failed too. {again}"
            fault = Fault(simulator.row, text, final=True)
        self.arrays.begin_anew(simulator.row)
        return fault

    def close(self) -> None:
        """Close every environment."""
        for simulator in self.simulators:
            simulator.env.close()
        self.simulators = []


def _labelled(error: Exception, request: EnvRequest, what: str) -> Exception:
    """Name the environment in an error; a crash inside a step keeps its traceback."""
    text = f"{request.label} ({request.task}) {what}: "
    if isinstance(error, (EnvError, TaskError)):
        return type(error)(f"{text}{error}")
    if what != IN_STEP:
        return EnvError(f"{text}{explain(error)}")
    details = "".join(traceback.format_exception(error)).rstrip()
    return EnvError(f"{text}{explain(error)}\n{details}")


def main(connection_fd: int, memory_fd: int, life_fd: int) -> None:
    """Run a worker process until it is told to close, or the parent is gone. The parent holds the
    other end of `life_fd` as long as it lives."""

    def end_with_parent() -> None:
        os.read(life_fd, 1)
        os._exit(1)  # also if the simulator hangs

    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # Simulators warn when they are imported, once in every worker. Some undo `-W ignore`.
    warnings.showwarning = lambda *_, **__: None
    connection = Connection(connection_fd)
    try:
        serve(connection, memory_fd)
    except (EOFError, ConnectionError):
        pass  # the parent is gone


def serve(connection: Connection, memory_fd: int) -> None:
    """Make the environments that the first message describes, then answer every message."""
    requests, first_row, sizes, awake, families = connection.recv()
    FAMILIES.update(families)  # registered in the main program, which is not imported here
    arrived = select.poll()
    arrived.register(connection, select.POLLIN)
    buffer = mmap.mmap(memory_fd, arrays_nbytes(sizes))
    os.close(memory_fd)
    try:
        group = Group(requests, first_row, arrays_over(buffer, sizes))
    except Exception as error:
        connection.send(error)
        return
    connection.send_bytes(DONE)
    while True:
        # Busy-wait: a core that goes idle between steps wakes up late and at a low clock.
        end = time.perf_counter() + AWAKE * awake
        while time.perf_counter() < end and not arrived.poll(0):
            pass
        command, argument = connection.recv()
        if command == "close":
            group.close()
            return
        try:
            reply = group.run(command, argument)
        except Exception as error:
            reply = error
        if reply is None:
            connection.send_bytes(DONE)
        else:
            connection.send(reply)
