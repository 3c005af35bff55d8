"""A worker that gets no processor is not taken for one that hangs."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ace.envs import EnvRequest, VectorEnv
from ace.envs.pool.clock import WorkerClock
from ace.envs.pool.remote import Remote

HERE = "tests.envs.bad_envs"
TIMEOUT = 0.5
pytestmark = pytest.mark.skipif(
    not (hasattr(os, "SCHED_IDLE") and os.path.exists("/proc/self/schedstat")),
    reason="needs Linux's scheduler and its statistics",
)


@contextmanager
def crowd(core: int, seconds: float) -> Iterator[None]:
    """Two processes that keep a core busy for some seconds."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    busy = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]

    def end() -> None:
        for process in busy:
            process.kill()

    for process in busy:
        assert process.stdout and process.stdout.readline()
    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end()
        for process in busy:
            process.wait()
            assert process.stdout
            process.stdout.close()


@contextmanager
def starved(seconds: float) -> Iterator[tuple[VectorEnv, Any]]:
    """A background worker on a core that is busy for some seconds."""
    core = max(os.sched_getaffinity(0))
    asked = [EnvRequest(f"{HERE}:Busy", 0, 1, "lane 0")]
    with VectorEnv(asked, 1, 2, 2, timeout=TIMEOUT, background=True) as env:
        group: Any = env._groups[0]
        env.reset()
        os.sched_setaffinity(group._process.pid, {core})
        with crowd(core, seconds):
            yield env, group


def test_a_starved_worker_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(Remote, "take_processor", lambda self: None)  # often it is not allowed
    with starved(seconds=6 * TIMEOUT) as (env, group):
        pid = group._process.pid
        begun = time.monotonic()
        step = env.step(np.zeros((1, 2), np.float32))
        assert step.faults == [] and step.reward == [1.0]
        assert time.monotonic() - begun > 5 * TIMEOUT  # else it was not starved
        assert group._process.pid == pid


def test_a_late_worker_gets_its_priority_back() -> None:
    with starved(seconds=20 * TIMEOUT) as (env, group):
        pid = group._process.pid
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        env.send(np.zeros((1, 2), np.float32))
        time.sleep(0.6 * TIMEOUT)
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE  # nobody waits for it yet
        if not _may_raise(pid):
            pytest.skip("only a privileged user may raise a priority")
        step = env.recv()
        assert step.faults == [] and step.reward == [1.0]
        assert os.sched_getscheduler(pid) == os.SCHED_OTHER
        assert os.getpriority(os.PRIO_PROCESS, pid) == 0


def test_a_worker_that_is_not_so_late_keeps_its_place() -> None:
    asked = [EnvRequest(f"{HERE}:Busy", 0, 1, "lane 0")]
    with VectorEnv(asked, 1, 2, 2, timeout=1.6, background=True) as env:
        group: Any = env._groups[0]
        env.reset()
        env.send(np.zeros((1, 2), np.float32))
        assert env.recv().faults == []  # after the second look at its clock
        if group._clock.wall() > 0.8:
            pytest.skip("the machine is too busy")
        assert os.sched_getscheduler(group._process.pid) == os.SCHED_IDLE


@pytest.mark.parametrize("code", ["time.sleep(60)", "while True: pass"])
def test_time_counts_while_a_process_sleeps_or_runs(code: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"import time\n{code}"])
    clock = WorkerClock(process.pid)
    end = time.monotonic() + 60
    while (counted := clock.count()) < 0.5:  # others may have the core for a part of the time
        assert time.monotonic() < end
        time.sleep(0.05)
    assert counted <= clock.wall()
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
