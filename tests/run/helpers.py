"""Small runs for tests, through the same path as the command."""

import csv
import dataclasses
import functools
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from ace.engine.program import Program
from ace.run import request
from ace.run.loop import Loop, train
from ace.run.request import Run

# Plans of one iteration and two steps: the iterations of a plan and the steps of an update are
# compiled one by one. The working horizon still grows.
SHORT = {"plan.iterations": 1, "plan.horizon": 2, "plan.horizon_ramp.start": 1.0}
SHORT_FLAGS = tuple(w for k, v in SHORT.items() for w in (f"--{k.replace('_', '-')}", str(v)))
QUICK = (*SHORT_FLAGS, "--learn.seed-updates", "1")  # all of the burst, to break off in
# Two lanes that observe and act in two numbers: `conftest.py` lets all runs of this shape in a
# process share their compiled functions, whatever their tasks are.
PAIR = ("probe/long", "probe/point", *QUICK)


@functools.cache
def _parsed(argv: tuple[str, ...]) -> Run:
    """The run of `ace train ARGV`. Flags are parsed once for each task of every run, which takes a
    tenth of a small run, and many runs are asked for in the same words."""
    return request.plan_run((*argv, "--run", "no-such-folder"))


def plan(folder: Path, *argv: str, preset: str = "debug") -> Run:
    """The run of `ace train ARGV --preset debug`."""
    argv = (*argv, "--preset", preset, "--quiet")
    command = shlex.join(["ace", "train", *argv, "--run", str(folder)])
    run = dataclasses.replace(_parsed(argv), folder=folder, command=command)
    request.check_folder(folder, run.describe())
    return run


def small_run(folder: Path, *argv: str, preset: str = "debug"):
    """The final state of `ace train ARGV --preset debug` and its run."""
    run = plan(folder, *argv, preset=preset)
    return train(run), run


def pair(folder: Path, *more: str):
    """The final state of a small run of two lanes."""
    return small_run(folder, *PAIR, *more)[0]


@contextmanager
def optimised_updates() -> Iterator[None]:
    """Optimise the updates of runs that learn: they make hundreds, and all other functions are
    called too seldom for it."""
    plain, some = Program._compile, {"xla_backend_optimization_level": 1}

    def compiled(self, function, *args, **kwargs):
        with pytest.MonkeyPatch.context() as inner:
            if function.__name__ in ("update", "updates"):
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


def most_skipped(run: Run) -> float:
    """The most updates that a lane of a run left out."""
    return max(float(r["skipped_updates"] or 0) for r in csv_rows(run.folder, "train.csv"))


def same(one, other) -> None:
    """Every leaf is equal."""
    a, b = leaves(one), leaves(other)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def same_rows(folder: Path, other: Path) -> None:
    """Both runs wrote the same rows."""
    for name in ("train.csv", "eval.csv"):
        assert csv_rows(folder, name) == csv_rows(other, name)


class Killed(Exception):
    """Stands for a kill that leaves no time to save."""


@contextmanager
def broken_off(saves: Collection[int], kill: int) -> Iterator[None]:
    """The run inside saves after each number of agent steps in `saves`, and is killed after `kill`
    of them."""
    step = Loop.step

    def broken(self) -> None:
        if self.agent_step in saves:
            self.save()
        if self.agent_step == kill:
            self.keeper.wait()
            raise Killed
        step(self)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Loop, "step", broken)
        yield


def check_broken_run(
    whole: tuple[Any, Run], folder: Path, breaks: Sequence[tuple[Collection[int], int]], *argv: str
) -> Any:
    """`small_run(folder, *argv)`, broken off as `breaks` say and continued, gives the state and the
    rows of `whole`, which is what the same run returned that was not. Returns its state."""
    for saves, kill in breaks:
        with broken_off(saves, kill):
            small_run(folder, *argv)
    state, _ = small_run(folder, *argv)
    same(state, whole[0])
    same_rows(folder, whole[1].folder)
    return state
