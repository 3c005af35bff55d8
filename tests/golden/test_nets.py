"""Layers and networks against NumPy and hand arithmetic (1.2 to 1.5)."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (NumPy arrays are as good as JAX's here.)

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.engine import fused
from ace.method import model, nets
from ace.settings.config import Config, LearnConfig, NetConfig, replace
from tests.golden import reference as ref

# Compiled whole: many small eager programs take longer to build than one.
dense_batch_norm = jax.jit(nets.dense_batch_norm)
ln_gru = jax.jit(nets.ln_gru)
encode, believe, value = jax.jit(model.encode), jax.jit(model.believe), jax.jit(model.value)
policy, reward = jax.jit(model.policy), jax.jit(model.reward)
noisy_policy = jax.jit(model.noisy_policy)
OBS, ACTION = 5, 2
CONFIG = Config(net=NetConfig(latent=4, mlp=12, encoder=9, belief=6))


def scrambled(seed: int = 0, config: Config = CONFIG):
    """Parameters with nothing left at zero or one, and running statistics likewise."""
    rng = np.random.default_rng(seed)
    params, stats = model.init(rng, config, OBS, ACTION)
    params = jax.tree.map(lambda x: x + 0.3 * rng.standard_normal(x.shape).astype("f"), params)
    stats = jax.tree.map(lambda x: x + rng.uniform(0.1, 0.9, x.shape).astype("f"), stats)
    return params, stats


@pytest.fixture(scope="module")
def scene():
    """Parameters, statistics and random inputs."""
    params, stats = scrambled()
    rng = np.random.default_rng(1)
    shapes = {"obs": (7, OBS), "z": (7, 4), "a": (7, ACTION), "b": (7, 6)}
    x = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    return params, stats, x, ref.float64(params), ref.float64(stats), ref.float64(x)


def close(got, wanted, tolerance=3e-5):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=tolerance, atol=tolerance)


def test_linear_by_hand() -> None:
    p = {"w": jnp.array([[1.0, 2.0], [3.0, 5.0]]), "b": jnp.array([0.5, -1.0])}
    close(nets.linear(p, jnp.array([2.0, 10.0])), [32.5, 53.0])


@pytest.mark.parametrize("linear_f32", [nets.linear_f32.plain, fused.linear_f32])
def test_a_product_in_float32_keeps_what_bf16_would_lose(linear_f32) -> None:
    x = jnp.full((1, 512), 1.0, jnp.bfloat16)
    p = {"w": jnp.full((512, 1), 1.0078125, jnp.bfloat16), "b": jnp.array([0.0])}
    assert linear_f32(p, x).dtype == jnp.float32
    assert linear_f32(p, x)[0, 0] == 516.0  # bf16 has 516 but not every sum on the way
    grads = jax.grad(lambda p, x: linear_f32(p, x).sum(), (0, 1))(p, x)
    assert grads[1].dtype == jnp.bfloat16 and (grads[1] == 1.0078125).all()
    close(grads[0]["b"], [1.0])


def test_a_product_in_two_parts_keeps_sixteen_bits_until_the_end() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((40, 78)) * 100, rng.standard_normal((78, 24))
    x32, w32 = jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)
    scale = np.abs(x) @ np.abs(w)

    def rounded_once(y) -> bool:
        """Whether an error is that of the result's rounding, and 16 bits of the factors'."""
        far = np.abs(np.asarray(y, np.float64) - x @ w)
        return bool((far <= 2**-8 * np.abs(x @ w) + 2**-16 * scale).all())

    assert rounded_once(jax.jit(fused.product_split)(x32, w32))
    halves = [jnp.asarray(a, jnp.bfloat16) for a in (x32, w32)]
    assert not rounded_once(jnp.matmul(*halves, preferred_element_type=jnp.float32))
    dy = rng.standard_normal((40, 24))
    dx, dw = jax.vjp(fused.product_split, x32, w32)[1](jnp.asarray(dy, jnp.bfloat16))
    np.testing.assert_allclose(dw, x.T @ dy, atol=2**-8 * np.abs(x.T @ dy).max())
    np.testing.assert_allclose(dx, dy @ w.T, atol=2**-7 * np.abs(dy @ w.T).max())


def test_layer_norm_by_hand() -> None:
    # With the bias: 1, 2, 3; mean 2, variance 2/3.
    norm = {"scale": jnp.array([1.0, 2.0, 3.0]), "bias": jnp.array([0.0, 1.0, 0.0])}
    b, x = jnp.array([0.5, 0.0, -1.0]), jnp.array([0.5, 2.0, 4.0])
    unit = 1 / np.sqrt(2 / 3 + 1e-5)
    y = nets.bias_norm_act("elu", b, norm, x, jnp.float32)
    close(y, [np.expm1(-unit), 1.0, 3 * unit], 1e-6)
    close(nets.bias_norm_act("tanh", b, norm, x, jnp.float32)[:2], np.tanh([-unit, 1.0]), 1e-6)
    close(nets.bias_norm_act("elu", b, None, x, jnp.float32), [1.0, 2.0, 3.0], 1e-6)


def test_layer_norm_epsilon_matters_for_small_inputs() -> None:
    x = jnp.array([-1e-2, 1e-2])
    close(nets.normed(x), np.array([-1, 1]) * 1e-2 / np.sqrt(1e-4 + 1e-5), 1e-5)
    close(nets.normed(x, eps=1e-3), np.array([-1, 1]) * 1e-2 / np.sqrt(1e-4 + 1e-3), 1e-5)


def test_batch_norm_train_uses_biased_and_eval_uses_running_statistics() -> None:
    p = {"w": jnp.array([[1.0]]), "b": jnp.array([0.5])}
    norm = {"scale": jnp.array([2.0]), "bias": jnp.array([1.0])}
    x = jnp.array([[1.0], [2.0], [6.0]])  # mean 3, biased variance 14/3
    y, batch = dense_batch_norm(p, norm, x)
    normed = 1 + 2 * np.array([-2, -1, 3]) / np.sqrt(14 / 3 + 1e-5)
    close(y[:, 0], ref.elu(normed), 1e-6)
    close([batch["mean"][0], batch["var"][0]], [3.5, 14 / 3], 1e-6)  # the bias moves the mean
    running = {"mean": jnp.array([1.0]), "var": jnp.array([4.0])}
    normed = 1 + np.array([0, 1, 5]) * 2 / np.sqrt(4 + 1e-5)
    one = {"w": jnp.eye(1), "b": jnp.zeros(1)}
    folded = nets.folded_norm(one, norm, running)
    close(nets.folded_norm_elu(one, folded, x)[:, 0], ref.elu(normed))


def test_batch_norm_train_keeps_leading_axes_apart() -> None:
    x = np.random.default_rng(0).standard_normal((3, 8, 2)).astype(np.float32)
    p = {"w": jnp.eye(2), "b": jnp.zeros(2)}
    y, batch = dense_batch_norm(p, nets.norm_init(2), jnp.asarray(x))
    close(batch["mean"], x.mean(1))
    normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    close(y, ref.elu(normed))


def test_bias_before_a_batch_norm_has_no_gradient(scene) -> None:
    params, _, x, *_ = scene

    def loss(p):
        return jnp.sum(jnp.square(nets.dense_batch_norm(p["in"], p["norm"], x["b"])[0]))

    grads = jax.grad(loss)(params["projector"])
    assert (grads["in"]["b"] == 0).all() and (grads["in"]["w"] != 0).all()


def test_running_statistics_fold_batches_in_order() -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((4, 5, 3)) * [[[1.0, 2.0, 3.0]]] + np.arange(4)[:, None, None]
    mean, var = np.array([1.0, -1.0, 0.5]), np.array([0.3, 2.0, 1.0])
    batches = {"mean": jnp.asarray(data.mean(1)), "var": jnp.asarray(data.var(1))}
    got = jax.jit(nets.update_stats, static_argnames="rows")(
        {"mean": jnp.asarray(mean), "var": jnp.asarray(var)}, batches, rows=5
    )
    for rows in data:
        mean = 0.9 * mean + 0.1 * rows.mean(0)
        var = 0.9 * var + 0.1 * rows.var(0, ddof=1)
    close(got["mean"], mean, 1e-6)
    close(got["var"], var, 1e-6)


def test_gru_matches_the_formula(scene) -> None:
    params, _, x, p64, _, x64 = scene
    joined = np.concatenate([x["z"], x["a"]], -1)
    got = ln_gru(params["cell"], jnp.asarray(joined), jnp.asarray(x["b"]))
    close(got, ref.gru(p64["cell"], ref.float64(joined), x64["b"]))


@pytest.mark.parametrize("gate, wanted", [(60.0, "candidate"), (-60.0, "old")])
def test_update_gate_multiplies_the_candidate(gate: float, wanted: str) -> None:
    cell = nets.gru_init(np.random.default_rng(0), 3, 4)
    bias = np.zeros((3, 4), np.float32)
    bias[1], bias[2] = gate, 0.7  # order of the gates: reset, update, new
    cell["norm"] = {"scale": np.zeros((3, 4), np.float32), "bias": bias}
    b = jnp.array([0.1, -0.2, 0.3, -0.4])
    got = ln_gru(cell, jnp.ones(3), b)
    close(got, np.full(4, np.tanh(0.7)) if wanted == "candidate" else b, 1e-6)


def test_reset_gate_scales_only_the_hidden_part_of_the_candidate() -> None:
    cell = nets.gru_init(np.random.default_rng(0), 3, 4)
    bias = np.zeros((3, 4), np.float32)
    bias[0], bias[1] = -60.0, 60.0  # forget the hidden part, take the candidate
    scale = np.stack([np.zeros(4), np.zeros(4), np.ones(4)]).astype(np.float32)
    cell["norm"] = {"scale": scale, "bias": bias}
    x = np.array([0.5, -1.0, 2.0])
    i_n = (x @ cell["wi"])[8:]
    close(
        ln_gru(cell, jnp.asarray(x, jnp.float32), jnp.ones(4)),
        np.tanh(ref.layer_norm(1.0, 0.0, i_n, 1e-3)),
    )


def test_encoder(scene) -> None:
    params, _, x, p64, _, x64 = scene
    close(encode(params, x["obs"]), ref.encoder(p64["encoder"], x64["obs"]))


def test_projector_with_running_and_with_batch_statistics(scene) -> None:
    params, stats, x, p64, s64, x64 = scene
    wanted, _, _ = ref.batch_norm_net(
        p64["projector"], x64["b"], s64["projector"]["mean"], s64["projector"]["var"]
    )
    p = params["projector"]
    norm = nets.folded_norm(p["in"], p["norm"], stats["projector"])
    close(jax.jit(model.project)(params, norm, x["b"]), wanted)
    z, batch = jax.jit(model.project_train)(params, x["b"])
    wanted, mean, var = ref.batch_norm_net(p64["projector"], x64["b"])
    close(z, wanted, 2e-4)
    close(batch["mean"], mean)
    close(batch["var"], var)


def test_predictor(scene) -> None:
    params, _, x, p64, _, x64 = scene
    prediction, _ = jax.jit(model.predict_train)(params, x["z"])
    close(prediction, ref.batch_norm_net(p64["predictor"], x64["z"])[0], 2e-4)


def test_reward_head_reads_the_new_belief_only(scene) -> None:
    params, _, x, p64, _, x64 = scene
    got = reward(params, x["z"], -x["b"], x["a"], x["b"])
    assert got.shape == (7,)
    close(got, ref.head(p64["reward"], x64["b"])[:, 0])


def test_reward_head_can_read_latent_action_and_old_belief() -> None:
    params, _ = scrambled(config=replace(CONFIG, {"parity.reward_input": "all"}))
    rng = np.random.default_rng(0)
    z, b, a, new = (rng.standard_normal((3, n)).astype("f") for n in (4, 6, ACTION, 6))
    got = reward(params, z, b, a, new)
    close(got, reward(params, z, b, a, 2 * new), 1e-7)
    for changed in ((2 * z, b, a), (z, 2 * b, a), (z, b, 2 * a)):
        assert np.abs(got - reward(params, *changed, new)).max() > 1e-3


def test_critics(scene) -> None:
    params, _, x, p64, _, x64 = scene
    q = value(params, x["z"], x["a"])
    assert q.shape == (2, 7)
    close(q, ref.critics(p64["value"], x64["z"], x64["a"]))
    assert np.abs(q[0] - q[1]).min() > 1e-4


def test_policy(scene) -> None:
    params, _, x, p64, _, x64 = scene
    close(policy(params, x["z"]), ref.policy(p64["policy"], x64["z"]))


def test_noisy_policy_clips_noise_then_action_and_keeps_the_gradient(scene) -> None:
    params, _, x, p64, _, x64 = scene
    learn = LearnConfig(smoothing_std=0.2, smoothing_clip=0.3)
    z = x["z"]
    eps = np.tile([[1.0, -9.0]], (7, 1)).astype(np.float32)
    mu = ref.policy(p64["policy"], x64["z"])
    edge = 1 - 1e-6
    wanted = np.clip(mu + np.array([0.2, -0.3]), -edge, edge)
    close(noisy_policy(params, learn, z, eps), wanted)
    # The clamp acts somewhere, and yet the slope is that of the unclamped policy.
    far = jax.tree.map(lambda v: 8 * v, params["policy"]["out"])
    loud = params | {"policy": params["policy"] | {"out": far}}
    outputs = noisy_policy(loud, learn, z, eps)
    assert np.abs(outputs).max() <= 1.0 and np.any(np.abs(outputs) >= edge - 1e-6)
    slope = jax.jit(jax.grad(lambda v: noisy_policy(loud, learn, v, eps).sum()))(z)
    plain = jax.jit(jax.grad(lambda v: policy(loud, v).sum()))(z)
    close(slope, plain, 1e-6)


def test_heads_start_at_zero_and_the_others_do_not() -> None:
    params, stats = model.init(np.random.default_rng(0), CONFIG, OBS, ACTION)
    for name in ("reward", "value"):
        assert not np.any(params[name]["out"]["w"]) and not np.any(params[name]["out"]["b"])
    for name in ("policy", "projector", "predictor", "encoder"):
        assert np.any(params[name]["out"]["w"])
    q = params["value"]["in"]["w"]
    assert not np.allclose(q[0], q[1])  # two independent critics
    assert np.all(stats["projector"]["mean"] == 0) and np.all(stats["projector"]["var"] == 1)


def test_every_matrix_starts_orthogonal_as_a_whole() -> None:
    params, _ = model.init(np.random.default_rng(0), CONFIG, OBS, ACTION)
    checked = 0
    for name, w in ref.leaves(params).items():
        last = name.rsplit(".", 1)[-1]
        if last in ("b", "bias"):
            assert not np.any(w)
        elif last == "scale":
            assert np.all(w == 1)
        elif np.any(w):
            for matrix in w.reshape(-1, *w.shape[-2:]).astype(np.float64):
                n_in, n_out = matrix.shape
                gram = matrix.T @ matrix if n_in >= n_out else matrix @ matrix.T
                close(gram, np.eye(min(n_in, n_out)), 1e-5)
                checked += 1
    assert checked == 17
    assert params["cell"]["wi"].shape == (4 + ACTION, 3 * 6)  # one matrix for the three gates
    assert params["cell"]["wh"].shape == (6, 3 * 6)


def test_padding_leaves_a_lane_as_it_is() -> None:
    config = replace(CONFIG, {"parity.reward_input": "all"})
    params, _ = scrambled(config=config)
    wide = nets.pad(params, model.axes(config), {"obs": OBS + 3, "action": ACTION + 2})
    rng = np.random.default_rng(2)
    obs, z, a, b = (rng.standard_normal((3, n)).astype("f") for n in (OBS, 4, ACTION, 6))
    obs2, a2 = np.pad(obs, ((0, 0), (0, 3))), np.pad(a, ((0, 0), (0, 2)))

    @jax.jit
    def heads(p, obs, a):
        return (
            model.encode(p, obs),
            model.believe(p, z, a, b),
            model.value(p, z, a),
            model.reward(p, z, b, a, b),
            model.policy(p, z),
        )

    *others, mu = heads(params, obs, a)
    *padded, wide_mu = heads(wide, obs2, a2)
    for x, y in zip(padded, others, strict=True):
        close(x, y, 1e-6)
    close(wide_mu[:, :ACTION], mu, 1e-6)
    assert not np.any(wide_mu[:, ACTION:])
    plain, _ = scrambled()  # a reward head that reads the belief alone needs no padding
    wide = nets.pad(plain, model.axes(CONFIG), {"obs": OBS, "action": ACTION + 2})
    assert wide["reward"]["in"]["w"].shape == (6, 12)


def test_action_noise_is_the_same_whatever_the_padding() -> None:
    key = jax.random.key(3)
    draw = jax.jit(model.action_normal, static_argnums=1)
    narrow = draw(key, (4, 5), np.ones(2, bool))
    wide = draw(key, (4, 5), np.arange(4) < 2)
    np.testing.assert_array_equal(wide[..., :2], narrow)
    assert not np.any(wide[..., 2:]) and narrow.std() > 0.5
