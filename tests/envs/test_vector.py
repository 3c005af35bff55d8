"""VectorEnv: the same trajectories in one process and in many, auto-reset, padding, faults."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ace.envs import EnvError, EnvRequest, TaskError, VectorEnv, VectorStep
from ace.envs.pool import remote
from tests.patience import until

HERE = "tests.envs.bad_envs"


def requests(*tasks: str, repeat: int = 1) -> list[EnvRequest]:
    """Ask for tasks with seeds and labels by their place."""
    return [EnvRequest(t, 10 + i, repeat, f"lane {i}") for i, t in enumerate(tasks)]


def play(
    asked: Sequence[EnvRequest], workers: int, sizes: tuple[int, int], steps: int, **how: bool
) -> tuple[np.ndarray, list[VectorStep]]:
    """Step with random actions and give the first observation and all steps."""
    rng = np.random.default_rng(0)
    with VectorEnv(asked, workers, *sizes, **how) as env:
        obs = env.reset()
        taken = []
        for _ in range(steps):
            actions = rng.uniform(-1, 1, (len(asked), sizes[1])).astype(np.float32)
            taken.append(env.step(actions))
    return obs, taken


def test_worker_processes_change_nothing() -> None:
    asked = requests("dmc/pendulum-swingup", "probe/long", "probe/point", repeat=2)
    first, steps = play(asked, 0, (4, 3), 70)
    for workers, awake in ((2, False), (5, False), (2, True)):
        other_first, other_steps = play(asked, workers, (4, 3), 70, awake=awake)
        np.testing.assert_array_equal(first, other_first)
        for one, two in zip(steps, other_steps, strict=True):
            for left, right in zip(one, two, strict=True):
                np.testing.assert_array_equal(left, right)


def test_workers_in_the_background_yield_and_do_the_same() -> None:
    with VectorEnv(requests("probe/point"), 1, 2, 2, background=True) as env:
        pid = env._groups[0]._process.pid  # type: ignore[union-attr]
        idle = hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert idle or os.getpriority(os.PRIO_PROCESS, pid) == 19
        # Elsewhere it would compete with whole sessions; and a Ctrl-C must not reach it.
        assert os.getsid(pid) == os.getsid(0) and os.getpgid(pid) != os.getpgid(0)
        env.reset()
        assert env.step(np.zeros((1, 2), np.float32)).obs.shape == (1, 2)


def test_shapes_types_and_padding() -> None:
    first, steps = play(requests("probe/point", "probe/constant"), 0, (5, 3), 3)
    assert first.shape == (2, 5)
    assert (first[0, 2:] == 0).all() and (first[1, 1:] == 0).all()
    for step in steps:
        assert step.obs.shape == step.final_obs.shape == (2, 5)
        assert step.reward.shape == step.terminated.shape == step.truncated.shape == (2,)
        assert step.obs.dtype == step.final_obs.dtype == step.reward.dtype == np.float32
        assert step.terminated.dtype == step.truncated.dtype == bool
        assert (step.final_obs[0, 2:] == 0).all()


def test_actions_are_cut_to_the_size_of_each_environment() -> None:
    with VectorEnv(requests("probe/action"), 0, 1, 3) as env:
        env.reset()
        assert env.step(np.array([[0.5, 9, 9]], np.float32)).reward == [1.0]


@pytest.mark.parametrize("workers", [0, 2])
def test_final_obs_is_the_true_next_and_obs_the_new_first(workers: int) -> None:
    first, steps = play(requests("probe/long", "probe/long"), workers, (2, 2), 60)
    episode, count, names = first[:, 0].copy(), np.zeros(2), set()
    for step in steps:
        ended = step.terminated | step.truncated
        count += 1
        np.testing.assert_array_equal(step.final_obs, np.stack([episode, count], 1))
        assert (step.obs[ended, 0] != episode[ended]).all()
        episode[ended] = step.obs[ended, 0]
        count[ended] = 0
        np.testing.assert_array_equal(step.obs, np.stack([episode, count], 1))
        names |= set(episode.tolist())
    assert len(names) > 8  # no episode came twice, in no lane


@pytest.mark.parametrize("workers", [0, 2])
def test_restore_goes_back_into_an_episode(workers: int) -> None:
    tasks = requests("dmc/hopper-hop", "probe/long")
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (40, 2, 4)).astype(np.float32)
    with VectorEnv(tasks, workers, 15, 4) as env:
        env.reset()
        begun, episodes, steps = np.zeros(2, int), np.zeros(2, int), []
        for i, action in enumerate(actions):
            steps.append(env.step(action))
            ended = steps[-1].terminated | steps[-1].truncated
            begun[ended], episodes[ended] = i + 1, episodes[ended] + 1
    with VectorEnv(tasks, workers, 15, 4) as env:
        played = [actions[begun[k] : 40, k] for k in range(2)]
        np.testing.assert_array_equal(env.restore(episodes, played), steps[-1].obs)
        action = np.full((2, 4), 0.3, np.float32)
        first = env.step(action)
        again = env.restore(episodes, [np.concatenate([p, action[:1]]) for p in played])
        ended = first.terminated | first.truncated
        np.testing.assert_array_equal(again[~ended], first.obs[~ended])


def test_returned_arrays_are_copies() -> None:
    with VectorEnv(requests("probe/point"), 0, 2, 1) as env:
        first = env.reset()
        kept = first.copy()
        one = env.step(np.ones((1, 1), np.float32))
        saved = [np.array(array) for array in one[:6]]
        env.step(np.ones((1, 1), np.float32))
        np.testing.assert_array_equal(first, kept)
        for array, copy in zip(one[:6], saved, strict=True):
            np.testing.assert_array_equal(array, copy)


def test_reset_with_seeds_repeats_episodes() -> None:
    with VectorEnv(requests("probe/point", "probe/point", "probe/point"), 2, 2, 1) as env:
        first = env.reset([1, 2, 3])
        assert not np.array_equal(env.reset(), first)
        np.testing.assert_array_equal(env.reset([1, 2, 3]), first)
        assert len({row[0] for row in first}) == 3
        np.testing.assert_array_equal(env.reset([3, 2, 1])[1], first[1])


def test_order_of_calls_is_enforced() -> None:
    action = np.zeros((1, 1), np.float32)
    env = VectorEnv(requests("probe/point"), 0, 2, 1)
    with pytest.raises(RuntimeError, match=r"reset\(\) first"):
        env.send(action)
    env.reset()
    with pytest.raises(RuntimeError, match=r"send\(\) first"):
        env.recv()
    env.send(action)
    with pytest.raises(RuntimeError, match=r"recv\(\) first"):
        env.send(action)
    env.recv()
    with pytest.raises(ValueError, match=r"shape \(2, 1\), expected \(1, 1\)"):
        env.send(np.zeros((2, 1), np.float32))
    with pytest.raises(ValueError, match=r"rows \[0\] are not finite"):
        env.send(np.full((1, 1), np.nan, np.float32))
    env.step(action)  # a refused call leaves it usable
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "at", "messages"),
    [
        ("NanObs", 3, ["observation has 2 non-finite entries"]),
        ("NanReward", 1, ["reward is nan"]),
        ("WrongShape", 1, ["shape (3,), expected (2,)"]),
        ("Crash", 2, ["KeyError: 'the joint is missing'", "in reward"]),
        ("NanNumber", 3, ["number 'success' is nan"]),
    ],
)
def test_failing_environment_is_named_and_made_anew(
    workers: int, name: str, at: int, messages: list[str]
) -> None:
    task, other = f"{HERE}:{name}", f"{HERE}:Counter"
    alone = play(requests(other), 0, (2, 2), 9)[1]
    starts = play(requests("probe/long", other), 0, (2, 2), 11)[1]
    with VectorEnv(requests(other, task), workers, 2, 2) as env:
        env.reset()
        taken = [env.step(_actions(2)) for _ in range(2 * at + 1)]
    for step in (taken[at - 1], taken[2 * at - 1]):  # it fails again at the same step
        (fault,) = step.faults
        assert fault.row == 1 and not fault.final
        for part in ["lane 1", task, "failed in step", *messages]:
            assert part in fault.text
        assert step.reward[1] == 0 and not step.terminated[1] and not step.truncated[1]
        np.testing.assert_array_equal(step.obs[1], step.final_obs[1])
    assert all(step.faults == [] for i, step in enumerate(taken) if (i + 1) % at)
    # The new episode is the next one of the lane's seed.
    ends = [step.obs[1] for step in starts if step.terminated[1]]
    np.testing.assert_array_equal(taken[at - 1].obs[1], ends[0])
    np.testing.assert_array_equal(taken[2 * at - 1].obs[1], ends[1])
    for step, expected in zip(taken, alone, strict=False):  # the other lane noticed nothing
        np.testing.assert_array_equal(step.final_obs[0], expected.final_obs[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_cannot_be_made_again_is_final(workers: int) -> None:
    with VectorEnv(requests(f"{HERE}:OnlyOnce"), workers, 2, 2) as env:
        env.reset()
        (fault,) = env.step(_actions(1)).faults
        assert fault.final
        assert "reward is nan" in fault.text and "replacement failed too" in fault.text
        assert "no second one" in fault.text


def test_failing_reset_is_named() -> None:
    env = VectorEnv(requests(f"{HERE}:CrashAtReset"), 1, 2, 2)
    with pytest.raises(EnvError, match=r"lane 0 .*failed in reset: OSError.*bad_envs.py, line"):
        env.reset()


def test_dead_worker_is_replaced_with_all_its_lanes() -> None:
    tasks = requests("probe/long", f"{HERE}:Die", "probe/long")
    alone = play(requests("probe/long"), 0, (2, 2), 4)[1]
    with VectorEnv(tasks, 2, 2, 2) as env:
        env.reset()
        taken = [env.step(_actions(3)) for _ in range(4)]
    for step in (taken[1], taken[3]):
        assert [f.row for f in step.faults] == [1, 2]
        for fault in step.faults:
            assert "worker of lane 1" in fault.text and "lane 2" in fault.text
            assert "died (exit code 7)" in fault.text and not fault.final
        np.testing.assert_array_equal(step.obs[1:], step.final_obs[1:])
        assert (step.obs[2, 1], step.reward[2]) == (0, 0)
    assert taken[0].obs[2, 0] != taken[1].obs[2, 0] != taken[3].obs[2, 0]
    for step, expected in zip(taken, alone, strict=True):
        np.testing.assert_array_equal(step.obs[0], expected.obs[0])


def test_killed_worker_begins_the_next_episode_of_its_seed() -> None:
    with VectorEnv(requests("probe/long"), 1, 2, 2) as env:
        env.reset([5])
        env.step(_actions(1))
        os.kill(_pids(env)[0], signal.SIGKILL)
        broken = env.step(_actions(1))
        assert "SIGKILL" in broken.faults[0].text
        expected = env.restore([1], [np.zeros((0, 2), np.float32)])
        np.testing.assert_array_equal(broken.obs, expected)
        assert env.step(_actions(1)).faults == []


def test_a_worker_that_died_between_steps_is_replaced_at_the_next_reset() -> None:
    with VectorEnv(requests("probe/long", "probe/point"), 2, 2, 2) as env:
        env.reset([5, 6])
        expected = env.reset()
        env.reset([5, 6])
        for pid in _pids(env):
            os.kill(pid, signal.SIGKILL)
        np.testing.assert_array_equal(env.reset(), expected)
        actions = np.full((3, 2, 2), 0.5, np.float32)
        after = env.restore([1, 1], [actions[:0, 0], actions[:, 1]])
        os.kill(_pids(env)[1], signal.SIGKILL)
        again = env.restore([1, 1], [actions[:0, 0], actions[:, 1]])
        np.testing.assert_array_equal(again, after)
        assert env.step(_actions(2)).faults == []


@pytest.mark.parametrize(("name", "background"), [("Hang", False), ("Hang", True), ("Loop", False)])
def test_hung_worker_is_replaced(name: str, background: bool) -> None:
    tasks, how = requests(f"{HERE}:{name}", "probe/long"), {"background": background}
    with VectorEnv(tasks, 2, 2, 2, timeout=1.0, **how) as env:
        env.reset()
        env.step(_actions(2))
        hung: Any = env._groups[0]
        step = env.step(_actions(2))
        assert hung._clock._counted >= 1  # it had all of its time
        assert [f.row for f in step.faults] == [0]
        assert "worker of lane 0" in step.faults[0].text
        assert "does not answer" in step.faults[0].text
        assert env.step(_actions(2)).faults == []


def test_a_worker_can_be_hurried_while_it_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(remote, "LOOK_SECONDS", 0.1)
    with VectorEnv(requests(f"{HERE}:Hang", "probe/long"), 2, 2, 2, timeout=600.0) as env:
        env.reset()
        env.step(_actions(2))
        before = signal.signal(signal.SIGALRM, lambda *_: env.hurry(0.2))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            step = env.step(_actions(2))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert [f.row for f in step.faults] == [0] and "does not answer" in step.faults[0].text
        assert env._groups[0]._most > 600  # type: ignore[union-attr]  # its replacement
        assert env.step(_actions(2)).faults == []


def test_a_hurried_worker_has_its_seconds_from_then_on() -> None:
    """They were counted from the request: a worker that had run for longer was lost at once."""
    with VectorEnv(requests("probe/long"), 1, 2, 2, timeout=600.0) as env:
        worker: Any = env._groups[0]
        counts = iter([7.0, 7.5, 8.0, 13.0])
        worker._clock.count = lambda: next(counts)
        assert worker._left(600.0) == 593.0
        env.hurry(5.0)
        assert [worker._left(600.0) for _ in range(3)] == [5.0, 4.5, -0.5]


class Waits:
    """A poll that remembers how long its callers would wait, in milliseconds."""

    def __init__(self, poll: Any) -> None:
        self.real, self.asked = poll, []

    def poll(self, milliseconds: float) -> Any:
        """Wait."""
        self.asked.append(milliseconds)
        return self.real.poll(milliseconds)


def test_ready_when_all_have_answered_or_one_is_lost(monkeypatch) -> None:
    monkeypatch.setattr(remote, "CLOSE_SECONDS", 0.5)  # until what hangs is killed in the end
    with VectorEnv(requests(f"{HERE}:Hang", "probe/long"), 2, 2, 2, timeout=1.0) as env:
        env.begin_reset()
        until(env.ready)
        env.end_reset()
        env.step(_actions(2))
        env.send(_actions(2))
        hung: Any = env._groups[0]
        until(env._groups[1].ready)
        assert not env.ready()  # one has answered, and time counts against the other from now on
        until(env.ready)
        assert not hung.ready()
        assert hung._clock.wall() >= 1
        hung._arrived = waits = Waits(hung._arrived)
        assert "does not answer" in str(hung.recv(1.0))
        assert waits.asked and not any(waits.asked)  # it had its time before


def test_episodes_begin_when_the_environments_are_made() -> None:
    tasks = requests(f"{HERE}:Counter", "probe/long")
    with VectorEnv(tasks, 2, 2, 2) as env:
        expected = env.reset([5, 6])
    with VectorEnv(tasks, 2, 2, 2, wait=False) as env:
        env.begin_reset([5, 6])
        assert not env._made and not env.ready()  # a process has yet to start
        until(env.ready)
        np.testing.assert_array_equal(env.end_reset(), expected)
        assert env.step(_actions(2)).faults == []
    with VectorEnv(tasks, 0, 2, 2, wait=False) as env:
        np.testing.assert_array_equal(env.reset([5, 6]), expected)


def test_an_environment_that_cannot_be_made_is_named_later_too() -> None:
    with VectorEnv(requests("probe/pont"), 1, 2, 2, wait=False) as env:
        env.begin_reset()
        with pytest.raises(TaskError, match=r"lane 0 .*did you mean probe/point"):
            until(env.ready)


def test_ready_in_this_process() -> None:
    with VectorEnv(requests("probe/long"), 0, 2, 2) as env:
        env.reset()
        env.send(_actions(1))
        assert env.ready()


def _actions(lanes: int) -> np.ndarray:
    return np.zeros((lanes, 2), np.float32)


@pytest.mark.parametrize("workers", [0, 2])
def test_unusable_task_is_refused_at_the_start(workers: int) -> None:
    with pytest.raises(TaskError, match=r"lane 1 .*did you mean probe/point"):
        VectorEnv(requests("probe/long", "probe/pont"), workers, 2, 2)
    with pytest.raises(TaskError, match=r"lane 0 .*observation size is 2, more than the 1"):
        VectorEnv(requests("probe/long"), workers, 1, 2)
    with pytest.raises(TaskError, match=r"lane 0 .*action size is 2, more than the 1"):
        VectorEnv(requests("probe/long"), workers, 2, 1)


def test_workers_ignore_interrupts_and_end_with_close() -> None:
    env = VectorEnv(requests("probe/long", "probe/long"), 2, 2, 2)
    pids = _pids(env)
    env.reset()
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    env.step(np.zeros((2, 2), np.float32))
    env.close()
    assert not any(_alive(pid) for pid in pids)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="reads /proc")
def test_workers_are_light() -> None:
    env = VectorEnv(requests(f"{HERE}:Counter"), 1, 2, 2)
    with open(f"/proc/{_pids(env)[0]}/maps") as file:
        maps = file.read()
    env.close()
    assert "numpy" in maps
    assert "jaxlib" not in maps


def test_only_what_a_user_prints_comes_from_workers(capfd) -> None:
    VectorEnv(requests(f"{HERE}:Loud"), 1, 2, 2).close()
    assert capfd.readouterr().err == "said on purpose\n"


SCRIPT = """
import sys
import numpy as np
from ace.envs import EnvRequest, VectorEnv
print("main", flush=True)
env = VectorEnv([EnvRequest("probe/long", s, 1, "lane") for s in range(2)], 2, 2, 2)
env.reset()
env.step(np.zeros((2, 2), np.float32))
print(*[group._process.pid for group in env._groups], flush=True)
"""


def test_script_without_main_guard_runs_once_and_leaves_nothing(tmp_path) -> None:
    output = _run_script(tmp_path, SCRIPT)
    main, pids = output.split("\n")[:2]
    assert main == "main"
    assert output.count("main") == 1
    assert not any(_alive(int(pid)) for pid in pids.split())


HANGING = SCRIPT.replace("probe/long", f"{HERE}:Hang") + "env.send(np.zeros((2, 2), np.float32))\n"


@pytest.mark.parametrize("script", [SCRIPT, HANGING])
def test_workers_end_when_the_parent_is_killed(tmp_path, script: str) -> None:
    """Those that hung in a simulator stayed for ever: they never looked for another message."""
    output = _run_script(tmp_path, script + "import os; os.kill(os.getpid(), 9)", code=-9)
    pids = [int(pid) for pid in output.split("\n")[1].split()]
    until(lambda: not any(_alive(pid) for pid in pids))


def _run_script(folder, text: str, code: int = 0) -> str:
    script = folder / "script.py"
    script.write_text(text)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr == ""
    return done.stdout


def _pids(env: VectorEnv) -> list[int]:
    return [group._process.pid for group in env._groups]  # type: ignore[union-attr]


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
