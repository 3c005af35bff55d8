"""From a task name to an environment. A family of tasks is one line in FAMILIES: a module with
`make_env(name, seed, render)` and `task_names()`, imported only when it is asked for."""

import difflib
import functools
import importlib
from types import ModuleType

from ace.envs.api import ActionRepeat, Checked, Env, EnvError, EnvSpec, TaskError, TimeLimit
from ace.envs.explain import explain, import_module
from ace.envs.goals import check_goal
from ace.envs.numbers import check_numbers

OWN = {
    "adroit": "ace.envs.adroit",
    "dmc": "ace.envs.dmc.suite",
    "maze": "ace.envs.maze.point",
    "metaworld": "ace.envs.metaworld",
    "probe": "ace.envs.probe",
}
FAMILIES = dict(OWN)  # with those that users register
GYM_HELP = "gym/ID (any id of gymnasium), or package.module:function (returns a gymnasium.Env)"
MOST_ENTRIES = 10_000_000  # of an observation or an action
DEFAULT_LIMIT = 1000  # env steps of an episode, where the task declares no limit


def make(task: str, seed: int, action_repeat: int = 1, render: bool = False) -> Env:
    """Make the environment of a task, with a time limit, action repeat and checks."""
    env = _make_plain(task, seed, render)
    check_sizes(env.spec)
    check_numbers(env.spec)
    check_goal(env.spec)
    if env.spec.max_episode_steps is None:
        env = TimeLimit(env, DEFAULT_LIMIT)
    if action_repeat != 1:
        env = ActionRepeat(env, action_repeat)
    return Checked(env)


def register_family(name: str, module: str) -> None:
    """Register the tasks `name/...` of a module, given by its import path."""
    if not name.isidentifier():
        raise TaskError(f"family name {name!r}: name it with letters, digits and _")
    if name == "gym" or FAMILIES.get(name, module) != module:
        by = FAMILIES.get(name, "gymnasium")
        raise TaskError(f"family '{name}' of {module} is taken by {by}; choose another name")
    if module == "__main__":
        raise TaskError(
            f"family '{name}' is in the program's main file, which workers cannot import; put it"
            " into a module of its own and import that"
        )
    FAMILIES[name] = module


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


def check_sizes(spec: EnvSpec) -> None:
    """Raise TaskError if observations or actions are empty, or larger than anything can learn."""
    for what, size in (("observations", spec.obs_size), ("actions", spec.action_size)):
        if size < 1:
            raise TaskError(f"task '{spec.task}' has {what} of size {size}; give them an entry")
        if size > MOST_ENTRIES:
            most = f"at most {MOST_ENTRIES:,} entries are supported"
            raise TaskError(f"task '{spec.task}' has {what} of size {size:,}; {most}")


def _make_plain(task: str, seed: int, render: bool) -> Env:
    validate(task)
    family, _, name = task.partition("/")
    if family in OWN:
        return _family(family).make_env(name, seed, render)
    if family == "gym":
        return _gym().make_env(name, seed, render)
    if family in FAMILIES:
        return _make_registered(task, seed, render)
    return _gym().make_imported(task, seed)


def _make_registered(task: str, seed: int, render: bool) -> Env:
    family, _, name = task.partition("/")
    try:
        env = _family(family).make_env(name, seed, render)
        if not isinstance(env.spec, EnvSpec):
            raise TypeError(f"its spec is a {type(env.spec).__name__}")
        return env
    except (TaskError, EnvError):
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"task '{task}': make failed: {explain(error)}; make_env(name, seed, render) of"
            f" {FAMILIES[family]} must return an ace.envs.Env with an EnvSpec as `spec`"
        ) from error


def _is_import_string(task: str) -> bool:
    module, colon, function = task.partition(":")
    words = [*module.split("."), function]
    return bool(colon) and all(word.isidentifier() for word in words)


def _family(name: str) -> ModuleType:
    if name in OWN:
        return importlib.import_module(OWN[name])
    module = import_module(FAMILIES[name], f"family '{name}'")
    for function in ("make_env", "task_names"):
        if not hasattr(module, function):
            raise TaskError(f"family '{name}': module {module.__name__} lacks {function}; add it")
    return module


def _gym() -> ModuleType:
    return importlib.import_module("ace.envs.gym")


def _unknown(task: str) -> TaskError:
    # Names are compared without family and with - for _, since these are what people mix up.
    names = {_plain(name): name for name in task_names()}
    nearest = difflib.get_close_matches(_plain(task), names, n=1)
    hint = f"did you mean {names[nearest[0]]}? " if nearest else ""
    path, colon, function = task.partition(":")
    if colon and path.endswith(".py"):
        module = path.removesuffix(".py").replace("/", ".").strip(".")
        hint = f"a file is named as a module is imported: {module}:{function}; "
    return TaskError(f"task '{task}' unknown; {hint}`ace tasks` lists them all")


def _plain(task: str) -> str:
    return task.rpartition("/")[2].lower().replace("_", "-")
