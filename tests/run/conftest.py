"""Runs of equal settings share their compiled functions inside a test process: tracing and loading
them is most of what a small run does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from ace.engine.compile import Function
from ace.engine.program import Program
from ace.settings.config import replace
from tests.run.helpers import PAIR, small_run

COMPILED: dict[tuple, object] = {}
# Only the host reads these; the replay's capacity and the episodes are shapes, too.
HOST = {
    **{"env_steps": 1, "eval_every": 1, "workers": 0, "env_timeout": 1, "fault_limit": 1},
    **{"replay.capacity": 0, "action_repeat": 1, "eval_episodes": 1},
    **{"learn.update_mode": "step", "learn.updates_per_step": 1},
}


def described(program: Program) -> tuple:
    """All that the functions of a program depend on, besides the values and shapes of their
    arguments: float settings are among those."""
    settings = jax.tree.structure(replace(program.config, HOST))
    sizes = len(program.setups), program.obs_size, program.action_size
    return program.agent_name, id(program.agent), str(settings), sizes


SHARING = [True]


@contextmanager
def compiled_anew() -> Iterator[None]:
    """Compile every function anew, as a user's process does; later programs may use them."""
    SHARING[0] = False
    try:
        yield
    finally:
        SHARING[0] = True


@pytest.fixture(autouse=True, scope="package")
def shared_programs():
    """Look every function up before it is compiled."""
    start, compile, new_replay = Program.__init__, Function.compile, Program._new_replay
    starts: dict[tuple, Any] = {}

    def started(self, *args, **kwargs) -> None:
        start(self, *args, **kwargs)
        for function in vars(self).values():
            if isinstance(function, Function):
                function.key = described(self), function.traced.__name__  # type: ignore

    def shared(self, *args, **kwargs):
        leaves, structure = jax.tree.flatten(args)
        shapes = str([(x.shape, x.dtype) for x in leaves])
        key = (getattr(self, "key", id(self)), str(structure), shapes)
        if SHARING[0] and self._compiled is None and key in COMPILED:
            self._compiled = COMPILED[key]
        found = compile(self, *args, **kwargs)
        if self._compiled is not None:
            COMPILED[key] = self._compiled
        return found

    def shared_start(self, obs, capacity):
        key = described(self), capacity, str(self.fresh.hindsight)
        if key not in starts:  # a function of the observations alone
            starts[key] = jax.jit(lambda obs: new_replay(self, obs, capacity))
        return starts[key](obs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "__init__", started)
        patch.setattr(Program, "_new_replay", shared_start)
        patch.setattr(Function, "compile", shared)
        yield


@pytest.fixture(scope="package")
def whole(tmp_path_factory):
    """The final state of a small run that was left alone, and the run."""
    return small_run(tmp_path_factory.mktemp("whole") / "run", *PAIR)
