"""Gymnasium environments: `gym/Id` for a registered one, `package.module:function` for a callable
that returns one. Box observations are flattened and Box actions rescaled from [-1, 1]; of the Dict
observations those with a goal are supported; every other space is refused with advice on what to
do."""

import contextlib
import difflib
import importlib
import importlib.util
import io
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ace.envs import foreign
from ace.envs.api import EnvError, EnvSpec, Goal, Number, StepResult, TaskError, rescale_action
from ace.envs.explain import explain, import_module, where

INSTALL = "gym tasks need the package gymnasium; install it"
RESET_GIVES = "(observation, info)"
STEP_GIVES = "(observation, reward, terminated, truncated, info)"
PARTS = ("observation", "achieved_goal", "desired_goal")  # of observations with a goal, in order
ROBOTICS = "gymnasium_robotics"  # its ids are known to gymnasium only after it was imported


class GymEnv:
    """A gymnasium.Env with flat observations and actions in [-1, 1]."""

    def __init__(self, task: str, env: Any, seed: int) -> None:
        self._env = env
        # gymnasium takes a seed at reset, so this one is kept until the first reset.
        self._first_seed: int | None = seed
        self._parts = _part_sizes(task, env.observation_space)
        self._low, self._high = _action_bounds(task, env.action_space)
        self._action_shape = env.action_space.shape
        self._action_dtype = env.action_space.dtype
        self._numbers = _numbers(task, env)
        self.spec = EnvSpec(
            task,
            sum(self._parts.values()),
            self._low.size,
            _max_episode_steps(env),
            goal=_goal(task, env, self._parts),
            numbers=tuple(Number(name, over) for name, over in self._numbers.items()),
            action_bounds=(tuple(self._low.tolist()), tuple(self._high.tolist())),
        )

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode."""
        seed = self._first_seed if seed is None else seed
        self._first_seed = None
        given = self._env.reset(seed=seed)
        # An array of two entries would unpack into two values.
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
            raise EnvError(f"reset returned {_kind(given)}; it must return {RESET_GIVES}")
        return self._flatten(given[0])

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action."""
        scaled = rescale_action(action, self._low, self._high)
        scaled = scaled.reshape(self._action_shape).astype(self._action_dtype)
        given = self._env.step(scaled)
        if not (isinstance(given, tuple) and len(given) == 5):
            raise EnvError(f"step returned {_kind(given)}; it must return {STEP_GIVES}")
        obs, reward, terminated, truncated, info = given
        numbers = tuple(_number(info, name) for name in self._numbers) if self._numbers else ()
        reward = _float("the reward", reward)
        return StepResult(self._flatten(obs), reward, bool(terminated), bool(truncated), numbers)

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw with the environment's own renderer, sampled to the wanted size."""
        frame = None
        with contextlib.suppress(NotImplementedError):  # what gymnasium.Env raises
            frame = self._env.render() if hasattr(self._env, "render") else None
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            raise EnvError(
                f"task '{self.spec.task}' renders no picture; its environment must be made with"
                ' render_mode="rgb_array", and its render() return an array [height, width, 3]'
            )
        rows = np.arange(height) * frame.shape[0] // height
        columns = np.arange(width) * frame.shape[1] // width
        return np.ascontiguousarray(frame[rows][:, columns], dtype=np.uint8)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _flatten(self, obs: Any) -> np.ndarray:
        if "" in self._parts:
            return _flatten(obs)
        flat = []
        for name, size in self._parts.items():
            if not isinstance(obs, dict) or name not in obs:
                raise EnvError(f"the observation is {_kind(obs)}, which has no '{name}'; add it")
            flat.append(_flatten(obs[name]))
            if flat[-1].size != size:
                raise EnvError(
                    f"'{name}' of the observation has {flat[-1].size} entries, expected {size};"
                    " return what observation_space declares"
                )
        return np.concatenate(flat)


_judges: dict[str, Any] = {}  # for each task, an environment that computes rewards


@dataclass(frozen=True)
class ComputeReward:
    """The rule of a task whose environment has `compute_reward`, which is written for NumPy."""

    task: str

    def __call__(self, xp: Any, achieved: Any, desired: Any) -> Any:
        """Give rewards [...] for goals [..., G]."""
        if self.task not in _judges:  # the rule was sent to another process
            family, _, name = self.task.partition("/")
            _ = make_env(name, 0) if family == "gym" else make_imported(self.task, 0)
        judge = _judges[self.task]

        def rewards(achieved: Any, desired: Any) -> Any:
            return judge.compute_reward(achieved, desired, {})

        # Many environments compute only goals [N, G].
        goals = [xp.asarray(x).reshape(-1, x.shape[-1]) for x in (achieved, desired)]
        found = rewards(*goals) if xp is np else foreign.call(xp, rewards, *goals)
        return xp.asarray(found).reshape(achieved.shape[:-1])


def make_env(name: str, seed: int, render: bool = False) -> GymEnv:
    """Make the task `gym/name`."""
    gymnasium = _gymnasium()
    check_id(name)
    mode = "rgb_array" if render else None
    # gymnasium's checker takes half of the time of a light task; `Checked` stays on.
    try:
        env = gymnasium.make(name, render_mode=mode, disable_env_checker=True)
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"task 'gym/{name}': make failed: {explain(error)}; it must work as"
            f" gymnasium.make('{name}')"
        ) from error
    return GymEnv(f"gym/{name}", env, seed)


def make_imported(task: str, seed: int) -> GymEnv:
    """Make the environment that the import string `package.module:function` names."""
    function = import_function(task)
    try:
        env = function()
    except (Exception, SystemExit) as error:  # SystemExit: it may parse a command line
        raise TaskError(
            f"task '{task}': make failed: {explain(error)}; it must be callable without arguments"
            " and return a gymnasium.Env"
        ) from error
    for attribute in ("observation_space", "action_space", "reset", "step"):
        if not hasattr(env, attribute):
            raise TaskError(
                f"task '{task}' returned a {type(env).__name__} without '{attribute}';"
                " return a gymnasium.Env"
            )
    return GymEnv(task, env, seed)


def check_id(name: str) -> None:
    """Raise TaskError, with the nearest id, unless gymnasium knows the id."""
    gymnasium = _gymnasium()
    module, _, plain_id = name.rpartition(":")  # module:Id first imports what registers the id
    try:
        if module:
            import_module(module, f"task 'gym/{name}'")
        if plain_id not in gymnasium.registry:
            _import_robotics()
        gymnasium.spec(plain_id)
    except gymnasium.error.Error as error:
        nearest = difflib.get_close_matches(plain_id, gymnasium.registry, n=1)
        hint = f"did you mean gym/{nearest[0]}? " if nearest else ""
        raise TaskError(
            f"task 'gym/{name}' unknown ({error}); {hint}For an environment of your own, write"
            " the task as package.module:function"
        ) from error


def import_function(task: str) -> Any:
    """Find the callable that the import string `package.module:function` names."""
    module_name, _, function_name = task.partition(":")
    module = import_module(module_name, f"task '{task}'")
    function = getattr(module, function_name, None)
    if not callable(function):
        raise TaskError(
            f"task '{task}': module {module_name} ({where(module)}) has no callable"
            f" '{function_name}'; name a function without arguments that returns a gymnasium.Env"
        )
    return function


def _gymnasium() -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ModuleNotFoundError as error:
        if error.name != "gymnasium":
            raise
        raise TaskError(INSTALL) from error


def _import_robotics() -> None:
    if importlib.util.find_spec(ROBOTICS) and ROBOTICS not in sys.modules:
        with contextlib.redirect_stderr(io.StringIO()):  # a note on rewards of other tasks
            importlib.import_module(ROBOTICS)


def _part_sizes(task: str, space: Any) -> dict[str, int]:
    """The size of each part of an observation by its name; one without a name if it is flat."""
    if type(space).__name__ != "Dict" or set(space.spaces) != set(PARTS):
        return {"": _obs_size(task, space)}
    return {name: _obs_size(task, space[name]) for name in PARTS}


def _goal(task: str, env: Any, parts: dict[str, int]) -> Goal | None:
    """Where the goal lies in observations that have one, if its reward can be computed."""
    if "" in parts:
        return None
    judge = env
    while not hasattr(judge, "compute_reward") and hasattr(judge, "env"):
        judge = judge.env
    _judges.setdefault(task, judge)
    rule = _metadata(env, "goal_rule") or _metadata(getattr(env, "unwrapped", env), "goal_rule")
    if rule is None:
        if not hasattr(judge, "compute_reward"):
            return None
        rule = ComputeReward(task)
    start, middle, end = np.cumsum([parts[name] for name in PARTS]).tolist()
    return Goal(achieved=(start, middle), desired=(middle, end), error=None, rule=rule)


def _obs_size(task: str, space: Any) -> int:
    kind = type(space).__name__
    if kind != "Box":
        raise TaskError(
            f"task '{task}' has a {kind} observation space ({space}); only Box is supported, and"
            f" Dict with the Box spaces {', '.join(PARTS)}: wrap it with"
            " gymnasium.wrappers.FlattenObservation"
        )
    if space.dtype == np.uint8 or len(space.shape) > 2:
        raise TaskError(
            f"task '{task}' observes images (shape {space.shape}, {space.dtype}); pixels are not"
            " supported: choose a variant with state observations"
        )
    return int(np.prod(space.shape))


def _action_bounds(task: str, space: Any) -> tuple[np.ndarray, np.ndarray]:
    kind = type(space).__name__
    if kind != "Box":
        raise TaskError(
            f"task '{task}' has a {kind} action space ({space}); only continuous Box actions are"
            " supported: wrap it with gymnasium.wrappers.TransformAction, or choose a"
            " continuous variant"
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise TaskError(
            f"task '{task}' has integer actions ({space}); only continuous Box actions are"
            " supported: wrap it with gymnasium.wrappers.TransformAction"
        )
    low = space.low.astype(np.float64).reshape(-1)
    high = space.high.astype(np.float64).reshape(-1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise TaskError(
            f"task '{task}' has actions without finite bounds ({space}); bound them, for example"
            " with gymnasium.wrappers.TransformAction and"
            " action_space=gymnasium.spaces.Box(-1, 1, shape)"
        )
    if (low > high).any():
        raise TaskError(f"task '{task}' has action bounds with low > high ({space}); swap them")
    if low.size and (low == high).all():
        raise TaskError(
            f"task '{task}' has action bounds with low == high everywhere ({space}), so that no"
            " action can be chosen; widen the bounds"
        )
    return low, high


def _max_episode_steps(env: Any) -> int | None:
    """The smallest time limit that is declared or wrapped around the environment."""
    declared = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    limits = [] if declared is None else [declared]
    # An environment that is not registered has no spec, even inside gymnasium's TimeLimit.
    wrapper, inner = env, getattr(env, "env", None)
    while inner is not None:
        if type(wrapper).__name__ == "TimeLimit":
            limits.append(wrapper._max_episode_steps)
        wrapper, inner = inner, getattr(inner, "env", None)
    return min(limits, default=None)


def _numbers(task: str, env: Any) -> dict[str, Any]:
    """What `metadata["numbers"]` of the environment or of its wrappers declares: name -> rule."""
    found = {}
    for holder in (getattr(env, "unwrapped", env), env):
        declared = _metadata(holder, "numbers") or {}
        if not isinstance(declared, dict):
            raise TaskError(
                f"task '{task}' has metadata['numbers'] = {declared!r}; write a dictionary, for"
                " example {'success': 'last'}"
            )
        found |= declared
    return found


def _metadata(env: Any, name: str) -> Any:
    return (getattr(env, "metadata", None) or {}).get(name)


def _number(info: Any, name: str) -> float:
    if not isinstance(info, dict) or name not in info:
        raise EnvError(
            f"the info of a step lacks the number '{name}', which metadata['numbers'] declares;"
            " give it at every step"
        )
    return _float(f"number '{name}'", info[name])


def _float(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise EnvError(f"{what} is {_kind(value)}, expected one number") from error


def _flatten(obs: Any) -> np.ndarray:
    try:
        # A copy, since some environments return an array that they change later.
        return np.array(obs, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError) as error:
        raise EnvError(
            f"the observation is {_kind(obs)}, which is no array of numbers; return what"
            " observation_space declares"
        ) from error


def _kind(value: Any) -> str:
    """A short description of a value of the wrong type."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(v).__name__ for v in value)})"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    text = repr(value)
    return text if len(text) < 40 else f"a value of type {type(value).__name__}"
