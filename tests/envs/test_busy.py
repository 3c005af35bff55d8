"""A worker that gets no processor is not taken for one that hangs."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ace.envs import EnvRequest, VectorEnv
from ace.envs.pool.clock import WorkerClock
from ace.envs.pool.remote import Remote
from tests.patience import until

HERE = "tests.envs.bad_envs"
TIMEOUT = 0.5
pytestmark = pytest.mark.skipif(
    not (hasattr(os, "SCHED_IDLE") and os.path.exists("/proc/self/schedstat")),
    reason="needs Linux's scheduler and its statistics",
)


# Keeps a core busy, at most for as long as the tests run.
CROWD = """
import os, sys
parent = os.getppid()
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while os.getppid() == parent: pass
"""


@contextmanager
def crowd(core: int) -> Iterator[Callable[[], None]]:
    """Two processes that keep a core busy until the function is called."""
    command = [sys.executable, "-c", CROWD, str(core)]
    busy = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]

    def end() -> None:
        for process in busy:
            process.kill()

    try:
        for process in busy:
            assert process.stdout and process.stdout.readline()
        yield end
    finally:
        end()
        for process in busy:
            process.wait()
            assert process.stdout
            process.stdout.close()


@contextmanager
def starved() -> Iterator[tuple[VectorEnv, Any, Callable[[], None]]]:
    """A background worker on a core that is busy until the function is called."""
    core = max(os.sched_getaffinity(0))
    asked = [EnvRequest(f"{HERE}:Busy", 0, 1, "lane 0")]
    with VectorEnv(asked, 1, 2, 2, timeout=TIMEOUT, background=True) as env:
        group: Any = env._groups[0]
        env.reset()
        os.sched_setaffinity(group._process.pid, {core})
        with crowd(core) as end:
            yield env, group, end


def test_a_starved_worker_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(Remote, "take_processor", lambda self: None)  # often it is not allowed
    with starved() as (env, group, end):
        pid = group._process.pid
        env.send(np.zeros((1, 2), np.float32))
        begun = time.monotonic()
        timer = threading.Timer(6 * TIMEOUT, end)
        timer.start()
        step = env.recv()
        assert step.faults == [] and step.reward == [1.0]
        assert time.monotonic() - begun > 5 * TIMEOUT  # else it was not starved
        assert group._process.pid == pid
        timer.join()


def test_a_late_worker_gets_its_priority_back() -> None:
    with starved() as (env, group, _):
        pid = group._process.pid
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        may_raise = _may_raise(pid)  # now, because it would work meanwhile
        env.send(np.zeros((1, 2), np.float32))
        time.sleep(0.6 * TIMEOUT)
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE  # nobody waits for it yet
        if not may_raise:
            pytest.skip("only a privileged user may raise a priority")
        step = env.recv()
        assert step.faults == [] and step.reward == [1.0]
        assert os.sched_getscheduler(pid) == os.SCHED_OTHER
        assert os.getpriority(os.PRIO_PROCESS, pid) == 0


class LateReply:
    """A poll that shows the reply at its fourth look."""

    def __init__(self, poll: Any) -> None:
        self.real, self.looks = poll, 0

    def poll(self, milliseconds: float) -> Any:
        """Look."""
        self.looks += 1
        return self.real.poll() if self.looks > 3 else []


@pytest.mark.parametrize(("share", "taken"), [(0.4, 0), (0.6, 1)])
def test_only_a_worker_that_is_late_leaves_its_place(share: float, taken: int, monkeypatch) -> None:
    asked = [EnvRequest(f"{HERE}:Counter", 0, 1, "lane 0")]
    with VectorEnv(asked, 1, 2, 2, timeout=60, background=True) as env:
        group: Any = env._groups[0]
        env.reset()
        calls, take = [], group.take_processor
        monkeypatch.setattr(group, "take_processor", lambda: (calls.append(1), take()))
        monkeypatch.setattr(group._clock, "wall", lambda: 60 * share)
        group._arrived = replies = LateReply(group._arrived)
        env.send(np.zeros((1, 2), np.float32))
        assert env.recv().faults == [] and replies.looks == 4
        assert len(calls) == taken
        if not taken:
            assert os.sched_getscheduler(group._process.pid) == os.SCHED_IDLE


@pytest.mark.parametrize("code", ["time.sleep(3600)", "while True: pass"])
def test_time_counts_while_a_process_sleeps_or_runs(code: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"import time\n{code}"])
    clock = WorkerClock(process.pid)
    try:
        until(lambda: clock.count() >= 0.5)  # others may have the core for a part of the time
        assert clock.count() <= clock.wall()
    finally:
        process.kill()
        process.wait()
        clock.close()


@pytest.mark.parametrize(
    ("ran", "queued", "ready", "counted"),
    [
        (0.0, 0.0, False, 4.0),  # it slept
        (1.0, 3.0, False, 1.0),  # it waited, ran and sleeps now
        (1.0, 0.0, True, 1.0),  # it ran and waits now, which is not in the statistics yet
        (1.0, 2.0, True, 1.0),
        (4.0, 0.0, True, 4.0),  # it ran
        (0.0, 9.0, False, 0.0),  # a wait that had begun before
    ],
)
def test_only_waits_are_subtracted(
    ran: float, queued: float, ready: bool, counted: float, monkeypatch
) -> None:
    clock = WorkerClock(os.getpid())
    told = [b"%d %d 1\n" % (1e9, 5e9), b"%d %d 2\n" % (1e9 * (1 + ran), 1e9 * (5 + queued))]
    monkeypatch.setattr(os, "pread", lambda *_: told.pop(0))
    monkeypatch.setattr(clock, "_ready_to_run", lambda: ready)
    at = [99.0, 100.0, 104.0]
    monkeypatch.setattr(time, "monotonic", lambda: at.pop(0))
    clock.start()
    assert clock.count() == 0.0  # the first look only tells where to count from
    assert clock.count() == pytest.approx(counted)
    monkeypatch.undo()
    clock.close()


def test_without_statistics_all_time_counts(monkeypatch) -> None:
    clock = WorkerClock(os.getpid())
    for told in (b"0 0 0\n", b"", b"none"):  # a kernel that does not keep them; odd systems
        monkeypatch.setattr(os, "pread", lambda *_, told=told: told)
        clock.start()
        _assert_wall_time(clock)
    clock.close()
    _assert_wall_time(WorkerClock(2**22 + 1))  # above the largest id


def _assert_wall_time(clock: WorkerClock) -> None:
    before = clock.wall()
    assert clock.count() == 0.0
    time.sleep(0.05)
    assert 0.05 <= clock.count() <= clock.wall() - before


def _may_raise(pid: int) -> bool:
    """Whether this user may end the idle class of a process; it is put back."""
    try:
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        return False
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    return True
