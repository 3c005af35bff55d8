"""Small runs for tests, through the same path as the command."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest

from ace.engine.program import Program
from ace.run import request
from ace.run.loop import train

# Two lanes that observe and act in two numbers, and plan in one iteration: `conftest.py` lets all
# runs of this shape in a process share their compiled functions, whatever their tasks are.
QUICK = ("--plan.iterations", "1")
PAIR = ("probe/long", "probe/point", *QUICK)


def small_run(folder: Path, *argv: str, preset: str = "debug"):
    """The final state of `ace train ARGV --preset debug` and its run."""
    run = request.plan_run([*argv, "--preset", preset, "--quiet", "--run", str(folder)])
    return train(run), run


@contextmanager
def optimised_updates() -> Iterator[None]:
    """Optimise the updates of runs that learn: they make hundreds, and all other functions are
    called too seldom for it."""
    plain, some = Program._compile, {"xla_backend_optimization_level": 1}

    def compiled(self, function, *args, **kwargs):
        with pytest.MonkeyPatch.context() as inner:
            if function in (self._update_one, self._updates_one):
                inner.setattr("ace.engine.program.compiler_options", lambda: some)
            return plain(self, function, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "_compile", compiled)
        yield


def leaves(tree) -> dict[str, np.ndarray]:
    """Every leaf by name, as NumPy (random keys as their data)."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


def csv_rows(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a CSV without the wall time."""
    return [{**r, "wall_time": ""} for r in csv.DictReader(open(folder / name))]


def same(one, other) -> None:
    """Every leaf is equal."""
    a, b = leaves(one), leaves(other)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
