"""This project's changes to the paper's method, and the instruments that show why they are there:
each against NumPy, and each without effect at the paper's value."""

# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.method import learner, losses, model, nets
from ace.settings.checks import validate
from ace.settings.config import ConfigError, replace
from tests.golden import reference as ref
from tests.golden.learning import (
    CONFIG,
    OBS,
    STEP,
    A,
    B,
    H,
    Oracle,
    batch_of,
    lane_of,
    split,
    start,
    update,
)

ON = jnp.bool_(True)


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("x", [0.0, -0.7, 3.0, 8.5, -12.0, 20.0, 60.0])
def test_the_derivative_of_tanh_does_not_round_to_zero(x: float) -> None:
    value, slope = jax.value_and_grad(nets.tanh)(jnp.float32(x))
    close(value, np.tanh(x), 1e-6)
    exact = 1 / np.cosh(np.float64(x)) ** 2
    np.testing.assert_allclose(slope, exact, rtol=1e-5, atol=1e-45)
    assert slope > 0 or abs(x) > 50


def test_large_value_errors_count_linearly_and_keep_their_gradient() -> None:
    """Errors 1 and 3 with width 2: 1, and 2 * 2 * 3 - 2 ** 2 = 8; slopes 2 and 2 * 2."""
    q, y = jnp.array([[[1.0, -3.0]]] * 2), jnp.zeros((1, 2))
    weight = jnp.array([[1.0, 0.5]])
    loss, absolute = losses.value(q, y, weight, 2.0)
    close(loss, [2 * 1.0, 2 * 0.5 * 8.0])
    close(absolute, [2 * 1.0, 2 * 0.5 * 3.0])
    slope = jax.grad(lambda q: losses.value(q, y, weight, 2.0)[0].sum())(q)
    close(slope, [[[2.0, -0.5 * 4.0]]] * 2)


def huge(config, weight: float):
    """The gradient norm of an update whose first segment has a very large value error."""
    batch = batch_of()
    batch.reward[:, 0] += 1e5
    batch = batch._replace(weight=np.array([weight, 0, 0], np.float32))
    metrics = update(lane_of(config), start(), batch, STEP, ON)[2]
    return metrics["grad_norm"], metrics["capped"]


def test_a_capped_segment_is_counted_and_a_huber_loss_caps_none() -> None:
    without = replace(CONFIG, {"learn.value_weight": 1.0, "learn.reward_weight": 0.0})
    norm, capped = huge(without, 1.0)
    assert np.isclose(capped, 1 / 3)
    bare = huge(replace(without, {"learn.value_weight": 0.0}), 1.0)[0]
    close(norm, bare)  # the value loss of the capped segment adds nothing
    repaired = replace(without, {"repair.value_huber": 10.0, "learn.loss_clip": 1e9})
    norm, capped = huge(repaired, 1.0)
    assert capped == 0 and norm > 2 * bare


def test_the_policys_loss_with_penalty_scale_and_both_critics() -> None:
    p = ref.float64(start().params)
    online = ref.encoder(p["encoder"], ref.float64(batch_of().obs))
    raw = ref.head(p["policy"], online)
    # Larger by the last bias: above 1, so that the scale counts.
    q = ref.critics(p["value"], online, np.tanh(raw)) + 5.0
    critics = start().params["value"]
    critics = critics | {"out": critics["out"] | {"b": critics["out"]["b"] + 5.0}}
    new_model, policy_params = split(start()._replace(params=start().params | {"value": critics}))
    eps = np.zeros((2, H + 1, B, A), np.float32)
    args = (new_model, online.astype("f"), online.astype("f"), batch_of(), eps)
    repairs = {"action_penalty": 0.2, "policy_scale": 0.5, "pessimism": 0.25, "policy_decay": 0.7}
    config = replace(CONFIG, {f"repair.{k}": v for k, v in repairs.items()})
    loss, found = jax.jit(learner.policy_loss_of)(policy_params, lane_of(config), *args)
    value = 0.25 * q.min(0) + 0.75 * q.mean(0)
    weight = 0.7 ** np.arange(H + 1)
    wanted = -(value.mean(1) @ weight) / np.abs(value).mean() ** 0.5
    wanted += 0.2 * (raw**2).mean(-1).mean(1) @ weight
    close(loss, wanted, 1e-4)
    close(found["policy_loss"], loss)


def test_saturated_actions_are_counted() -> None:
    state = start()
    out = state.params["policy"]["out"]
    bias = out["b"].at[0].set(40.0)  # the first of two components is always at its bound
    params = state.params | {"policy": state.params["policy"] | {"out": out | {"b": bias}}}
    metrics = update(lane_of(CONFIG), state._replace(params=params), batch_of(), STEP, ON)[2]
    rows = {k: np.asarray(v, np.float64) for k, v in batch_of()._asdict().items()}
    z, _, _ = ref.rollout(ref.float64(params), rows)
    raw = ref.head(ref.float64(params)["policy"], np.stack(z))
    close(metrics["saturated"], (np.abs(np.tanh(raw)) > 0.99).mean(), 1e-6)
    assert metrics["saturated"] >= 0.5


def test_the_clipped_share_of_the_gradients() -> None:
    metrics = update(lane_of(CONFIG), start(), batch_of(), STEP, ON)[2]
    for prefix in ("", "policy_"):
        norm = metrics[f"{prefix}grad_norm"]
        close(metrics[f"{prefix}clipped"], max(0.0, 1 - 0.05 / norm), 1e-6)
    wide = replace(CONFIG, {"learn.grad_clip": 1e6})
    metrics = update(lane_of(wide), start(), batch_of(), STEP, ON)[2]
    assert metrics["clipped"] == 0 and metrics["policy_clipped"] == 0


@pytest.mark.parametrize(("own", "residual"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.7)])
def test_the_gap_between_learned_and_planned_latents(own: float, residual: float) -> None:
    config = replace(CONFIG, {"repair.step_stats": own, "repair.residual": residual})
    state, batch = start(), batch_of()
    p, s = ref.float64(state.params), ref.float64(state.stats)
    rows = {k: np.asarray(v, np.float64) for k, v in batch._asdict().items()}
    z, b, _ = ref.rollout(p, rows, residual)
    used = {k: s["steps"][k][0] if own else s["projector"][k] for k in ("mean", "var")}
    planned, _, _ = ref.batch_norm_net(p["projector"], b[0], used["mean"], used["var"])
    planned = planned + residual * z[0]
    wanted = np.sqrt(((planned - z[1]) ** 2).mean() / z[1].var(0).mean())
    found = update(lane_of(config), state, batch, STEP, ON)[2]["latent_gap"]
    close(found, wanted, 1e-3)


def test_a_step_of_the_model_adds_to_the_latent() -> None:
    config, state, batch = replace(CONFIG, {"repair.residual": 0.7}), start(), batch_of()
    metrics = update(lane_of(config), state, batch, STEP, ON)[2]
    oracle = Oracle(state, batch, 0.7)
    found = oracle.losses(oracle.params)
    for name in ("similarity", "reward", "value"):
        close(metrics[f"{name}_loss"], found[name], 1e-4)
    close(metrics["novelty"], oracle.novelty.mean(), 1e-4)
    params, norms = state.params, model.planning_norms(config, state.params, state.stats)
    z, action = jnp.ones((3, 4)), jnp.ones((3, 2))
    moved, _ = model.move(config, params, jax.tree.map(lambda x: x[0], norms), z, None, action)
    plain, _ = model.move(CONFIG, params, jax.tree.map(lambda x: x[0], norms), z, None, action)
    close(moved, plain + 0.7, 1e-6)


@pytest.mark.parametrize("residual", [0.0, 0.5, 1.0])
def test_what_is_added_begins_at_nothing(residual: float) -> None:
    config = replace(CONFIG, {"repair.residual": residual})
    found, plain = (
        model.init(np.random.default_rng(0), c, OBS, 2)[0]["projector"]["out"]["w"]
        for c in (config, CONFIG)
    )
    close(found, (1 - residual) * plain, 1e-6)


def test_running_moments_of_observations_are_those_of_all_batches() -> None:
    batches = np.random.default_rng(0).normal(3.0, 2.0, (20, 8, OBS)).astype("f")
    moments = {"mean": np.zeros(OBS, "f"), "var": np.ones(OBS, "f"), "count": np.float32(0)}
    for batch in batches:
        moments = model.fold_obs(moments, batch)
    rows = batches.reshape(-1, OBS).astype(np.float64)
    close(moments["mean"], rows.mean(0), 1e-5)
    close(moments["var"], rows.var(0), 1e-4)
    late = model.fold_obs(moments | {"count": np.float32(1e6)}, batches[0])
    close(late["mean"], moments["mean"] + 1e-4 * (batches[0].mean(0) - moments["mean"]), 1e-6)


def test_normalised_observations_are_the_only_change_of_an_update() -> None:
    """The same update as on observations that were normalised beforehand."""
    config, batch = replace(CONFIG, {"repair.normalise": 1.0}), batch_of()
    batch = batch._replace(obs=batch.obs * 3 + 1)
    state = start()
    stats = state.stats | {"obs": state.stats["obs"] | {"count": jnp.float32(4.0)}}
    state = state._replace(stats=stats)
    found = update(lane_of(config), state, batch, STEP, ON)
    moments = model.fold_obs(stats["obs"], batch.obs[0])
    scaled = (batch.obs - moments["mean"]) / np.sqrt(moments["var"] + 1e-4)
    wanted = update(lane_of(CONFIG), state, batch._replace(obs=np.asarray(scaled)), STEP, ON)
    for a, b in zip(
        jax.tree.leaves(found[0].params), jax.tree.leaves(wanted[0].params), strict=True
    ):
        close(a, b, 1e-5)
    for name in ("mean", "var", "count"):
        close(found[0].stats["obs"][name], moments[name])
    raw = update(lane_of(CONFIG), state, batch, STEP, ON)
    assert abs(raw[2]["similarity_loss"] - found[2]["similarity_loss"]) > 1e-3


def test_padding_does_not_touch_normalised_observations() -> None:
    config = replace(CONFIG, {"repair.normalise": 1.0})
    state = learner.pad(config, learner.init(config, 0, (OBS, A)), (OBS + 2, A))
    batch = batch_of()
    wide = batch._replace(obs=np.pad(batch.obs, ((0, 0), (0, 0), (0, 2))))
    small = update(lane_of(config), learner.init(config, 0, (OBS, A)), batch, STEP, ON)
    large = update(lane_of(config), state, wide, STEP, ON)
    close(large[0].params["encoder"]["out"]["w"], small[0].params["encoder"]["out"]["w"], 1e-6)
    assert not np.any(large[0].params["encoder"]["in"]["w"][OBS:])


def test_the_first_bias_has_the_deviation_of_its_product_and_moves_no_other_draw() -> None:
    sizes = {"net.encoder": 4096, "net.latent": 2}
    made = [
        model.init(np.random.default_rng(0), replace(CONFIG, sizes | change), OBS, A)[0]
        for change in ({}, {"repair.first_bias": 0.5})
    ]
    bias = made[1]["encoder"]["in"]["b"]
    assert not made[0]["encoder"]["in"]["b"].any()
    assert abs(bias.std() / (0.5 * np.sqrt(OBS / 4096)) - 1) < 0.05
    made[1]["encoder"]["in"]["b"] = made[0]["encoder"]["in"]["b"]
    for a, b in zip(*map(jax.tree.leaves, made), strict=True):
        np.testing.assert_array_equal(a, b)


def test_norms_in_the_policy_and_the_reward_head() -> None:
    config = replace(CONFIG, {"repair.norms": True})
    rng = np.random.default_rng(0)
    params, _ = model.init(rng, config, OBS, A)
    params = jax.tree.map(lambda x: x + 0.3 * rng.standard_normal(x.shape).astype("f"), params)
    p = ref.float64(params)

    def head(p, x):
        for layer in ("in", "mid"):
            norm = p[f"norm_{layer}"]
            x = ref.elu(ref.layer_norm(norm["scale"], norm["bias"], ref.affine(p[layer], x), 1e-5))
        return ref.affine(p["out"], x)

    z, b = rng.standard_normal((7, 4)), rng.standard_normal((7, 3))
    z32, b32 = jnp.asarray(z, jnp.float32), jnp.asarray(b, jnp.float32)
    close(model.policy(params, z32), np.tanh(head(p["policy"], z)), 1e-4)
    found = model.reward(params, z32, b32, jnp.zeros((7, A)), b32)
    close(found, head(p["reward"], b)[:, 0], 1e-4)


def test_a_width_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="value_huber is 0"):
        validate(replace(CONFIG, {"repair.value_huber": 0.0}))
