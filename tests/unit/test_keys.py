"""No two (seed, purpose, count) share a stream, on the device or on the host."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (NumPy arrays are as good as JAX's here.)

import itertools

import jax
import numpy as np
import pytest

from ace.settings import keys


def test_device_keys_differ() -> None:
    names = list(itertools.product(range(4), keys.PURPOSES, range(6)))
    found = {tuple(jax.random.key_data(keys.key(*name)).tolist()) for name in names}
    assert len(found) == len(names)


def test_device_key_is_a_function_of_its_name() -> None:
    one, two = keys.key(3, "plan", 5), keys.key(np.uint32(3), "plan", np.int32(5))
    np.testing.assert_array_equal(jax.random.key_data(one), jax.random.key_data(two))


def test_host_seeds_differ() -> None:
    names = list(itertools.product(range(20), keys.PURPOSES, range(20)))
    found = {keys.host_seed(*name) for name in names}
    assert len(found) == len(names)
    assert keys.host_seed(3, "env", 1) == keys.host_seed(3, "env", 1)
    assert all(0 <= seed < 2**32 for seed in found)


def test_unknown_purpose_is_refused() -> None:
    with pytest.raises(ValueError):
        keys.key(0, "lunch")
