"""The example of a loss: its value and its step are those of NumPy, and it trains by its name,
through the command."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from ace import cli
from ace.agents import AGENTS
from ace.settings import keys
from tests.agents.small import check_no_turn, filled, sample
from tests.examples.helpers import imported
from tests.golden import reference as ref
from tests.golden.learning import CONFIG, STEP, B, H, lane_of, start
from tests.run.helpers import csv_rows, same

FLAGS = ["--import", "own_loss", "--agent", "smooth", "--preset", "debug", "--quiet"]
FLAGS += ["--plan.horizon", "2", "--plan.planner", "policy"]  # soon compiled
WEIGHT = 20.0


@pytest.fixture(scope="module", autouse=True)
def own_loss() -> Iterator[Any]:
    """The example is there in these tests."""
    with imported("own_loss", AGENTS, "smooth") as module:
        yield module


def updated_after(own_loss: Any, patch: pytest.MonkeyPatch, factor: float) -> Any:
    """Its update, compiled, where ACE's update only multiplies the policy by a factor."""

    def stub(lane, state, store, agent_step, active):
        policy = jax.tree.map(lambda x: factor * x, state.params["policy"])
        return state._replace(params=state.params | {"policy": policy}), store, {"q": agent_step}

    patch.setattr(own_loss, "ACE", dataclasses.replace(own_loss.ACE, update=stub))
    return jax.jit(lambda *args: own_loss.update(*args))


def lane(own_loss: Any) -> Any:
    return lane_of(dataclasses.replace(CONFIG, own=own_loss.SmoothConfig(weight=WEIGHT)))


def test_the_loss_and_its_step_are_those_of_numpy(own_loss, monkeypatch) -> None:
    """The slope is a finite difference, at the policy that ACE's update has left."""
    state, store = start(), filled(H)
    update = updated_after(own_loss, monkeypatch, 0.5)
    found, found_store, metrics = update(lane(own_loss), state, store, STEP, True)
    same(found_store, store)
    assert metrics["q"] == STEP  # ACE's own stay

    key = jax.random.fold_in(keys.key(0, "update", 0), 2)
    batch = sample(store, CONFIG.replay, key, B, H)
    obs, mask = np.asarray(batch.obs, np.float64), np.asarray(batch.mask)
    params = ref.float64(state.params)
    params["policy"] = jax.tree.map(lambda x: 0.5 * x, params["policy"])
    z = ref.encoder(params["encoder"], obs)

    def loss(policy: Any) -> float:
        total, action = 0.0, ref.policy(policy, z)
        for t in range(H):
            for b in range(B):
                total += mask[t, b] * np.sum((action[t + 1, b] - action[t, b]) ** 2)
        return total / (H * B)

    np.testing.assert_allclose(metrics["smoothness"], loss(params["policy"]), rtol=1e-4)
    slope = ref.leaves({"policy": ref.gradient(loss, params["policy"])})
    steps = {name: WEIGHT * 3e-3 * g for name, g in slope.items()}
    assert max(np.abs(step).max() for step in steps.values()) > 1e-3
    for name, old in ref.leaves(params).items():
        new = ref.leaves(found.params)[name]
        close = {"rtol": 1e-4, "atol": 1e-5, "err_msg": name}
        np.testing.assert_allclose(new, old - steps.get(name, 0.0), **close)


def test_a_lane_without_a_turn_stays_as_it_is(own_loss, monkeypatch) -> None:
    update = updated_after(own_loss, monkeypatch, 1.0)
    check_no_turn(update, lane(own_loss), start(), functools.partial(filled, H))


def test_it_trains_by_its_name(tmp_path) -> None:
    run = tmp_path / "run"
    weights = ["--vary", "smooth.weight=0,3000"]
    cli.main(["train", "probe/point", *FLAGS, *weights, "--run", str(run)])
    rows = {row["lane"]: row for row in csv_rows(run, "train.csv")}  # the last of each
    free, bound = (float(rows[lane]["smoothness"]) for lane in "01")
    assert 0 < bound < 0.5 * free
    assert float(rows["0"]["value_loss"]) > 0  # ACE learns, too
