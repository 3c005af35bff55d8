"""A run that was written by the first version of the format must load for ever.

`tests/data/format-1` was broken off at agent step 63 of 80, with checkpoints at 44 and 63, two
lanes, seed 3. Never write it anew: if a change makes this test fail, the change needs a conversion.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ace import cli
from ace.engine.program import Program
from ace.engine.resources import replay_capacity
from ace.run import request, resume
from ace.run.collect import Collector
from ace.run.record import read_csv

STORED = Path(__file__).parents[1] / "data" / "format-1"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(STORED, tmp_path / "run"))


def test_every_number_comes_back(folder):
    _, agent, setups, _ = request.read_run(folder)
    assert [(s.task, s.seed, s.config.net.mlp) for s in setups] == [
        ("probe/long", 3, 4),
        ("probe/point", 3, 4),
    ]
    program = Program(agent, setups)
    keeper = resume.Keeper(program, folder, replay_capacity(setups))
    found = keeper.load(Collector(program, 0))
    assert found is not None
    state, progress, notes = found
    assert notes == []  # the simulators came back into their episodes
    assert progress.agent_step == 63 and progress.next_evaluation == 80
    # Read by hand from the files, when they were written.
    w = np.asarray(state.learner.params["encoder"]["in"]["w"])
    assert w.shape == (2, 2, 4)
    stored = load_file(STORED / "checkpoints" / "63" / "state.safetensors")
    np.testing.assert_array_equal(w, stored["learner.params.encoder.in.w"])
    assert state.learner.update_step.tolist() == [62, 62]
    assert float(np.abs(w).sum()) == pytest.approx(7.3751106, abs=1e-5)
    np.testing.assert_allclose(
        np.asarray(state.replay.reward).sum(1), [5.7969236, 46.903656], atol=1e-4
    )
    assert state.replay.stored.tolist() == [75, 65]


def test_it_runs_to_its_end_and_can_be_evaluated_and_exported(folder, capsys):
    cli.main(["resume", str(folder), "--quiet"])
    assert [row["env_step"] for row in read_csv(folder / "eval.csv")] == [60, 60, 80, 80]
    cli.main(["eval", str(folder), "--episodes", "1"])
    assert "probe/long" in capsys.readouterr().out
    cli.main(["export", str(folder), str(folder / "out")])
    assert (folder / "out" / "agent.stablehlo").exists()
