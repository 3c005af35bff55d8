"""Environments that are written wrongly: one line that says what to do, in every process."""

import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

from ace.envs import EnvError, EnvRequest, TaskError, VectorEnv, get_spec, make, validate
from ace.envs.api import EnvSpec
from ace.envs.registry import check_sizes

HERE = "tests.envs.bad_envs"
WHERE = r"\(.*bad_envs\.py, line \d+\)"
AT_MAKE = [
    ("NeedsArgument", "make failed: TypeError: .*'maze'; it must be callable without arguments"),
    ("quits", f"make failed: SystemExit: 2 {WHERE}; .*return a gymnasium.Env"),
    ("fails", f"make failed: RuntimeError: no licence found {WHERE}; .*return a gymnasium.Env"),
    ("not_an_env", "returned a str without 'observation_space'; return a gymnasium.Env"),
    ("NoAction", "has actions of size 0; give them an entry"),
    ("NoObs", "has observations of size 0; give them an entry"),
    ("StillAction", "low == high everywhere .*; widen the bounds"),
    ("SwappedBounds", "low > high .*; swap them"),
    ("NanBounds", "without finite bounds .*; bound them"),
]
AT_RESET = [
    ("OldReset", r"an array of shape \(2,\); it must return \(observation, info\)"),
    ("NamedObs", "the observation is {'position': 0.0}, .*; return what observation_space"),
    ("CrashAtReset", f"OSError: no model file {WHERE}"),
]
AT_STEP = [
    ("OldStep", r"a tuple of 4 \(.*\); it must return \(observation, reward, terminated, tru"),
    ("NoStep", "step returned None; it must return"),
    ("NoReward", "the reward is None, expected one number"),
    ("WrongShape", r"shape \(3,\), expected \(2,\); return what the environment's spec or"),
]


@pytest.mark.parametrize(("name", "message"), AT_MAKE)
def test_wrong_at_make(name: str, message: str) -> None:
    task = f"{HERE}:{name}"
    with pytest.raises(TaskError, match=f"^task '{task}'.*{message}") as caught:
        get_spec(task)
    assert "\n" not in str(caught.value)
    request = EnvRequest(task, 0, 1, "lane 0")
    with pytest.raises(TaskError, match=rf"^lane 0 \({task}\) could not be made: .*{message}"):
        VectorEnv([request], 0, 2, 2)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("name", "message"), AT_RESET)
def test_wrong_at_reset(name: str, message: str, workers: int) -> None:
    env = VectorEnv([EnvRequest(f"{HERE}:{name}", 0, 1, "lane 0")], workers, 2, 2)
    with pytest.raises(EnvError, match=f"^lane 0 .*failed in reset: .*{message}") as caught:
        env.reset()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("name", "message"), AT_STEP)
def test_wrong_at_step(name: str, message: str, workers: int) -> None:
    with VectorEnv([EnvRequest(f"{HERE}:{name}", 0, 1, "lane 0")], workers, 2, 2) as env:
        env.reset()
        (fault,) = env.step(np.zeros((1, 2), np.float32)).faults
    with pytest.raises(EnvError, match=f"^lane 0 .*failed in step: .*{message}"):
        raise EnvError(fault.text)
    assert "\n" not in fault.text


def test_an_error_of_a_worker_is_one_line_too() -> None:
    request = EnvRequest(f"{HERE}:NeedsArgument", 0, 1, "lane 0")
    with pytest.raises(TaskError, match=r"lane 0 .*make failed: TypeError") as caught:
        VectorEnv([request], 1, 2, 2)
    assert "\n" not in str(caught.value)


MODULES = [
    ("torn", "import os\nx = (", r"SyntaxError: .*torn\.py, line 2\); correct the module"),
    ("unset", "\n\nprint(speed)", r"NameError: name 'speed' is not defined \(.*unset\.py, line 3"),
    ("needy", "import no_such_thing", r"No module named 'no_such_thing' \(.*needy\.py, line 1"),
    ("script", "import sys; sys.exit('usage')", r"SystemExit: usage \(.*script\.py, line 1"),
    (
        "deep",
        "import json\njson.loads('{')",
        r"JSONDecodeError: Expecting .*\(\S*deep\.py, line 2\)",
    ),
]


@pytest.mark.parametrize(("name", "text", "message"), MODULES)
def test_modules_that_cannot_be_imported(
    name: str, text: str, message: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"wrong_{name}.py").write_text(text)
    for task in (f"wrong_{name}:make", f"gym/wrong_{name}:Thing-v0"):
        start = f"^task '{task}': importing wrong_{name} failed: "
        with pytest.raises(TaskError, match=start + ".*" + message) as caught:
            validate(task)
        assert "\n" not in str(caught.value)
        assert f"wrong_{name}" not in sys.modules


def test_a_file_that_another_module_hides_is_told(tmp_path: Path, monkeypatch) -> None:
    """`ace train json:make` beside a json.py: Python finds its own module first."""
    monkeypatch.chdir(tmp_path)
    hidden = r"^task 'json:make': module json \(\S*json/__init__\.py{}\) has no callable 'make'"
    with pytest.raises(TaskError, match=hidden.format("")):
        validate("json:make")
    (tmp_path / "json.py").write_text("def make(): ...")
    with pytest.raises(TaskError, match=hidden.format(", which hides your json.py: rename yours")):
        validate("json:make")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_init").mkdir()
    with pytest.raises(
        TaskError, match=r"no_init \(a folder without __init__.py\) has no callable"
    ):
        validate("no_init:make")
    (tmp_path / "found_here.py").write_text("")
    with pytest.raises(TaskError, match=r"\(\S*found_here.py\) has no callable 'make'"):
        validate("found_here:make")


def test_a_missing_module_is_looked_for_on_the_path() -> None:
    for task in ("no_such_package.envs:make", "tests.envs.no_such_module:make"):
        with pytest.raises(TaskError, match="start in the folder that holds the module"):
            make(task, 0)


def test_a_gym_task_that_cannot_be_made_is_one_line(monkeypatch) -> None:
    import gymnasium

    def refuse(*_: object, **__: object) -> None:
        raise gymnasium.error.DependencyNotInstalled("box2d is missing,\ninstall it")

    monkeypatch.setattr(gymnasium, "make", refuse)
    message = r"^task 'gym/Pendulum-v1': make failed: Dep.*: box2d is missing, install it.*make\("
    with pytest.raises(TaskError, match=message) as caught:
        make("gym/Pendulum-v1", 0)
    assert "\n" not in str(caught.value)
    assert traceback.format_exception(caught.value)  # the cause stays for those who look
    assert isinstance(caught.value.__cause__, gymnasium.error.DependencyNotInstalled)


def test_sizes_that_no_agent_could_learn_are_refused() -> None:
    """The try whether a task repeats itself took all memory before sizes were compared with it."""
    with pytest.raises(TaskError, match="has actions of size 30,000,000; at most 10,000,000"):
        check_sizes(EnvSpec("made/up", 3, 30_000_000, 100))
