"""Signals at any moment, and runs that are made longer: nothing is lost, and it is quick."""

import os
import signal
import threading
from typing import Any

import jax
import numpy as np
import pytest

from ace import cli
from ace.engine.program import Program
from ace.run import loop as loops
from ace.run import request
from ace.run.evaluate import Evaluator
from ace.run.loop import Loop, Stopped, train
from ace.run.pace import Pace
from ace.run.record import read_csv
from ace.run.resume import Keeper
from ace.run.signals import Signals
from ace.settings.config import ConfigError
from tests.run.helpers import PAIR, QUICK, csv_rows, pair, same, same_rows, small_run


def test_a_signal_does_not_wait_for_an_evaluation_which_is_made_again(whole, tmp_path, monkeypatch):
    """The simulators of the evaluation never answer, and yet the run stops at once."""
    folder = tmp_path / "run"
    step, advance, asked = Loop.step, Evaluator.advance, []

    def signalled(self) -> None:
        step(self)
        asked.clear()
        if self.agent_step == 75:
            assert self.evaluations.running == 60
            os.kill(os.getpid(), signal.SIGTERM)

    def stuck(self) -> None:
        asked.append(1)
        assert len(asked) < 3  # once a step

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", signalled)
        patch.setattr(Evaluator, "advance", stuck)
        with pytest.raises(Stopped, match=r"env step 75; `ace resume"):
            pair(folder)
    assert csv_rows(folder, "eval.csv") == []
    # While it is continued, the evaluation is played with the agents as they were at step 60.
    same(pair(folder), whole[0])
    same_rows(folder, whole[1].folder)
    assert Evaluator.advance is advance


def test_a_signal_is_heard_while_a_run_waits_for_its_last_evaluation(whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def stuck(self):
        if self._given[1] == 120:
            os.kill(os.getpid(), signal.SIGINT)
            return None
        return advance(self)

    advance = Evaluator.advance
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "advance", stuck)
        with pytest.raises((Stopped, KeyboardInterrupt)):
            pair(folder)
    same(pair(folder), whole[0])
    assert csv_rows(folder, "eval.csv") == csv_rows(whole[1].folder, "eval.csv")


class Clock:
    """A clock that goes on when an update is made, and sends a signal with the fifth."""

    def __init__(self, monkeypatch, seconds: float):
        self.now, self.made, update = 0.0, 0, Program.update

        def updated(program, *args):
            self.made += 1
            self.now += seconds
            if self.made == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return update(program, *args)

        monkeypatch.setattr(Program, "update", updated)
        monkeypatch.setattr("ace.run.pace.time.monotonic", lambda: self.now)


def test_a_signal_ends_a_long_burst_of_updates(whole, tmp_path, monkeypatch):
    """Updates may take a second each: it is heard before the next one."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, seconds=1.0)
        with pytest.raises(Stopped, match="env step 40;"):  # the seed phase ends with 40 updates
            pair(folder)
        assert clock.made == 5
    same(pair(folder), whole[0])


def test_a_signal_waits_for_the_end_of_a_short_burst(whole, tmp_path, monkeypatch):
    """No state is saved before updates that are known to be quick."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, seconds=0.01)
        patch.setattr(Pace, "too_long", lambda self, updates, usual: False)
        with pytest.raises(Stopped, match="env step 41;"):
            pair(folder)
        assert clock.made == 40
    same(pair(folder), whole[0])


@pytest.mark.parametrize(
    ("updates", "seconds", "long"),
    [(1, None, False), (40, None, True), (40, 0.1, False), (60, 0.1, True), (1, 6.0, True)],
)
def test_updates_that_keep_signals_waiting(updates, seconds, long):
    pace = Pace()
    pace.seconds = seconds
    assert pace.too_long(updates, usual=1) == long


def test_a_signal_is_heard_while_functions_are_compiled(whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    said = []

    def waiting(self, evaluation: bool = False) -> list[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return ["update"]

    class Busy:
        """A thread that never ends."""

        def is_alive(self) -> bool:
            return True

    def wait(self) -> None:
        self.compiling = [Busy()] if self.agent_step == 40 else self.compiling
        wait_for_compiler(self)

    wait_for_compiler = Loop.wait_for_compiler
    with monkeypatch.context() as patch:
        patch.setattr(Program, "waiting", waiting)
        patch.setattr(Loop, "wait_for_compiler", wait)
        patch.setattr("ace.run.record.Recorder.status", lambda self, text: said.append(text))
        with pytest.raises(Stopped, match="env step 40;") as stopped:
            pair(folder)
    assert stopped.value.compiling and said == ["random actions"] * 40 + ["compiling update"]
    same(pair(folder), whole[0])


def test_a_save_compiles_nothing(tmp_path, monkeypatch):
    """XLA may be busy with the update when a signal asks for it."""
    save, step, saved = Keeper.save, Loop.step, []

    def heard(event: str, duration_secs: float, **_: Any) -> None:
        assert "/compile/" not in event or threading.current_thread() != threading.main_thread()

    def watched(self, *args) -> None:
        jax.clear_caches()  # what earlier tests have compiled
        jax.monitoring.register_event_duration_secs_listener(heard)
        try:
            save(self, *args)
        finally:
            jax.monitoring.unregister_event_duration_listener(heard)
        saved.append(self.program._rows.ready)

    def stepped(self) -> None:
        if self.agent_step == 0:
            for thread in self.compiling:
                thread.join()
        if self.agent_step in (20, 50):
            self.save()
        step(self)

    monkeypatch.setattr(Keeper, "save", watched)
    monkeypatch.setattr(Loop, "step", stepped)
    pair(tmp_path / "run")
    assert len(saved) > 2 and all(saved)


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGTERM])
def test_a_stop_that_is_said_twice_is_one_stop(signum):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run in `nohup`
    heard = []
    try:
        signals = Signals(lambda: heard.append(1))
        with signals:
            signal.raise_signal(signum)
            signal.raise_signal(signum)  # from the shell too, or to the whole process group
            signal.raise_signal(signal.SIGTERM)
            assert signals.signum == signum and heard == [1]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # `nohup ace train`
        with Signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_finished_run_can_be_made_longer(tmp_path, capsys):
    folder = tmp_path / "run"
    small_run(folder, *PAIR, "--env-steps", "41", "--eval-every", "40")
    before = csv_rows(folder, "eval.csv")
    assert int(before[-1]["env_step"]) == 41
    cli.main(["resume", str(folder), "--env-steps", "120", "--quiet"])
    assert csv_rows(folder, "eval.csv")[: len(before)] == before
    steps = [row["env_step"] for row in read_csv(folder / "eval.csv")]
    assert steps == [40, 40, 41, 41, 80, 80, 120, 120]
    longer = request.open_run(folder)
    assert {s.config.env_steps for s in longer.setups} == {120}
    state = train(longer)  # it is finished: nothing but its state
    assert state.learner.update_step.tolist() == [119, 119]
    assert int(state.replay.stored.min()) > 120
    assert (np.asarray(state.replay.tree.sums[0])[:, 85:120] > 0).any(1).all()
    with pytest.raises(ConfigError, match="made for 120"):
        request.open_run(folder, env_steps=120)


@pytest.mark.parametrize(
    "flag",
    [
        "--learn.batch=100000000",
        "--net.mlp=10000000",
        "--plan.population=1000000000",
        "--plan.iterations=100000",
        "--learn.updates-per-step=100000000",
        "--eval-episodes=100000000",
    ],
)
def test_runs_that_cannot_fit_are_refused_before_a_program_is_made(flag, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(loops, "Program", lambda *_: made.append(1))
    with pytest.raises(ConfigError, match=r"GiB|at most"):
        pair(tmp_path / "run", *flag.split("="))
    assert not made and not (tmp_path / "run").exists()


def test_an_environment_without_a_time_limit_ends(tmp_path, capsys):
    argv = ["tests.envs.bad_envs:Endless", "--seeds", "0", "1", "--eval-every", "120", *QUICK]
    cli.main(["train", *argv, "--preset", "debug", "--run", str(tmp_path / "run")])
    assert "declares no time limit: its episodes are cut after 1,000" in capsys.readouterr().out
    lengths = {row["episode_length"] for row in read_csv(tmp_path / "run" / "eval.csv")}
    assert lengths == {1000}
