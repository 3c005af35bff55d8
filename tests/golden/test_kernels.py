"""The fused kernels, interpreted, against the plain functions and automatic differentiation."""

# pyright: reportCallIssue=false

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.engine import kernels
from ace.engine.kernels import common
from ace.method import learner, model, nets
from ace.method.types import Batch, Lane
from ace.settings.config import Config, replace

F = jnp.float32

ROWS, WIDTH = 48, 256


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Run the kernels without a GPU."""
    monkeypatch.setattr(common, "INTERPRET", True)


KINDS = [(act, norm) for act in ("elu", "tanh") for norm in (True, False)]


def inputs(dtype=jnp.float32) -> tuple[jax.Array, ...]:
    """Rows, bias, scale and bias of the norm, and a gradient."""
    rng = np.random.default_rng(0)
    x, dy = (jnp.asarray(rng.standard_normal((ROWS, WIDTH)) * s, dtype) for s in (3.0, 1.0))
    b, scale, bias = (jnp.asarray(rng.standard_normal(WIDTH), jnp.float32) for _ in range(3))
    return x, b, scale, bias, dy


def textbook(act: str, norm: bool, x, b, scale, bias) -> jax.Array:
    """What is meant, written with the library's own functions."""
    x = x.astype(jnp.float32) + b
    if norm:
        x = jax.nn.standardize(x, axis=-1, epsilon=1e-5) * scale + bias
    return jax.nn.elu(x) if act == "elu" else jnp.tanh(x)


@pytest.mark.parametrize(("act", "norm"), KINDS)
def test_kernels_are_the_textbook(act: str, norm: bool) -> None:
    *args, dy = inputs()
    y, gradient = jax.vjp(lambda *a: textbook(act, norm, *a), *args)
    wanted = gradient(dy)
    got, gradient = jax.vjp(lambda *a: kernels.bias_norm_act(act, norm, F, *a), *args)
    close(got, y)
    jax.tree.map(close, gradient(dy), wanted)


@pytest.mark.parametrize(("act", "norm"), KINDS)
def test_bf16_goes_in_and_out(act: str, norm: bool) -> None:
    *args, dy = inputs(jnp.bfloat16)
    y, stats = kernels.rows.fused_forward(act, norm, jnp.bfloat16, *args)
    dx, _ = kernels.rows.fused_backward(act, norm, True, *args, stats, dy)
    assert y.dtype == dx.dtype == jnp.bfloat16
    exact = textbook(act, norm, *args)
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize(("act", "norm"), KINDS)
def test_parameters_that_do_not_learn_cost_no_sums(act: str, norm: bool) -> None:
    *args, dy = inputs()
    w, d = dy[0], dy[:, 0]

    def gradients(x, *fixed) -> tuple:
        rows = jax.vjp(lambda x: kernels.bias_norm_act(act, norm, F, x, *fixed), x)[1](dy)
        products = jax.vjp(lambda x: kernels.head(act, norm, x, *fixed, w), x)[1](d)
        return rows[0], products[0]

    rows = jax.vjp(lambda *a: kernels.bias_norm_act(act, norm, F, *a), *args)[1](dy)
    products = jax.vjp(lambda *a: kernels.head(act, norm, *a, w), *args)[1](d)
    jax.tree.map(close, gradients(*args), (rows[0], products[0]))
    text = str(jax.make_jaxpr(gradients)(*args))
    assert text.count("_gradient") and "reduce_sum[axes=(0,)" not in text.replace(" ", "")


def test_lanes_are_a_batch_of_the_kernel() -> None:
    x, b, scale, bias, dy = inputs()
    lanes = [jnp.stack([v, 0.5 * v, -v]) for v in (x, b, scale, bias, dy)]

    def one(x, b, scale, bias, dy):
        y, stats = kernels.rows.fused_forward("elu", True, F, x, b, scale, bias)
        return y, kernels.rows.fused_backward("elu", True, True, x, b, scale, bias, stats, dy)

    together = jax.vmap(one)(*lanes)
    for lane in range(3):
        alone = one(*(v[lane] for v in lanes))
        jax.tree.map(close, alone, jax.tree.map(operator.itemgetter(lane), together))


def test_a_batch_with_the_same_parameters_is_more_rows() -> None:
    x, *params, _ = inputs()
    both = jnp.concatenate([x, -2 * x], -1)
    for rows, of in ((x, params), (both, [jnp.stack([p, 0.5 * p]) for p in params])):
        batch = jnp.stack([rows, 0.5 * rows, -rows])

        def call(x, params=of) -> Any:
            return kernels.bias_norm_act("tanh", True, F, x, *params)

        together = jax.vmap(call)(batch)
        close(together, jnp.stack([call(x) for x in batch]))
        lanes = jax.vmap(lambda x, p: jax.vmap(lambda x: call(x, p))(x))
        pair = [jnp.stack([p, 2 * p]) for p in of]
        got = lanes(jnp.stack([batch, batch]), pair)
        close(got[0], together)
        text = str(jax.make_jaxpr(lanes)(jnp.stack([batch, batch]), pair)).replace(" ", "")
        assert f"{3 * ROWS},{WIDTH}]" in text


@pytest.mark.parametrize(("act", "norm"), KINDS)
def test_layers_side_by_side_are_layers_by_themselves(act: str, norm: bool) -> None:
    x, b, scale, bias, dy = inputs()
    both = jnp.concatenate([x, -2 * x], -1)
    params = [jnp.stack([p, 0.5 * p]) for p in (b, scale, bias)]
    fused: Any = lambda *a: kernels.bias_norm_act(act, norm, F, *a)  # noqa: E731
    y, gradient = jax.vjp(fused, both, *params)
    dx, *by = gradient(jnp.stack([dy, -dy]))
    assert y.shape == (2, ROWS, WIDTH) and dx.shape == (ROWS, 2 * WIDTH)
    for i, (rows, d) in enumerate([(x, dy), (-2 * x, -dy)]):
        alone = rows, *(p[i] for p in params)
        wanted, gradient = jax.vjp(lambda *a: textbook(act, norm, *a), *alone)
        got = dx[:, i * WIDTH : (i + 1) * WIDTH], *(p[i] for p in by)
        jax.tree.map(close, (y[i], got), (wanted, gradient(d)))


def close(got, wanted) -> None:
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_are_tried_out_before_they_are_used(monkeypatch, capsys, tmp_path, dtype) -> None:
    monkeypatch.setattr(kernels, "_mark_of_success", lambda: tmp_path / "cache" / "passed")
    kernels._have_gpu.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert kernels._have_gpu() and (tmp_path / "cache" / "passed").exists()
    kernels._have_gpu.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_try_out", lambda: pytest.fail("passed before"))
        assert kernels._have_gpu()
    kernels._have_gpu.cache_clear()
    (tmp_path / "cache" / "passed").unlink()
    forward, wrong = kernels.rows.fused_forward, {jnp.float32: 1.01, jnp.bfloat16: 1.05}[dtype]

    def fused_forward(act, norm, out, *args):
        y, stats = forward(act, norm, out, *args)
        return (wrong * y if out == dtype else y), stats

    monkeypatch.setattr(kernels.rows, "fused_forward", fused_forward)
    assert not kernels._have_gpu()
    out = capsys.readouterr().out
    assert "a kernel is wrong" in out and dtype.__name__ in out
    kernels._have_gpu.cache_clear()


def test_gru_kernels_are_the_plain_gru(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    shapes = {"wi": (20, 384), "wh": (128, 384)}
    p: Any = {k: jnp.asarray(rng.standard_normal(s) / 5, F) for k, s in shapes.items()}
    p["norm"] = {k: jnp.asarray(rng.standard_normal((3, 128)), F) for k in ("scale", "bias")}
    x, b, d = (jnp.asarray(rng.standard_normal((24, n)), F) for n in (20, 128, 128))

    def both() -> tuple:
        out, gradient = jax.vjp(nets.ln_gru, p, x, b)
        first, gradient_first = jax.vjp(lambda p, x: nets.ln_gru(p, x, None), p, x)
        return out, gradient(d), first, gradient_first(d)

    monkeypatch.setattr(nets, "on_gpu", lambda: True)
    fused = both()
    monkeypatch.setattr(nets, "on_gpu", lambda: False)
    monkeypatch.setattr(common, "INTERPRET", False)
    plain = both()
    for one, other in zip(jax.tree.leaves(fused), jax.tree.leaves(plain), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one / scale, other / scale, atol=2e-6)


def test_an_update_on_the_fast_path_has_the_gradients_of_the_plain_one(monkeypatch) -> None:
    """The loss of model and critics, and the policy's, as a GPU would compute them."""
    changes = {"net.mlp": 128, "net.encoder": 128, "net.belief": 128, "net.latent": 8}
    changes |= {"learn.batch": 64, "plan.horizon": 3, "plan.horizon_ramp.start": 2.0}
    config = replace(Config(), changes | {"precision": "f32"})
    rng = np.random.default_rng(0)
    params, _ = model.init(rng, config, 5, 2)
    params = jax.tree.map(lambda x: jnp.asarray(x + 0.1 * rng.standard_normal(x.shape), F), params)
    model_params, policy_params = learner.split(params)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), F)

    batch = Batch(
        obs=draw(4, 64, 5),
        action=jnp.tanh(draw(3, 64, 2)),
        reward=draw(3, 64),
        continues=jnp.ones((3, 64)),
        mask=jnp.ones((3, 64)).at[2:, :9].set(0.0),
        weight=jnp.abs(draw(64)),
        index=jnp.arange(64),
    )
    targets, y, eps = draw(3, 64, 8), draw(3, 64), draw(2, 4, 64, 2)
    lane = Lane(jnp.uint32(0), config, jnp.ones(2, bool), jnp.zeros((4, 3, 3)))

    def gradients(interpret: bool):
        return jax.jit(lambda: traced(interpret))()

    def traced(interpret: bool):
        monkeypatch.setattr(common, "INTERPRET", interpret)
        monkeypatch.setattr(nets, "on_gpu", lambda: interpret)
        grad = jax.grad(learner.model_loss, has_aux=True)
        wide = jnp.pad(targets, ((0, 0), (0, 0), (0, 8 if interpret else 0)))
        grads, aux = grad(model_params, config, batch, wide, y)
        online = model.encode(learner.cast(config, params), batch.obs)
        of_policy = jax.grad(learner.policy_loss_of, has_aux=True)
        policy, _ = of_policy(policy_params, lane, model_params, aux["z"], online, batch, eps)
        rest = jnp.abs(aux["z"][..., 8:]).sum()  # on a GPU, zeros up to a round size
        return grads, policy, aux | {"z": aux["z"][..., :8], "rest": rest}

    plain, calls = gradients(False), []
    launch = common.launch
    for module in (kernels.rows, kernels.gru, kernels.columns):
        monkeypatch.setattr(
            module, "launch", lambda k, n, **how: calls.append(n) or launch(k, n, **how)
        )
    jax.clear_caches()  # or a kernel traced before would not be launched again
    fast = gradients(True)
    both = {"norm_elu", "norm_tanh", "elu", "norm_elu_head", "elu_head", "gru", "batch_norm"}
    assert set(calls) == both | {f"{name}_gradient" for name in both}
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(fast), strict=True):
        scale = float(jnp.abs(one).max()) + 1e-6
        np.testing.assert_allclose(other / scale, one / scale, atol=2e-5)


@pytest.mark.parametrize("rows", [64, 1024])
def test_batch_norm_kernels_are_the_plain_formula(rows: int) -> None:
    rng = np.random.default_rng(0)
    scale, bias = (jnp.asarray(rng.standard_normal(64), F) for _ in range(2))
    x, d = (jnp.asarray(rng.standard_normal((3, rows, 64)), F) for _ in range(2))

    def textbook(scale, bias, x):
        return jax.nn.elu(jax.nn.standardize(x, axis=1, epsilon=1e-5) * scale + bias)

    wanted, gradient = jax.vjp(textbook, scale, bias, x)
    got, fused = jax.vjp(lambda *a: kernels.batch_norm_elu(*a)[0], scale, bias, x)
    close(got, wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), fused(d), gradient(d))
    _, mean, var = kernels.batch_norm_elu(scale, bias, x)
    close(mean[:, 0], x.mean(1))
    close(var[:, 0], x.var(1))


def test_batch_norm_kernels_bear_a_far_mean_and_a_first_row_far_from_it() -> None:
    """Variances come from one pass, by differences to the mean of the first rows."""
    x = np.random.default_rng(0).standard_normal((1, 1024, 64)).astype(np.float32) + 100
    x[0, 0, :8] = 1e4
    ones, zeros = jnp.ones(64), jnp.zeros(64)
    y, mean, var = kernels.batch_norm_elu(ones, zeros, jnp.asarray(x))
    exact = x.astype(np.float64)
    np.testing.assert_allclose((mean[:, 0] - exact.mean(1)) / exact.std(1), 0, atol=1e-5)
    np.testing.assert_allclose(var[:, 0], exact.var(1), rtol=1e-5)
    unit = (exact - exact.mean(1)) / np.sqrt(exact.var(1) + 1e-5)
    np.testing.assert_allclose(y, np.where(unit > 0, unit, np.expm1(unit)), atol=2e-4)


def test_layers_that_do_not_learn_in_kernels() -> None:
    for got, wanted in kernels.layers.trial(jnp.bfloat16):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got.astype(F), wanted.astype(F), rtol=2**-7, atol=2**-7)


def test_layers_that_learn_are_those_of_the_plain_path(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    into, mid, out = (nets.linear_init(rng, *size) for size in ((64, 128), (128, 128), (128, 3)))
    for p in (into, mid, out):  # matrices in bf16, biases in float32, as in an update
        p["w"] = jnp.asarray(np.stack([p["w"], 0.5 * p["w"]]), jnp.bfloat16)
        p["b"] = jnp.asarray(rng.standard_normal((2, p["b"].size)) / 4, F)
    x = jnp.asarray(rng.standard_normal((2, 48, 64)), jnp.bfloat16)

    def mlp(into, mid, out, x) -> jax.Array:
        lanes = jax.vmap(lambda i, m, o, x: nets.dense_out(m, o, nets.dense_elu(i, x)))
        return jnp.sin(lanes(into, mid, out, x)).sum()

    def found() -> tuple:
        return mlp(into, mid, out, x), jax.grad(mlp, (0, 1, 2, 3))(into, mid, out, x)

    value, gradients = found()
    assert "widen" in (text := str(jax.make_jaxpr(mlp)(into, mid, out, x))) and "narrow" in text
    monkeypatch.setattr(common, "INTERPRET", False)
    plain, wanted = found()
    np.testing.assert_allclose(value, plain, rtol=1e-2, atol=0.1)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one.astype(F) / scale, other.astype(F) / scale, atol=0.03)


def test_a_step_of_the_model_in_kernels() -> None:
    for both in kernels.dynamics.trial(jnp.bfloat16):
        for got, wanted in zip(*both, strict=True):
            scale = float(jnp.abs(wanted).max())
            np.testing.assert_allclose(got.astype(F), wanted.astype(F), atol=2**-7 * (1 + scale))


@pytest.mark.parametrize(
    ("lanes", "given", "size"),
    # Programs of few rows and of many; 38 actions are padded to 48, which is no power of two.
    [(1, False, 3), (1, True, 38), (100, False, 38), (100, True, 3)],
)
def test_plans_imagine_the_same_with_kernels(monkeypatch, lanes, given, size: int) -> None:
    monkeypatch.setattr(nets, "on_gpu", lambda: True)
    config = replace(Config(), {"net.mlp": 128, "net.encoder": 128, "precision": "bf16"})
    rng = np.random.default_rng(0)
    params, stats = model.init(rng, config, 5, size)
    stats = jax.tree.map(lambda x: x + rng.uniform(0, 1, x.shape).astype("f"), stats)
    params = learner.cast(config, params)
    z = jnp.asarray(rng.standard_normal(64), jnp.bfloat16) * (jnp.arange(64) < 50)
    b = jnp.asarray(rng.uniform(-1, 1, 128), jnp.bfloat16) if given else None
    actions = jnp.asarray(rng.uniform(-1, 1, (3, 72, size)), F)

    def imagine() -> tuple:
        with kernels.lanes(lanes):
            free = model.imagine(params, stats, z, b, actions)
            return *free, *model.imagine_policy(params, stats, config.learn, z, b, actions)

    got = imagine()
    text = str(jax.make_jaxpr(imagine)())
    assert "name=step" in text
    monkeypatch.setattr(common, "INTERPRET", False)
    for x, y in zip(got, imagine(), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x.astype(F), y.astype(F), rtol=0.05, atol=0.05)
