"""Notes on a task for the start of a run: a time limit that is assumed because the task declares
none, and episodes that do not repeat under a seed."""

import functools
import time
from contextlib import suppress

import numpy as np

from ace.envs.api import EnvError, TaskError
from ace.envs.pool.vector import EnvRequest, VectorEnv
from ace.envs.registry import FAMILIES, OWN, get_spec

SECONDS = 60.0  # timeout of each answer while an environment is tried
STEPS, STEPS_SECONDS = 50, 1.0  # of an episode that is tried, at most


def notes(task: str) -> list[str]:
    """Lines about a task that a run should print at its start."""
    return list(_notes(task))


@functools.cache
def _notes(task: str) -> tuple[str, ...]:
    found = limit_notes(task)
    # This package's families repeat themselves: tests check that.
    if task.partition("/")[0] not in OWN and not repeats_itself(task):
        found.append(
            f"task {task} does not repeat its episodes under a seed: its runs cannot be repeated"
            " or resumed exactly"
        )
    return tuple(found)


def limit_notes(task: str) -> list[str]:
    """A line about a time limit that the task does not declare itself."""
    spec = get_spec(task)
    if not spec.assumed_limit:
        return []
    how = "wrap it with gymnasium.wrappers.TimeLimit"
    if task.partition("/")[0] in FAMILIES:
        how = "set max_episode_steps of its spec"
    return [
        f"task {task} declares no time limit: its episodes are cut after"
        f" {spec.max_episode_steps:,} environment steps; {how} to choose another"
    ]


def repeats_itself(
    task: str, seed: int = 0, steps: int = STEPS, seconds: float = STEPS_SECONDS
) -> bool:
    """Whether two environments of one seed, each started twice, give the same `steps`, or as many
    as they make in `seconds`.

    They run in a worker process, since a trial may crash or hang. A trial that fails counts as
    true: the run itself will report the failure.
    """
    spec, twice = get_spec(task), [EnvRequest(task, seed, 1, "try of its seeds")] * 2
    actions = np.random.default_rng(seed).uniform(-1, 1, (steps, 1, spec.action_size))
    sizes = (spec.obs_size, spec.action_size)
    seen, most = [], steps  # per start [2, ...]
    with suppress(EnvError, TaskError), VectorEnv(twice, 1, *sizes, timeout=SECONDS) as envs:
        for _ in range(2):
            parts, end = [envs.reset([seed, seed])], time.monotonic() + seconds
            for count, action in enumerate(actions[:most].astype(np.float32), 1):
                step = envs.step(np.repeat(action, 2, axis=0))
                if step.faults:
                    return True
                parts += [step.final_obs, step.reward[:, None]]
                if not seen and time.monotonic() > end:
                    most = count  # the second start makes as many
                    break
            seen.append(np.concatenate(parts, axis=1))
    tries = np.concatenate(seen) if seen else np.zeros((1, 0))
    return bool((tries == tries[0]).all())
