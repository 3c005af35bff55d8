"""From a task name to an environment. A family of tasks is one line in FAMILIES: a module with
`make_env(name, seed, render)` and `task_names()`, imported only when it is asked for."""

import difflib
import functools
import importlib
from types import ModuleType

from ace.envs.api import ActionRepeat, Checked, Env, EnvSpec, TaskError

FAMILIES = {"dmc": "ace.envs.dmc.suite", "probe": "ace.envs.probe"}
GYM_HELP = "gym/ID (any id of gymnasium), or package.module:function (returns a gymnasium.Env)"


def make(task: str, seed: int, action_repeat: int = 1, render: bool = False) -> Env:
    """Make the environment of a task, with action repeat and checks."""
    env = _make_plain(task, seed, render)
    if action_repeat != 1:
        env = ActionRepeat(env, action_repeat)
    return Checked(env)


def task_names() -> list[str]:
    """List all named tasks; those of gymnasium are not listed, GYM_HELP says how to name them."""
    names: list[str] = []
    for family in FAMILIES:
        try:
            names += _family(family).task_names()
        except TaskError:  # its simulator is not installed
            continue
    return names


@functools.cache
def get_spec(task: str) -> EnvSpec:
    """Find a task's sizes and episode length by making it once."""
    env = make(task, seed=0)
    env.close()
    return env.spec


def validate(task: str) -> None:
    """Raise TaskError, with the nearest name, unless the task is known."""
    family, _, name = task.partition("/")
    if family in FAMILIES:
        if task not in _family(family).task_names():
            raise _unknown(task)
    elif family == "gym":
        _gym().check_id(name)
    elif _is_import_string(task):
        _gym().import_function(task)
    else:
        raise _unknown(task)


def _make_plain(task: str, seed: int, render: bool) -> Env:
    validate(task)
    family, _, name = task.partition("/")
    if family in FAMILIES:
        return _family(family).make_env(name, seed, render)
    if family == "gym":
        return _gym().make_env(name, seed, render)
    return _gym().make_imported(task, seed)


def _is_import_string(task: str) -> bool:
    module, colon, function = task.partition(":")
    words = [*module.split("."), function]
    return bool(colon) and all(word.isidentifier() for word in words)


def _family(name: str) -> ModuleType:
    return importlib.import_module(FAMILIES[name])


def _gym() -> ModuleType:
    return importlib.import_module("ace.envs.gym")


def _unknown(task: str) -> TaskError:
    # Names are compared without family and with - for _, since these are what people mix up.
    names = {_plain(name): name for name in task_names()}
    nearest = difflib.get_close_matches(_plain(task), names, n=1)
    hint = f"did you mean {names[nearest[0]]}? " if nearest else ""
    return TaskError(f"task '{task}' unknown; {hint}`ace tasks` lists them all")


def _plain(task: str) -> str:
    return task.rpartition("/")[2].lower().replace("_", "-")
