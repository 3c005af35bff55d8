"""The command as a user runs it: results on disk, evaluation, and errors that say what to do before
anything is written."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from ace import cli
from ace.bench.scores import read_run
from ace.engine.compile import Function
from ace.engine.program import Program
from ace.envs import EnvError
from ace.run.errors import explained
from ace.run.record import read_csv
from ace.run.request import open_run, plan_run
from ace.tools import played
from tests.run.helpers import PAIR

# A command, and words of the line that explains what is wrong with it.
WRONG = [
    ("train", "at least one task"),
    ("train dmc/humanoid_run", "did you mean dmc/humanoid-run"),
    ("train humanoid-run", "did you mean dmc/humanoid-run"),
    ("train gym/NoSuchThing-v0", "NoSuchThing"),
    ("train no_such_module:make", "no_such_module"),
    ("train tests.envs.bad_envs:nothing", "nothing"),
    ("train bad_envs.py:make", "bad_envs.py is a file; name its module, bad_envs"),
    ("train tests/envs/bad_envs.py:make", "as a module is imported: tests.envs.bad_envs:make"),
    ("train tests.envs.bad_envs:Discrete", "Discrete"),
    ("train tests.envs.bad_envs:CrashAtReset --run new", "failed in reset: OSError: no model file"),
    ("train tests.envs.bad_envs:DictObs", "Dict"),
    ("train probe/point probe/point", "given twice"),
    ("train probe/point --preset fast", "preset 'fast' unknown"),
    ("train probe/point --agent acee", "did you mean ace"),
    ("train probe/point --plan.planner icme", "did you mean icem"),
    ("train probe/point --import no_such_module", "--import no_such_module: No module named"),
    ("train probe/point --import own.py", "own.py is a file; name its module, own"),
    ("train probe/point --import", "--import needs a value"),
    ("train probe/point --import my/module.py", "--import needs a value"),
    ("train probe/point --env-steps 0", "env_steps is 0"),
    ("train probe/point --env-steps -5", "env_steps is -5"),
    ("train probe/point --env-steps", "--env-steps needs a value"),
    ("train probe/point --env-steps many", "it must be a whole number"),
    ("train probe/point --env-steps 1.5", "it must be a whole number"),
    ("train probe/point --env-steps nan", "it must be a whole number"),
    ("train probe/point --env-steps 1e30", "too large"),
    ("train probe/point --seeds 1 1", "given twice"),
    ("train probe/point --seeds 0-2 1", "given twice"),
    ("train probe/point --seeds -1", "seed -1 is not in 0.."),
    ("train probe/point --seeds 3000000000", "is not in 0.."),
    ("train probe/point --seeds 4-0", "a range must ascend"),
    ("train probe/point --seeds 0-99999999999", "a range must ascend"),
    ("train probe/point --seeds", "--seeds needs a value"),
    ("train probe/point --seeds one", "--seeds is 'one'"),
    ("train probe/point --seeds 0,,1", "--seeds is ''"),
    ("train probe/point --plan.population 4 --plan.elites 8", "plan.population"),
    ("train probe/point --plan.horizon 1", "--plan.horizon-ramp.start 1"),
    ("train probe/point --plan.select worst", "choose one of sample, best, mean"),
    ("train probe/point --precision f16", "choose one of auto, f32, tf32, bf16"),
    ("train probe/point --kernels on", "choose one of auto, off"),
    ("train probe/point --seed-steps 2", "shorter than a segment"),
    ("train probe/point --seed-steps 1e9", "longer than env_steps"),
    ("train probe/point --learn.td-lamda 0.4", "did you mean --learn.td-lambda?"),
    ("train probe/point --td-lambda 0.4", "did you mean --learn.td-lambda?"),
    ("train probe/point --own 1", "no flag --own"),
    ("train probe/point -seeds 1", "did you mean --seeds?"),
    ("train probe/point --learn.td-lambda high", "it must be a number"),
    ("train probe/point --learn.td-lambda 2", "between 0 and 1"),
    ("train probe/point --learn.seed-updates 1e9", "it must be at most 1000"),
    ("train probe/point --learn.learning-rate nan", "learn.learning_rate is nan"),
    ("train probe/point --parity.clip-action=maybe", "it must be true or false"),
    ("train probe/point --vary learn.td-lamda=0.1", "did you mean learn.td_lambda"),
    ("train probe/point --vary learn.td-lambda=x", "not a float"),
    ("train probe/point --vary learn.td-lambda", "a value is missing"),
    ("train probe/point --vary learn.td-lambda=0,", "a value is missing"),
    ("train probe/point --vary learn.td-lambda=0,0.0", "a value twice"),
    ("train probe/point --vary learn.discount=0 learn.discount=1", "learn.discount twice"),
    ("train probe/point --vary plan.horizon=3,4", "differ in plan.horizon"),
    (
        "train probe/point --learn.discount 0.9 --vary learn.discount=0,0.5",
        "learn.discount is set to 0.9 and varied; leave one out",
    ),
    ("train probe/point --vary", "--vary needs a value"),
    ("train probe/point --replay.capacity 100000000000", "train fewer lanes"),
    ("train probe/point --run=", "--run is empty"),
    ("train probe/point --save-minutes -1", "save_minutes is -1"),
    ("train probe/point --workers -3", "workers must be"),
    ("train dmc/walker-run dmc/cheetah-run --preset default", "action_repeat"),
    ("resume", "RUN is missing"),
    ("resume nowhere", "is not a run folder"),
    ("resume . --env-steps more", "it must be a whole number"),
    ("eval", "RUN is missing"),
    ("eval nowhere", "is not a run folder"),
    ("eval one two", "'two' is one name too many"),
    ("eval nowhere --episodes 0", "it must be at least 1"),
    ("eval nowhere --epsiodes 3", "did you mean --episodes?"),
    ("export nowhere", "OUT is missing"),
    ("export nowhere out --lane first", "it must be a whole number"),
    ("speed --lanes 0", "must be at least 1"),
    ("speed --lanes 100000000", "it must be at most 10000"),
    ("speed --json nowhere/speed.json", "name a file in a folder that exists"),
    ("speed --json .", "name a file in a folder that exists"),
    ("bench smoke --results /dev/null", "--results is /dev/null, which is not a folder"),
    ("bench smoke --work /dev/null", "--work is /dev/null, which is not a folder"),
    ("speed dmc/quadruped-run", "one name too many"),
    ("speed --lanes 1 --task probe/point --no-such-flag 1", "no flag --no-such-flag"),
    ("tasks dmc", "takes no arguments"),
    ("info all", "takes no arguments"),
    ("trian", "did you mean `ace train`?"),
    ("--trian", "did you mean `ace train`?"),
]


@pytest.mark.parametrize("command, words", WRONG, ids=[command for command, _ in WRONG])
def test_a_wrong_command_is_explained_in_one_line(command, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    argv = command.split()
    small = argv[0] == "train" and "--preset" not in argv
    with pytest.raises(SystemExit) as stopped:
        cli.main([*argv, *(["--preset", "debug"] if small else [])])
    assert stopped.value.code in (1, 2)
    shown, error = capsys.readouterr()
    assert words in error and error.startswith("ace: ") and error.count("\n") == 1
    assert not shown and not list(tmp_path.iterdir())


def test_the_traceback_of_a_simulator_stays_out_of_the_line():
    def deep() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("my step broke") from error

    try:
        deep()
    except ValueError as error:
        told = "".join(traceback.format_exception(error)).rstrip()
    reason = f"lane 0 failed in step: ValueError: my step broke (own.py, line 3)\n{told}"
    found = explained(EnvError(f"{reason}\nin step 2 of an evaluation\n(stopped)"))
    assert found == reason.partition("\n")[0] + " in step 2 of an evaluation (stopped)"


def test_nothing_but_the_usage_is_shown_without_a_command(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 2 and "ace train TASK" in capsys.readouterr().err


def test_help_explains_every_setting(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for words in ("--learn.td-lambda", "lambda of the value target", "--plan.horizon", "--seeds"):
        assert words in text
    assert "--own" not in text


def test_help_of_an_agent_lists_its_own_settings(capsys, monkeypatch):
    from ace.agents import AGENTS
    from tests.run.test_request import Toy

    monkeypatch.setitem(AGENTS, "toy", dataclasses.replace(AGENTS["ace"], settings=Toy))
    monkeypatch.setattr("ace.settings.help_only", False)
    with pytest.raises(SystemExit):
        cli.main(["train", "--agent", "toy", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for words in ("--toy.heat FLOAT", "How hot.", "Settings of the toy agent."):
        assert words in text
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "--agent", "tyo", "--help"])
    assert stopped.value.code == 1 and "did you mean toy" in capsys.readouterr().err


HELP = """
import contextlib, io, sys
from ace import cli
for argv in {commands}:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        cli.main(argv)
    assert shown.getvalue(), argv
    assert "jax" not in sys.modules, argv
    assert "tyro" not in sys.modules or "--help" in argv[1:], argv
"""


def test_help_needs_no_jax():
    names = ("train", "resume", "eval", "export", "speed")
    commands = [["--help"], ["--version"], ["tasks", "--help"], ["info", "--help"]]
    commands += [[name, "--help"] for name in names]
    code = HELP.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_error():
    ace = Path(sys.executable).with_name("ace")
    reader, writer = os.pipe()
    os.close(reader)
    command = [ace, "tasks", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("how", ["signal", "exception"])
def test_an_interrupt_ends_the_process_at_once(how, monkeypatch, capfd):
    def interrupt(argv):
        if how == "signal":
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt

    def leave(code):
        raise SystemExit(f"left with {code}")

    monkeypatch.setattr(cli, "tasks", interrupt)
    monkeypatch.setattr(os, "_exit", leave)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit, match="left with 130"):
        cli.main(["tasks"])
    assert capfd.readouterr().err == "ace: stopped\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_device_without_memory_left_gets_advice(monkeypatch, capsys):
    def run_out(argv):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating 3 GiB")

    monkeypatch.setattr(cli, "tasks", run_out)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["tasks"])
    error = capsys.readouterr().err
    assert stopped.value.code == 1 and error.count("\n") == 1
    assert "fewer lanes" in error and "XLA_PYTHON_CLIENT_MEM_FRACTION" in error


def test_other_errors_of_the_program_keep_their_trace(monkeypatch):
    def fail(argv):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(cli, "tasks", fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        cli.main(["tasks"])


def test_a_module_in_the_current_folder_is_found(tmp_path, monkeypatch, capsys):
    code = "from tests.envs.bad_envs import Discrete as make\n"
    (tmp_path / "balance.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    try:
        with pytest.raises(SystemExit):
            cli.main(["train", "balance:make", "--preset", "debug"])
    finally:
        sys.modules.pop("balance", None)
    assert "Discrete" in capsys.readouterr().err  # found, and then refused for its spaces


def test_warnings_of_other_packages_are_kept_from_the_console(monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", [])
    with warnings.catch_warnings(record=True) as seen:
        cli.prepare_environment()
        for module, file in (("gymnasium.envs", "file.py"), ("ace.envs", cli.__file__)):
            warnings.filterwarnings("once", module="gymnasium")  # as Gymnasium does at its import
            warnings.warn_explicit(f"from {module}", UserWarning, file, 1, module)
    assert [str(w.message) for w in seen] == ["from ace.envs"]
    monkeypatch.setattr(sys, "warnoptions", ["default"])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        cli.prepare_environment()
        warnings.warn_explicit("wanted", UserWarning, "file.py", 2, "gymnasium.envs")
    assert len(seen) == 1


OPENGL = "MUJOCO_GL=egl"  # words of the advice


@pytest.mark.parametrize(
    ("error", "words", "advised"),
    [
        (RuntimeError(), "no video: RuntimeError\n", False),
        (KeyError("x"), "no video: KeyError: 'x'\n", False),
        (EnvError("no single picture; do this"), "no video: no single picture; do this\n", False),
        (AttributeError("no attribute 'eglQueryString'"), "eglQueryString'; pictures", True),
        (RuntimeError("an OpenGL platform library\nis missing"), "library is missing; ", True),
        (ImportError("libEGL.so.1"), "libEGL.so.1; ", True),
    ],
)
def test_no_video_has_a_reason_and_only_opengl_gets_advice_about_it(
    error, words, advised, tmp_path, capsys, monkeypatch
):
    def film(*args):
        raise error

    monkeypatch.setattr(played, "film", film)
    nothing: Any = None
    played.save_film(played.Played(nothing, 1, nothing, None, 60, []), tmp_path / "video.mp4")
    shown = capsys.readouterr().out
    assert words in shown and shown.startswith("no video: ") and shown.count("\n") == 1
    assert (OPENGL in shown) == advised


def evaluation(**values):
    default = {"ret": 1.0, "policy_ret": None, "length": 9.0, "numbers": {}}
    return SimpleNamespace(**(default | values))


@pytest.mark.parametrize(
    ("rows", "present", "absent"),
    [
        ([evaluation(), evaluation()], ["return", "1.0"], ["policy_return", "setting"]),
        ([evaluation(), evaluation(policy_ret=7.5)], ["policy_return", "7.5"], []),
        ([evaluation(), evaluation(numbers={"success": 0.25})], ["success", "0.25"], ["policy"]),
    ],
)
def test_the_table_of_an_evaluation_has_columns_that_have_numbers(rows, present, absent, capsys):
    setups = [SimpleNamespace(task="probe/point", seed=seed) for seed in range(2)]
    run: Any = SimpleNamespace(setups=setups, labels=["", ""], folder="runs/x")
    program: Any = SimpleNamespace(config=SimpleNamespace(action_repeat=2))
    played.show(played.Played(run, 1, program, None, 60, rows))
    shown = capsys.readouterr().out
    assert all(word in shown for word in present)
    assert not any(word in shown for word in absent)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of two lanes in a folder of its own."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    cli.main(["train", *PAIR, "--preset", "debug", "--run", str(folder), "--quiet"])
    return folder


def test_a_run_remembers_its_command(finished):
    argv = ["train", *PAIR, "--preset", "debug", "--run", str(finished), "--quiet"]
    made, path = shlex.join(["ace", *argv]), finished / "versions.json"
    assert json.loads(path.read_text())["command"] == made
    assert open_run(finished).command == made  # which goes on with it
    for method in read_run(finished):  # for reports
        programs = [s.program for seeds in method.tasks.values() for s in seeds.values()]
        assert programs and all(p and p["command"] == made for p in programs)
    aside = path.rename(finished / "aside")
    for text in ("", "{", "[]", "{}", '{"command": 3}'):
        path.write_text(text)
        assert open_run(finished).command is None
    path.unlink()
    assert open_run(finished).command is None
    aside.rename(path)


def test_a_run_leaves_its_results(finished):
    names = {p.name for p in finished.iterdir()}
    assert names == {
        "config.json", "versions.json", "train.csv", "eval.csv", "agent.safetensors", "curve.png",
        "checkpoints", "lock",
    }  # fmt: skip
    rows = read_csv(finished / "eval.csv")
    assert list(rows[0]) == [
        "lane", "seed", "task", "env_step", "return", "policy_return", "train_return", "value_bias",
        "value_bias_std", "episode_length", "wall_time",
    ]  # fmt: skip
    assert [(r["lane"], r["env_step"]) for r in rows] == [(0, 60), (1, 60), (0, 120), (1, 120)]
    config = json.loads((finished / "config.json").read_text())
    assert config["lanes"][0]["config"]["precision"] == "f32"  # never `auto`
    about = json.loads((finished / "versions.json").read_text())
    assert about["packages"]["jax"] and about["kernels"] == "auto"


def test_a_finished_run_keeps_the_versions_that_made_it(finished):
    path = finished / "versions.json"
    before = path.read_text()
    path.write_text(before.replace("{", '{"kernels_used": ["rows"], ', 1))
    try:
        cli.main(["resume", str(finished), "--quiet"])
        assert json.loads(path.read_text())["kernels_used"] == ["rows"]
    finally:
        path.write_text(before)


def test_eval_repeats_the_last_evaluation(finished, capsys):
    cli.main(["eval", str(finished), "--episodes", "1"])
    shown = capsys.readouterr().out
    for last in read_csv(finished / "eval.csv")[-2:]:
        assert f"{last['return']:.1f}" in shown and f"{last['policy_return']:.1f}" in shown


def test_an_evaluation_that_cannot_fit_is_refused(finished, capsys, monkeypatch):
    for command in ("eval", "diagnose"):
        with pytest.raises(SystemExit):
            cli.main([command, str(finished), "--episodes", "100000000"])
        assert "eval_episodes is 100000000; it must be at most 10000" in capsys.readouterr().err
    monkeypatch.setattr("ace.engine.resources.device_memory", lambda: 2**20)
    with pytest.raises(SystemExit):
        cli.main(["eval", str(finished), "--episodes", "10000"])
    error = capsys.readouterr().err
    assert "the device has 0.0 GiB; give a smaller --episodes" in error and "train" not in error


def test_numbers_that_no_memory_holds_are_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["theory", "--mdps", "100000000000000000", "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert "lacks the memory for that" in error and error.count("\n") == 1


def test_a_folder_of_other_files_is_not_filled(tmp_path, monkeypatch, capsys):
    (tmp_path / "notes.md").write_text("mine")
    for folder in (str(tmp_path), "."):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit):
            cli.main(["train", *PAIR, "--preset", "debug", "--run", folder])
        assert f"{tmp_path} holds other files (notes.md) and no run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


def test_logs_and_what_a_killed_start_leaves_are_no_other_files(tmp_path):
    """As in `ace train ... --run runs/x > runs/x/log.txt`; `write_json` writes beside its file."""
    for name in ("log.txt", "slurm-1.out", ".ipynb_checkpoints", "lock", "config.json.42.tmp"):
        (tmp_path / name).touch()
    plan_run([*PAIR, "--preset", "debug", "--run", str(tmp_path)])


def test_a_folder_is_never_overwritten(finished, capsys):
    before = (finished / "eval.csv").read_text()
    argv = ["train", *PAIR, "--preset", "debug", "--run", str(finished), "--quiet"]
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
    assert "ace" in info["agents"] and "icem" in info["planners"]
    assert "released" in info["presets"]


def test_the_installed_command_runs():
    ace = Path(sys.executable).with_name("ace")
    done = subprocess.run([ace, "--version"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0 and done.stdout.strip().count(".") == 2


SMALL = (
    "--env-steps 60 --seed-steps 20 --eval-every 60 --eval-episodes 1 --workers 0 "
    "--net.latent 8 --net.mlp 16 --net.encoder 16 --net.belief 8 --plan.horizon 3 "
    "--plan.iterations 2 --plan.population 16 --plan.elites 4 --learn.batch 16"
).split()


@pytest.mark.parametrize("preset", ["paper", "released"])  # small runs have those of the default
def test_the_options_of_a_preset_go_together(preset, monkeypatch):
    """Everything that the run would compile can be traced, which takes less time than a run."""
    traced, failed = [], []

    def trace(self, *args, stop=None):
        try:
            traced.append(self.jitted.trace(*args))
        except Exception as error:  # the thread would drop it
            failed.append(error)

    monkeypatch.setattr(Function, "compile", trace)
    run = plan_run(["probe/point", "--preset", preset, *SMALL])
    for thread in Program(run.agent, run.setups).compile_ahead(100):
        thread.join()
    assert len(traced) == 10 and not failed
