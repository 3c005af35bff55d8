"""The example of a planner: it runs by its name, through the command, and searches."""

import csv
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace import cli
from ace.planners import PLANNERS, Context
from ace.settings.config import Config, replace
from tests.examples.helpers import imported

FLAGS = ["--import", "own_planner", "--plan.planner", "shooting", "--preset", "debug", "--quiet"]
FLAGS += ["--plan.horizon", "2"]  # soon compiled


@pytest.fixture(autouse=True)
def own_planner() -> Iterator[None]:
    """The example is there in these tests."""
    with imported("own_planner", PLANNERS, "shooting"):
        yield


def test_it_trains_and_is_evaluated_by_its_name(tmp_path, capsys) -> None:
    run = tmp_path / "run"
    cli.main(["train", "probe/point", *FLAGS, "--run", str(run)])
    rows = list(csv.DictReader(open(run / "eval.csv")))
    assert [int(row["env_step"]) for row in rows] == [60, 120]
    cli.main(["eval", str(run), "--episodes", "1"])
    shown = " ".join(capsys.readouterr().out.split())  # the title may be wrapped
    assert "after 120 env steps" in shown


def test_a_wrong_name_is_told(tmp_path, capsys) -> None:
    flags = [word.replace("shooting", "shoting") for word in FLAGS]
    with pytest.raises(SystemExit):
        cli.main(["train", "probe/point", *flags, "--run", str(tmp_path / "run")])
    assert "did you mean shooting?" in capsys.readouterr().err


def test_it_takes_the_best_of_many() -> None:
    """Of 2000 pairs the best lies near the goal; what is not a number is never taken."""
    config = replace(Config(), {"plan.horizon": 2, "plan.population": 2000})
    goal = jnp.array([[0.5, -0.3], [0.1, 0.9]])

    def score(actions: jax.Array, proposed: slice, call: int) -> jax.Array:
        values = -jnp.sum(jnp.square(actions - goal[:, None]), (0, 2))
        return jnp.where(actions[0, :, 0] > 0.5, jnp.nan, values)

    planner = PLANNERS["shooting"]
    assert planner.init(config, 2) == () and planner.proposals(config) == 0
    mask = jnp.array([True, True])
    x = Context(jnp.bool_(True), jnp.int32(2), jnp.int32(0), mask, ())
    key, none = jax.random.key(0), jnp.zeros((2, 0, 2))
    action, memory = planner.plan(config, score, none, (), x, key, True)
    np.testing.assert_allclose(action, goal[0], atol=0.25)
    assert action[0] <= 0.5 and memory == ()
