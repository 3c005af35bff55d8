"""The files and console lines of a run: exact columns, whole lines, continuation, atomic JSON."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ace.engine import kernels
from ace.run.display import Display, LaneInfo
from ace.run.loop import Loop
from ace.run.record import Recorder, read_csv, versions, write_json
from ace.settings.config import ConfigError

LANES = [LaneInfo(0, 7, "dmc/cartpole-swingup", ""), LaneInfo(1, 8, "dmc/cartpole-swingup", "")]
EVAL_HEADER = (
    "lane,seed,task,env_step,return,policy_return,train_return,value_bias,value_bias_std,"
    "episode_length,wall_time"
)
TRAIN_HEADER = "lane,seed,task,env_step,return,episode_length,wall_time"


def recorder(folder: Path, **options) -> Recorder:
    return Recorder(folder, LANES, 10_000, **{"quiet": True, **options})


def test_columns_and_number_text(tmp_path):
    with recorder(tmp_path, metric_names=("value_loss", "reward_loss")) as record:
        record.episode(1, 1000, np.float32(3), 500, {"value_loss": np.float32(0.1)})
        record.evaluation(0, 2000, 12.5, None, 1000)
    train = (tmp_path / "train.csv").read_text().splitlines()
    assert train[0] == TRAIN_HEADER + ",value_loss,reward_loss"
    assert train[1].startswith("1,8,dmc/cartpole-swingup,1000,3.0,500,")
    assert train[1].endswith(",0.1,")
    evaluation = (tmp_path / "eval.csv").read_text().splitlines()
    assert evaluation[0] == EVAL_HEADER
    assert evaluation[1].startswith("0,7,dmc/cartpole-swingup,2000,12.5,,,,,1000,")
    assert len(evaluation[1].rpartition(".")[2]) == 2


def test_numbers_of_the_task_follow_the_fixed_columns(tmp_path):
    names = {"metric_names": ("value_loss",), "numbers": ("success", "coverage")}
    with recorder(tmp_path, **names) as record:
        record.episode(0, 1000, 3.0, 500, {"value_loss": 0.5}, {"coverage": 0.25})
        record.evaluation(0, 2000, 12.5, None, 1000, {"success": 1.0, "coverage": 0.75})
        with pytest.raises(ValueError, match="surprise"):
            record.evaluation(0, 2000, 12.5, None, 1000, {"surprise": 1.0})
        with pytest.raises(ValueError, match="surprise"):
            record.episode(0, 1000, 3.0, 500, {}, {"surprise": 1.0})
    train = (tmp_path / "train.csv").read_text().splitlines()
    assert train[0] == TRAIN_HEADER + ",success,coverage,value_loss"
    assert train[1].endswith(",,0.25,0.5")
    evaluation = (tmp_path / "eval.csv").read_text().splitlines()
    assert evaluation[0] == EVAL_HEADER + ",success,coverage"
    assert evaluation[1].endswith(",1.0,0.75") and len(evaluation) == 2


@pytest.mark.parametrize("name", ["return", "wall_time", "value_loss"])
def test_a_number_with_the_name_of_a_column_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=name):
        recorder(tmp_path, metric_names=("value_loss",), numbers=(name,))


def test_a_run_from_before_the_numbers_goes_on(tmp_path):
    old = Path(__file__).parents[1] / "data" / "format-1"
    (tmp_path / "eval.csv").write_bytes((old / "eval.csv").read_bytes())
    rows = read_csv(old / "eval.csv")
    with recorder(tmp_path) as record:
        record.evaluation(0, 10_000, 1.0, 2.0, 1000)
    found = read_csv(tmp_path / "eval.csv")
    assert [{name: row[name] for name in rows[0]} for row in found[:-1]] == rows
    assert all(np.isnan(row["value_bias"]) for row in found) and found[-1]["return"] == 1.0


def test_the_critics_bias_is_recorded(tmp_path):
    with recorder(tmp_path) as record:
        record.evaluation(0, 1000, 12.5, 3.0, 1000, {}, (0.25, 0.5))
    row = read_csv(tmp_path / "eval.csv")[0]
    assert (row["value_bias"], row["value_bias_std"], row["policy_return"]) == (0.25, 0.5, 3.0)


def test_training_returns_since_the_evaluation_before(tmp_path):
    with recorder(tmp_path) as record:
        for env_step, ret in ((500, 1.0), (1000, 2.0), (1500, 4.0)):
            record.episode(0, env_step, ret, 500, {})
        record.evaluation(0, 1000, 0.0, 0.0, 500)  # ends when training is further
        record.evaluation(0, 1200, 0.0, 0.0, 500)
    with recorder(tmp_path) as record:  # goes on
        record.episode(0, 2000, 8.0, 500, {})
        record.evaluation(0, 2000, 0.0, 0.0, 500)
    found = [row["train_return"] for row in read_csv(tmp_path / "eval.csv")]
    assert found[0] == 1.5 and np.isnan(found[1]) and found[2] == 6.0


def test_rows_are_on_disk_as_whole_lines_while_the_run_goes_on(tmp_path):
    with recorder(tmp_path) as record:
        for count in range(1, 4):
            record.evaluation(0, 1000 * count, 1.0, 2.0, 1000)
            content = (tmp_path / "eval.csv").read_text()
            assert content.endswith("\n")
            assert len(content.splitlines()) == 1 + count


def test_appending_repeats_no_header_and_drops_a_torn_line(tmp_path):
    with recorder(tmp_path) as record:
        record.evaluation(0, 1000, 1.0, 2.0, 1000)
    with (tmp_path / "eval.csv").open("a") as file:
        file.write("0,7,dmc/cart")
    with recorder(tmp_path) as record:
        record.evaluation(0, 2000, 3.0, 4.0, 1000)
    assert (tmp_path / "eval.csv").read_text().count("lane,seed") == 1
    assert [row["env_step"] for row in read_csv(tmp_path / "eval.csv")] == [1000, 2000]


def test_resuming_drops_rows_to_be_written_again_and_keeps_counting_time(tmp_path):
    with recorder(tmp_path) as record:
        for env_step in (1000, 2000, 3000):
            record.evaluation(0, env_step, 1.0, 2.0, 1000)
    rows = (tmp_path / "eval.csv").read_text().splitlines()
    rows[2] = rows[2].rpartition(",")[0] + ",50.00"
    (tmp_path / "eval.csv").write_text("\n".join(rows) + "\n")
    with recorder(tmp_path, resume_at=2000) as record:
        record.evaluation(0, 3000, 5.0, 6.0, 1000)
    rows = read_csv(tmp_path / "eval.csv")
    assert [(row["env_step"], row["return"]) for row in rows] == [(1000, 1), (2000, 1), (3000, 5)]
    assert rows[-1]["wall_time"] >= 50


def test_evaluations_may_be_kept_longer_or_shorter_than_episodes(tmp_path):
    with recorder(tmp_path) as record:
        for env_step in (1000, 2000, 3000):
            record.evaluation(0, env_step, 1.0, 2.0, 1000)
            record.episode(0, env_step, 1.0, 1000, {})
    with recorder(tmp_path, resume_at=3000, evaluations_until=1500):
        pass
    assert [row["env_step"] for row in read_csv(tmp_path / "train.csv")] == [1000, 2000, 3000]
    assert [row["env_step"] for row in read_csv(tmp_path / "eval.csv")] == [1000]
    with recorder(tmp_path, resume_at=2000, evaluations_until=0):
        pass
    assert [row["env_step"] for row in read_csv(tmp_path / "train.csv")] == [1000, 2000]
    assert read_csv(tmp_path / "eval.csv") == []


def test_other_columns_than_the_file_has_are_refused(tmp_path):
    with recorder(tmp_path, metric_names=("a",)):
        pass
    with pytest.raises(ValueError, match="new run folder"):
        recorder(tmp_path, metric_names=("b",))


@pytest.mark.parametrize("bad", ["garbage\n", "0,0,task,soon,1.0,5,0.1\n", "0,0,task,5,1,5,now\n"])
def test_a_line_that_is_no_row_is_refused(tmp_path, bad: str):
    """It ended a resumed run in a traceback."""
    with recorder(tmp_path):
        pass
    with (tmp_path / "train.csv").open("a") as file:
        file.write(bad)
    with pytest.raises(ConfigError, match=r"train.csv has a line that is not a row"):
        recorder(tmp_path, resume_at=10)


def test_an_unknown_metric_is_refused(tmp_path):
    with recorder(tmp_path) as record, pytest.raises(ValueError, match="metric_names"):
        record.episode(0, 1000, 1.0, 1000, {"surprise": 1.0})


def test_plain_output_has_a_line_per_evaluation_and_a_last_progress_line(tmp_path, capsys):
    with recorder(tmp_path, quiet=False) as record:
        for env_step in range(0, 10_001, 10):
            record.progress(env_step, skipped_updates=np.array([1, 2]), late_rows=0)
        record.evaluation(1, 10_000, 812.34, 700.0, 1000)
        record.message("a [note]")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("eval  env step 10,000  lane 1  dmc/cartpole-swingup  seed 8")
    assert lines[0].endswith("return 812.3  policy 700.0")
    assert lines[1] == "a [note]"
    assert lines[2].startswith("train  env step 10,000 / 10,000 (100.0%)")
    assert lines[2].endswith("skipped updates: 3")
    assert len(lines) == 3


class Clock:
    """Time that a test moves by hand."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr("ace.run.display.time.monotonic", lambda: self.now)

    def steps(self, record: Recorder, start: int, count: int, seconds: float) -> None:
        """Report `count` environment steps, one at a time."""
        for env_step in range(start, start + count):
            self.now += seconds
            record.progress(env_step)


def last_line(capsys) -> str:
    return [line for line in capsys.readouterr().out.splitlines() if "env step" in line][-1]


def test_a_status_takes_the_place_of_speed_and_does_not_count(tmp_path, monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with recorder(tmp_path, quiet=False) as record:
        record.status("compiling [act]")
        assert last_line(capsys) == "train  env step 0 / 10,000 (0.0%)  compiling [act]"
        clock.now += 3600
        record.progress(0)
        assert last_line(capsys).endswith("compiling [act]")
        record.status("")
        clock.steps(record, 1, 120, 0.1)
        assert "10 steps/s (20 all lanes)  0:16:" in last_line(capsys)
        record.status("compiling")
        assert "left" not in last_line(capsys)


def test_at_the_end_no_time_is_left(tmp_path, monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with recorder(tmp_path, quiet=False) as record:
        clock.now += 60
        record.progress(10_000)
        assert last_line(capsys).endswith("10,000 / 10,000 (100.0%)")


def test_a_stretch_without_steps_never_becomes_hours(tmp_path, monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with recorder(tmp_path, quiet=False) as record:
        record.progress(0)
        clock.now += 60
        record.progress(1)
        assert last_line(capsys).endswith("0 steps/s (0 all lanes)  ? left")
        clock.steps(record, 2, 60, 0.1)  # less than the time between two lines
        clock.now += 25
        record.progress(62)
        assert "10 steps/s (20 all lanes)  0:16:" in last_line(capsys)


def test_slow_steps_are_no_stretch_without_steps(tmp_path, monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with recorder(tmp_path, quiet=False) as record:
        clock.steps(record, 0, 20, 12.0)
        assert last_line(capsys).endswith("33:16:12 left")  # 9,981 steps of 12 seconds


def test_updates_in_blocks_belong_to_the_rate(tmp_path, monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with recorder(tmp_path, quiet=False) as record:
        for block in range(8):
            clock.steps(record, 20 * block, 20, 0.1)
            clock.now += 8
        clock.steps(record, 160, 1, 0.1)
        rate = float(last_line(capsys).partition(" steps/s")[0].rpartition(" ")[2])
        assert rate == 2  # and not the 10 of the steps alone


def test_quiet_prints_nothing(tmp_path, capsys):
    with recorder(tmp_path) as record:
        record.progress(10_000)
        record.evaluation(0, 1000, 1.0, 2.0, 1000)
        record.message("unseen")
        record.status("unseen too")
    assert capsys.readouterr().out == ""


class Gone(io.StringIO):
    """A console whose reader has ended, or whose terminal was closed."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal, self.gone, self.tried = terminal, False, 0

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        if not self.gone:
            return super().write(text)
        self.tried += 1
        raise OSError(5, "Input/output error") if self.terminal else BrokenPipeError(32, "gone")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_that_goes_away_does_not_end_the_run(tmp_path, terminal, monkeypatch):
    console = Gone(terminal)
    monkeypatch.setattr("sys.stdout", console)
    monkeypatch.setenv("TERM", "xterm")
    with recorder(tmp_path, quiet=False) as record:
        record.message("seen")
        console.gone = True
        record.message("unseen")
        assert console.tried == 1 and sys.stdout is console
        record.status("compiling")
        record.evaluation(0, 1000, 1.0, 2.0, 1000)
        record.progress(10_000)
    assert console.tried == 1 and sys.stdout is console
    assert len(read_csv(tmp_path / "eval.csv")) == 1


@pytest.mark.parametrize("count", [2, 20])
def test_live_panel_shows_lanes_or_a_summary(tmp_path, count, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    lanes = [LaneInfo(lane, lane, "toy/chain", f"x={lane}") for lane in range(count)]
    with Recorder(tmp_path, lanes, 100) as record:
        for lane in range(count):
            record.evaluation(lane, 50, float(lane), 0.0, 10)
        record.progress(100, skipped_updates=4)
        record.status("compiling [this]")
    shown = capsys.readouterr().out
    assert "compiling [this]" in shown
    assert "skipped updates: 4" in shown
    assert ("x=1" in shown) == (count == 2)
    assert ("9.5 (0.0 to 19.0)" in shown) == (count == 20)


def test_progress_reads_its_counters_only_for_a_redraw(tmp_path, monkeypatch):
    clock, reads = Clock(monkeypatch), []
    with recorder(tmp_path) as record:
        for env_step in range(2000):  # in a second
            clock.now += 0.0005
            record.progress(env_step, skipped_updates=lambda: reads.append(1) or 0)
    assert 4 <= len(reads) <= 5


def test_tensorboard_has_one_folder_per_lane(tmp_path):
    pytest.importorskip("tensorboardX")
    with recorder(tmp_path, tensorboard=True) as record:
        record.evaluation(1, 1000, 1.0, None, 1000)
    assert {path.name for path in (tmp_path / "tb").iterdir()} == {"lane-0", "lane-1"}


def test_tensorboard_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match="pip install tensorboardX"):
        recorder(tmp_path, tensorboard=True)


def test_write_json_replaces_the_file_or_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_json(path, {"b": 1, "a": [2]})
    assert path.read_text() == '{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        write_json(path, {"b": 2})
    assert json.loads(path.read_text())["b"] == 1


def test_versions_name_software_and_device():
    found = versions()
    keys = {"python", "platform", "packages", "device", "device_count", "commit", "dirty"}
    assert found.keys() == keys
    assert found["packages"]["jax"] and found["packages"]["numpy"] == np.__version__
    assert found["device_count"] >= 1
    source = Path(__file__).parents[2]
    if (source / ".git").exists():
        head = subprocess.run(
            ["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True
        )
        assert found["commit"] == head.stdout.strip()


def test_read_csv_converts_numeric_columns(tmp_path):
    (tmp_path / "x.csv").write_text("n,x,task,gap\n1,0.5,a,\n2,nan,3,4\n")
    first, second = read_csv(tmp_path / "x.csv")
    assert first["n"] == 1 and isinstance(first["n"], int)
    assert (first["x"], first["task"], second["task"]) == (0.5, "a", "3")
    assert np.isnan(second["x"]) and np.isnan(first["gap"]) and second["gap"] == 4


def test_each_part_of_the_panel_has_its_own_line() -> None:
    console = Console(width=120, file=io.StringIO())
    console.print(Display([LaneInfo(0, 0, "dmc/walker-run", "")], 100, quiet=True).render())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any(line.startswith("lane  task") for line in lines)


def test_the_kernels_are_said_when_they_are_known_and_when_they_change():
    said, written, report = [], [], kernels.Report()
    program = SimpleNamespace(table={"a": len}, traced=False, kernels=report)
    recorder = SimpleNamespace(message=said.append)
    loop: Any = SimpleNamespace(
        program=program, said="", recorder=recorder, write_versions=written.append
    )
    report.used.add("rows")
    Loop.say_kernels(loop)
    assert not said and not written  # an update that is not traced may use others
    program.traced = True
    report.misfits["dynamics"] = "a latent of 7"
    for _ in range(2):
        Loop.say_kernels(loop)
    assert said == ["fused kernels in use: rows; not dynamics: a latent of 7"]
    assert written == [{"kernels_used": ["rows"], "kernels_unused": report.misfits}]
    report.used.clear()
    report.misfits["rows"] = "they failed their trial"
    Loop.say_kernels(loop)
    assert said[1:] == [report.line()] and "none" in said[1] and len(written) == 2


@pytest.mark.parametrize(
    ("option", "table", "says"),
    [
        ("auto", {"a": len}, "fused kernels where they fit"),
        ("auto", {}, "no fused kernels (no GPU)"),
        ("off", {}, "no fused kernels (off)"),
    ],
)
def test_the_first_line_says_whether_kernels_are_used(option: str, table: dict, says: str):
    loop: Any = SimpleNamespace(
        program=SimpleNamespace(table=table), config=SimpleNamespace(kernels=option)
    )
    assert Loop.which_kernels(loop) == says


@pytest.mark.parametrize(
    ("agent_step", "evaluating", "next_evaluation", "finished"),
    [(50, None, 101, True), (49, None, 101, False), (50, 50, 101, False), (50, None, 100, False)],
)
def test_a_run_is_finished_when_its_last_evaluation_is(
    agent_step: int, evaluating: int | None, next_evaluation: int, finished: bool
):
    """In the last case that evaluation could not begin when the run was saved."""
    evaluations = SimpleNamespace(running=evaluating, next=next_evaluation)
    loop = SimpleNamespace(
        agent_step=agent_step, steps=50, env_step=2 * agent_step, evaluations=evaluations
    )
    assert Loop.finished.fget(loop) is finished  # type: ignore[misc]
