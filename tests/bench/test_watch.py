"""Jobs on a cluster whose nodes only pretend: copies of a run at every moment, losses, retries, and
ends that were asked for."""

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ace.bench import mirror, remote, watch
from ace.bench.jobs import Job, LaneSpec
from ace.bench.suites import Suite
from ace.bench.worker import STOPPED
from ace.run.checkpoint import Checkpoints
from tests.patience import until

JOB = Job("mine", "ace", "debug", 100, (), {"ace": {}}, (LaneSpec("ace", "probe/point", 0),))
SUITE = Suite("mine", "", ("probe/point",), (), (0,), 100, "debug", 4, ())


def advance(run: Path, step: int, files: Checkpoints | None = None) -> Checkpoints:
    """Let a run make steps, with a row per step, and save."""
    run.mkdir(parents=True, exist_ok=True)
    for name in ("train.csv", "eval.csv"):
        (run / name).write_text("env_step\n" + "".join(f"{i}\n" for i in range(1, step + 1)))
    (run / "agent.safetensors").write_text(str(step))
    if files is None:
        (run / "config.json").write_text("{}")
        files = Checkpoints(run)
        if steps := files.steps():
            files.rows = dict(files.manifest(steps[-1])["replay"])
    x = np.full(3, step, np.float32)
    files.write(step, {"x": x}, {"rows": x}, {"at": step})
    return files


def check(folder: Path) -> int:
    """The agent step of a job's newest checkpoint, which must be whole, its rows included."""
    step = mirror.newest(folder)
    if step < 0:
        return step
    files = Checkpoints(folder / "run")
    manifest = files.manifest(step)
    entries = {files.folder / "replay" / n: about for n, about in manifest["replay"].items()}
    entries[files.folder / str(step) / "state.safetensors"] = manifest["state"]
    for path, about in entries.items():
        assert path.stat().st_size == about["bytes"]
    for name in ("train.csv", "eval.csv"):
        assert int((folder / "run" / name).read_text().split()[-1]) >= step
    assert int((folder / "run" / "agent.safetensors").read_text()) >= step
    return step


def copy(node: Path, driver: Path, checkpoint: bool = True) -> list[str]:
    """What the driver's thread does: the names of the files that travelled."""
    entries = mirror.take_snapshot(node, node.parent / "snapshot", checkpoint)
    wanted = mirror.lacking(driver, entries)
    for entry in wanted:
        data = mirror.read_part(node.parent / "snapshot" / entry.name, 0)
        assert len(data) == entry.size
        mirror.write_part(driver / mirror.INCOMING / entry.name, 0, data)
    mirror.put_in_place(driver, wanted)
    return [entry.name for entry in wanted]


def test_a_replay_file_travels_once_and_old_checkpoints_are_forgotten(tmp_path) -> None:
    node, driver = tmp_path / "node" / "job", tmp_path / "driver"
    files = advance(node / "run", 10)
    copy(node, driver)
    for step in (20, 30):
        advance(node / "run", step, files)
        names = copy(node, driver)
        assert [n for n in names if "replay" in n] == [
            f"run/checkpoints/replay/{step:010d}.safetensors"
        ]
        assert check(driver) == step
    assert Checkpoints(driver / "run").steps() == [20, 30]
    # The config too: a node refuses a run that was begun with other settings.
    assert {e.name for e in mirror.to_send(driver)} >= {*names, "run/config.json"}


def test_what_a_maze_records_travels_once_and_before_the_rows_of_its_evaluation(tmp_path) -> None:
    node, driver = tmp_path / "node" / "job", tmp_path / "driver"
    advance(node / "run", 10)
    (node / "run" / "exploration").mkdir()
    for step in (10, 20):
        (node / "run" / "exploration.csv").write_text(f"env_step\n{step}\n")
        (node / "run" / "exploration" / f"{step}.safetensors").write_text(str(step))
        names = copy(node, driver)
        first = [f"run/exploration/{step}.safetensors", "run/exploration.csv"]
        assert [n for n in names if "explor" in n] == first
        assert names.index("run/exploration.csv") < names.index("run/eval.csv")
    for name in ("exploration.csv", "exploration/10.safetensors", "exploration/20.safetensors"):
        assert (driver / "run" / name).read_text() == (node / "run" / name).read_text()
        assert f"run/{name}" in {e.name for e in mirror.to_send(driver)}


def test_a_snapshot_lasts_while_the_program_goes_on(tmp_path) -> None:
    node, driver = tmp_path / "node" / "job", tmp_path / "driver"
    files = advance(node / "run", 10)
    entries = mirror.take_snapshot(node, node.parent / "snapshot", True)
    for step in (20, 30, 40):
        advance(node / "run", step, files)
    assert not (node / "run" / "checkpoints" / "10").exists()
    for entry in entries:
        data = (node.parent / "snapshot" / entry.name).read_bytes()
        mirror.write_part(driver / mirror.INCOMING / entry.name, 0, data)
    mirror.put_in_place(driver, entries)
    assert check(driver) == 10


def test_a_copy_that_is_cut_off_anywhere_leaves_a_run_that_goes_on(tmp_path, monkeypatch) -> None:
    node, driver = tmp_path / "node" / "job", tmp_path / "driver"
    files = advance(node / "run", 10)
    copy(node, driver)
    advance(node / "run", 20, files)
    replace, seen = Path.replace, []
    for cut in itertools.count():
        there = tmp_path / f"cut-{cut}"
        shutil.copytree(driver, there)
        left = iter(range(cut))

        def until_cut(self: Path, target: Path, left=left) -> Path:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", until_cut)
        try:
            copy(node, there)
        except KeyboardInterrupt:
            seen.append(check(there))
        else:
            assert check(there) == 20
            break
        finally:
            monkeypatch.setattr(Path, "replace", replace)
    assert seen == [10] * 6  # replay, config, two CSV files, agents, checkpoint


def test_rooms_of_killed_workers_are_deleted(tmp_path) -> None:
    first, held = remote.make_room(tmp_path)
    second, other = remote.make_room(tmp_path)
    assert first.is_dir() and second.is_dir()
    held.close()  # as if its process had died
    third, last = remote.make_room(tmp_path)
    assert not first.exists() and second.is_dir() and third.is_dir()
    other.close()
    last.close()


class Program:
    """Stands for the process of a job: each look at it is ten steps and a checkpoint."""

    fate: ClassVar[dict[int, int]] = {}  # step -> exit status
    begins: ClassVar[list[tuple[str, int]]] = []  # folder and step at which a process began
    endless = False

    def __init__(self, job: Job, folder: Path, save_minutes: float):
        self.folder, self.asked, self.status = folder, False, None
        (folder / "run").mkdir(parents=True, exist_ok=True)
        self.step = max(mirror.newest(folder), 0)
        Program.begins.append((str(folder), self.step))
        (folder / "log.txt").open("ab").write(b"begun\n")

    def poll(self) -> int | None:
        if self.asked:
            self.status = STOPPED
        elif self.status is None and not (self.endless and self.step >= 30):
            self.step += 10
            advance(self.folder / "run", self.step)
            self.status = Program.fate.pop(self.step, None)
            if self.step >= 50:
                self.status = 0
                (self.folder / "done.json").write_text("{}")
        return self.status

    def env_step(self) -> int:
        return self.step

    def stop(self) -> None:
        self.asked = True

    def kill(self) -> None:
        self.status = -9


class Node:
    """Calls a host in this process, and loses it as told."""

    def __init__(self, losses: list[tuple[str, int]], free: bool = True):
        self.host, self.losses, self.free, self.ended = remote.Host(), losses, free, ""
        self.calls = 0

    def call(self, withdrawn: Callable[[], bool], method: str, *args: Any) -> Any:
        while not self.free:
            if withdrawn():
                raise watch.Withdrawn
            time.sleep(0.01)
        if withdrawn():
            raise watch.Withdrawn
        self.calls += method == (self.losses or [("", 0)])[0][0]
        if self.losses and (method, self.calls) == self.losses[0]:
            self.losses.pop(0)
            raise watch.Lost("the node is gone")
        return getattr(self.host, method)(*args)

    def end(self) -> None:
        self.ended = "end"
        self.host.end()

    def kill(self) -> None:
        self.ended = "kill"


class Scene:
    """A job on pretended nodes."""

    def __init__(self, folder: Path, monkeypatch, fate=(), losses=(), shared="off", free=True):
        monkeypatch.setattr("ace.bench.local.LocalJob", Program)
        monkeypatch.setattr(watch, "LOOK_SECONDS", 0.005)
        monkeypatch.setattr(watch, "RETRY_SECONDS", 0.001)
        monkeypatch.setattr(remote.tempfile, "gettempdir", lambda: str(folder))
        monkeypatch.setenv(watch.SHARED, shared)
        Program.fate, Program.begins = dict(fate), []
        self.folder, self.nodes, self.said = folder / "driver", [], []
        self.losses, self.free = list(losses), free
        self.job = watch.RemoteJob(JOB, self.folder, 1.0, self.place, {}, self.said.append)

    def place(self) -> Node:
        self.nodes.append(Node(self.losses, self.free))
        return self.nodes[-1]

    def at(self, env_step: int) -> "Scene":
        """The scene once the job has come so far."""
        until(lambda: self.job.env_step() >= env_step)
        return self

    def wait(self) -> int | None:
        self.job._thread.join()
        return self.job.poll()


def test_the_results_of_a_job_are_here_when_it_has_ended(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    assert scene.wait() == 0 and len(scene.nodes) == 1 and not scene.said
    assert (scene.folder / "done.json").exists() and scene.job.env_step() == 50
    assert (scene.folder / "run" / "eval.csv").read_text().split()[-1] == "50"
    assert (scene.folder / "log.txt").read_text() == "begun\n"
    assert scene.nodes[0].ended == "end" and not list(tmp_path.glob("ace-bench-*/*"))
    assert Program.begins[0][0] != str(scene.folder)


def test_a_shared_folder_is_used_as_it_is(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, shared="")
    assert scene.wait() == 0 and Program.begins == [(str(scene.folder), 0)]
    assert not list(scene.folder.glob("token*")) and not (scene.folder / mirror.INCOMING).exists()


@pytest.mark.parametrize("loss", [("look", 3), ("snapshot", 3), ("get", 9)])
def test_a_lost_job_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch, loss) -> None:
    scene = Scene(tmp_path, monkeypatch, losses=[loss])
    assert scene.wait() == 0 and len(scene.nodes) == 2
    (first, _), (second, at) = Program.begins
    assert first != second and at in (10, 20)
    assert f"checkpoint at agent step {at}" in scene.said[0] and "node is gone" in scene.said[0]
    assert (scene.folder / "run" / "eval.csv").read_text().split()[-1] == "50"


def test_a_killed_process_or_one_stopped_by_a_stranger_is_a_loss(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, fate={20: -9, 40: STOPPED})
    assert scene.wait() == 0
    assert [step for _, step in Program.begins] == [0, 20, 40] and len(scene.said) == 2


def test_a_program_that_fails_is_not_tried_again(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, fate={20: 1})
    assert scene.wait() == 1 and len(scene.nodes) == 1 and check(scene.folder) == 20


def test_losses_without_progress_are_counted(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, losses=[("open", 1)] * 9)
    assert scene.wait() == watch.GIVEN_UP and len(scene.nodes) == watch.RETRIES + 1
    assert "the node is gone" in scene.job.log()
    losses = [("open", 1)] * 3 + [("look", 3)] + [("open", 1)] * 2
    assert Scene(tmp_path / "again", monkeypatch, losses=losses).wait() == 0


def test_stop_saves_and_brings_the_checkpoint_here(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Program, "endless", True)
    scene = Scene(tmp_path, monkeypatch).at(30)
    scene.job.stop()
    assert scene.wait() == STOPPED and check(scene.folder) == 30 and len(scene.nodes) == 1


def test_kill_ends_a_job_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Program, "endless", True)
    scene = Scene(tmp_path, monkeypatch).at(10)
    scene.job.kill()
    assert scene.wait() == watch.KILLED and scene.nodes[0].ended == "kill"


def test_a_job_that_waits_for_a_node_can_be_stopped(tmp_path, monkeypatch) -> None:
    scene = Scene(tmp_path, monkeypatch, free=False)
    scene.job.stop()
    assert scene.wait() == STOPPED and not Program.begins and scene.nodes[0].ended == "kill"
