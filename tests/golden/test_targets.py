"""Novelty reward and value targets against NumPy and the paper's forward view (3.3, 4)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.method import targets
from ace.method.types import Moments
from ace.settings.config import LearnConfig
from tests.golden import reference as ref

lambda_targets = jax.jit(targets.lambda_targets)
merge_moments = jax.jit(targets.merge_moments)
novelty_reward = jax.jit(targets.novelty_reward)
similarity_error = jax.jit(targets.similarity_error)
LAMBDAS = (0.0, 0.2, 0.8, 1.0)


def segment(seed: int, steps: int = 6):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(steps), 10 * rng.standard_normal(steps)


def got(reward, value, continues, mask, discount, lam) -> np.ndarray:
    def one(x):
        return jnp.asarray(x, jnp.float32)[:, None]

    columns = (one(reward), one(value), one(continues), one(mask))
    return np.asarray(lambda_targets(*columns, discount, lam))[:, 0]


@pytest.mark.parametrize("lam", LAMBDAS)
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_recursion_equals_the_forward_view(lam: float, steps: int) -> None:
    for seed in range(3):
        reward, value = segment(seed, steps)
        ones = np.ones(steps)
        wanted = ref.lambda_return(reward, value, ones, 0.97, lam)
        np.testing.assert_allclose(
            got(reward, value, ones, ones, 0.97, lam), wanted, rtol=1e-5, atol=1e-5
        )


def test_ends_of_lambda() -> None:
    reward, value, ones = [1.0, 2.0, 3.0], [10.0, 20.0, 30.0], np.ones(3)
    np.testing.assert_allclose(got(reward, value, ones, ones, 0.5, 0.0), [6.0, 12.0, 18.0])
    # 3 + 15 = 18; 2 + 9 = 11; 1 + 5.5 = 6.5.
    np.testing.assert_allclose(got(reward, value, ones, ones, 0.5, 1.0), [6.5, 11.0, 18.0])
    # lambda 1/2: 18; 2 + 0.5 * (10 + 9) = 11.5; 1 + 0.5 * (5 + 5.75) = 6.375.
    np.testing.assert_allclose(got(reward, value, ones, ones, 0.5, 0.5), [6.375, 11.5, 18.0])


@pytest.mark.parametrize("lam", LAMBDAS)
def test_termination_cuts(lam: float) -> None:
    reward, value = segment(0)
    continues = np.array([1.0, 1, 0, 1, 1, 1])
    ones = np.ones(6)
    wanted = ref.lambda_return(reward, value, continues, 0.9, lam)
    y = got(reward, value, continues, ones, 0.9, lam)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    assert y[2] == pytest.approx(reward[2], abs=1e-6)  # nothing comes after
    beyond = value + np.array([0, 0, 99, 99, 99, 99])
    np.testing.assert_allclose(got(reward, beyond, continues, ones, 0.9, lam)[:3], y[:3], rtol=1e-6)


@pytest.mark.parametrize("lam", LAMBDAS)
@pytest.mark.parametrize("length", [1, 3])
def test_short_segment_bootstraps_from_the_value_at_its_end(lam: float, length: int) -> None:
    reward, value = segment(1)
    ones, mask = np.ones(6), (np.arange(6) < length).astype(float)
    wanted = ref.lambda_return(reward[:length], value[:length], ones, 0.9, lam)
    np.testing.assert_allclose(
        got(reward * mask, value, ones, mask, 0.9, lam)[:length], wanted, rtol=1e-5, atol=1e-5
    )


def test_similarity_error_is_the_squared_distance_of_unit_vectors() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 5, 4))

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    wanted = np.sum((unit(a) - unit(b)) ** 2, -1)
    error = similarity_error(jnp.asarray(7 * a), jnp.asarray(b))
    np.testing.assert_allclose(error, wanted, atol=1e-6)
    np.testing.assert_allclose(similarity_error(jnp.eye(2), jnp.eye(2)[::-1]), [2, 2])
    np.testing.assert_allclose(similarity_error(jnp.eye(2), -jnp.eye(2)), [4, 4])


def batches(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.gamma(2.0, 0.3 / (k + 1), (3, 4)) for k in range(count)]


def test_cumulative_moments_weigh_every_update_alike() -> None:
    moments, learn = targets.init_moments(), LearnConfig()
    groups = [(1e-4, 0.0, 1.0)]
    for error in batches(5):
        moments = merge_moments(moments, jnp.asarray(error), jnp.ones((3, 4)), learn)
        groups.append((1.0, error.mean(), error.var(ddof=1)))
        mean, var, count = ref.pooled_moments(groups)
        np.testing.assert_allclose(moments.mean, mean, rtol=1e-5)
        np.testing.assert_allclose(moments.var, var, rtol=1e-4)
        np.testing.assert_allclose(moments.count, count, rtol=1e-6)


def test_masked_errors_do_not_enter_the_moments() -> None:
    error = np.array([[1.0, 2.0], [4.0, 1e6]])
    mask = np.array([[1.0, 1.0], [1.0, 0.0]])
    moments = merge_moments(
        targets.init_moments(), jnp.asarray(error), jnp.asarray(mask), LearnConfig()
    )
    seen = np.array([1.0, 2.0, 4.0])
    mean, var, _ = ref.pooled_moments([(1e-4, 0, 1), (1, seen.mean(), seen.var(ddof=1))])
    np.testing.assert_allclose([moments.mean, moments.var], [mean, var], rtol=1e-5)


def test_ema_moments() -> None:
    learn = LearnConfig(novelty_moments="ema", novelty_ema=0.8)
    moments, mean, square = targets.init_moments(), None, None
    for error in batches(4):
        moments = merge_moments(moments, jnp.asarray(error), jnp.ones((3, 4)), learn)
        m, s = error.mean(), error.var(ddof=1) + error.mean() ** 2
        mean = m if mean is None else 0.8 * mean + 0.2 * m
        square = s if square is None else 0.8 * square + 0.2 * s
        np.testing.assert_allclose(moments.mean, mean, rtol=1e-5)
        np.testing.assert_allclose(moments.var, square - mean**2, rtol=1e-4)


def test_novelty_is_scaled_by_the_batch_maximum_and_raised() -> None:
    # Mean 1, deviation 2: excesses 0, 0, 1, 2, 4 -> (r / 4) ** 0.6.
    moments = Moments(jnp.array(1.0), jnp.array(4.0), jnp.array(10.0))
    error, mask = jnp.array([[0.0, 1.0, 3.0, 5.0, 9.0]]), jnp.ones((1, 5))
    wanted = [0, 0, 0.25**0.6, 0.5**0.6, 1]
    np.testing.assert_allclose(
        novelty_reward(error, mask, moments, LearnConfig())[0], wanted, rtol=1e-5
    )
    plain = LearnConfig(novelty_power=1.0, novelty_scale_by_max=0.0)
    np.testing.assert_allclose(
        novelty_reward(error, mask, moments, plain)[0], [0, 0, 1, 2, 4], rtol=1e-5
    )


def test_novelty_is_monotone_bounded_and_masked() -> None:
    error = np.sort(np.random.default_rng(0).gamma(2.0, 1.0, (1, 50)))
    moments = Moments(jnp.array(1.5), jnp.array(0.7), jnp.array(1.0))
    mask = np.ones((1, 50))
    mask[0, -1] = 0  # the largest does not count
    novelty = np.asarray(
        novelty_reward(jnp.asarray(error), jnp.asarray(mask), moments, LearnConfig())
    )[0]
    assert novelty[-1] == 0 and novelty[-2] == pytest.approx(1, abs=1e-5)
    assert np.all(np.diff(novelty[:-1]) >= 0) and novelty.min() == 0 and novelty.max() <= 1
    assert np.all((novelty[:-1] > 0) == (error[0, :-1] > 1.5))


def test_no_novelty_at_all_is_zero_not_nan() -> None:
    moments = Moments(jnp.array(5.0), jnp.array(0.0), jnp.array(1.0))
    novelty = novelty_reward(jnp.ones((2, 3)), jnp.ones((2, 3)), moments, LearnConfig())
    assert not np.any(novelty)


@pytest.mark.parametrize("kind, survives", [("cumulative", False), ("ema", True)])
def test_novelty_fades_as_errors_fall_only_with_cumulative_moments(kind, survives) -> None:
    """Section 4.4: the cumulative threshold lags behind, a moving average follows."""
    learn = LearnConfig(novelty_moments=kind, novelty_ema=0.5)
    moments, rng, mask = targets.init_moments(), np.random.default_rng(0), jnp.ones((2, 8))
    error = jnp.zeros((2, 8))
    for k in range(40):
        error = jnp.asarray(rng.uniform(0.9, 1.1, (2, 8)) * 0.97**k)
        moments = merge_moments(moments, error, mask, learn)
    novelty = novelty_reward(error, mask, moments, learn)
    assert bool(np.any(novelty)) == survives


def test_lambda_and_discount_change_the_target() -> None:
    reward, value = segment(0)
    ones = np.ones(6)
    base = got(reward, value, ones, ones, 0.9, 0.4)
    assert np.abs(base - got(reward, value, ones, ones, 0.9, 0.5)).max() > 1e-3
    assert np.abs(base - got(reward, value, ones, ones, 0.8, 0.4)).max() > 1e-3
