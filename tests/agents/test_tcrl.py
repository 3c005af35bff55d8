"""TCRL against a second implementation in NumPy (`tcrl_twin.py`): its networks and whole updates;
and its targets, losses and noise by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace import replay
from ace.agents import tcrl, told
from ace.agents.tcrl import AGENT, TcrlConfig, TcrlState
from ace.engine import fused
from ace.method import model
from ace.method.replaceable import replaced
from ace.method.types import Batch, Lane, Transition
from ace.settings.config import Config, ConfigError, replace
from tests.agents import small
from tests.agents.small import (
    ACTION,
    OBS,
    SIZES,
    WIDE,
    as_f32,
    check_crowd,
    check_faster_forms,
    check_left_out,
    check_no_turn,
    check_orthogonal,
    check_seeds,
    shaken,
)
from tests.agents.tcrl_twin import (
    BATCH,
    ENDS,
    HORIZON,
    Twin,
    np_critics,
    np_encode,
    np_move,
    np_policy,
    np_reward,
    random_batch,
)
from tests.golden import reference as ref
from tests.run.helpers import leaves

SMALL = replace(
    Config(own=TcrlConfig()),
    dict(AGENT.defaults)
    | {
        "net.latent": 3,
        "net.encoder": 4,
        "net.mlp": 4,
        "plan.horizon": HORIZON,
        "learn.batch": BATCH,
        "learn.discount": 0.9,
        "learn.learning_rate": 0.01,
        "learn.policy_learning_rate": 0.02,
        "learn.target_momentum": 0.8,
        "learn.weight_decay": 0.5,
        "learn.grad_clip": 0.4,
        "learn.reward_weight": 0.7,
    },
)


def lane_of(config: Config = SMALL, seed: int = 0, sizes: tuple[int, int] = SIZES) -> Lane:
    floats = jax.tree.map(jnp.float32, config)
    return Lane(jnp.uint32(seed), floats, jnp.arange(sizes[1]) < ACTION, ())


def fresh(config: Config = SMALL, seed: int = 0) -> TcrlState:
    return shaken(tcrl.init(config, seed, SIZES), seed)


filled = functools.partial(small.filled, HORIZON)


update, learn, act = jax.jit(tcrl.update), jax.jit(tcrl.learn), jax.jit(tcrl.act, static_argnums=7)
model_loss, target_of = jax.jit(tcrl.model_loss), jax.jit(tcrl.target_of)


def test_networks() -> None:
    rng = np.random.default_rng(1)
    params = fresh().params
    wide = ref.float64(params)
    obs, action = rng.normal(size=(7, OBS)), rng.uniform(-1, 1, (7, ACTION))
    z = np_encode(wide, obs)
    given = as_f32((z, action))
    for found, wanted in (
        (told.encode(params, as_f32(obs)), z),
        (told.move(params, *given), np_move(wide, z, action)),
        (told.reward(params, *given), np_reward(wide, z, action)),
        (tcrl.critics(params, *given), np_critics(wide, z, action)),
        (tcrl.policy(params, given[0]), np_policy(wide, z)),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_start() -> None:
    """Orthogonal matrices, zero biases; the critics share a layer and differ after it; the targets
    are copies."""
    config = replace(Config(own=TcrlConfig()), AGENT.defaults)
    state = tcrl.init(config, 0, (5, 3))
    check_orthogonal(state.params)
    shapes = {n: [x[k]["w"].shape for k in ("in", "mid", "out")] for n, x in state.params.items()}
    assert shapes == {
        "encoder": [(5, 512), (512, 512), (512, 50)],
        "dynamics": [(53, 512), (512, 512), (512, 50)],
        "reward": [(53, 512), (512, 512), (512, 1)],
        "value": [(53, 512), (2, 512, 512), (2, 512, 1)],
        "policy": [(50, 512), (512, 512), (512, 3)],
    }
    assert not np.any(state.params["value"]["mid"]["w"][0] == state.params["value"]["mid"]["w"][1])
    for name, x in leaves(state.target).items():
        np.testing.assert_array_equal(x, leaves(state.params)[name])
    assert set(state.target) == {"encoder", "value"}


# Updates


def test_updates_are_those_of_the_twin() -> None:
    """Two updates, so that Adam's moments count. Only the model's gradient is clipped, and only its
    weights decay; the noise is large enough to be clipped, too."""
    state = fresh()
    twin = Twin(state, SMALL)
    for i in range(2):
        batch, std = random_batch(i), 0.4
        eps = np.random.default_rng(50 + i).normal(size=(2, BATCH, ACTION))
        wanted = twin.step(batch, eps, std)
        args = (Batch(**as_f32(batch)), as_f32(eps), jnp.float32(std), jnp.bool_(True))
        state, metrics = learn(lane_of(), state, *args)
        for name in ("consistency", "reward", "value", "policy"):
            np.testing.assert_allclose(metrics[f"{name}_loss"], np.mean(wanted[name]), rtol=1e-3)
        for name in ("q", "target"):
            np.testing.assert_allclose(metrics[name], wanted[name], rtol=1e-3)
        norms = [metrics[name] for name in ("grad_norm", "value_grad_norm", "policy_grad_norm")]
        np.testing.assert_allclose(norms, list(twin.norms.values()), rtol=2e-3)
        assert norms[0] > 0.4 < norms[1]  # what a clip would show
        for tree, other in ((state.params, twin.params), (state.target, twin.target)):
            for name, x in ref.leaves(tree).items():
                close = {"rtol": 2e-3, "atol": 1e-4, "err_msg": name}
                np.testing.assert_allclose(x, ref.leaves(other)[name], **close)
        for opt in state.opt:
            for name, m in ref.leaves(opt[1].mu).items():
                np.testing.assert_allclose(m, twin.moments[name][0], rtol=5e-3, atol=2e-5)
    assert int(state.update_step) == 2 and int(state.skipped) == 0


def test_the_consistency_loss_is_zero_for_what_comes_true_and_four_for_its_opposite() -> None:
    """With constant predictions and targets: 1 + 0.9 + 0.81 + 0.729 times 2 - 2 cos for a whole
    segment, and only the first of these for one that ends after a step. Lengths do not matter."""

    def constant(name: str, vector: Any) -> Any:
        net = jax.tree.map(np.zeros_like, fresh().params[name])
        net["out"]["b"] = np.array(vector, np.float32)
        return net

    part = {k: fresh().params[k] for k in ("reward", "encoder")}
    part["dynamics"] = constant("dynamics", [3.0, 0.0, 4.0])
    batch = Batch(**as_f32(random_batch(0)))
    for vector, cosine in (([0.3, 0, 0.4], 1.0), ([-6, 0, -8], -1.0), ([5, 0, 0], 0.6)):
        goal = told.encode({"encoder": constant("encoder", vector)}, batch.obs)[1:]
        _, found = model_loss(part, SMALL, batch, goal)
        weights = [sum(0.9**t for t in range(steps)) for steps, _ in ENDS.values()]
        wanted = (2 - 2 * cosine) * np.mean(weights)
        np.testing.assert_allclose(found["consistency_loss"], wanted, rtol=1e-5, atol=1e-5)
    assert found["capped"] == 0
    _, capped = model_loss(part, replace(SMALL, {"learn.loss_clip": 1e-3}), batch, goal)
    np.testing.assert_allclose(capped["reward_loss"], 1e-3, rtol=1e-5)
    assert capped["capped"] == 1


def with_critics(state: TcrlState, values: tuple[float, float]) -> TcrlState:
    """An agent whose target critics are constant."""
    value = jax.tree.map(np.array, state.target["value"])
    value["out"] = {"w": 0 * value["out"]["w"], "b": np.array(values, np.float32)[:, None]}
    return state._replace(target=state.target | {"value": value})


def test_targets_in_a_replay() -> None:
    """A replay of one episode with rewards 1, 10, 100, ... that a termination or the end of time
    cuts after the fifth; the smaller target critic says 2. The discount is 0.5."""
    config = replace(SMALL, {"learn.discount": 0.5})
    state = with_critics(fresh(), (5.0, 2.0))
    for terminated in (False, True):
        store = replay.init(20, jnp.zeros(OBS), ACTION, HORIZON)
        for i in range(5):
            end = jnp.bool_(i == 4)
            obs = jnp.full(OBS, i + 1.0)
            step = Transition(
                jnp.zeros(ACTION), jnp.float32(10**i), end & terminated, end, obs, obs
            )
            store = small.add(store, step)
        batch = small.sample(store, config.replay, jax.random.key(0), 50, HORIZON)
        assert set(np.asarray(batch.index)) == set(range(5))
        np.testing.assert_array_equal(batch.weight, 1.0)
        eps, z = jnp.zeros((50, ACTION)), jnp.zeros((50, 3))
        end = 0 if terminated else 2
        wanted = {
            0: 1 + 5 + 25 + 0.125 * 2,
            1: 10 + 50 + 250 + 0.125 * 2,
            2: 100 + 500 + 2500 + 0.125 * end,
            3: 1000 + 5000 + 0.25 * end,
            4: 10000 + 0.5 * end,
        }
        y = target_of(config, state, batch, z, eps, jnp.float32(0.1))
        np.testing.assert_allclose(y, [wanted[i] for i in batch.index.tolist()], rtol=1e-6)
        one = replace(config, {"own.n_step": 1})
        y = target_of(one, state, batch, z, eps, jnp.float32(0.1))
        wanted = {i: 10**i + (end if i == 4 else 2) / 2 for i in range(5)}
        np.testing.assert_allclose(y, [wanted[i] for i in batch.index.tolist()], rtol=1e-6)


def test_values_and_policy_never_move_the_encoder() -> None:
    changes = {"learn.similarity_weight": 0.0, "learn.reward_weight": 0.0}
    lane = lane_of(replace(SMALL, changes | {"learn.weight_decay": 0.0}))
    before = fresh()
    state, _, metrics = update(lane, before, filled(), 0, True)
    assert metrics["grad_norm"] == 0 and metrics["value_grad_norm"] > 0.01
    for name, x in leaves(before.params).items():
        kept = np.array_equal(leaves(state.params)[name], x)
        assert kept == (name.split("'")[1] in ("encoder", "dynamics", "reward")), name


def test_samples_stay_uniform() -> None:
    store = filled()
    _, after, _ = update(lane_of(), fresh(), store, 0, True)
    for name, x in leaves(store).items():
        np.testing.assert_array_equal(leaves(after)[name], x, err_msg=name)
    assert set(np.asarray(after.tree.sums[0])) == {0.0, 1.0}


# The noise


def test_the_deviation_falls_along_its_schedule() -> None:
    """From 1.0 to 0.1 over 25,000 agent steps, counted from the first one of the run."""
    steps = {0: 1.0, 5_000: 0.82, 12_500: 0.55, 25_000: 0.1, 90_000: 0.1}
    for step, wanted in steps.items():
        np.testing.assert_allclose(tcrl.noise_of(SMALL, jnp.int32(step)), wanted, rtol=1e-5)
    *_, metrics = update(lane_of(), fresh(), filled(), 12_500, True)
    np.testing.assert_allclose(metrics["noise"], 0.55, rtol=1e-5)


def test_acting() -> None:
    """Training adds noise of the scheduled deviation, which only the bounds of actions clip;
    evaluation adds none."""
    params = fresh().params
    obs = np.random.default_rng(2).normal(size=OBS)
    mean = np_policy(ref.float64(params), np_encode(ref.float64(params), obs))
    acting, seen = AGENT.acting_part(fresh()), []
    for seed in range(40):
        key = jax.random.key(seed)
        args = (acting, (), as_f32(obs), jnp.bool_(True), jnp.int32(12_500), key)
        np.testing.assert_allclose(act(lane_of(), *args, False)[0], mean, rtol=1e-4, atol=1e-5)
        eps = np.asarray(model.action_normal(key, (), jnp.ones(ACTION)))
        wanted = np.clip(mean + 0.55 * eps, -1 + 1e-6, 1 - 1e-6)
        found, memory = act(lane_of(), *args, True)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        seen.append(np.abs(found - mean))
        assert memory == ()
    assert np.max(seen) > 0.5
    both = tcrl.act_policy(lane_of(), acting, as_f32(np.stack([obs, obs])))
    np.testing.assert_allclose(both, [mean, mean], rtol=1e-4, atol=1e-5)
    assert set(acting) == {"encoder", "value", "policy"}


# Lanes


def test_a_padded_lane_in_a_crowd_learns_like_the_plain_lane_alone() -> None:
    values = ((0.9, 0.9, 1.0), (0.5, 0.5, 2.0), (0.99, 1.0, 0.5))
    names = ("learn.discount", "learn.time_decay", "learn.similarity_weight")
    configs = [replace(SMALL, dict(zip(names, v, strict=True))) for v in values]
    states = [fresh(c, seed) for seed, c in enumerate(configs)]
    turns = [[True, True, True], [True, False, True]]
    check_crowd(AGENT, update, lane_of, filled, configs, states, turns)


def test_a_padded_lane_acts_like_the_plain_one() -> None:
    obs = np.random.default_rng(0).normal(size=OBS).astype(np.float32)
    found = []
    for sizes in (SIZES, WIDE):
        lane, params = lane_of(sizes=sizes), told.pad(SMALL, fresh(), sizes).params
        here = jnp.pad(obs, (0, sizes[0] - OBS))
        args = (jnp.bool_(True), jnp.int32(9_000), jax.random.key(3))
        actions = [act(lane, params, (), here, *args, train)[0] for train in (True, False)]
        both = jnp.stack(actions)
        assert not both[:, ACTION:].any()
        found.append([*both[:, :ACTION].ravel(), tcrl.value(lane, params, here, both[0])])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_a_lane_without_a_turn_stays_as_it_is() -> None:
    check_no_turn(update, lane_of(), fresh(), filled)


def test_gradients_that_are_not_finite_are_left_out_and_counted() -> None:
    check_left_out(update, lane_of(), fresh(), filled)


def test_the_faster_forms_of_the_engine_give_the_same() -> None:
    """There latents are padded from 3 to 16 numbers, of which the losses must not know."""
    with replaced(fused.TABLE):
        assert told.cast(SMALL, fresh().params)["dynamics"]["out"]["w"].shape == (4, 16)
    args = (jnp.bool_(True), jnp.int32(9_000), jax.random.key(3), True)
    seen = (lane_of(), fresh().params, (), jnp.ones(OBS), *args)
    check_faster_forms(AGENT, update, act, (lane_of(), fresh(), filled(), 0, True), seen)


def test_bf16_rounds_and_no_more() -> None:
    half = replace(SMALL, {"precision": "bf16"})
    plain, rounded = (update(lane_of(c), fresh(), filled(), 0, True) for c in (SMALL, half))
    for name in ("consistency_loss", "reward_loss", "value_loss", "policy_loss"):
        a, b = (float(found[2][name]) for found in (plain, rounded))
        assert a != b
        np.testing.assert_allclose(a, b, rtol=0.05, atol=0.02, err_msg=name)
    for x in leaves(rounded[0].params).values():
        assert x.dtype == np.float32


def test_two_seeds_differ() -> None:
    lanes = [lane_of(seed=seed) for seed in (0, 1)]
    begun = [tcrl.init(SMALL, seed, SIZES) for seed in (0, 1)]
    check_seeds(begun, update, lanes, fresh(), filled())


def test_footprint() -> None:
    networks, *rest = AGENT.footprint(SMALL, SIZES).values()
    held = sum(x.nbytes for x in leaves(fresh()).values())
    assert 0.6 * held < networks <= held and min(rest) > 0


@pytest.mark.parametrize("n_step", [0, HORIZON + 1])
def test_a_target_longer_than_a_segment_is_refused(n_step: int) -> None:
    with pytest.raises(ConfigError, match=r"tcrl.n_step is \d; it must be from 1 to plan.horizon"):
        AGENT.check(replace(SMALL, {"own.n_step": n_step}))
