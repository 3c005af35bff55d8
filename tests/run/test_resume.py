"""A run that is broken off and continued ends as the run that was not, bit for bit."""

import hashlib
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ace import cli
from ace.run import resume
from ace.run.checkpoint import CheckpointError, Checkpoints
from ace.run.loop import Loop, Stopped, train
from ace.settings.config import ConfigError
from benchmarks.survive import compare, flags, shoot
from tests.run.helpers import (
    PAIR,
    QUICK,
    broken_off,
    check_broken_run,
    pair,
    plan,
    same,
    same_rows,
    small_run,
)


def listen(monkeypatch) -> list[str]:
    """What the run says when it is continued."""
    notes: list[str] = []
    load = resume.Keeper.load

    def listening(*args):
        found = load(*args)
        notes.extend(found[2] if found else [])
        return found

    monkeypatch.setattr(resume.Keeper, "load", listening)
    return notes


def test_a_broken_run_ends_like_the_whole_one(whole, tmp_path):
    folder = tmp_path / "run"
    # In the random phase; just after learning began; between evaluations; past an evaluation.
    breaks = [({7}, 25), ({25, 44}, 44), ({44, 52}, 58), ({59, 71}, 95)]
    check_broken_run(whole, folder, breaks, *PAIR)
    assert len(Checkpoints(folder).steps()) == 2


def test_a_ring_that_has_wrapped_comes_back(tmp_path):
    """Two times, of a capacity for which `test_signals.py` compiles as well."""
    argv = (*PAIR, "--replay.capacity", "84", "--env-steps", "180")
    whole = small_run(tmp_path / "whole", *argv)
    check_broken_run(whole, tmp_path / "run", [({30, 75, 110, 140, 165}, 168)], *argv)
    assert len(list((tmp_path / "run" / "checkpoints" / "replay").iterdir())) <= 4


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(damage, whole, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    with broken_off({30, 50}, 55):
        pair(folder)
    state = folder / "checkpoints" / "50" / "state.safetensors"
    data = bytearray(state.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 4
        state.write_bytes(data)
    elif damage == "cut":
        state.write_bytes(data[:-9])
    elif damage == "remove":
        state.unlink()
    else:
        (state.parent / "manifest.json").write_text('{"format": 1}')
    notes = listen(monkeypatch)
    same(pair(folder), whole[0])
    assert any("checkpoints/50" in n for n in notes)


def test_a_signal_saves_and_says_how_to_go_on(whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    step = Loop.step

    def signalled(self) -> None:
        step(self)
        if self.agent_step == 51:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", signalled)
        with pytest.raises(Stopped, match=r"env step 51; `ace resume"):
            pair(folder)
    cli.main(["resume", str(folder), "--quiet"])
    same_rows(folder, whole[1].folder)


def test_two_processes_never_share_a_folder(tmp_path):
    with resume.lock(tmp_path), pytest.raises(ConfigError, match=rf"process {os.getpid()} on"):
        with resume.lock(tmp_path):
            pass


def test_an_environment_that_does_not_repeat_itself_starts_a_new_episode(tmp_path, monkeypatch):
    task = "tests.envs.bad_envs:Forgetful"
    run = plan(tmp_path / "run", task, "--seeds", "0", "1", *QUICK)
    with broken_off({52}, 53):
        train(run)
    notes = listen(monkeypatch)
    state = train(run)
    assert any("lane 0" in n and "new one begins" in n for n in notes)
    assert int(state.learner.update_step[0]) == run.setups[0].config.env_steps - 1


@contextmanager
def small_disk() -> Iterator[None]:
    """Let no file of this process grow past 50,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_checkpoint_before(whole, tmp_path, monkeypatch, capsys):
    """A file cannot grow past a limit of the system: a write fails in its middle, as if full."""
    folder = tmp_path / "run"
    with broken_off({30}, 31):
        pair(folder)
    before = digest(folder / "checkpoints")
    capsys.readouterr()
    with small_disk(), pytest.raises(SystemExit) as stopped:
        cli.main(["resume", str(folder), "--quiet", "--save-minutes", "0.0001"])
    assert stopped.value.code == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("ace: the checkpoint could not be written")
    assert "agent step 30 is saved" in line and f"`ace resume {folder}`" in line
    after = digest(folder / "checkpoints")
    assert {name: after.get(name) for name in before} == before
    same(pair(folder), whole[0])
    same_rows(folder, whole[1].folder)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody can write to")
def test_a_folder_that_cannot_be_written_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "probe/point", "--preset", "debug", "--run", "/proc/run"])
    assert "cannot make /proc/run" in capsys.readouterr().err


def test_links_in_a_folder_are_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError), resume.lock(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "replay").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="link"):
        Checkpoints(tmp_path / "run")


def digest(folder: Path) -> dict[str, str]:
    """Checksum of every file."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_kills_at_random_moments(tmp_path):
    """The command itself, with SIGKILL, while it starts and inside saves too. This process, which
    has its functions, makes the run that is left alone and ends the one that was killed. The agent
    is the one that starts soonest: what is saved and how is not the agent's work."""
    whole, shot = tmp_path / "whole", tmp_path / "shot"
    argv = flags(1000, "sac")
    small_run(whole, *argv)
    hit = shoot(shot, count=3, seed=1, env_steps=1000, agent="sac")  # 50 in docs/reliability.md
    assert set(hit.values()) == {1}
    small_run(shot, *argv)
    compare(whole, shot)
