"""A whole update with the faster forms, interpreted, against the plain ones, for the latents of the
paper: 50, which is padded to 64, and humanoid's 100, padded to 128.

In float32 both must agree. In bf16 either rounds in its own places, and where two critics are
nearly equal a rounding decides which counts; so there the faster forms must be as near to the plain
float32 result as the plain bf16 ones are.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.engine import fused, kernels
from ace.engine.kernels import common
from ace.method import learner
from ace.method.replaceable import replaced
from ace.method.types import Batch, Lane, LearnerState
from tests.golden.whole import LATENTS, batch_of, config_of, lane_of, named, start


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Run the kernels without a GPU."""
    monkeypatch.setattr(common, "INTERPRET", True)


@functools.cache
def updated(latent: int, precision: str, form: str) -> Any:
    """State, priorities and metrics after an update, and what was said about the kernels."""
    lane, report = lane_of(config_of(latent, precision)), kernels.Report()

    def update(lane: Lane, state: LearnerState, batch: Batch) -> Any:
        table = {} if form == "plain" else fused.TABLE
        with replaced(table), kernels.reporting(report):
            return learner.update(lane, state, batch, jnp.int32(9_000), jnp.bool_(True))

    return jax.tree.map(np.asarray, jax.jit(update)(lane, start(latent), batch_of())), report


def parts(latent: int, precision: str, form: str) -> dict[str, np.ndarray]:
    """All that an update gives but the parameters, which Adam's first step makes of signs."""
    (state, priority, metrics), _ = updated(latent, precision, form)
    return named((state._replace(params=()), priority, metrics))


def check_f32(latent: int, form: str) -> None:
    got, wanted = parts(latent, "f32", form), parts(latent, "f32", "plain")
    assert got.keys() == wanted.keys()
    for name, x in wanted.items():
        scale = np.abs(x).max() + 1e-9
        np.testing.assert_allclose(got[name] / scale, x / scale, atol=3e-5, err_msg=name)
    states = [updated(latent, "f32", f)[0][0] for f in (form, "plain")]
    fast, plain, old = (named(s.params) for s in (*states, start(latent)))
    moments = named([m[1].mu for m in states[1].opt])
    gradient = {name[name.index("]") + 1 :]: np.abs(g) for name, g in moments.items()}
    for name, x in plain.items():
        assert np.abs(x - old[name]).max() > 1e-5 or not gradient[name].any(), name
        sure = gradient[name] > 1e-3 * gradient[name].max()
        np.testing.assert_allclose(fast[name][sure], x[sure], atol=2e-5, err_msg=name)
        np.testing.assert_allclose(fast[name], x, atol=2.1e-3, err_msg=name)  # two steps of Adam


@pytest.mark.parametrize("latent", LATENTS[:1])
def test_an_update_in_f32(latent: int) -> None:
    check_f32(latent, "fused")
    report = updated(latent, "f32", "fused")[1]
    assert {"rows", "gru", "columns"} <= report.used and not report.unused().keys() & report.used
    assert not updated(latent, "f32", "plain")[1].used


def test_an_update_with_the_faster_forms_where_no_kernel_can_be_used(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "broken", lambda: "they failed their trial")
    check_f32(50, "without kernels")
    assert not updated(50, "f32", "without kernels")[1].used


def off(x: np.ndarray, truth: np.ndarray) -> float:
    """Relative distance by the root of the mean square."""
    return float(np.sqrt(np.mean(np.square(x - truth))) / (np.sqrt(np.mean(truth**2)) + 1e-9))


@pytest.mark.parametrize("latent", LATENTS[1:])
def test_an_update_in_bf16(latent: int) -> None:
    truth, plain = parts(latent, "f32", "plain"), parts(latent, "bf16", "plain")
    fast = parts(latent, "bf16", "fused")
    assert {"rows", "gru", "columns", "layers"} <= updated(latent, "bf16", "fused")[1].used
    for name, x in truth.items():
        allowed = 2 * off(plain[name], x) + 0.02
        assert off(fast[name], x) < allowed < 0.8, name
    for part in ("'policy'", "'value'", "'encoder'", "'cell'", "'projector'", "'reward'"):
        moments = [n for n in truth if ".mu" in n and part in n]
        assert moments and all(off(plain[n], truth[n]) < 0.3 for n in moments), part
