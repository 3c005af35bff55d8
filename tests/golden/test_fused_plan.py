"""A whole plan with the faster forms, interpreted, against the plain ones, for the latents of the
paper: 50, which is padded to 64, and humanoid's 100, padded to 128.

In float32 both must agree. In bf16 either rounds in its own places, and where two plans are nearly
equal a rounding decides which is elite; so there both plan by fixed ranks, and the values that the
faster forms give to all candidates must be as near to the float32 ones as those of the plain forms.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import ace as agent
from ace.engine import fused, kernels
from ace.engine.kernels import common
from ace.method.replaceable import replaced
from ace.method.types import Lane
from ace.planners import PLANNERS, icem
from tests.golden.whole import LATENTS, A, batch_of, config_of, lane_of, named, start


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Run the kernels without a GPU."""
    monkeypatch.setattr(common, "INTERPRET", True)


@functools.cache
def planned(latent: int, precision: str, form: str, ranked: bool) -> Any:
    """An action, the memory, the values of all that was rated, and the kernels' report; `ranked`
    hands fixed values to the planner, so that no rounding decides what it looks at next."""
    config, report = config_of(latent, precision), kernels.Report()
    values: list[jax.Array] = []

    def spy(config, rate, proposals, memory, x, key, train):
        def score(actions, proposed, call):
            values.append(rate(actions, proposed, call))
            places = jnp.arange(actions.shape[1], dtype=jnp.float32)
            return jnp.cos(37 * places) if ranked else values[-1]

        return icem.plan(config, score, proposals, memory, x, key, train)

    def act(lane: Lane, part: Any, memory: Any, obs: jax.Array) -> Any:
        given = jnp.bool_(False), jnp.int32(9_000), jax.random.key(0), False
        with replaced({} if form == "plain" else fused.TABLE), kernels.reporting(report):
            return *agent.act(lane, part, memory, obs, *given), values

    part = agent.AGENT.acting_part(start(latent))
    rng = np.random.default_rng(2)
    memory = jax.tree.map(
        lambda x: jnp.asarray(rng.uniform(-1, 1, x.shape), jnp.float32), agent.memory(config, A)
    )._replace(horizon=jnp.int32(1))
    before = PLANNERS["icem"]
    PLANNERS["icem"] = icem.PLANNER._replace(plan=spy)
    try:
        found = jax.jit(act)(lane_of(config), part, memory, batch_of().obs[0, 0])
    finally:
        PLANNERS["icem"] = before
    return jax.tree.map(np.asarray, found), report


@pytest.mark.parametrize("latent", LATENTS[:1])
def test_a_plan_in_f32(latent: int) -> None:
    (got, report), (wanted, none) = (
        planned(latent, "f32", form, ranked=False) for form in ("fused", "plain")
    )
    assert "rows" in report.used and "dynamics" not in report.used and not none.used
    for name, x in named(wanted).items():
        np.testing.assert_allclose(named(got)[name], x, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("latent", LATENTS[1:])
def test_a_plan_in_bf16(latent: int) -> None:
    truth, plain, (fast, report) = (
        planned(latent, "f32", "plain", True)[0],
        planned(latent, "bf16", "plain", True)[0],
        planned(latent, "bf16", "fused", True),
    )
    assert {"dynamics", "layers", "rows"} <= report.used
    spread = np.concatenate(truth[2]).std()
    for x, y, z in zip(truth[2], plain[2], fast[2], strict=True):
        # What all candidates of a plan are off by alike, since they begin alike, changes no plan.
        usual, found = (np.std(v - x) for v in (y, z))
        assert found < 1.5 * usual + 0.01 * spread and usual < 0.1 * spread
        assert np.abs(np.mean(z - x)) < 0.2 * spread
    for x, y in zip(jax.tree.leaves(truth[:2]), jax.tree.leaves(fast[:2]), strict=True):
        np.testing.assert_allclose(y, x, atol=0.03)
