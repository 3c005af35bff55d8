"""Functions that are compiled once: what a check may undo, and kernels that fail their trial."""

import gc
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.engine import fused, kernels
from ace.engine.compile import Function
from ace.engine.lanes import LaneSetup
from ace.engine.player import Player
from ace.engine.program import Program
from ace.settings.config import Config, replace
from tests.patience import PATIENCE

X = jnp.arange(3.0)


def counting(traces: list[int]) -> Any:
    """A function that adds how often it was traced."""

    def add(x: jax.Array) -> jax.Array:
        traces.append(1)
        return x + len(traces)

    return add


@pytest.mark.parametrize("passes, times", [(True, 1), (False, 2)])
def test_what_fails_its_check_is_traced_again(passes: bool, times: int) -> None:
    traces: list[int] = []
    function = Function(counting(traces), lambda: passes)
    for _ in range(2):
        np.testing.assert_array_equal(function(X), X + times)
    assert len(traces) == times and function.ready


def test_the_check_runs_beside_the_compilation() -> None:
    begun = threading.Event()

    def check() -> bool:
        begun.set()
        return True

    class Lowered:
        def compile(self) -> Any:
            assert begun.wait(PATIENCE)
            return lambda x: x

    function = Function(lambda x: x, check)
    function.jitted = type("Jitted", (), {"lower": lambda self, *args: Lowered()})()  # type: ignore
    assert function(7) == 7


@pytest.mark.parametrize("passes", [True, False])
def test_an_error_counts_unless_the_check_fails(passes: bool) -> None:
    traces: list[int] = []

    def fails_first(x: jax.Array) -> jax.Array:
        traces.append(1)
        if len(traces) == 1:
            raise ZeroDivisionError
        return x

    function = Function(fails_first, lambda: passes)
    if passes:
        with pytest.raises(ZeroDivisionError):
            function(X)
    else:
        np.testing.assert_array_equal(function(X), X)


def test_a_stopped_compilation_is_made_up_for_by_a_call() -> None:
    stop, function = threading.Event(), Function(lambda x: 2 * x)
    stop.set()
    function.compile(X, stop=stop)
    assert not function.ready
    np.testing.assert_array_equal(function(X), 2 * X)


@pytest.mark.parametrize("traced", [True, False])
def test_a_program_whose_kernels_fail_their_trial_computes_without_them(
    monkeypatch, traced: bool
) -> None:
    """They do not even compile here: there are none for a CPU. Others cannot be traced, as with
    another version of Pallas."""
    if not traced:
        monkeypatch.setattr(kernels.rows, "launch", lambda *_, **__: 1 / 0)
    small = {"net.latent": 4, "net.mlp": 8, "net.encoder": 128, "net.belief": 4, "plan.horizon": 2}
    config = replace(Config(), small | {"precision": "f32", "eval_episodes": 64})
    setups = [LaneSetup("probe/point", 0, config, (3, 2))]
    question = np.random.default_rng(0).standard_normal((1, 64, 3)).astype("f")
    found, reports = [], []
    monkeypatch.setattr(kernels, "TRIAL", kernels.Trial())
    monkeypatch.setattr(kernels, "_mark_of_success", lambda: None)
    monkeypatch.setattr(kernels, "_try_out", lambda: 1 / 0)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for table in (fused.TABLE, {}):
        monkeypatch.setattr(Program, "table", table)
        program = Program("ace", setups)
        player = program.player("policy", 64)
        player.begin(program.agent.acting_part(program.fresh.learners), 0)
        found.append(player.act(question, 0))
        reports.append(program.kernels)
    np.testing.assert_allclose(*found, atol=1e-6)
    assert not reports[0].used and "failed their trial" in reports[0].unused()["rows"]
    assert not reports[1].unused()


def with_kernels(monkeypatch, encoder: int) -> tuple[Program, Player]:
    """A program that believes its kernels, and a player whose function has some."""
    small = {"net.latent": 4, "net.mlp": 8, "net.belief": 4, "plan.horizon": 2}
    small |= {"net.encoder": encoder}
    config = replace(Config(), small | {"precision": "f32", "eval_episodes": 64})
    program = Program("ace", [LaneSetup("probe/point", 0, config, (3, 2))])
    monkeypatch.setattr(kernels, "broken", lambda: "")
    monkeypatch.setattr(kernels, "known_broken", lambda: "")
    monkeypatch.setattr(Program, "table", fused.TABLE)
    player = program.player("policy", 64)
    player.begin(program.agent.acting_part(program.fresh.learners), 0)
    return program, player


def test_a_function_that_does_not_compile_with_kernels_computes_without_them(monkeypatch) -> None:
    """Their trial has small sizes, so a kernel may pass it and fail in a program, as all do on a
    CPU. That ended the run."""
    program, player = with_kernels(monkeypatch, 128)
    assert np.all(np.isfinite(player.act(np.zeros((1, 64, 3), "f"), 0)))
    assert program.traces["act_policy"] == 2 and not program.kernels.used
    assert "; not any in act_policy: it does not compile with them (" in program.kernels.line()


def test_a_lack_of_memory_is_no_fault_of_the_kernels(monkeypatch) -> None:
    """Without them a function needs more memory still."""
    program, player = with_kernels(monkeypatch, 256)  # JAX remembers what was traced with 128

    def fail(text: str) -> None:
        raise RuntimeError(text)

    def launch(*_: Any, **__: Any) -> None:
        fail("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(kernels.rows, "launch", launch)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        player.act(np.zeros((1, 64, 3), "f"), 0)
    assert program.traces["act_policy"] == 1
    # Shared memory is that of a kernel: it does not fit, and the function does without it.
    text = "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 300000, available 1"
    monkeypatch.setattr(kernels.rows, "launch", lambda *_, **__: fail(text))
    player.act(np.zeros((1, 64, 3), "f"), 0)
    assert "any in act_policy: it does not compile with them" in program.kernels.line()


def test_functions_are_traced_one_at_a_time_without_collecting_garbage() -> None:
    busy, seen = threading.Lock(), []

    def traced(x: jax.Array) -> jax.Array:
        with_others = not busy.acquire(blocking=False)
        time.sleep(0.05)
        seen.append((with_others, gc.isenabled()))
        busy.release()
        return x + 1

    made = [Function(lambda x: traced(x)) for _ in range(3)]
    threads = [threading.Thread(target=f.compile, args=(X,)) for f in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(False, False)] * 3 and gc.isenabled()


def test_garbage_is_collected_again_after_an_error() -> None:
    def wrong(x: jax.Array) -> jax.Array:
        raise TypeError("not this one")

    with pytest.raises(TypeError, match="not this one"):
        Function(wrong)(X)
    assert gc.isenabled()
