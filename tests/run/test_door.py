"""The Python door: train, load, act, without the command."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from jax.errors import JaxRuntimeError

import ace
from ace.envs import TaskError
from ace.run.loop import Stopped
from ace.settings.config import ConfigError
from tests.run.helpers import SHORT

IMPORT = """
import sys
before = set(sys.modules)
import ace
print(*set(sys.modules) - before)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> ace.TrainedRun:
    """Two lanes of a tiny run."""
    folder = tmp_path_factory.mktemp("door") / "run"
    changes = {"learn.td_lambda": 1, **SHORT}
    return ace.train(
        "probe/long", preset="debug", seeds=(0, 1), settings=changes, folder=folder, quiet=True
    )


def test_importing_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert not {"jax", "numpy", "tyro", "dm_control"} & found and len(found) < 30, found


def test_a_run_is_trained_and_its_agents_act(run: ace.TrainedRun) -> None:
    rows = run.evaluations()
    assert (run.folder / "curve.png").exists()
    assert {row["seed"] for row in rows} == {0, 1} and len(rows) == 4
    one, other = ace.load(run.folder), run.agent(1)
    assert (one.task, one.seed, other.seed) == ("probe/long", 0, 1)
    obs = np.array([0.5, 0.1], np.float32)
    action, memory = one.act(obs)
    again, _ = one.act(obs)
    np.testing.assert_array_equal(action, again)  # a new episode begins in the same way
    later, after = one.act(obs, memory)
    assert action.shape == (2,) and np.abs(action).max() <= 1 and after.count == 2
    assert not np.array_equal(action, later)
    assert not np.array_equal(action, other.act(obs)[0])
    batch = np.stack([obs, -obs])
    policies = one.policy(batch)
    np.testing.assert_allclose(policies[0], one.policy(obs), rtol=1e-5)
    assert policies.shape == (2, 2)


def test_the_same_call_finds_the_finished_run(run: ace.TrainedRun, capsys) -> None:
    changes = {"learn.td-lambda": 1.0, **SHORT}
    found = ace.train(
        "probe/long", preset="debug", seeds=(0, 1), settings=changes, folder=run.folder
    )
    assert found == run and "the run is finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"settings": {"learn.td_lamda": 0.4}}, "did you mean learn.td_lambda"),
        ({"settings": {"plan.horizon": 3.5}}, "must be of type int"),
        ({"settings": {"plan.horizon": 0}}, "plan.horizon is 0"),
        ({"agent": "acee"}, "did you mean ace"),
        ({"agent": "sac", "settings": {"plan.horizon": 4}}, "does nothing for agent sac"),
        ({"agent": "sac", "settings": {"sac.init_temperature": "hot"}}, "type float"),
        ({"vary": {"learn.td_lambda": (0.1, 0.1)}}, "twice"),
        ({"seeds": (1, 1)}, "twice"),
        ({"preset": "cpuu"}, "unknown"),
        ({"folder": ""}, "folder is empty"),
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": 3}, r"seeds is 3; give a list, as in \(0, 1\)"),
        ({"seeds": "01"}, "seeds is '01'; give a list"),
        ({"seeds": [0.5]}, r"seeds is \[0.5\]; give a list"),
        ({"vary": {"learn.td_lambda": 0.5}}, "vary of learn.td_lambda is 0.5; give a list"),
        ({"imports": "my_module"}, "imports is 'my_module'; give a list"),
        ({"tasks": 3}, "tasks is 3; give a list"),
        ({"settings": ["learn.td_lambda"]}, r"settings is \['learn.td_lambda'\]; give a dict"),
        ({"vary": "learn.td_lambda=0,1"}, "vary is 'learn.td_lambda=0,1'; give a dict"),
    ],
)
def test_mistakes_are_named(given: dict, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        folder = tmp_path / "run"
        ace.train(**{"tasks": "probe/point", "preset": "debug", "folder": folder, **given})
    assert not list(tmp_path.iterdir())


def test_seeds_may_be_numbers_of_numpy(tmp_path, monkeypatch) -> None:
    trained, seeds = [], cast(Any, np.arange(2))
    monkeypatch.setattr("ace.run.loop.train", trained.append)
    monkeypatch.setattr("ace.tools.plots.learning_curve", lambda *_: None)
    ace.train("probe/point", preset="debug", seeds=seeds, folder=tmp_path / "run")
    assert json.dumps(trained[0].describe()) and [s.seed for s in trained[0].setups] == [0, 1]


@pytest.mark.parametrize(
    ("signum", "error", "code"),
    [(signal.SIGTERM, SystemExit, 143), (signal.SIGINT, KeyboardInterrupt, None)],
)
def test_a_signal_ends_with_its_status(signum, error, code, tmp_path, monkeypatch, capsys) -> None:
    def stopped(run: Any) -> None:
        signals = SimpleNamespace(signum=signum)
        loop: Any = SimpleNamespace(folder=run.folder, env_step=7, signals=signals, compiling=[])
        raise Stopped(loop)

    monkeypatch.setattr("ace.run.loop.train", stopped)
    with pytest.raises(error) as caught:
        ace.train("probe/point", preset="debug", folder=tmp_path / "run")
    assert getattr(caught.value, "code", None) == code
    said = capsys.readouterr().err if code else str(caught.value)
    assert "saved at env step 7; `ace resume" in said


def test_a_device_without_memory_left_gets_the_advice_of_the_command(tmp_path, monkeypatch) -> None:
    said = "RESOURCE_EXHAUSTED: Out of memory\nallocating 3 GiB"

    def run_out(run: Any) -> None:
        raise JaxRuntimeError(said)

    monkeypatch.setattr("ace.run.loop.train", run_out)
    with pytest.raises(ConfigError, match="no memory left; train fewer lanes") as caught:
        ace.train("probe/point", preset="debug", folder=tmp_path / "run")
    assert isinstance(caught.value.__cause__, JaxRuntimeError)
    said = "INTERNAL: a mistake of ours"
    with pytest.raises(JaxRuntimeError, match="a mistake of ours"):
        ace.train("probe/point", preset="debug", folder=tmp_path / "run")


def test_the_errors_are_those_of_the_rooms() -> None:
    assert ace.ConfigError is ConfigError and ace.TaskError is TaskError
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        ace.Missing  # type: ignore  # noqa: B018
    assert (Path(ace.__file__).parent / "py.typed").exists()


def test_a_module_that_cannot_be_imported_is_named(tmp_path) -> None:
    with pytest.raises(TaskError, match="--import no_such_module_here: No module named"):
        ace.train("probe/point", imports=("no_such_module_here",), folder=tmp_path / "run")


def test_wrong_observations_memories_and_lanes_are_named(run: ace.TrainedRun) -> None:
    with pytest.raises(ValueError, match=r"has shape \[2\], not \(3,\)"):
        run.agent().act(np.zeros(3))
    for call in (run.agent().act, run.agent().policy):
        with pytest.raises(ValueError, match="not finite"):
            call(np.array([0.0, np.nan]))
    with pytest.raises(ValueError, match="memory must be what `act` returned"):
        run.agent().act(np.zeros(2), {"plan": 0})  # type: ignore
    with pytest.raises(ConfigError, match="lanes 0 to 1"):
        run.agent(2)
