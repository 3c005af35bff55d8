"""The parts of the planner, scores that are no numbers, noise and bounds, and the contract."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ace.planners import PLANNERS, Planner, icem, register, sequences
from ace.planners.icem import plan
from ace.settings.checks import validate
from ace.settings.config import Ramp, replace
from tests.golden.planning import (
    GOAL,
    LATER,
    SMALL,
    quadratic,
    random_memory,
    scene,
    watch,
    weights_of,
)

# Scores that are no numbers


floats = st.floats(-1e6, 1e6, width=32)
odd = st.sampled_from([np.nan, np.inf, -np.inf])
select = jax.jit(sequences.select_elites, static_argnums=2)
weigh = jax.jit(sequences.elite_weights)


@settings(max_examples=150, deadline=None, database=None)
@given(
    st.lists(st.one_of(floats, odd), min_size=12, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_plan_without_a_value_is_never_elite(values: list[float], allowed: list[bool]) -> None:
    v, ok = np.array(values, np.float32), np.array(allowed)
    best, top = select(jnp.asarray(v), jnp.asarray(ok), 4)
    usable = np.isfinite(v) & ok
    wanted = np.sort(v[usable])[::-1][:4]
    real = min(4, usable.sum())
    assert np.all(usable[np.asarray(best)[:real]])
    np.testing.assert_array_equal(v[np.asarray(best)[:real]], wanted)  # best first
    w = np.asarray(weigh(top, 0.5))
    assert np.all(np.isfinite(w)) and np.all(w >= 0) and not np.any(w[real:])
    if real:
        np.testing.assert_allclose(w.sum(), 1, rtol=1e-5)


def test_plans_with_broken_scores_lose_against_poor_ones() -> None:
    def score(actions, proposed, call):
        # All plans are worth less than nothing; the nearer to the broken part the better.
        a = actions[0, :, 0]
        broken = jnp.where(a > 0.6, jnp.nan, jnp.where(a > 0.3, jnp.inf, -jnp.inf))
        return jnp.where(a > 0.1, broken, a - 5.0)

    action, after, seen = watch(SMALL, score, icem.init(SMALL, 2), scene(SMALL))
    values = np.concatenate([v for _, v in seen])
    assert np.isnan(values).any() and np.isposinf(values).any() and np.isneginf(values).any()
    assert action[0] <= 0.1 and np.all(after.elites[0, :, 0] <= 0.1)
    assert np.all(np.isfinite(after.mean))


def test_nothing_but_broken_scores_still_gives_a_usable_action() -> None:
    def broken(actions, proposed, call):
        return jnp.full(actions.shape[1], jnp.nan)

    action, after, _ = watch(SMALL, broken, icem.init(SMALL, 2), scene(SMALL), train=True)
    assert np.all(np.isfinite(action)) and np.all(np.abs(action) <= 1)
    assert all(np.all(np.isfinite(x)) for x in after)


# The parts


def test_elite_weights_multiply_by_the_temperature() -> None:
    values = np.array([3.0, 1.0, -2.0])
    for temperature in (0.5, 2.0):
        np.testing.assert_allclose(
            sequences.elite_weights(jnp.asarray(values), temperature),
            weights_of(values, temperature),
            rtol=1e-5,
        )
    large = sequences.elite_weights(jnp.array([1e4, 1e4 - 2]), 0.5)  # no overflow
    np.testing.assert_allclose(large, weights_of(np.array([2.0, 0.0]), 0.5), rtol=1e-5)


def test_fit_by_hand_and_bounds_of_the_deviation() -> None:
    chosen = jnp.array([[[0.0], [1.0]]])  # one step, two elites
    mean, std = sequences.fit(chosen, jnp.array([0.25, 0.75]), jnp.float32(0.0), 2.0)
    assert mean[0, 0] == pytest.approx(0.75)
    assert std[0, 0] == pytest.approx(np.sqrt(0.25 * 0.75))
    assert sequences.fit(chosen, jnp.array([0.25, 0.75]), jnp.float32(0.6), 2.0)[1][
        0, 0
    ] == pytest.approx(0.6)
    assert sequences.fit(chosen, jnp.array([0.25, 0.75]), jnp.float32(0.0), 0.1)[1][
        0, 0
    ] == pytest.approx(0.1)


def test_choices_of_the_action() -> None:
    chosen = jnp.array([[[0.1], [0.2], [0.3]], [[9.0], [9.0], [9.0]]])
    weights, mean = jnp.array([0.5, 0.3, 0.2]), jnp.array([[0.7], [9.0]])

    def choose(how, pick):
        return sequences.choose(how, jnp.float32(pick), chosen, weights, mean)[0]

    assert choose("best", 0.99) == np.float32(0.1)
    assert choose("mean", 0.0) == np.float32(0.7)
    got = [float(choose("sample", p)) for p in (0.0, 0.49, 0.51, 0.79, 0.81, 0.999)]
    np.testing.assert_allclose(got, [0.1, 0.1, 0.2, 0.2, 0.3, 0.3], rtol=1e-6)


@pytest.fixture(scope="module")
def noisy_actions():
    """Many training actions of one fixed situation, clipped and not, and the quiet one."""
    runs = {}
    for clip in (True, False):
        config = replace(
            SMALL, {"plan.iterations": 1, "plan.select": "mean", "parity.clip_action": clip}
        )

        def one(key, noise, c=config):
            # With a floor above all deviations, the noise's size is known: 0.5 or nothing.
            c, x = replace(c, {"plan.act_noise": noise, "plan.min_std": 0.5}), scene(c)
            return plan(c, quadratic, x.proposals, icem.init(c, 2), x.context, key, True)[0]

        keys = jax.random.split(jax.random.key(0), 400)
        run = jax.jit(jax.vmap(one, in_axes=(0, None)))
        runs[clip] = np.asarray(run(keys, 1.0)), np.asarray(run(keys, 0.0))
    return runs


def test_exploration_noise_has_the_final_deviation(noisy_actions) -> None:
    loud, quiet = noisy_actions[False]
    noise = loud - quiet
    np.testing.assert_allclose(noise.std(0), 0.5, rtol=0.15)  # four standard errors
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.1)
    assert np.abs(loud).max() > 1


def test_executed_actions_are_clipped(noisy_actions) -> None:
    clipped, raw = noisy_actions[True][0], noisy_actions[False][0]
    np.testing.assert_allclose(clipped, np.clip(raw, -1, 1), atol=1e-6)


def test_first_iteration_floor() -> None:
    """D9: the released agent keeps the first refit at the initial deviation."""
    spread = {}
    for floored in (True, False):
        config = replace(
            SMALL,
            {
                "parity.first_std_floor": floored,
                "plan.iterations": 2,
                "plan.init_std": 0.3,
                "plan.temperature": 500.0,  # narrows at once
            },
        )
        _, _, seen = watch(config, quadratic, icem.init(config, 2), scene(config))
        drawn = seen[1][0][:, 1:32]
        spread[floored] = (drawn - drawn.mean(1, keepdims=True)).std()
    assert 0.25 < spread[True] < 0.45  # 0.3 times the noise's 1.23
    assert spread[False] < 0.75 * spread[True]


def test_the_floor_of_the_deviation_falls_with_the_agent_step() -> None:
    ramp = {"plan.std_ramp": Ramp(0.3, 2.0 * LATER)}
    config = replace(SMALL, ramp | {"plan.temperature": 500.0, "plan.iterations": 2})
    for agent_step, floor in ((0, 0.3), (LATER, 0.155), (4 * LATER, 0.01)):
        x = scene(config, agent_step=jnp.int32(agent_step))
        _, _, seen = watch(config, quadratic, icem.init(config, 2), x)
        drawn = seen[1][0][:, 1:32]  # after a refit to next to one elite
        spread = (drawn - drawn.mean(1, keepdims=True)).std()
        assert 0.75 * floor < spread / 1.23 < 1.15 * floor + 0.1 * (floor < 0.1)


def on_two_actions(actions, proposed, call):
    return quadratic(actions[..., :2])


def test_padded_actions_stay_zero_and_change_nothing() -> None:
    memory = random_memory(SMALL)
    x = scene(SMALL, first=jnp.bool_(False), key=jax.random.key(0))

    def wide(a):
        return jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, 2)])

    narrow_action, narrow, _ = watch(SMALL, on_two_actions, memory, x, train=True)
    context = x.context._replace(mask=jnp.arange(4) < 2)
    action, after, seen = watch(
        SMALL,
        on_two_actions,
        jax.tree.map(wide, memory),
        x._replace(proposals=wide(x.proposals), context=context),
        train=True,
    )
    np.testing.assert_allclose(action[:2], narrow_action, atol=1e-6)
    np.testing.assert_allclose(after.mean[..., :2], narrow.mean, atol=1e-6)
    assert not np.any(action[2:]) and not np.any(after.mean[..., 2:])
    assert all(not np.any(candidates[..., 2:]) for candidates, _ in seen)


def test_temperature_and_noise_exponent_change_the_plan() -> None:
    x, memory = scene(SMALL), icem.init(SMALL, 2)

    def mean(config, x):
        return watch(config, quadratic, memory, x)[1].mean

    base = mean(SMALL, x)
    assert np.abs(mean(replace(SMALL, {"plan.temperature": 5.0}), x) - base).max() > 1e-3
    white = scene(replace(SMALL, {"plan.noise_beta": 0.0}))
    assert np.abs(mean(SMALL, white) - base).max() > 1e-3


# The contract


@pytest.mark.parametrize("variant", ["mixed", "policy_first"])
@pytest.mark.parametrize("first", [True, False])
def test_a_horizon_of_one_step(variant: str, first: bool) -> None:
    changes = {"plan.horizon": 1, "plan.horizon_ramp.start": 1.0, "plan.variant": variant}
    config = replace(SMALL, changes | {"plan.temperature": 20.0})
    validate(config)
    x = scene(config, first=jnp.bool_(first))
    action, after, seen = watch(config, quadratic, random_memory(config), x)
    assert after.mean.shape == (1, 2) and after.elites.shape == (1, 4, 2)
    best = seen[-1][0][0, np.argmax(seen[-1][1])]
    np.testing.assert_array_equal(action, best)
    np.testing.assert_allclose(action, GOAL[0], atol=0.2)


def test_memory_is_the_mean_and_the_elites_and_nothing_of_the_agent() -> None:
    """A planner that kept the agent's horizon or belief could not be used by another agent."""
    assert icem.PlanMemory._fields == ("mean", "elites")
    other = {"net.belief": 17, "net.latent": 19, "parity.carry_belief": True}
    for config in (SMALL, replace(SMALL, other)):
        memory = icem.init(config, 2)
        assert memory.mean.shape == (4, 2) and memory.elites.shape == (4, 4, 2)
        x = scene(config)
        after = watch(config, quadratic, memory, x)[1]
        assert jax.tree.structure(after) == jax.tree.structure(memory)
        for a, b in zip(after, memory, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)


def test_a_planner_is_known_by_its_name(monkeypatch) -> None:
    assert PLANNERS["icem"] is icem.PLANNER
    mine = Planner(
        init=lambda config, size: (), plan=plan, proposals=lambda config: 0, calls=lambda config: ()
    )
    monkeypatch.setitem(PLANNERS, "mine", None)  # taken out again after the test
    register("mine", mine)
    assert PLANNERS["mine"] is mine and mine.constants(SMALL) == ()
