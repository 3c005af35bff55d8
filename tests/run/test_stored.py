"""Compiled functions on disk: the same numbers, untraced, and never those of another program."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from ace.engine import program as lanes
from ace.engine import stored
from ace.engine.program import LaneSetup, Program
from ace.envs import get_spec
from ace.settings.config import replace
from ace.settings.presets import resolve
from tests.run.helpers import leaves

TASK = "probe/point"
CAPACITY = 200


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own."""
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    monkeypatch.setattr(stored, "ENABLED", True)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)


def program_of(**changes: Any) -> Program:
    spec = get_spec(TASK)
    config = replace(resolve("debug", TASK, spec), changes)
    return Program(
        "ace", [LaneSetup(TASK, s, config, (spec.obs_size, spec.action_size)) for s in (0, 1)]
    )


def made(program: Program) -> Program:
    for thread in program.compile_ahead(CAPACITY):
        thread.join()
    return program


def drive(program: Program) -> Any:
    """A few steps with plans and updates."""
    rng = np.random.default_rng(0)

    def obs() -> np.ndarray:
        return rng.standard_normal((2, program.obs_size)).astype(np.float32)

    learner, memory, store = program.init_state(obs(), CAPACITY)
    for step in range(12):
        given = program.give(100 + step, obs=obs(), final_obs=obs(), active=np.ones(2, bool))
        store = program.add(store, given)
        action, memory = program.act(program.lane, learner, memory, given)
        learner, store, metrics = program.update(program.lane, learner, store, given)
    return leaves((learner, memory, store, action, metrics))


def test_what_was_stored_gives_the_same_numbers_untraced(folder: Path) -> None:
    fresh = drive(made(program_of()))
    assert len(list(folder.iterdir())) == 4
    again = made(program_of())
    assert not again.traces
    found = drive(again)
    assert set(again.traces) == {"add"}  # small, and not compiled ahead
    for name, leaf in fresh.items():
        np.testing.assert_array_equal(leaf, found[name], err_msg=name)


def test_another_program_is_compiled_anew(folder: Path, monkeypatch) -> None:
    path = stored.path("update", 3)
    assert path == stored.path("update", 3) != stored.path("update", 4)
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"] + " ")
    assert stored.path("update", 3) != path
    monkeypatch.undo()
    monkeypatch.setattr(stored, "ENABLED", True)
    with jax.default_matmul_precision("bfloat16"):
        assert stored.path("update", 3) != path
    monkeypatch.setattr(stored, "_machine", lambda: ("other code",))
    assert stored.path("update", 3) != path

    program = program_of()
    described = program.update.described
    for changed in (program_of(**{"learn.discount": 0.9}), program_of(**{"plan.horizon": 2})):
        assert changed.update.described != described != changed.act.described
    assert program_of().update.described == described


def test_agents_from_elsewhere_are_not_kept(folder: Path, monkeypatch) -> None:
    class Elsewhere:
        __name__ = "their.agent"

        def __getattr__(self, name: str) -> Any:
            return getattr(lanes.AGENTS["ace"], name)

    program = program_of()
    monkeypatch.setitem(lanes.AGENTS, "their", Elsewhere())
    made(Program("their", program.setups))
    assert not folder.exists()


def test_damaged_files_are_replaced(folder: Path) -> None:
    made(program_of())
    empty, wrong, short, _ = folder.iterdir()
    empty.write_bytes(b"")
    wrong.write_bytes(b"no such thing")
    short.write_bytes(short.read_bytes()[:-1000])
    assert len(made(program_of()).traces) == 3
    assert not made(program_of()).traces


def test_files_that_nobody_used_for_long_are_removed(folder: Path) -> None:
    made(program_of())
    old = next(folder.iterdir())
    os.utime(old, (0, 0))
    made(program_of(**{"plan.horizon": 2}))
    assert not old.exists() and len(list(folder.iterdir())) == 7
