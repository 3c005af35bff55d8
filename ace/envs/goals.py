"""Goals inside observations: the check of a task's goal declaration, and relabelling observations
with another goal for hindsight replay."""

import itertools
import pickle
from types import ModuleType
from typing import Any

import numpy as np

from ace.envs.api import EnvSpec, Goal, TaskError
from ace.envs.explain import explain


def check_goal(spec: EnvSpec) -> None:
    """Raise TaskError unless the goal's ranges fit the observation and its rule can be used."""
    goal = spec.goal
    if goal is None:
        return
    ranges = {"achieved": goal.achieved, "desired": goal.desired}
    if goal.error is not None:
        ranges["error"] = goal.error
    for name, (start, stop) in ranges.items():
        if not 0 <= start < stop <= spec.obs_size:
            raise _wrong(spec, f"{name} is {start, stop}", f"choose it in 0 to {spec.obs_size}")
    widths = {name: stop - start for name, (start, stop) in ranges.items()}
    if not 0 <= goal.fixed < widths["desired"]:
        advice = f"choose it in 0 to {widths['desired'] - 1}"
        raise _wrong(spec, f"fixed is {goal.fixed}", advice)
    if goal.error is not None:
        widths["error"] += goal.fixed
    if len(set(widths.values())) > 1:
        advice = "make them equal" if not goal.fixed else f"the error lacks {goal.fixed} of them"
        raise _wrong(spec, f"the widths of {_listed(ranges)} differ", advice)
    ordered = sorted(ranges.values())
    for (_, stop), (start, _) in itertools.pairwise(ordered):
        if start < stop:
            raise _wrong(spec, f"{_listed(ranges)} overlap", "give each its own entries")
    _check_rule(spec, goal)


def _check_rule(spec: EnvSpec, goal: Goal) -> None:
    try:
        pickle.dumps(goal)
        hash(goal)
    except Exception as error:
        advice = "use a function at the top of a module"
        raise _wrong(spec, f"its rule cannot be sent ({explain(error)})", advice) from error
    tried = np.zeros((3, 2, goal.desired[1] - goal.desired[0]))
    advice = "write it as rule(xp, achieved [..., G], desired [..., G]) -> rewards [...]"
    try:
        with np.errstate(all="ignore"):
            shape = np.shape(goal.rule(np, tried, tried))
    except Exception as error:
        raise _wrong(spec, f"its rule failed ({explain(error)})", advice) from error
    if shape != tried.shape[:-1]:
        found = f"its rule gave rewards {shape} for goals {tried.shape}"
        raise _wrong(spec, found, advice)


def relabel(goal: Goal, obs: Any, desired: Any, xp: ModuleType = np) -> Any:
    """Observations [..., O] with other desired goals [..., G], and the error updated.

    Entries that the goal declares as fixed stay as they are. Leading axes of `desired` broadcast;
    xp is numpy or jax.numpy.
    """
    start, stop = goal.desired
    width = stop - start - goal.fixed
    desired = xp.asarray(desired, obs.dtype)[..., :width]
    desired = xp.broadcast_to(desired, (*obs.shape[:-1], width))
    written = {(start, start + width): desired}
    if goal.error is not None:
        first = goal.achieved[0]
        written[goal.error] = desired - obs[..., first : first + width]
    # Concatenate pieces: JAX arrays are immutable.
    pieces, at = [], 0
    for start, stop in sorted(written):
        pieces += [obs[..., at:start], written[start, stop]]
        at = stop
    return xp.concatenate([*pieces, obs[..., at:]], axis=-1)


def _listed(ranges: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {where}" for name, where in ranges.items())


def _wrong(spec: EnvSpec, what: str, advice: str) -> TaskError:
    return TaskError(f"task '{spec.task}' declares a goal that does not fit: {what}; {advice}")
