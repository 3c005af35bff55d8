"""Colored noise as an exact linear map: for a given length and exponent the power-law generator
is linear in its Gaussian draws, so one small matrix per (horizon, beta) replaces the FFT."""

import jax
import numpy as np

from ace.method.replaceable import replaceable


def colored_map(horizon: int, beta: float) -> np.ndarray:
    """W [h, h] such that W @ eps is power-law noise of exponent beta (2.6); white if beta is 0.

    The spectrum s = f^(-beta/2) has its zero frequency raised to the lowest one, and the
    normaliser leaves the zero frequency out, so the marginal deviation lies above one.
    """
    if beta <= 0 or horizon == 1:
        return np.eye(horizon)
    f = np.fft.rfftfreq(horizon)
    f[0] = f[1]
    s = f ** (-beta / 2)
    w = s[1:].copy()
    w[-1] *= (1 + horizon % 2) / 2  # an even length has a real Nyquist bin, counted once
    sigma = 2 * np.sqrt(np.sum(w**2)) / horizon
    columns = []
    for k in range(len(s)):
        is_real = k == 0 or (horizon % 2 == 0 and k == len(s) - 1)
        for unit in [np.sqrt(2)] if is_real else [1, 1j]:
            spectrum = np.zeros(len(s), complex)
            spectrum[k] = s[k] * unit
            columns.append(np.fft.irfft(spectrum, n=horizon) / sigma)
    return np.stack(columns, axis=1)


def noise_maps(horizon: int, beta: float) -> np.ndarray:
    """The maps of every working horizon 0..H, zero-padded to [H+1, H, H]."""
    maps = np.zeros((horizon + 1, horizon, horizon), np.float32)
    for h in range(1, horizon + 1):
        maps[h, :h, :h] = colored_map(h, beta)
    return maps


@replaceable
def normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal draws."""
    return jax.random.normal(key, shape)
