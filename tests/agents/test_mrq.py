"""MR.Q and DR.Q against a second implementation in NumPy (`mrq_twin.py`): networks, losses along
the rollout, and whole updates, whose gradients are finite differences; targets, units and
priorities by hand."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import AGENTS, mrq
from ace.agents.mrq import DrqConfig, networks
from ace.engine import fused
from ace.method.replaceable import replaced
from ace.method.types import Batch
from ace.settings.config import Config, ConfigError, replace
from tests.agents.mrq_twin import (
    BATCH,
    HORIZON,
    PERIOD,
    SMALL,
    STEPS,
    adam_w,
    constant_critics,
    filled,
    fresh,
    lane_of,
    learn,
    np_both,
    np_critics,
    np_encode,
    np_encoder_loss,
    np_raw,
    np_target,
    random_batch,
    update,
)
from tests.agents.small import ACTION, OBS, as_f32
from tests.golden import reference as ref
from tests.run.helpers import leaves


def test_networks() -> None:
    rng = np.random.default_rng(1)
    params = fresh().params
    wide = ref.float64(params)
    obs, action = rng.normal(size=(7, OBS)), rng.uniform(-1, 1, (7, ACTION))
    z = np_encode(wide, obs)
    both = np_both(wide, z, action)
    encoder, head = params["encoder"], ref.affine(wide["encoder"]["head"], both)
    for found, wanted in (
        (networks.encode(encoder, as_f32(obs)), z),
        (networks.combine(encoder, *as_f32((z, action))), both),
        (networks.predict(encoder, as_f32(both))[0], head[:, :4]),
        (networks.predict(encoder, as_f32(both))[1], head[:, 4:69]),
        (networks.predict(encoder, as_f32(both))[2], head[:, 69]),
        (networks.value(params["critics"], as_f32(both)), np_critics(wide, both)),
        (networks.raw_policy(params["policy"], as_f32(z)), np_raw(wide, z)),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_the_start() -> None:
    """Uniform weights of variance 4 / (in + out), zero biases; the critics differ."""
    config = replace(Config(own=DrqConfig()), mrq.DRQ.defaults)
    state = mrq.init(config, 0, (24, 6))
    shapes = {}
    for name, x in ref.leaves(state.params).items():
        if name.endswith("b"):
            assert not np.any(x)
            continue
        shapes[name.removesuffix(".w")] = x.shape[-2:]
        bound = math.sqrt(12 / sum(x.shape[-2:]))
        assert 0.97 * bound < np.abs(x).max() <= bound, name
        np.testing.assert_allclose(x.std(), bound / math.sqrt(3), rtol=0.06, err_msg=name)
    assert shapes == {
        "encoder.state.in": (24, 750),
        "encoder.state.mid": (750, 750),
        "encoder.state.out": (750, 512),
        "encoder.action": (6, 256),
        "encoder.both.in": (768, 750),
        "encoder.both.mid": (750, 750),
        "encoder.both.out": (750, 512),
        "encoder.head": (512, 512 + 65 + 1),
        "critics.in": (512, 512),
        "critics.mid": (512, 512),
        "critics.out": (512, 512),
        "critics.head": (512, 1),
        "policy.in": (512, 512),
        "policy.mid": (512, 512),
        "policy.out": (512, 6),
    }
    critics = state.params["critics"]["mid"]["w"]
    assert not np.any(critics[0] == critics[1])
    for name, x in ref.leaves(state.target).items():
        np.testing.assert_array_equal(x, ref.leaves(state.params)[name])
    assert not any(np.any(x) for x in leaves((state.opt, state.scale, state.told)).values())
    networks_of, *rest = mrq.DRQ.footprint(config, (24, 6)).values()
    bytes_of = sum(x.nbytes for x in leaves(state).values())
    assert 0.98 * bytes_of < networks_of <= bytes_of and min(rest) > 0


def test_two_hot() -> None:
    """The bins are symexp of 65 even steps; in between, weights are linear in the reward."""
    bins = np.sinh(np.linspace(-10, 10, 65)) + np.sign(np.linspace(-10, 10, 65)) * (
        np.cosh(np.linspace(-10, 10, 65)) - 1
    )
    np.testing.assert_allclose(networks.BINS, bins, rtol=1e-6, atol=1e-6)
    rewards = np.array([0.0, 0.1, -0.1, 1.0, -7.3, 500.0, bins[40], bins[0], bins[-1], 1e6, -1e6])
    wanted = np.stack([np.interp(rewards, bins, row) for row in np.eye(65)], -1)
    found = np.asarray(networks.two_hot(jnp.asarray(rewards, jnp.float32)))
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    np.testing.assert_allclose(found[:6] @ bins, rewards[:6], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found[1, 33], 0.1 / math.expm1(0.3125), rtol=1e-5)


# The encoder


@pytest.mark.parametrize("kind", ["mrq", "drq", "nothing terminates"])
def test_an_update_of_the_encoder(kind: str) -> None:
    """With an episode that ends inside the rollout, one by time and one by termination."""
    changes = {"own.contrast_weight": 0.1, "own.done_weight": 0.0} if kind == "drq" else {}
    config, ends = replace(SMALL, changes), kind == "mrq"
    state, batch = fresh(config), random_batch(3, HORIZON)
    params, target = ref.float64(state.params), ref.float64(state.target)
    improve = jax.jit(mrq.improve_encoder)
    part = {"encoder": state.params["encoder"]}
    part, _, told, moved = improve(
        lane_of(config), state.target, part, state.opt[0], Batch(**as_f32(batch)), jnp.bool_(ends)
    )
    hot = [np.interp(batch["reward"], networks.BINS, row) for row in np.eye(65)]
    batch["two_hot"] = np.stack(hot, -1)
    wanted = np_encoder_loss(params, target, batch, config.own, ends)
    wanted["c"] = wanted["c"] if kind == "drq" else 0.0
    names = {"d": "dynamics_loss", "r": "reward_loss", "e": "done_loss", "c": "contrast_loss"}
    for mine, name in names.items():
        np.testing.assert_allclose(told[name], wanted[mine], rtol=1e-4, err_msg=name)
    assert moved and (kind == "nothing terminates" or wanted["e" if ends else "c"] > 0.01)

    def loss(p: Any) -> float:
        return np_encoder_loss(p, target, batch, config.own, ends)["total"]

    if kind == "nothing terminates":
        return
    twin = adam_w({"encoder": params["encoder"]}, loss, {}, 1, 0.03, 1e9)
    for name, x in ref.leaves(part).items():
        np.testing.assert_allclose(x, ref.leaves(twin)[name], rtol=2e-3, atol=2e-4, err_msg=name)


# Critics and policy


def test_whole_updates() -> None:
    """Two updates, so that moments, clip and decay count; errors are small and large."""
    config = replace(SMALL, {"learn.grad_clip": 0.2})
    state = fresh(config)
    params, target = ref.float64(state.params), ref.float64(state.target)
    before = jax.device_get(state.params["encoder"])
    moments: dict = {}
    errors = []
    for count in (1, 2):
        batch = random_batch(count, STEPS)
        eps = 2 * np.random.default_rng(count).normal(size=(BATCH, ACTION))
        y = np_target(target, batch, eps, (0.5, 0.25))
        z = np_encode(params, batch["obs"][0])
        both, frozen = np_both(params, z, batch["action"][0]), params

        def critic_loss(p: Any, both: Any = both, y: Any = y, weight: Any = None) -> float:
            x = np.abs(np_critics(p, both) - y)
            return float(np.mean(weight * np.where(x < 1, 0.5 * x**2, x - 0.5)))

        critic_loss = functools.partial(critic_loss, weight=batch["weight"])
        wanted = critic_loss(params), np.abs(np_critics(params, both) - y).max(0)
        part = {"critics": params["critics"]}
        params = params | adam_w(part, critic_loss, moments, count, 0.01, 0.2)

        def policy_loss(p: Any, rest: Any = params, z: Any = z, frozen: Any = frozen) -> float:
            raw = np_raw(p, z)
            q = np_critics(rest, np_both(frozen, z, np.tanh(raw)))
            return float(0.3 * np.mean(raw**2) - q.mean())

        pi_loss = policy_loss(params)
        part = {"policy": params["policy"]}
        params = params | adam_w(part, policy_loss, moments, count, 0.02, 1e9)

        given = Batch(**as_f32(batch)), as_f32(eps), jnp.bool_(True)
        state, error, metrics = learn(lane_of(config), state, *given)
        np.testing.assert_allclose(metrics["critic_loss"], wanted[0], rtol=1e-3)
        np.testing.assert_allclose(error, wanted[1], rtol=1e-3)
        np.testing.assert_allclose(metrics["policy_loss"], pi_loss, rtol=1e-3)
        np.testing.assert_allclose(metrics["target"], 0.5 * y.mean(), rtol=1e-3, atol=1e-5)
        assert metrics["grad_norm"] > 0.2  # it was clipped
        errors += wanted[1].tolist()
        for name, x in ref.leaves(state.params).items():
            close = {"rtol": 2e-3, "atol": 2e-4, "err_msg": name}
            np.testing.assert_allclose(x, ref.leaves(params)[name], **close)
    assert min(errors) < 1 < max(errors)
    assert int(state.update_step) == 2 and int(state.skipped) == 0
    for name, x in ref.leaves(state.params["encoder"]).items():
        np.testing.assert_array_equal(x, ref.leaves(before)[name])  # never moved by them


def test_the_target_of_three_steps_by_hand() -> None:
    """Rewards 1, 2, 4 with discount 0.9 are 6.04; then 0.9^3 min(5, 3) in units of 0.25, all of it
    counted in units of 0.5. Cut off after two steps: 2.8 and 0.9^2 min; terminated there: 2.8."""
    state = fresh()._replace(target=constant_critics(fresh().params, (5.0, 3.0)))
    batch = random_batch(0, 3) | {"reward": np.outer([1.0, 2.0, 4.0], np.ones(BATCH))}
    batch["mask"] = np.ones((3, BATCH))
    batch["continues"] = np.ones((3, BATCH))
    batch["mask"][2, 1:] = 0
    batch["continues"][1, 2] = 0  # the environment
    batch["continues"][2, 1:] = 0  # of an old slot: not real
    target = jax.jit(mrq.target_of)
    found = target(lane_of(), state, Batch(**as_f32(batch)), jnp.ones((BATCH, ACTION)))
    wanted = [6.04 + 0.729 * 0.75, 2.8 + 0.81 * 0.75, 2.8, 2.8 + 0.81 * 0.75]
    np.testing.assert_allclose(found, np.array(wanted) / 0.5, rtol=1e-5)
    plain = lane_of(replace(SMALL, {"own.scale_rewards": False}))
    found = target(plain, state, Batch(**as_f32(batch)), jnp.ones((BATCH, ACTION)))
    np.testing.assert_allclose(found[0], 6.04 + 0.729 * 3, rtol=1e-5)


# What may go wrong


def test_gradients_that_are_not_finite_are_left_out_and_counted() -> None:
    store = filled()
    store = store._replace(reward=store.reward.at[:].set(jnp.nan))
    before = fresh()
    state, after, metrics = update(lane_of(), before, store, 0, True)
    assert metrics["skipped_updates"] == PERIOD  # those of the encoder
    assert int(state.skipped) == PERIOD + 1 and int(state.update_step) == 1
    unchanged = (before.params, before.opt)
    for name, x in leaves(unchanged).items():
        np.testing.assert_array_equal(leaves((state.params, state.opt))[name], x, err_msg=name)
    np.testing.assert_array_equal(after.tree.sums[0], store.tree.sums[0])


def test_the_faster_forms_of_the_engine_give_the_same() -> None:
    """On a GPU products, loops and optimiser are replaced; none of these forms needs one."""
    wanted = update(lane_of(), fresh(), filled(), 0, True)
    with replaced(fused.TABLE):
        found = jax.jit(lambda *args: mrq.update(*args))(lane_of(), fresh(), filled(), 0, True)
    for name, x in leaves(found).items():
        np.testing.assert_allclose(x, leaves(wanted)[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_settings_that_cannot_work_are_refused() -> None:
    for changes, message in (
        ({"own.period": 0}, "mrq.period is 0"),
        ({"own.return_steps": 0}, "mrq.return_steps"),
        ({"own.forgetting": 1.5}, "between 0 and 1"),
        ({"own.contrast_temperature": 0.0}, "above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            AGENTS["mrq"].check(replace(SMALL, changes))
