"""`ace bench` as a user runs it: whole, interrupted, repeated, in parts and in slices."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def bench(folder: Path, *flags: str, **how) -> subprocess.Popen:
    """Start `ace bench` in a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "examples"), "COLUMNS": "200"}
    (folder / "mine.toml").write_text(SUITE)
    return subprocess.Popen(
        [sys.executable, "-m", "ace", "bench", "mine.toml", "--save-minutes", "0.01", *flags],
        cwd=folder,
        env=environment | how.pop("env", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen) -> str:
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return text


def tables(folder: Path) -> dict[str, bytes]:
    root = folder / "results" / "mine"
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.csv"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    text = ended(bench(folder))
    assert "2 program(s) to run on cpu" in text and "8 curve(s) added" in text
    return folder


def test_results_have_every_curve_and_say_how_they_were_made(whole) -> None:
    assert len(tables(whole)) == 4
    text = (whole / "results/mine/monkey/probe/point.csv").read_text().splitlines()
    assert text[0] == "seed,env_step,return,policy_return,episode_length"
    assert [line.split(",")[:2] for line in text[1:]] == [
        [seed, step] for seed in "01" for step in ("200", "400", "600")
    ]
    programs = [json.loads(p.read_text()) for p in (whole / "results/mine/programs").iterdir()]
    assert len(programs) == 2
    for found in programs:
        assert found["command"] == "ace bench mine.toml --save-minutes 0.01"
        assert found["agent"] == "monkey" and found["hardware"] == "cpu"
        assert found["config"]["env_steps"] == 600 and len(found["lanes"]) == 4
        assert found["lane_steps_per_s"] > 0 and found["versions"]["packages"]["jax"]
    folders = [p for p in (whole / "runs/bench/mine").iterdir() if p.is_dir()]
    assert len(folders) == 2 and not list((whole / "runs").rglob("checkpoints"))


def test_what_is_there_is_not_run_again(whole) -> None:
    before = tables(whole)
    assert "8 of 8 curves are in" in ended(bench(whole, "--dry-run"))
    few = ["--dry-run", "--tasks", "probe/point", "--agents", "monkey-shy", "--seeds", "0-1"]
    assert "2 of 2 curves are in" in ended(bench(whole, *few))
    assert tables(whole) == before


def test_killed_and_repeated_it_gives_the_same_results(whole, tmp_path) -> None:
    for _ in range(2):  # at other points each time: what is done is kept
        process = bench(tmp_path)
        seen = len(tables(tmp_path))
        deadline = time.monotonic() + 60
        while len(tables(tmp_path)) <= seen and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended(bench(tmp_path))
    assert tables(tmp_path) == tables(whole)


def test_parts_together_are_the_whole(whole, tmp_path) -> None:
    for part in ("1/2", "2/2"):
        ended(bench(tmp_path, "--shard", part, "--quiet"))
    assert tables(tmp_path) == tables(whole)


def test_a_failing_program_is_named_at_the_end_with_a_status(tmp_path, whole) -> None:
    """One of the two programs meets a folder that it cannot write."""
    names = sorted(p.name for p in (whole / "runs/bench/mine").iterdir() if p.is_dir())
    (tmp_path / "runs/bench/mine" / names[0]).mkdir(parents=True)
    (tmp_path / "runs/bench/mine" / names[0] / "run").write_text("in the way")
    process = bench(tmp_path)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "1 program(s) finished, 4 curve(s) added" in text and f"failed: {names[0]}" in text
    (tmp_path / "runs/bench/mine" / names[0] / "run").unlink()
    ended(bench(tmp_path))
    assert tables(tmp_path) == tables(whole)


def test_results_of_other_settings_are_not_counted(whole, tmp_path) -> None:
    path = next((whole / "results/mine/programs").iterdir())
    found = json.loads(path.read_text())
    found["config"]["seed_steps"] = 7
    changed = path.read_text()
    path.write_text(json.dumps(found))
    try:
        process = bench(tmp_path, "--results", str(whole / "results"), "--dry-run")
        text, _ = process.communicate(timeout=300)
    finally:
        path.write_text(changed)
    assert process.returncode == 1 and "was made with other settings" in text
    assert "seed_steps (7 there, 40 now)" in text
