"""The fused kernels by themselves, interpreted, against textbook formulas and automatic
differentiation."""

# pyright: reportCallIssue=false

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.engine import kernels
from ace.engine.kernels import common

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
