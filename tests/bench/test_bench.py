"""`ace bench` as a user runs it: whole, interrupted, repeated, in parts and in slices. Where it is
left alone it runs in this process, and only its jobs in others: importing it takes a second."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ace import cli
from ace.agents import AGENTS
from ace.bench import local
from ace.settings.config import Config
from tests.patience import until

EXAMPLES = Path(__file__).parents[2] / "examples"
SUITE = """
about = "Random actions, which compile quickly."
tasks = ["probe/point", "probe/long"]
seeds = "0-1"
env_steps = 600
preset = "debug"
imports = ["own_agent"]
lanes = 4

[settings]
eval_every = 200

[agents.monkey]
[agents.monkey-shy]
settings = { "monkey.reach" = 0.1 }
"""


COMMAND = ("bench", "mine.toml", "--save-minutes", "0.01")
ENVIRONMENT = {"PYTHONPATH": str(EXAMPLES), "COLUMNS": "200"}


def start(folder: Path) -> subprocess.Popen:
    """Start the command in a folder."""
    (folder / "mine.toml").write_text(SUITE)
    return subprocess.Popen(
        [sys.executable, "-m", "ace", *COMMAND],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


Bench = Callable[..., tuple[int, str]]


@pytest.fixture
def bench(monkeypatch, capsys) -> Iterator[Bench]:
    """The command in a folder and in this process: its exit status, and what it prints."""
    monkeypatch.syspath_prepend(EXAMPLES)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ACE_BENCH_PLATFORM", "")  # set by the command: taken back afterwards
    monkeypatch.setattr(local, "find_devices", lambda: [local.Device(local.device_name("cpu"))])
    importlib.reload(importlib.import_module("own_agent"))  # as in `tests/examples`

    def call(folder: Path, *flags: str) -> tuple[int, str]:
        (folder / "mine.toml").write_text(SUITE)
        monkeypatch.chdir(folder)
        status = 0
        try:
            cli.main([*COMMAND, *flags])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    yield call
    del AGENTS["monkey"]


def tables(folder: Path) -> dict[str, bytes]:
    root = folder / "results" / "mine"
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.csv"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    process = start(folder)
    text, _ = process.communicate()
    assert process.returncode == 0, text
    assert "2 programs to run on cpu (" in text and "8 curves added" in text
    return folder


def test_results_have_every_curve_and_say_how_they_were_made(whole) -> None:
    assert len(tables(whole)) == 4
    text = (whole / "results/mine/monkey/probe/point.csv").read_text().splitlines()
    assert text[0] == "seed,env_step,return,policy_return,episode_length,train_return"
    assert [line.split(",")[:2] for line in text[1:]] == [
        [seed, step] for seed in "01" for step in ("200", "400", "600")
    ]
    programs = [json.loads(p.read_text()) for p in (whole / "results/mine/programs").iterdir()]
    assert len(programs) == 2
    for found in programs:
        assert found["command"] == "ace bench mine.toml --save-minutes 0.01"
        assert found["agent"] == "monkey" and found["hardware"].startswith("cpu (")
        assert found["config"]["env_steps"] == 600 and len(found["lanes"]) == 4
        assert found["lane_steps_per_s"] > 0 and found["versions"]["packages"]["jax"]
    folders = [p for p in (whole / "runs/bench/mine").iterdir() if p.is_dir()]
    assert len(folders) == 2 and not list((whole / "runs").rglob("checkpoints"))


def test_what_is_there_is_not_run_again(whole, bench) -> None:
    before = tables(whole)
    status, text = bench(whole, "--dry-run")
    assert status == 0 and "8 of 8 curves are in" in text
    few = ["--dry-run", "--tasks", "probe/point", "--agents", "monkey-shy", "--seeds", "0-1"]
    status, text = bench(whole, *few)
    assert status == 0 and "2 of 2 curves are in" in text
    assert tables(whole) == before


def test_a_cluster_that_is_not_asked_is_named(whole, tmp_path, bench, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    ray = ("--ray", "auto")
    _, text = bench(tmp_path, *ray, "--dry-run")
    assert "--ray auto is not asked: the plan is for this machine" in text
    _, text = bench(whole, *ray)
    assert "--ray auto is not asked: nothing is left to do" in text
    monkeypatch.setitem(sys.modules, "ray", None)
    status, text = bench(tmp_path, *ray, "--dry-run")
    assert status == 1 and "--ray needs Ray: pip install" in text


def kill_after_a_program(folder: Path) -> None:
    """Kill the command a moment after its first results."""
    seen = len(tables(folder))
    process = start(folder)
    until(lambda: len(tables(folder)) > seen or process.poll() is not None)
    time.sleep(0.5)  # into what follows, wherever that is
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_killed_and_repeated_it_gives_the_same_results(whole, tmp_path, bench) -> None:
    for _ in range(2):  # at other points each time: what is done is kept
        kill_after_a_program(tmp_path)
    status, text = bench(tmp_path)
    assert status == 0, text
    assert tables(tmp_path) == tables(whole)


def test_parts_together_are_the_whole(whole, tmp_path, bench) -> None:
    for part in ("1/2", "2/2"):
        status, text = bench(tmp_path, "--shard", part, "--quiet")
        assert status == 0, text
    assert tables(tmp_path) == tables(whole)


def test_three_calls_with_a_limit_give_the_results_of_one(
    whole, tmp_path, bench, monkeypatch
) -> None:
    """The first two are over when the first program passes an env step; nothing is cut."""
    over: set[int] = set()
    for call, last in enumerate((200, 400, 10**9)):

        def left(self, call=call, last=last) -> float:
            at = [planned.running.env_step() for planned in self.running if planned.running]
            over.update([call] if at and max(at) >= last else [])
            return 0.0 if call in over else 500.0

        monkeypatch.setattr("ace.bench.drive.Drive.left", left)
        status, text = bench(tmp_path, "--for", "10m")
        assert status == 0 and "fewer lanes" not in text, text
    assert tables(tmp_path) == tables(whole)


def test_a_limit_that_nothing_fits_is_an_error(whole, tmp_path, bench) -> None:
    """The whole suite's rates are known, and no program starts in ten seconds."""
    shutil.copytree(whole / "runs", tmp_path / "runs")
    status, text = bench(tmp_path, "--for", "30s", "--quiet")
    assert status == 1 and "nothing starts: the shortest program, monkey-" in text
    status, text = bench(tmp_path, "--for", "30s", "--dry-run")
    assert status == 0 and "nothing starts" in text and text.count("new, later") == 2


def test_a_failing_program_is_named_at_the_end_with_a_status(tmp_path, whole, bench) -> None:
    """One of the two programs meets a folder that it cannot write."""
    names = sorted(p.name for p in (whole / "runs/bench/mine").iterdir() if p.is_dir())
    (tmp_path / "runs/bench/mine" / names[0]).mkdir(parents=True)
    (tmp_path / "runs/bench/mine" / names[0] / "run").write_text("in the way")
    status, text = bench(tmp_path)
    assert status == 1
    assert "1 program finished, 4 curves added" in text and f"failed: {names[0]}" in text
    (tmp_path / "runs/bench/mine" / names[0] / "run").unlink()
    status, text = bench(tmp_path)
    assert status == 0, text
    assert tables(tmp_path) == tables(whole)


def test_results_of_other_settings_are_not_counted(whole, tmp_path, bench) -> None:
    path = next((whole / "results/mine/programs").iterdir())
    found = json.loads(path.read_text())
    found["config"]["seed_steps"] = 7
    changed = path.read_text()
    path.write_text(json.dumps(found))
    try:
        status, text = bench(tmp_path, "--results", str(whole / "results"), "--dry-run")
    finally:
        path.write_text(changed)
    assert status == 1 and "was made with other settings" in text
    assert "seed_steps (7 there, 40 now)" in text


def test_results_without_a_setting_that_the_suite_changes_are_not_counted(
    whole, tmp_path, bench
) -> None:
    """A setting that is younger than some results was not compared: with another value in the
    suite, they counted as its own."""
    path = next((whole / "results/mine/programs").iterdir())
    changed = path.read_text()
    found = json.loads(changed)
    assert found["config"].pop("eval_every") == 200
    path.write_text(json.dumps(found))
    try:
        status, text = bench(tmp_path, "--results", str(whole / "results"), "--dry-run")
    finally:
        path.write_text(changed)
    assert status == 1 and f"eval_every ({Config().eval_every} there, 200 now)" in text


def test_settings_that_the_agent_never_reads_make_no_difference(whole, tmp_path, bench) -> None:
    """Defaults of ACE differed once more, and the curves of every other agent were refused."""
    path = next((whole / "results/mine/programs").iterdir())
    text = path.read_text()
    found = json.loads(text)
    found["config"]["plan.horizon"] = 3
    path.write_text(json.dumps(found))
    try:
        status, shown = bench(tmp_path, "--results", str(whole / "results"), "--dry-run")
    finally:
        path.write_text(text)
    assert status == 0 and "8 of 8 curves" in shown


def test_a_job_that_was_begun_with_other_settings_is_not_continued(whole, tmp_path, bench) -> None:
    """The settings of a suite are those of a version of ace: what another one began went on with
    the new settings, and the results said that the whole curve was made with them."""
    begun = shutil.copytree(whole / "runs", tmp_path / "runs") / "bench/mine"
    name = sorted(p.name for p in begun.iterdir() if p.is_dir())[0]
    path = begun / name / "run/config.json"
    (begun / name / "done.json").unlink()
    checkpoint = begun / name / "run/checkpoints/120"  # it is asked whether there is one
    for field, value, status in (("seed_steps", 7, 1), ("precision", "tf32", 0)):
        checkpoint.mkdir(parents=True) if status else shutil.rmtree(checkpoint.parent)
        config = json.loads((whole / "runs/bench/mine" / name / "run/config.json").read_text())
        for lane in config["lanes"]:
            lane["config"][field] = value
        path.write_text(json.dumps(config))
        job = subprocess.run(
            [sys.executable, "-m", "ace.bench.worker", begun / name, "1", str(os.getpid())],
            env=os.environ | ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        assert job.returncode == status, job.stderr
        why = "was begun with other settings: seed_steps (7 there, 40 here)"
        assert (why in job.stderr) == (status == 1)
        if status:  # said before anything starts, with the folder's own name; the others go on
            os.remove(
                other := begun / sorted(n for n in os.listdir(begun) if n > name)[0] / "done.json"
            )
            found = bench(tmp_path)
            assert found[0] == 1 and f"left out {name}: " in found[1]
            assert f"{name}/run {why}" in found[1] and "1 program finished" in found[1]
            assert other.exists()


def test_seeds_that_their_file_lacks_are_noted_and_planned_again(whole, tmp_path, bench) -> None:
    results = tmp_path / "results"
    shutil.copytree(whole / "results", results)
    path = results / "mine/monkey/probe/point.csv"
    path.write_text("".join(line for line in path.open() if not line.startswith("1,")))
    status, text = bench(tmp_path, "--dry-run")
    assert status == 0 and "point.csv lacks seed 1 of program monkey-" in text
    assert "7 of 8 curves are in" in text
    assert "new, part of 4" in text and "1 program with fewer lanes than the suite" in text
