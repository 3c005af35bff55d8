"""One update against a NumPy version of Algorithm 2: losses, targets, gradients by finite
differences, clipping, Adam, target networks, statistics (3.1 to 3.9, 4.2)."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (NumPy arrays are as good as JAX's here.)

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.method import learner
from ace.method.types import LearnerState
from ace.settings.config import flatten, replace
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

model_loss = jax.jit(
    lambda params, config, batch, z, y: learner.model_loss(params, config, batch, z, y)
)
model_gradient = jax.jit(
    lambda params, config, batch, z, y: jax.grad(learner.model_loss, has_aux=True)(
        params, config, batch, z, y
    )[0]
)


def close(got, wanted, tolerance=1e-4):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=tolerance, atol=tolerance)


def gap(a, b) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


@pytest.fixture(scope="module", params=[False, True], ids=["full", "short"])
def first(request):
    """The first update and its oracle."""
    state, batch = start(), batch_of(request.param)
    new, priority, metrics = update(lane_of(CONFIG), state, batch, STEP, jnp.bool_(True))
    return state, batch, new, np.asarray(priority), metrics, Oracle(state, batch)


def test_losses_priorities_and_targets(first) -> None:
    _, batch, new, priority, metrics, oracle = first
    wanted = oracle.losses()
    for name in ("similarity", "reward", "value"):
        close(metrics[f"{name}_loss"], wanted[name])
    close(priority, wanted["priority"])
    assert priority.shape == (B,)
    close(metrics["novelty"], np.sum(oracle.novelty) / batch.mask.sum())
    close(metrics["novelty_weight"], 0.2)
    close(new.moments, oracle.new_moments)
    assert oracle.novelty.max() == 1 and np.any(oracle.novelty == 0)


def test_scalar_loss_weighs_each_segment(first) -> None:
    state, batch, _, _, _, oracle = first
    loss, aux = model_loss(split(state)[0], CONFIG, batch, oracle.target_z, oracle.y)
    close(loss, oracle.losses()["loss"])
    close(np.asarray(aux["z"]), np.stack(oracle.losses()["z"]))


def adam_state(state: LearnerState, which: int):
    moments = next(s for s in state.opt[which] if hasattr(s, "mu"))
    return (ref.leaves(moments.mu), ref.leaves(moments.nu))


def check_step(
    before: LearnerState, after: LearnerState, which: int, grads, rate, count, prefix=""
):
    """New moments and parameters from the oracle's gradients, clipped together."""
    clipped, norm = ref.clip_by_norm(grads, 0.05)
    assert norm > 0.05  # the clip is at work
    old_m, old_v = adam_state(before, which)
    new_m, new_v = adam_state(after, which)
    old, new = ref.leaves(before.params), ref.leaves(after.params)
    checked = 0
    for name, g in clipped.items():
        full = prefix + name
        m, v = (np.asarray(x[full], np.float64) for x in (old_m, old_v))
        change, m, v = ref.adam(g, m, v, count, rate)
        np.testing.assert_allclose(new_m[full], m, rtol=2e-3, atol=3e-6, err_msg=full)
        np.testing.assert_allclose(new_v[full], v, rtol=5e-3, atol=1e-8, err_msg=full)
        sure = np.abs(g) > 1e-4  # Adam's first steps blow up the rounding of tiny gradients
        moved = np.asarray(new[full], np.float64) - np.asarray(old[full], np.float64)
        np.testing.assert_allclose(moved[sure], change[sure], rtol=3e-2, atol=1e-6, err_msg=full)
        checked += sure.sum()
    assert checked > 30
    return norm


def test_model_step(first) -> None:
    state, _, new, _, metrics, oracle = first
    norm = check_step(state, new, 0, oracle.model_gradient(), rate=2e-3, count=1)
    close(metrics["grad_norm"], norm, 1e-3)


def test_policy_step_uses_the_new_critics_and_the_old_latents(first) -> None:
    state, _, new, _, metrics, oracle = first
    z = oracle.losses()["z"]
    loss, grads = oracle.policy_gradient(ref.float64(new.params["value"]), z)
    close(metrics["policy_loss"], loss)
    norm = check_step(state, new, 1, grads, rate=3e-3, count=1, prefix="policy.")
    close(metrics["policy_grad_norm"], norm, 1e-3)


def test_running_statistics_follow_the_rollout(first) -> None:
    _, _, new, _, _, oracle = first
    _, _, passes = ref.rollout(oracle.params, oracle.batch)
    mean, var = oracle.stats["projector"]["mean"], oracle.stats["projector"]["var"]
    for batch_mean, batch_var in passes:  # the biased variance of B rows made unbiased
        mean = 0.9 * mean + 0.1 * batch_mean
        var = 0.9 * var + 0.1 * batch_var * B / (B - 1)
    close(new.stats["projector"]["mean"], mean)
    close(new.stats["projector"]["var"], var)
    rows = np.concatenate(ref.rollout(oracle.params, oracle.batch)[0][1:])  # one pass of H B rows
    _, batch_mean, batch_var = ref.batch_norm_net(oracle.params["predictor"], rows)
    old = oracle.stats["predictor"]
    close(new.stats["predictor"]["mean"], 0.9 * old["mean"] + 0.1 * batch_mean)
    close(new.stats["predictor"]["var"], 0.9 * old["var"] + 0.1 * batch_var * 6 / 5)


def test_target_network_moves_every_second_update() -> None:
    state, lane, batch = start(), lane_of(CONFIG), batch_of()
    for count in range(4):
        new = update(lane, state, batch, STEP, jnp.bool_(True))[0]
        assert new.update_step == count + 1
        keep = 0.99 if count % 2 == 0 else 1.0
        assert set(new.target) == {"encoder", "value"}
        for name, old in ref.leaves(state.target).items():
            online = ref.leaves(new.params)[name]
            wanted = keep * ref.float64(old) + (1 - keep) * ref.float64(online)
            np.testing.assert_allclose(ref.leaves(new.target)[name], wanted, atol=1e-6)
        state = new


def test_second_step_of_adam(first) -> None:
    """Bias correction counts on, and the moments are carried."""
    if np.asarray(first[1].mask).min() == 0:
        pytest.skip("once is enough")
    _, batch, state, *_ = first
    new = update(lane_of(CONFIG), state, batch, STEP, jnp.bool_(True))[0]
    check_step(state, new, 0, Oracle(state, batch).model_gradient(), rate=2e-3, count=2)


@pytest.mark.parametrize("where", ["reward", "obs", "action"])
def test_a_gradient_that_is_no_number_changes_nothing(where: str) -> None:
    state, batch = start(), batch_of()
    broken = getattr(batch, where).copy()
    broken[(0,) * broken.ndim] = np.nan
    new, _, _ = update(
        lane_of(CONFIG), state, batch._replace(**{where: broken}), STEP, jnp.bool_(True)
    )
    assert new.skipped == state.skipped + 1 and new.update_step == state.update_step + 1

    def same(s):
        return s._replace(skipped=0, update_step=0)

    for a, b in zip(jax.tree.leaves(same(new)), jax.tree.leaves(same(state)), strict=True):
        np.testing.assert_array_equal(a, b)
    good, _, _ = update(lane_of(CONFIG), new, batch, STEP, jnp.bool_(True))
    assert good.skipped == new.skipped and good.update_step == 2


def test_a_policy_gradient_that_is_no_number_leaves_out_the_policy_alone(monkeypatch) -> None:
    state, batch, args = start(), batch_of(), (STEP, jnp.bool_(True))
    # At the first update the policy is due, at the second it is not.
    delayed = lane_of(replace(CONFIG, {"parity.policy_delay": 2}))
    good, _, _ = update(lane_of(CONFIG), state, batch, *args)
    honest = learner.policy_loss_of

    def broken(*args):
        loss, aux = honest(*args)
        return loss * jnp.nan, aux

    monkeypatch.setattr(learner, "policy_loss_of", broken)
    broken_update = jax.jit(lambda *args: learner.update(*args))
    new, _, _ = broken_update(delayed, state, batch, *args)
    assert new.skipped == state.skipped + 1 and good.skipped == state.skipped

    def model_of(s):
        rest = {name: p for name, p in s.params.items() if name != "policy"}
        return s._replace(params=rest, opt=s.opt[0], skipped=0)

    def equal(a, b):
        jax.tree.map(np.testing.assert_array_equal, a, b)

    equal((new.params["policy"], new.opt[1]), (state.params["policy"], state.opt[1]))
    equal(model_of(new), model_of(good))
    later = state._replace(update_step=jnp.int32(1))
    assert broken_update(delayed, later, batch, *args)[0].skipped == state.skipped


def test_a_good_update_is_not_counted_as_skipped(first) -> None:
    assert first[2].skipped == 0


@pytest.fixture(scope="module")
def plain():
    """Model parameters, batch, target latents and targets."""
    state, batch = start(), batch_of()
    oracle = Oracle(state, batch)
    return split(state)[0], batch, oracle.target_z.astype("f"), oracle.y.astype("f"), oracle


def test_a_segment_of_weight_zero_has_no_influence(plain) -> None:
    params, batch, z, y, _ = plain
    reward, other = batch.reward.copy(), y.copy()
    reward[:, 1] += 3.0
    other[:, 1] -= 2.0
    changed = batch._replace(reward=reward)
    for weight, matters in ((0.0, False), (1.0, True)):
        w = np.array([1.0, weight, 1.0], np.float32)
        a = model_gradient(params, CONFIG, batch._replace(weight=w), z, y)
        b = model_gradient(params, CONFIG, changed._replace(weight=w), z, other)
        assert (gap(a, b) > 1e-3) == matters


def test_a_clipped_loss_has_no_gradient(plain) -> None:
    params, batch, z, y, _ = plain
    tight = replace(CONFIG, {"learn.loss_clip": 1e-4})
    grads = model_gradient(params, tight, batch, z, y)
    assert gap(grads, jax.tree.map(jnp.zeros_like, grads)) == 0
    loss, aux = model_loss(params, tight, batch, z, y)
    close(loss, 1e-4 * (1.0 + 0.5 + 0.1) * batch.weight.mean(), 1e-9)
    close(aux["priority"], np.full(B, 1e-4), 1e-9)


def test_only_the_clipped_segment_loses_its_gradient(plain) -> None:
    params, batch, z, y, _ = plain
    far = y.copy()
    far[:, 1] = 500.0  # squared errors of 250000 a step

    def weights(w):
        return batch._replace(weight=np.array([1.0, w, 1.0], np.float32))

    heads = [model_gradient(params, CONFIG, weights(w), z, far)["value"] for w in (1.0, 0.0)]
    assert gap(*heads) < 1e-6


def test_time_decay_weighs_the_value_only(plain) -> None:
    params, batch, z, y, _ = plain
    value = {}
    for rho in (0.0, 1.0):
        _, aux = model_loss(params, replace(CONFIG, {"learn.time_decay": rho}), batch, z, y)
        value[rho] = {n: float(aux[n]) for n in ("similarity_loss", "reward_loss", "value_loss")}
    assert value[0.0]["similarity_loss"] == value[1.0]["similarity_loss"]
    assert value[0.0]["reward_loss"] == value[1.0]["reward_loss"]
    assert value[0.0]["value_loss"] < value[1.0]["value_loss"] - 0.1


@pytest.mark.parametrize("mode", ["batch_mean", "none"])
def test_importance_options(plain, mode: str) -> None:
    params, batch, z, y, oracle = plain
    loss, _ = model_loss(params, replace(CONFIG, {"parity.importance": mode}), batch, z, y)
    mean = batch.weight.mean() if mode == "batch_mean" else 1.0
    totals = []
    for i in range(B):
        oracle.batch["weight"] = np.eye(B)[i] * B
        totals.append(oracle.losses()["loss"])
    oracle.batch["weight"] = np.asarray(batch.weight, np.float64)
    close(loss, mean * np.mean(totals))


def test_literal_time_decay_option(plain) -> None:
    params, batch, z, y, oracle = plain
    literal = replace(CONFIG, {"parity.model_time_decay": True, "learn.time_decay": 0.0})
    _, aux = model_loss(params, literal, batch, z, y)
    first = oracle.losses()
    b = ref.rollout(oracle.params, oracle.batch)[1]
    error = (ref.head(oracle.params["reward"], b[0])[:, 0] - batch.reward[0]) ** 2
    close(aux["reward_loss"], error.mean())  # only the first step is left
    assert aux["similarity_loss"] < first["similarity"]


def test_initial_learner() -> None:
    state = learner.init(CONFIG, 7, (OBS, A))
    for name in ("encoder", "value"):
        assert gap(state.target[name], state.params[name]) == 0
    assert [float(x) for x in state.moments] == pytest.approx([0.0, 1.0, 1e-4])
    other = learner.init(CONFIG, 8, (OBS, A))
    assert gap(state.params["encoder"], other.params["encoder"]) > 0.1


LEARN_FLOATS = [
    name
    for name, value in flatten(CONFIG).items()
    if name.startswith(("learn.", "repair."))
    and isinstance(value, float)
    # Read by the loop, the initialisation and the planner; the last one needs values above 1.
    and name.removeprefix("learn.") not in ("seed_updates", "novelty_ema")
    and name.removeprefix("repair.") not in ("first_bias", "step_stats", "policy_scale")
]


@pytest.fixture(scope="module")
def busy():
    """A situation in which every number of the learner matters, and its update."""
    changes = {
        "learn.smoothing_std": 0.3,
        "learn.smoothing_clip": 0.2,
        "learn.weight_decay": 0.01,
        "learn.loss_clip": 20.0,
        "learn.novelty_ramp.start": 0.1,
        "repair.value_huber": 0.5,
        "repair.action_penalty": 0.1,
        "repair.policy_scale": 0.5,
        "repair.normalise": 0.5,
        "repair.residual": 0.5,
    }
    config, batch = replace(CONFIG, changes), batch_of()
    batch.reward[:, 0] += 9.0  # more than the clip allows
    state = update(lane_of(config), start(), batch_of(), STEP, jnp.bool_(True))[0]
    return config, state, batch, update(lane_of(config), state, batch, STEP, jnp.bool_(True))


@pytest.mark.parametrize("name", LEARN_FLOATS)
def test_every_number_of_the_learner_changes_the_update(busy, name: str) -> None:
    config, state, batch, base = busy
    if name == "learn.target_momentum":  # acts on even updates
        state = state._replace(update_step=jnp.int32(2))
        base = update(lane_of(config), state, batch, STEP, jnp.bool_(True))
    other = replace(config, {name: 0.8 * flatten(config)[name]})
    changed = update(lane_of(other), state, batch, STEP, jnp.bool_(True))
    assert gap(changed, base) > 1e-7
    assert changed[0].skipped == 0


def update_metrics(*args):
    return update(*args)[2]


@jax.jit
def two_losses(*args):
    metrics = learner.update(*args)[2]
    return {name: metrics[name] for name in ("reward_loss", "value_loss")}


@pytest.mark.parametrize("running", ["external", "novelty", "joint"])
def test_the_reward_head_learns_what_plans_sum_up(running: str) -> None:
    """D10: at STEP the novelty weighs 0.2; targets, and with them the value loss, are the same."""
    config = replace(CONFIG, {"plan.running_reward": running})
    state, batch = start(), batch_of(short=True)
    # Of options that no other test compiles, XLA leaves out all but the two losses.
    told = update_metrics if running == CONFIG.plan.running_reward else two_losses
    metrics = told(lane_of(config), state, batch, STEP, jnp.bool_(True))
    oracle = Oracle(state, batch)
    external, novelty = oracle.batch["reward"], 0.2 * oracle.novelty
    assert novelty.max() == pytest.approx(0.2)
    wanted = oracle.losses()
    sums = {"external": external, "novelty": novelty, "joint": external + novelty}
    oracle.batch["reward"] = sums[running]
    close(metrics["reward_loss"], oracle.losses()["reward"])
    close(metrics["value_loss"], wanted["value"])


def test_behaviour_cloning_term() -> None:
    """D24: H times (minus the mean of the critics plus the weighted distance to stored actions)."""
    config = replace(CONFIG, {"parity.bc_weight": 0.1})
    state, batch = start(), batch_of()
    p = ref.float64(state.params)
    online = ref.encoder(p["encoder"], ref.float64(batch.obs))
    z, eps = online[:, ::-1], np.zeros((2, H + 1, B, A), np.float32)
    new_model, policy_params = split(state)
    args = (new_model, z.astype("f"), online.astype("f"), batch, eps)
    loss, _ = jax.jit(learner.policy_loss_of)(policy_params, lane_of(config), *args)
    square = (ref.policy(p["policy"], online[:-1]) - batch.action) ** 2
    q = ref.critics(p["value"], z, ref.policy(p["policy"], z)).min(0)
    close(loss, H * (-q.mean() + 0.1 * square.mean()))


def test_weight_decay_is_decoupled_and_spares_biases_and_norms() -> None:
    states = []
    for decay in (0.0, 0.5):
        config = replace(CONFIG, {"learn.weight_decay": decay})
        states.append(update(lane_of(config), start(), batch_of(), STEP, jnp.bool_(True))[0])
    plain, decayed = (ref.leaves(ref.float64(s.params)) for s in states)
    for name, old in ref.leaves(ref.float64(start().params)).items():
        if name.startswith("policy."):
            continue  # its gradient sees the critics, which have decayed already
        matrix = name.rsplit(".", 1)[-1] in ("w", "wi", "wh")
        wanted = -2e-3 * 0.5 * old if matrix else np.zeros_like(old)
        np.testing.assert_allclose(decayed[name] - plain[name], wanted, atol=1e-6, err_msg=name)


def test_statistics_of_both_passes_are_folded_in_order() -> None:
    """B25: the novelty pass comes first, its predictor in batches of B rows."""
    rng = np.random.default_rng(0)

    def draw(steps):
        return {
            "mean": jnp.asarray(rng.standard_normal((steps, 5)), jnp.float32),
            "var": jnp.asarray(rng.uniform(0.5, 2, (steps, 5)), jnp.float32),
        }

    novelty = {"projector": draw(H), "predictor": draw(H)}
    rollout = {"projector": draw(H), "predictor": draw(1)}
    old = {k: {"mean": jnp.zeros(5), "var": jnp.ones(5)} for k in rollout}
    old["steps"] = {"mean": jnp.zeros((H, 5)), "var": jnp.ones((H, 5))}
    new = learner.fold_stats(old, novelty, rollout, B)
    for t in range(H):
        m, v = (np.asarray(rollout["projector"][k])[t] for k in ("mean", "var"))
        close(new["steps"]["mean"][t], 0.1 * m, 1e-6)
        close(new["steps"]["var"][t], 0.9 + 0.1 * v * B / (B - 1), 1e-6)
    for name, rows in (("projector", (B, B)), ("predictor", (B, H * B))):
        mean, var = np.zeros(5), np.ones(5)
        for passed, n in zip((novelty[name], rollout[name]), rows, strict=True):
            for m, v in zip(np.asarray(passed["mean"]), np.asarray(passed["var"]), strict=True):
                mean, var = 0.9 * mean + 0.1 * m, 0.9 * var + 0.1 * v * n / (n - 1)
        close(new[name]["mean"], mean, 1e-6)
        close(new[name]["var"], var, 1e-6)
