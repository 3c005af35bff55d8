"""Simulators that fail: replaced, their episode dropped, the other lanes untouched."""

import csv
import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from ace.engine.player import Player
from ace.envs import EnvError
from ace.run import loop as loops
from ace.run.checkpoint import Checkpoints
from ace.run.evaluate import Evaluator
from ace.run.loop import Loop, Stopped, train
from tests.run.helpers import PAIR, QUICK, check_broken_run, leaves, plan, small_run

HERE = "tests.envs.bad_envs"


def before_step(monkeypatch, what) -> None:
    """Call `what(loop, agent_step)` before every step."""
    step = Loop.step

    def changed(self) -> None:
        what(self, self.agent_step)
        step(self)

    monkeypatch.setattr(Loop, "step", changed)


def kill_worker(envs, index: int, by: signal.Signals = signal.SIGKILL) -> None:
    """End a worker as the kernel ends one that takes too much memory, or otherwise."""
    os.kill(envs._groups[index]._process.pid, by)


def rows(folder: Path, name: str, lane: int) -> list[dict[str, str]]:
    """The rows of one lane in a CSV without the wall time."""
    found = csv.DictReader(open(folder / name))
    return [{**r, "wall_time": ""} for r in found if r["lane"] == str(lane)]


def test_a_killed_worker_costs_its_lane_an_episode_and_the_others_nothing(tmp_path, monkeypatch):
    argv = (*PAIR, "--workers", "2")
    whole = train(plan(tmp_path / "whole", *argv))
    kills = (13, 47, 90)

    def sometimes(loop: Loop, agent_step: int) -> None:
        if agent_step in kills:
            kill_worker(loop.collector.envs, 0)

    before_step(monkeypatch, sometimes)
    broken = train(plan(tmp_path / "run", *argv))
    one, other = leaves(whole), leaves(broken)
    for name in one:
        np.testing.assert_array_equal(one[name][1], other[name][1], err_msg=name)
    for name in ("train.csv", "eval.csv"):
        assert rows(tmp_path / "whole", name, 1) == rows(tmp_path / "run", name, 1)
    mine = rows(tmp_path / "run", "train.csv", 0)
    assert [int(r["faults"]) for r in mine][-1] == len(kills)
    # What is stored are the finished episodes and the running one, nothing else.
    finished = sum(int(r["episode_length"]) + 1 for r in mine)
    assert int(broken.replay.stored[0]) == finished + int(broken.replay.length[0]) + 1
    obs = np.asarray(broken.replay.obs[0])[: int(broken.replay.stored[0])]
    runs = np.split(obs, np.flatnonzero(obs[:, 1] == 0)[1:])
    for episode in runs:  # probe/long observes (name of the episode, count)
        assert (episode[:, 0] == episode[0, 0]).all()
        np.testing.assert_array_equal(episode[:, 1], np.arange(len(episode)))
    assert jax.tree.all(jax.tree.map(lambda x: bool(np.isfinite(x).all()), broken.learner.params))


def test_a_run_with_faults_continues_exactly(tmp_path):
    task = f"{HERE}:Flaky"
    argv = (task, "--seeds", "0", "1", "--fault-limit", "50", *QUICK)
    whole = small_run(tmp_path / "whole", *argv)
    assert sum(int(rows(tmp_path / "whole", "train.csv", i)[-1]["faults"]) for i in (0, 1)) > 10
    saves = range(0, 120, 3)  # inside episodes that are dropped later, too
    breaks = [(saves, kill) for kill in (20, 44, 61, 100)]
    check_broken_run(whole, tmp_path / "run", breaks, *argv)


def test_a_signal_does_not_wait_for_a_simulator_that_hangs(tmp_path, monkeypatch):
    """It has two minutes for an answer, and a preempted machine half a minute for the save."""
    argv = (*PAIR, "--workers", "2")

    def hang(loop: Loop, agent_step: int) -> None:
        if agent_step == 45:
            assert loop.config.env_timeout == 120
            kill_worker(loop.collector.envs, 0, signal.SIGSTOP)
            signal.setitimer(signal.ITIMER_REAL, 0.1)

    monkeypatch.setattr(loops, "HURRY_SECONDS", 0.2)
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        with monkeypatch.context() as patch, pytest.raises(Stopped, match="saved at env step 46;"):
            before_step(patch, hang)
            train(plan(tmp_path / "run", *argv))
    finally:
        signal.signal(signal.SIGALRM, before)
    train(plan(tmp_path / "run", *argv))
    last = [rows(tmp_path / "run", "train.csv", lane)[-1] for lane in (0, 1)]
    assert [int(row["faults"]) for row in last] == [1, 0]


def test_faults_without_end_stop_the_run_with_a_saved_state(tmp_path):
    run = plan(tmp_path / "run", f"{HERE}:NanObs", "probe/long", "--fault-limit", "3", *QUICK)
    message = r"(?s)env step 9: lane 0 .*NanObs.*non-finite.*3 faults.*saved at env step 9.*resume"
    with pytest.raises(EnvError, match=message):
        train(run)
    assert Checkpoints(tmp_path / "run").steps() == [9]
    with pytest.raises(EnvError, match=r"(?s)saved at env step 18"):  # it goes on, and fails again
        train(run)


def test_an_evaluation_whose_simulator_dies_or_hangs_is_played_again(tmp_path, monkeypatch):
    argv = (f"{HERE}:Counter", "--seeds", "0", "1", "--workers", "1", "--env-timeout", "3", *QUICK)
    train(plan(tmp_path / "whole", *argv))
    # In the first evaluation the planner's simulators die, in the second the policy's hang.
    begin, seen, made = Evaluator.begin, set(), []
    left = [("agent", signal.SIGKILL), ("policy", signal.SIGSTOP)]

    def in_the_middle(self, acting, agent_step):
        player = self.on_device["agent"]
        made.append(self.envs["policy"]._made)

        def counted(obs, count):
            if count == 2 and agent_step not in seen:
                seen.add(agent_step)
                of, by = left.pop(0)
                kill_worker(self.envs[of], 0, by)
            return Player.act(player, obs, count)

        player.act = counted
        begin(self, acting, agent_step)

    monkeypatch.setattr(Evaluator, "begin", in_the_middle)
    train(plan(tmp_path / "run", *argv))
    assert not left and made == [False, True]  # the training does not wait for them to be made
    for lane in (0, 1):
        expected = rows(tmp_path / "whole", "eval.csv", lane)
        assert rows(tmp_path / "run", "eval.csv", lane) == expected and len(expected) == 2


ONE_WORKER = ("probe/long", "--seeds", "0", "1", "--workers", "1", *QUICK)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in which no evaluation fails."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(plan(folder, *ONE_WORKER)), folder


@pytest.mark.parametrize("at", [60, 120])
def test_an_evaluation_that_always_fails_stops_and_is_made_again(whole, tmp_path, monkeypatch, at):
    run = plan(tmp_path / "run", *ONE_WORKER)
    begin, advance = Evaluator.begin, Evaluator.advance

    def begun(self, learner, agent_step):
        self.doomed = agent_step == at
        begin(self, learner, agent_step)

    def doomed(self):
        if self.doomed:
            kill_worker(self.envs["agent"], 0)
        return advance(self)

    fate = "failed, it will be made again"
    message = rf"(?s)evaluation at env step {at} {fate}.*lane 0 evaluation.*saved at"
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "begin", begun)
        patch.setattr(Evaluator, "advance", doomed)
        with pytest.raises(EnvError, match=message):
            train(run)
    one, other = leaves(whole[0]), leaves(train(run))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    for lane in (0, 1):
        expected = rows(whole[1], "eval.csv", lane)
        assert rows(tmp_path / "run", "eval.csv", lane) == expected
