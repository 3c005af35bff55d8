"""Soft actor-critic against hand-worked numbers: the squashed Gaussian by its definition, whole
updates by a second implementation in NumPy (`sac_twin.py`)."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import AGENTS, sac
from ace.agents.sac import SacConfig, SacState
from ace.engine import fused
from ace.engine.lanes import stack
from ace.method.replaceable import replaced
from ace.method.types import Lane
from ace.settings.config import Config, ConfigError, replace
from tests.agents import sac_twin, small
from tests.agents.sac_twin import Twin, random_batch
from tests.agents.small import ACTION, OBS, SIZES, check_left_out, check_no_turn
from tests.run.helpers import leaves

SMALL = replace(Config(own=SacConfig()), {**sac.AGENT.defaults, **sac_twin.SMALL})


def lane_of(config: Config = SMALL, seed: int = 0, sizes: tuple[int, int] = SIZES) -> Lane:
    leaves = jax.tree.map(jnp.float32, config)
    return Lane(jnp.uint32(seed), leaves, jnp.arange(sizes[1]) < ACTION, ())


def fresh(config: Config = SMALL, seed: int = 0) -> SacState:
    return sac.init(config, seed, SIZES)


filled = functools.partial(small.filled, 1)


update = jax.jit(sac.update)


# The squashed Gaussian


def draws(seed: int = 0, count: int = 200) -> Any:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(count, ACTION)) * s for s in (0.5, 0.3, 1.0)]


def test_log_probability_by_change_of_variables() -> None:
    mean, log_std, eps = draws()
    with jax.enable_x64(True):
        action, log = map(np.asarray, sac.squashed(mean, log_std, eps, jnp.ones(ACTION)))
    u, std = np.arctanh(action), np.exp(log_std)
    density = np.exp(-0.5 * ((u - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(log, np.log(density / (1 - action**2)).sum(-1), rtol=1e-6)


def test_log_probability_is_the_slope_of_the_distribution() -> None:
    """P(a < x) = Phi((artanh x - mean) / std); its finite differences are the density."""
    mean, log_std, h = 0.3, -0.4, 1e-5

    def below(x: float) -> float:
        return 0.5 * (1 + math.erf((math.atanh(x) - mean) / math.exp(log_std) / math.sqrt(2)))

    for x in (-0.9, -0.2, 0.0, 0.5, 0.97):
        eps = (math.atanh(x) - mean) / math.exp(log_std)
        action, log = sac.squashed(*(jnp.array([v]) for v in (mean, log_std, eps, 1.0)))
        np.testing.assert_allclose(action, [x], atol=1e-5)
        np.testing.assert_allclose(log, math.log((below(x + h) - below(x - h)) / 2 / h), rtol=1e-3)


@pytest.mark.parametrize("u", [-40.0, -12.0, 12.0, 40.0])
def test_log_probability_holds_at_the_bounds(u: float) -> None:
    """There tanh rounds to one; log(1 - tanh(u)^2) is log 4 - 2 |u| to all digits."""

    def log(mean: jax.Array) -> jax.Array:
        return sac.squashed(mean, jnp.zeros(1), jnp.zeros(1), jnp.ones(1))[1]

    value, slope = jax.value_and_grad(log)(jnp.array([u]))
    wanted = -0.5 * math.log(2 * math.pi) - math.log(4) + 2 * abs(u)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(slope, [2 * math.copysign(1, u)], rtol=1e-5)


def test_padded_dimensions_have_no_probability() -> None:
    mean, log_std, eps = map(jnp.asarray, draws())
    action, log = sac.squashed(mean, log_std, eps, jnp.array([True, False]))
    one = sac.squashed(mean[:, :1], log_std[:, :1], eps[:, :1], jnp.ones(1))
    np.testing.assert_array_equal(action[:, 1], 0.0)
    np.testing.assert_allclose(action[:, :1], one[0])
    np.testing.assert_allclose(log, one[1], rtol=1e-6)


def test_the_deviation_keeps_its_bounds() -> None:
    params = jax.tree.map(lambda x: 50 * x, fresh().params["policy"])
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(100, OBS)), jnp.float32)
    own = SacConfig(log_std_min=-3.0, log_std_max=1.5)
    _, log_std = sac.gaussian(own, params, obs)
    np.testing.assert_allclose([log_std.min(), log_std.max()], [-3.0, 1.5], atol=1e-3)
    zero = jax.tree.map(jnp.zeros_like, params)
    np.testing.assert_allclose(sac.gaussian(own, zero, obs)[1], -0.75)


# Updates


def test_updates_are_those_of_the_twin() -> None:
    """Four updates, so that Adam's moments and the target's turns count; the optimiser must agree
    in what it keeps, since its first step hides the size of a gradient."""
    rng = np.random.default_rng(9)
    # Biases of zero would put units without input onto the kink of the ReLU.
    params = jax.tree.map(
        lambda x: (x + 0.1 * rng.normal(size=x.shape)).astype(np.float32), fresh().params
    )
    state = fresh()._replace(params=params, target={"critics": params["critics"]})
    twin, learn = Twin(state, SMALL), jax.jit(sac.learn)
    for i in range(4):
        batch = random_batch(i)
        eps = np.random.default_rng(100 + i).normal(size=(2, 5, ACTION))
        wanted = twin.step(batch, eps)
        f32 = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (batch, eps))
        state, _, metrics = learn(lane_of(), state, *f32, jnp.bool_(True))
        assert len(wanted) == 5
        for name, x in wanted.items():
            np.testing.assert_allclose(metrics[name], x, rtol=2e-3, err_msg=name)
        for name, x in leaves(state.params).items():
            np.testing.assert_allclose(x, twin.params[name], rtol=2e-3, atol=2e-5, err_msg=name)
        for name, x in leaves(state.target).items():
            np.testing.assert_allclose(x, twin.target[name], rtol=2e-3, atol=2e-5, err_msg=name)
        for opt in state.opt:
            for name, m in leaves(opt[1].mu).items():
                close = {"rtol": 5e-3, "atol": 1e-5, "err_msg": name}
                np.testing.assert_allclose(m, twin.moments[name][0], **close)
    assert int(state.update_step) == 4 and int(state.skipped) == 0


def test_the_temperature_moves_towards_the_target_entropy() -> None:
    """Its loss is alpha (entropy - target): too random lowers it, too certain raises it."""
    entropy = 0.0
    for shift in (None, -0.5, 0.5):
        own = {} if shift is None else {"own.target_entropy": entropy / ACTION + shift}
        state, _, metrics = update(lane_of(replace(SMALL, own)), fresh(), filled(), 0, True)
        if shift is None:
            entropy = float(metrics["entropy"])
            continue
        moved = float(state.params["temperature"]["log"]) - math.log(0.1)
        np.testing.assert_allclose(moved, math.copysign(0.03, shift), rtol=1e-3)
        np.testing.assert_allclose(metrics["temperature_loss"], -0.1 * ACTION * shift, rtol=1e-3)


# The replay


def test_samples_are_uniform_unless_asked_otherwise() -> None:
    store = filled()
    _, after, _ = update(lane_of(), fresh(), store, 0, True)
    weights = np.asarray(after.tree.sums[0])
    assert weights.sum() == 40 and set(weights) == {0.0, 1.0}
    batch = small.sample(after, SMALL.replay, jax.random.key(0), 4000, 1)
    np.testing.assert_array_equal(batch.weight, 1.0)
    counts = np.bincount(np.asarray(batch.index), minlength=64)[weights > 0]
    assert 60 < counts.min() and counts.max() < 150  # 100 each, deviation 10
    by_error = lane_of(replace(SMALL, {"replay.priority_power": 0.6}))
    _, after, _ = update(by_error, fresh(), store, 0, True)
    assert len(set(np.asarray(after.tree.sums[0]))) > 2


def test_the_end_of_time_is_no_end() -> None:
    """Only a termination cuts the value off: with a discount of 0 both cases are the same."""
    found = {}
    for discount in (0.0, 0.9):
        lane = lane_of(replace(SMALL, {"learn.discount": discount}))
        for continues in (0.0, 1.0):
            batch = random_batch(0)._replace(continues=jnp.full((1, 5), continues))
            f32 = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), batch)
            eps = jnp.ones((2, 5, ACTION))
            *_, metrics = jax.jit(sac.learn)(lane, fresh(), f32, eps, jnp.bool_(True))
            found[discount, continues] = float(metrics["target"])
    mean = random_batch(0).reward.mean()
    np.testing.assert_allclose([found[0.9, 0.0], found[0.0, 0.0], found[0.0, 1.0]], mean, rtol=1e-5)
    assert abs(found[0.9, 1.0] - mean) > 0.01


# Lanes


def test_a_padded_lane_computes_what_the_unpadded_one_does() -> None:
    wide = (OBS + 4, ACTION + 3)
    plain, store = fresh(), filled()
    padded, wide_store = sac.pad(SMALL, fresh(), wide), filled(sizes=wide)
    narrow, broad = lane_of(), lane_of(sizes=wide)
    for _ in range(3):
        plain, store, one = update(narrow, plain, store, 0, True)
        padded, wide_store, other = update(broad, padded, wide_store, 0, True)
        for name in sac.AGENT.metrics:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-6, err_msg=name)
    for name, x in leaves(sac.pad(SMALL, jax.device_get(plain), wide)).items():
        got = leaves(padded)[name]
        np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(np.asarray(got)[x == 0], 0.0, err_msg=name)
    obs = np.random.default_rng(0).normal(size=OBS).astype(np.float32)
    for train in (True, False):
        (a, _), (b, _) = (
            sac.act(
                lane,
                sac.AGENT.acting_part(state),
                (),
                jnp.pad(obs, (0, size - OBS)),
                jnp.bool_(True),
                jnp.int32(0),
                jax.random.key(3),
                train,
            )
            for lane, state, size in ((narrow, plain, OBS), (broad, padded, wide[0]))
        )
        np.testing.assert_allclose(b[:ACTION], a, rtol=1e-5)
        np.testing.assert_array_equal(b[ACTION:], 0.0)


def test_a_lane_in_a_crowd_is_the_lane_alone() -> None:
    configs = [
        replace(SMALL, {"own.target_entropy": -h, "learn.discount": g, "own.init_temperature": t})
        for h, g, t in ((1.0, 0.9, 0.1), (0.5, 0.5, 0.3), (2.0, 0.99, 0.01))
    ]
    lanes = [lane_of(c, seed) for seed, c in enumerate(configs)]
    states = [fresh(c, seed) for seed, c in enumerate(configs)]
    stores = [filled(seed=seed) for seed in range(3)]
    both = jax.jit(jax.vmap(sac.update, in_axes=(0, 0, 0, None, 0)))
    active = np.array([True, False, True])
    crowd = both(stack(lanes), stack(states), stack(stores), 0, active)
    for i in range(3):
        alone = update(lanes[i], states[i], stores[i], 0, bool(active[i]))
        mine = leaves(jax.tree.map(lambda x, i=i: x[i], crowd))
        for name, x in leaves(alone).items():
            np.testing.assert_allclose(mine[name], x, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_lane_without_a_turn_stays_as_it_is() -> None:
    check_no_turn(update, lane_of(), fresh(), filled)


def test_gradients_that_are_not_finite_are_left_out_and_counted() -> None:
    check_left_out(update, lane_of(), fresh(), filled)


def test_the_faster_forms_of_the_engine_give_the_same() -> None:
    """On a GPU products and optimiser are replaced; none of these forms needs one."""
    wanted = jax.jit(sac.update)(lane_of(), fresh(), filled(), 0, True)
    with replaced(fused.TABLE):
        found = jax.jit(lambda *args: sac.update(*args))(lane_of(), fresh(), filled(), 0, True)
    for name, x in leaves(found).items():
        np.testing.assert_allclose(x, leaves(wanted)[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_two_seeds_differ() -> None:
    one, other = (leaves(fresh(seed=seed).params) for seed in (0, 1))
    for name, x in one.items():
        if name.endswith("['w']"):
            assert not np.any(x == other[name]), name
    critics = fresh().params["critics"]["mid"]["w"]
    assert not np.any(critics[0] == critics[1])
    state, store = fresh(), filled()
    a, b = (update(lane_of(seed=seed), state, store, 0, True)[2]["q"] for seed in (0, 1))
    assert a != b


# Acting and the table


def test_it_samples_in_training_and_takes_the_mean_in_evaluation() -> None:
    state, lane = fresh(), lane_of()
    acting, obs = sac.AGENT.acting_part(state), jnp.ones(OBS)

    def act(seed: int, train: bool) -> np.ndarray:
        key = jax.random.key(seed)
        found = sac.act(lane, acting, (), obs, jnp.bool_(False), jnp.int32(0), key, train)
        return np.asarray(found[0])

    mean = np.tanh(sac.gaussian(SMALL.own, state.params["policy"], obs)[0])
    np.testing.assert_allclose(act(0, False), mean, rtol=1e-6)
    np.testing.assert_allclose(act(1, False), mean, rtol=1e-6)
    assert not np.any(act(0, True) == act(1, True))
    several = sac.act_policy(lane, acting, jnp.stack([obs, -obs]))
    np.testing.assert_allclose(several[0], mean, rtol=1e-6)
    assert set(acting) == {"policy"}


def test_it_is_registered_with_the_public_settings() -> None:
    agent = AGENTS["sac"]
    config = replace(Config(own=agent.settings and agent.settings()), agent.defaults)
    assert (config.net.mlp, config.learn.batch, config.learn.learning_rate) == (1024, 1024, 1e-4)
    assert (config.learn.target_momentum, config.learn.target_period) == (0.995, 2)
    assert config.own == SacConfig(0.1, 1e-4, -1.0, -5.0, 2.0)
    assert agent.segment(config) == 1 and agent.memory(config, 2) == ()
    bytes_of = sum(x.nbytes for x in leaves(fresh()).values())
    networks, *rest = agent.footprint(SMALL, SIZES).values()
    assert 0.7 * bytes_of < networks <= bytes_of and min(rest) > 0


def test_settings_that_cannot_work_are_refused() -> None:
    for changes, message in (
        ({"own.init_temperature": 0.0}, "must be above 0"),
        ({"own.log_std_min": 3.0}, "lower it"),
    ):
        with pytest.raises(ConfigError, match=message):
            AGENTS["sac"].check(replace(SMALL, changes))
