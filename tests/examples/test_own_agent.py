"""The example of an agent does all that an agent must, through the command: it trains, goes on
after a break, is evaluated, exported and measured."""

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace import cli
from ace.agents import AGENTS
from ace.method.types import Lane
from ace.run.resume import Keeper
from ace.settings.config import Config, replace
from ace.tools import speed
from tests.examples.helpers import imported
from tests.run.helpers import broken_off, csv_rows, same_rows

ASKED = ["--import", "own_agent", "--agent", "monkey"]
FLAGS = ["probe/point", "probe/long", *ASKED, "--preset", "debug", "--quiet"]


@pytest.fixture(scope="module", autouse=True)
def own_agent() -> Iterator[None]:
    """The example is there in these tests."""
    with imported("own_agent", AGENTS, "monkey"):
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A whole run of four lanes, with its own setting varied."""
    folder = tmp_path_factory.mktemp("monkey") / "run"
    flags = [*FLAGS, "--vary", "monkey.reach=0.5,1", "--run", str(folder)]
    cli.main(["train", *flags])
    return folder


def test_its_updates_are_counted(run) -> None:
    last = [row for row in csv_rows(run, "train.csv") if row["task"] == "probe/point"][-1]
    # Updates of a step are made while its simulators run; the debug preset learns from step 40 on.
    assert float(last["updates"]) == int(last["env_step"]) - 1
    lanes = json.loads((run / "config.json").read_text())["lanes"]
    assert [lane["config"]["own"]["reach"] for lane in lanes] == [0.5, 1.0] * 2


def test_a_broken_run_ends_like_the_whole_one(run, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "run"
    flags = [*FLAGS, "--vary", "monkey.reach=0.5,1", "--run", str(folder)]
    with broken_off({70}, 75):
        cli.main(["train", *flags])
    found = []
    load = Keeper.load
    monkeypatch.setattr(Keeper, "load", lambda *a: found.append(load(*a)) or found[-1])
    cli.main(["resume", str(folder), "--quiet"])
    assert len(found) == 1 and found[0] is not None  # it did not begin anew
    same_rows(folder, run)


def test_it_is_evaluated(run, capsys) -> None:
    cli.main(["eval", str(run), "--episodes", "2"])
    shown = " ".join(capsys.readouterr().out.split())  # the title may be wrapped
    assert "2 episodes after 120 env steps" in shown and "policy" not in shown


def test_it_is_exported(run, tmp_path, capsys) -> None:
    cli.main(["export", str(run), str(tmp_path / "out"), "--lane", "0"])
    about = json.loads((tmp_path / "out" / "agent.json").read_text())
    assert about["agent"] == "monkey" and about["task"] == "probe/point"
    assert not (tmp_path / "out" / "policy.json").exists()  # it has none


def test_its_speed_is_measured(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(speed, "measure_limit", lambda precision: 1.0)  # the machine's, not its own
    monkeypatch.setattr(speed, "RUN_WARM_UP", 5)
    found = tmp_path / "speed.json"
    words = ["--task", "probe/point", "--lanes", "1", "--steps", "2", "--preset", "debug"]
    cli.main(["speed", *words, *ASKED, "--json", str(found)])
    (row,) = json.loads(found.read_text())["lanes"]
    assert row["lanes"] == 1 and row["update"]


def test_it_reaches_as_far_as_its_setting_says() -> None:
    agent = AGENTS["monkey"]
    assert agent.settings
    config = replace(Config(own=agent.settings()), {"own.reach": 0.1})
    lane = Lane(jnp.uint32(0), config, jnp.array([True, True, False]), ())
    zero, first, step = jnp.zeros(2), jnp.bool_(True), jnp.int32(0)
    draws = [
        agent.act(lane, {}, (), zero, first, step, jax.random.key(seed), True)[0]
        for seed in range(50)
    ]
    largest = np.abs(np.stack(draws)).max(0)
    assert np.all(largest[:2] <= 0.1) and np.all(largest[:2] > 0.08) and largest[2] == 0
