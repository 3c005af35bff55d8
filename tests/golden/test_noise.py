"""Colored noise against the closed form, the reference package and the table of section 2.6."""

import colorednoise
import numpy as np
import pytest

from ace.method.noise import colored_map, noise_maps

LENGTHS = range(2, 8)
BETAS = (0.5, 2.5)
STD = {2.5: (2.00, 1.22, 1.23, 1.19, 1.20, 1.18), 0.5: (2.00, 1.22, 1.25, 1.14, 1.16, 1.10)}
LAG = {2.5: (0, 0, 0.26, 0.40, 0.51, 0.59), 0.5: (0, 0, 0.08, 0.11, 0.15, 0.16)}


def covariance(h: int, beta: float) -> np.ndarray:
    """Closed form: a sum of cosines weighted by the spectrum, over the squared normaliser."""

    def power(k):
        return (max(k, 1) / h) ** -beta

    variance_sum = 0.0  # of the normaliser, which leaves out the zero frequency
    lag = np.arange(h)
    cov = 2 * power(0) * np.ones(h)
    for k in range(1, h // 2 + 1):
        nyquist = 2 * k == h
        variance_sum += power(k) * (0.25 if nyquist else 1)
        cov += (2 if nyquist else 4) * power(k) * np.cos(2 * np.pi * k * lag / h)
    cov /= 4 * variance_sum  # (h sigma)^2
    return cov[np.abs(lag[:, None] - lag[None])]


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("h", LENGTHS)
def test_covariance(h: int, beta: float) -> None:
    w = colored_map(h, beta)
    wanted = covariance(h, beta)
    np.testing.assert_allclose(w @ w.T, wanted, atol=1e-12)
    draws = colorednoise.powerlaw_psd_gaussian(beta, (200_000, h), random_state=7)
    sampled = draws.T @ draws / len(draws)
    # Six standard errors of a sampled covariance.
    np.testing.assert_allclose(sampled, w @ w.T, atol=6 * wanted[0, 0] * np.sqrt(2 / 200_000))


@pytest.mark.parametrize("beta", BETAS)
def test_table_of_deviations(beta: float) -> None:
    for i, h in enumerate(LENGTHS):
        cov = colored_map(h, beta) @ colored_map(h, beta).T
        np.testing.assert_allclose(np.sqrt(np.diag(cov)), STD[beta][i], atol=0.0051)
        # The table's correlations were estimated: h 6, beta 0.5 is 0.143 exactly.
        assert cov[0, 1] / cov[0, 0] == pytest.approx(LAG[beta][i], abs=0.008)
        assert cov[0, -1] == pytest.approx(cov[0, 1])  # circular


def test_zero_exponent_is_white() -> None:
    for h in LENGTHS:
        w = colored_map(h, 0.0)
        np.testing.assert_allclose(w @ w.T, np.eye(h), atol=1e-12)


def test_each_working_horizon_has_the_noise_of_its_own_length() -> None:
    maps = noise_maps(6, 2.5)
    assert maps.shape == (7, 6, 6)
    for h in LENGTHS[:-1]:
        cov = maps[h] @ maps[h].T
        np.testing.assert_allclose(cov[:h, :h], covariance(h, 2.5), atol=1e-5)
        assert not np.any(cov[h:]) and not np.any(cov[:, h:])
