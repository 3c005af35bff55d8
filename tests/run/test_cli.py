"""The command as a user runs it: results on disk, evaluation, and errors that say what to do before
anything is written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ace import cli
from ace.run.record import read_csv
from tests.run.helpers import small_run

BAD = [
    (["dmc/humanoid_run"], "did you mean dmc/humanoid-run"),
    (["probe/point", "--preset", "fast"], "preset 'fast' unknown"),
    (["probe/point", "--agent", "acr"], "did you mean ace"),
    (["probe/point", "--env-steps", "0"], "env_steps"),
    (["probe/point", "--env-steps", "-5"], "env_steps"),
    (["probe/point", "--seeds", "1", "1"], "given twice"),
    (["probe/point", "probe/point"], "given twice"),
    (["probe/point", "--plan.population", "4", "--plan.elites", "8"], "plan.population"),
    (["probe/point", "--vary", "learn.td-lamda=0.1"], "did you mean learn.td_lambda"),
    (["probe/point", "--vary", "learn.td-lambda=x"], "not a float"),
    (["probe/point", "--replay.capacity", "100000000000"], "train fewer lanes"),
    (["dmc/walker-run", "dmc/cheetah-run", "--preset", "default"], "action_repeat"),
    (["tests.envs.bad_envs:Discrete"], "Discrete"),
    (["tests.envs.bad_envs:DictObs"], "Dict"),
    ([], "at least one task"),
]


@pytest.mark.parametrize("argv, message", BAD, ids=[" ".join(a) or "nothing" for a, _ in BAD])
def test_bad_input_is_refused_and_nothing_is_written(argv, message, tmp_path, capsys):
    folder = tmp_path / "run"
    preset = [] if "--preset" in argv else ["--preset", "debug"]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *argv, *preset, "--run", str(folder)])
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert message in error and error.startswith("ace: ") and error.count("\n") == 1
    assert not folder.exists()


def test_an_unknown_flag_gets_the_nearest_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "probe/point", "--learn.td-lamda", "0.4"])
    assert "--learn.td-lambda" in capsys.readouterr().err


def test_an_unknown_command_gets_the_nearest_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["trian"])
    assert "ace train" in capsys.readouterr().err


def test_help_explains_every_setting(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for words in ("--learn.td-lambda", "lambda of the value target", "--plan.horizon", "--seeds"):
        assert words in text


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run in a folder of its own."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    cli.main(["train", "probe/point", "--preset", "debug", "--run", str(folder), "--quiet"])
    return folder


def test_a_run_leaves_its_results(finished):
    names = {p.name for p in finished.iterdir()}
    assert names == {
        "config.json", "versions.json", "train.csv", "eval.csv", "agent.safetensors", "curve.png",
        "checkpoints", "lock",
    }  # fmt: skip
    rows = read_csv(finished / "eval.csv")
    assert list(rows[0]) == [
        "lane", "seed", "task", "env_step", "return", "policy_return", "episode_length", "wall_time"
    ]  # fmt: skip
    assert [r["env_step"] for r in rows] == [60, 120]
    config = json.loads((finished / "config.json").read_text())
    assert config["lanes"][0]["config"]["precision"] == "f32"  # never `auto`
    assert json.loads((finished / "versions.json").read_text())["packages"]["jax"]


def test_eval_repeats_the_last_evaluation(finished, capsys):
    cli.main(["eval", str(finished), "--episodes", "1"])
    last = read_csv(finished / "eval.csv")[-1]
    shown = capsys.readouterr().out
    assert f"{last['return']:.1f}" in shown and f"{last['policy_return']:.1f}" in shown


def test_a_folder_is_never_overwritten(finished, capsys):
    before = (finished / "eval.csv").read_text()
    argv = ["train", "probe/point", "--preset", "debug", "--run", str(finished), "--quiet"]
    with pytest.raises(SystemExit):
        cli.main([*argv, "--seeds", "7"])
    assert "another config" in capsys.readouterr().err
    cli.main(argv)  # the same run: nothing is left to do
    assert (finished / "eval.csv").read_text() == before


def test_eval_of_a_folder_without_a_run(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["eval", str(tmp_path)])
    assert "not a run folder" in capsys.readouterr().err


def test_a_damaged_agent_file_is_named(finished, tmp_path, capsys):
    for name in ("config.json", "agent.safetensors"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    data = (tmp_path / "agent.safetensors").read_bytes()
    (tmp_path / "agent.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(SystemExit):
        cli.main(["eval", str(tmp_path)])
    assert "agent.safetensors" in capsys.readouterr().err


def test_tasks_and_info(capsys):
    cli.main(["tasks"])
    tasks = capsys.readouterr().out
    assert "dmc/quadruped-run" in tasks and "probe/point" in tasks and "gym/" in tasks
    cli.main(["info"])
    info = json.loads(capsys.readouterr().out)
    assert info["agents"] == ["ace"] and "released" in info["presets"]


def test_the_installed_command_runs():
    ace = Path(sys.executable).with_name("ace")
    done = subprocess.run([ace, "--version"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0 and done.stdout.strip().count(".") == 2


@pytest.mark.parametrize("preset", ["default", "paper", "released"])
def test_every_preset_trains(preset, tmp_path):
    """The big presets with small networks: their options all run."""
    small = (
        "--env-steps 60 --seed-steps 20 --eval-every 60 --eval-episodes 1 --workers 0 "
        "--net.latent 8 --net.mlp 16 --net.encoder 16 --net.belief 8 --plan.horizon 3 "
        "--plan.iterations 2 --plan.population 16 --plan.elites 4 --learn.batch 16"
    )
    _, run = small_run(tmp_path / "run", "probe/point", *small.split(), preset=preset)
    assert len(read_csv(run.folder / "eval.csv")) == 1
