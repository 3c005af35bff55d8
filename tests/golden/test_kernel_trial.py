"""The trial that kernels must pass on a card before they are used, and what they compute in it."""

# pyright: reportCallIssue=false

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.engine import kernels
from ace.engine.kernels import columns, common, dynamics, gru, layers, rows

F = jnp.float32
KERNELS = (rows, gru, columns, dynamics, layers)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Run the kernels without a GPU."""
    monkeypatch.setattr(common, "INTERPRET", True)


@pytest.fixture
def trial(monkeypatch, tmp_path) -> Iterator[Path]:
    """A machine with a card on which nothing was tried out; the file that says what passed."""
    passed = tmp_path / "cache" / "passed"
    monkeypatch.setattr(kernels, "_mark_of_success", lambda: passed)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(kernels, "TRIAL", kernels.Trial())
    yield passed


def test_kernels_are_tried_out_once(monkeypatch, trial) -> None:
    """Here with one activation, since `test_kernels.py` compares all, and without the two kinds
    that are tried out below."""
    monkeypatch.setattr(rows, "ACTIVATIONS", {"tanh": common.ACTIVATIONS["tanh"]})
    for kind in (dynamics, layers):
        monkeypatch.setattr(kind, "TRIED", ())
    assert kernels.TRIAL.result() == "" and trial.exists()
    monkeypatch.setattr(kernels, "_try_out", lambda: pytest.fail("passed before"))
    assert kernels.TRIAL.result() == "" and kernels.Trial().result() == ""


def test_two_threads_make_one_trial(monkeypatch, trial) -> None:
    tries = []

    def slow() -> None:
        tries.append(1)
        time.sleep(0.2)

    monkeypatch.setattr(kernels, "_try_out", slow)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: kernels.TRIAL.result(), range(4))) == {""}
    assert len(tries) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_that_are_wrong_are_not_used(monkeypatch, trial, dtype) -> None:
    for kind in (gru, columns, dynamics, layers):  # these are tried out above
        monkeypatch.setattr(kind, "TRIED", ())
    monkeypatch.setattr(rows, "TRIED", (dtype,))
    monkeypatch.setattr(rows, "ACTIVATIONS", {"tanh": common.ACTIVATIONS["tanh"]})
    forward, wrong = rows.fused_forward, {jnp.float32: 1.01, jnp.bfloat16: 1.05}[dtype]

    def fused_forward(act, norm, out, *args):
        y, stats = forward(act, norm, out, *args)
        return (wrong * y if out == dtype else y), stats

    monkeypatch.setattr(rows, "fused_forward", fused_forward)
    why = kernels.TRIAL.result()
    assert "rows is wrong" in why and jnp.dtype(dtype).name in why and not trial.exists()


@pytest.mark.parametrize("kind", KERNELS)
def test_a_wrong_kernel_of_any_kind_is_found_out(monkeypatch, trial, kind) -> None:
    for other in KERNELS:
        got = jnp.full(2, 1.1 if other is kind else 1.0)
        monkeypatch.setattr(other, "trial", lambda dtype, got=got: ((got, jnp.ones(2)),))
    assert f"{kind.__name__.rpartition('.')[2]} is wrong" in kernels.TRIAL.result()


def test_without_a_card_nothing_is_tried_out(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "TRIAL", kernels.Trial())
    monkeypatch.setattr(kernels, "_try_out", lambda: pytest.fail("there is no card"))
    assert "no NVIDIA GPU" in kernels.TRIAL.result()
    assert kernels.broken() == ""  # interpreted, they need none
    monkeypatch.setattr(common, "INTERPRET", False)
    assert "no NVIDIA GPU" in kernels.broken() and not kernels.fits(rows, 64, 128)


def tried(kind, dtype) -> Any:
    """What the kernels give in their trial, which they pass, and what they should, in one
    program."""

    def both() -> Any:
        pairs = list(kind.trial(dtype))
        return pairs, common.worst(pairs)

    pairs, off = jax.jit(both)()
    assert kind.TRIED == (dtype,) and off < kernels.TOLERANCES[dtype]
    return pairs


def test_layers_that_do_not_learn_in_kernels() -> None:
    for got, wanted in tried(layers, jnp.bfloat16):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got.astype(F), wanted.astype(F), rtol=2**-7, atol=2**-7)


def test_a_step_of_the_model_in_kernels() -> None:
    for both in tried(dynamics, jnp.bfloat16):
        for got, wanted in zip(*both, strict=True):
            scale = float(jnp.abs(wanted).max())
            np.testing.assert_allclose(got.astype(F), wanted.astype(F), atol=2**-7 * (1 + scale))


def test_lowering_a_kernel_for_a_card_looks_for_no_module(monkeypatch):
    """MLIR looked three times in the file system for the type of each value of a kernel."""
    monkeypatch.setattr(common, "INTERPRET", False)
    rows = 272  # of no other test, whose trace would be used again
    given = jnp.zeros((rows, 384)), jnp.zeros((rows, 128)), *jnp.ones((2, 3, 128))
    traced = jax.jit(gru.fused_gru).trace(*given)
    looked = []

    class Finder:
        """Finds nothing."""

        def find_spec(self, name, path=None, target=None):
            looked.append(name)

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
    try:
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    finally:
        del sys.meta_path[0]
    assert "triton" in text
    assert not [name for name in looked if name.endswith((".tt", "jax.jaxlib"))]
