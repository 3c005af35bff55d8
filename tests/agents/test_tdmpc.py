"""TD-MPC against a second implementation in NumPy (`tdmpc_twin.py`): its networks, plans and whole
updates; and its targets and schedules by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.agents import tdmpc, told
from ace.agents.tdmpc import AGENT, TdmpcState
from ace.engine import fused
from ace.method import model
from ace.method.replaceable import replaced
from ace.method.types import Batch, Lane
from ace.planners import PLANNERS, Planner
from ace.settings.config import Config, replace
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
from tests.agents.tdmpc_twin import (
    BATCH,
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
    Config(),
    dict(AGENT.defaults)
    | {
        "net.latent": 3,
        "net.encoder": 4,
        "net.mlp": 4,
        "plan.horizon": HORIZON,
        "plan.iterations": 2,
        "plan.population": 20,
        "plan.elites": 4,
        "plan.policy_fraction": 0.15,
        "learn.batch": BATCH,
        "learn.discount": 0.9,
        "learn.learning_rate": 0.01,
        "learn.policy_learning_rate": 0.02,
        "learn.target_momentum": 0.8,
    },
)


def lane_of(config: Config = SMALL, seed: int = 0, sizes: tuple[int, int] = SIZES) -> Lane:
    floats = jax.tree.map(jnp.float32, config)
    constants = jnp.asarray(AGENT.constants(config))
    return Lane(jnp.uint32(seed), floats, jnp.arange(sizes[1]) < ACTION, constants)


def fresh(config: Config = SMALL, seed: int = 0) -> TdmpcState:
    return shaken(tdmpc.init(config, seed, SIZES), seed)


filled = functools.partial(small.filled, HORIZON)


update, learn, act = (
    jax.jit(tdmpc.update),
    jax.jit(tdmpc.learn),
    jax.jit(tdmpc.act, static_argnums=7),
)
plan_value = jax.jit(tdmpc.plan_value)


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
        (told.critics(params, *given), np_critics(wide, z, action)),
        (model.policy(params, given[0]), np_policy(wide, z, np.zeros(ACTION))),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_start() -> None:
    """Orthogonal matrices, zero biases; rewards and values of zero; the critics differ."""
    params = tdmpc.init(Config(), 0, (5, 3)).params
    heads = ("['reward']['out']['w']", "['value']['out']['w']")
    check_orthogonal(params, zero=heads)
    sizes = {name: x["in"]["w"].shape[-2:] for name, x in params.items()}
    assert sizes == {
        "encoder": (5, 256),
        "dynamics": (53, 512),
        "reward": (53, 512),
        "value": (53, 512),
        "policy": (50, 512),
    }
    assert not np.any(params["value"]["mid"]["w"][0] == params["value"]["mid"]["w"][1])


# Updates


def test_updates_are_those_of_the_twin() -> None:
    """Two updates, so that Adam's moments, the clip and the target's turns count."""
    config = replace(SMALL, {"learn.grad_clip": 0.4})
    state = fresh()
    twin = Twin(state, config)
    clipped = []
    for i in range(2):
        batch = random_batch(i)
        eps = np.random.default_rng(50 + i).normal(size=(2, HORIZON + 1, BATCH, ACTION))
        wanted = twin.step(batch, eps)
        given = Batch(**as_f32(batch))
        state, priority, metrics = learn(
            lane_of(config), state, given, as_f32(eps), jnp.bool_(True)
        )
        np.testing.assert_allclose(priority, wanted["l1"], rtol=1e-3)
        for name in ("consistency", "reward", "value"):
            np.testing.assert_allclose(metrics[f"{name}_loss"], wanted[name].mean(), rtol=1e-3)
        np.testing.assert_allclose(metrics["policy_loss"], wanted["policy"], rtol=1e-3)
        clipped.append(float(metrics["grad_norm"]) > 0.4)
        for tree, other in ((state.params, twin.params), (state.target, twin.target)):
            for name, x in ref.leaves(tree).items():
                np.testing.assert_allclose(
                    x, ref.leaves(other)[name], rtol=2e-3, atol=1e-4, err_msg=name
                )
        for opt in state.opt:
            for name, m in ref.leaves(opt[1].mu).items():
                np.testing.assert_allclose(m, twin.moments[name][0], rtol=5e-3, atol=2e-5)
    assert any(clipped) and int(state.update_step) == 2 and int(state.skipped) == 0


def constant_heads(params: Any, reward: float, values: tuple[float, float]) -> Any:
    """Parameters under which every reward and both critics are constant."""
    params = jax.tree.map(np.array, params)
    for name, bias in (("reward", [reward]), ("value", [[values[0]], [values[1]]])):
        params[name]["out"] = {
            "w": 0 * params[name]["out"]["w"],
            "b": np.array(bias, np.float32),
        }
    return params


def test_the_target_is_one_step_of_the_smaller_target_critic() -> None:
    """y = r + 0.9 c min(5, 2): 1.8 more than the reward, and the reward alone at a termination; of
    later rewards in the segment nothing."""
    params = fresh().params
    target = constant_heads(params, 0.0, (5.0, 2.0))
    batch = random_batch(0)
    eps = jnp.zeros((HORIZON, BATCH, ACTION))
    latents, y = jax.jit(tdmpc.targets_of)(SMALL, params, target, Batch(**as_f32(batch)), eps)
    wanted = batch["reward"] + 1.8
    wanted[-1, 2] = batch["reward"][-1, 2]
    np.testing.assert_allclose(y, wanted, rtol=1e-5)
    np.testing.assert_allclose(latents, np_encode(ref.float64(target), batch["obs"][1:]), atol=1e-5)


def test_a_capped_loss_has_no_gradient() -> None:
    config = replace(SMALL, {"learn.loss_clip": 1e-6})
    batch, eps = Batch(**as_f32(random_batch(0))), jnp.zeros((2, HORIZON + 1, BATCH, ACTION))
    _, priority, metrics = learn(lane_of(config), fresh(), batch, eps, jnp.bool_(True))
    assert metrics["grad_norm"] == 0 and metrics["capped"] == 1
    np.testing.assert_allclose(priority, 1e-6, rtol=1e-5)


# Plans


def test_the_value_of_constant_heads() -> None:
    """1 + 0.9 + ... + 0.9^(h-1) + 0.9^h min(5, 7)."""
    params = constant_heads(fresh().params, 1.0, (5.0, 7.0))
    actions, eps = jnp.ones((HORIZON, 6, ACTION)), jnp.zeros((6, ACTION))
    for h, wanted in ((1, 1 + 4.5), (2, 1.9 + 4.05), (3, 2.71 + 3.645)):
        found = plan_value(SMALL, params, jnp.zeros(3), actions, jnp.int32(h), eps)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    alone = replace(SMALL, {"plan.terminal_value": False})
    found = plan_value(alone, params, jnp.zeros(3), actions, jnp.int32(2), eps)
    np.testing.assert_allclose(found, 1.9, rtol=1e-5)


def spy(seen: dict[str, Any], calls: tuple[int, ...], proposals: int) -> Planner:
    """A planner that keeps what it is given, and acts by a constant."""

    def plan(config, score, given, memory, x, key, train):
        fixed = np.random.default_rng(2).uniform(-1, 1, (HORIZON, calls[0], ACTION))
        values = [score(jnp.asarray(fixed, jnp.float32), slice(0, 0), k) for k in range(len(calls))]
        seen.update(proposals=given, values=values, actions=fixed, horizon=x.horizon)
        seen.update(policy=x.policy(), train=train)
        return jnp.full(ACTION, 0.25), memory + 1

    return Planner(
        init=lambda config, size: jnp.zeros(()),
        plan=plan,
        proposals=lambda config: proposals,
        calls=lambda config: calls,
    )


def test_what_a_planner_is_given(monkeypatch) -> None:
    """Proposals are rollouts of the noisy policy; values are those of a rollout in NumPy, with
    other noise at the end in each call."""
    seen: dict[str, Any] = {}
    monkeypatch.setitem(PLANNERS, "spy", spy(seen, (6, 6), 2))
    config = replace(SMALL, {"plan.planner": "spy"})
    state, obs, key = fresh(), np.array([0.5, -1.0, 2.0]), jax.random.key(4)
    memory = AGENT.memory(config, ACTION)
    lane = Lane(jnp.uint32(0), config, jnp.ones(ACTION, bool), ())
    args = (jnp.bool_(True), jnp.int32(12_500), key, True)
    action, memory = tdmpc.act(lane, state.params, memory, as_f32(obs), *args)
    assert action.tolist() == [0.25, 0.25] and memory.plan == 1 and memory.horizon == 2
    p = ref.float64(state.params)
    eps = model.action_normal(jax.random.split(key)[0], (2 * HORIZON + 12,), jnp.ones(ACTION))
    eps = np.asarray(eps, np.float64)
    z = np.tile(np_encode(p, obs), (2, 1))
    np.testing.assert_allclose(seen["policy"], np_policy(p, z, 0 * z[:, :2])[0], rtol=1e-4)
    for t in range(HORIZON):
        wanted = np_policy(p, z, eps[2 * t : 2 * t + 2])
        np.testing.assert_allclose(seen["proposals"][t], wanted, rtol=1e-4, atol=1e-5)
        z = np_move(p, z, wanted)
    z, total = np.tile(np_encode(p, obs), (6, 1)), np.zeros(6)
    for t in range(2):  # the working horizon
        total += 0.9**t * np_reward(p, z, seen["actions"][t])
        z = np_move(p, z, seen["actions"][t])
    for k in range(2):
        end = np_policy(p, z, eps[2 * HORIZON + 6 * k :][:6])
        q = np.minimum(*np_critics(p, z, end))
        np.testing.assert_allclose(seen["values"][k], total + 0.81 * q, rtol=1e-4, atol=1e-5)
    # The horizon stays what it was when the episode began.
    later = (jnp.bool_(False), jnp.int32(25_000), key, False)
    _, memory = tdmpc.act(lane, state.params, memory, as_f32(obs), *later)
    assert memory.horizon == 2 == seen["horizon"] and seen["train"] is False


def test_it_finds_the_better_action() -> None:
    """The reward head reads the action alone: relu-like in its first component, so that plans
    should push it up; with the opposite sign, down."""
    params = constant_heads(fresh().params, 0.0, (0.0, 0.0))
    head = jax.tree.map(np.zeros_like, params["reward"])
    head["in"]["w"][3, 0] = head["mid"]["w"][0, 0] = 1.0
    for sign in (1.0, -1.0):
        head["out"]["w"][0, 0] = sign
        acting, lane = params | {"reward": head}, lane_of()
        memory = AGENT.memory(SMALL, ACTION)
        args = (jnp.bool_(True), jnp.int32(50_000), jax.random.key(0), False)
        action, _ = act(lane, acting, memory, jnp.ones(OBS), *args)
        assert sign * action[0] > 0.7


# Lanes


def test_footprint() -> None:
    networks, *rest = AGENT.footprint(SMALL, SIZES).values()
    held = sum(x.nbytes for x in leaves(fresh()).values())
    assert 0.6 * held < networks <= held and min(rest) > 0
    none = AGENT.footprint(replace(SMALL, {"plan.planner": "policy"}), SIZES)
    assert [*none.values()][-1] == 0  # it rates no sequence


def test_a_padded_lane_in_a_crowd_learns_like_the_plain_lane_alone() -> None:
    values = ((0.9, 0.0, 2.0), (0.5, 0.5, 1.0), (0.99, 0.0, 0.5))
    names = ("learn.discount", "learn.td_lambda", "learn.similarity_weight")
    configs = [replace(SMALL, dict(zip(names, v, strict=True))) for v in values]
    states = [fresh(c, seed) for seed, c in enumerate(configs)]
    turns = [[True, True, True], [True, False, True]]
    check_crowd(AGENT, update, lane_of, filled, configs, states, turns)


def test_a_padded_lane_plans_like_the_plain_one() -> None:
    obs = np.random.default_rng(0).normal(size=OBS).astype(np.float32)
    found = []
    for sizes in (SIZES, WIDE):
        lane, params = lane_of(sizes=sizes), told.pad(SMALL, fresh(), sizes).params
        here = jnp.pad(obs, (0, sizes[0] - OBS))
        args = (jnp.bool_(True), jnp.int32(30_000), jax.random.key(3), False)
        action, _ = act(lane, params, AGENT.memory(SMALL, sizes[1]), here, *args)
        both = jnp.stack([action, tdmpc.act_policy(lane, params, here)])
        assert not both[:, ACTION:].any()
        q = tdmpc.value(lane, params, here, action)
        found.append([*both[:, :ACTION].ravel(), q])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_a_lane_without_a_turn_stays_as_it_is() -> None:
    check_no_turn(update, lane_of(), fresh(), filled)


def test_gradients_that_are_not_finite_are_left_out_and_counted() -> None:
    check_left_out(update, lane_of(), fresh(), filled)


def test_the_faster_forms_of_the_engine_give_the_same() -> None:
    """There latents are padded from 3 to 16 numbers, of which the losses must not know."""
    with replaced(fused.TABLE):
        assert told.cast(SMALL, fresh().params)["dynamics"]["out"]["w"].shape == (4, 16)
    args = (jnp.bool_(True), jnp.int32(30_000), jax.random.key(3), False)
    seen = (lane_of(), fresh().params, AGENT.memory(SMALL, ACTION), jnp.ones(OBS), *args)
    check_faster_forms(AGENT, update, act, (lane_of(), fresh(), filled(), 0, True), seen)


def test_bf16_rounds_and_no_more() -> None:
    half, params = replace(SMALL, {"precision": "bf16"}), fresh().params
    actions = as_f32(random_batch(0)["action"])
    eps, z = jnp.zeros((BATCH, ACTION)), told.encode(params, jnp.ones(OBS))
    wanted = plan_value(SMALL, params, z, actions, jnp.int32(2), eps)
    cast = told.cast(half, params)
    assert cast["dynamics"]["mid"]["w"].dtype == cast["value"]["in"]["w"].dtype == jnp.bfloat16
    assert cast["encoder"]["in"]["w"].dtype == cast["value"]["norm"]["bias"].dtype == jnp.float32
    rounded = told.encode(cast, jnp.ones(OBS))
    assert rounded.dtype == jnp.bfloat16
    found = plan_value(half, cast, rounded, actions, jnp.int32(2), eps)
    assert found.dtype == jnp.float32 and np.any(found != wanted)
    np.testing.assert_allclose(found, wanted, rtol=0.05, atol=0.05)


def test_two_seeds_differ() -> None:
    lanes = [lane_of(seed=seed) for seed in (0, 1)]
    begun = [tdmpc.init(SMALL, seed, SIZES) for seed in (0, 1)]
    check_seeds(begun, update, lanes, fresh(), filled())
