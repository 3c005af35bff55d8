"""Gymnasium environments: `gym/Id` for a registered one, `package.module:function` for a callable
that returns one. Box observations are flattened and Box actions rescaled from [-1, 1]; every other
space is refused with a word on what to do."""

import difflib
import importlib
from typing import Any

import numpy as np

from ace.envs.api import EnvError, EnvSpec, StepResult, TaskError, rescale_action

INSTALL = "gym tasks need the package gymnasium; install it"


class GymEnv:
    """A gymnasium.Env with flat observations and actions in [-1, 1]."""

    def __init__(self, task: str, env: Any, seed: int) -> None:
        self._env = env
        # gymnasium is seeded by a reset, so the seed waits for the first one.
        self._first_seed: int | None = seed
        obs_size = _obs_size(task, env.observation_space)
        self._low, self._high = _action_bounds(task, env.action_space)
        self._action_shape = env.action_space.shape
        self._action_dtype = env.action_space.dtype
        self.spec = EnvSpec(task, obs_size, self._low.size, _max_episode_steps(env))

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode."""
        seed = self._first_seed if seed is None else seed
        self._first_seed = None
        obs, _ = self._env.reset(seed=seed)
        return _flatten(obs)

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action."""
        scaled = rescale_action(action, self._low, self._high)
        scaled = scaled.reshape(self._action_shape).astype(self._action_dtype)
        obs, reward, terminated, truncated, _ = self._env.step(scaled)
        return StepResult(_flatten(obs), float(reward), bool(terminated), bool(truncated))

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw with the environment's own renderer, sampled to the wanted size."""
        frame = self._env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            raise EnvError(
                f"{self.spec.task} gave no picture; make it with render=True, or return an"
                " environment with render_mode='rgb_array' from your function"
            )
        rows = np.arange(height) * frame.shape[0] // height
        columns = np.arange(width) * frame.shape[1] // width
        return np.ascontiguousarray(frame[rows][:, columns], dtype=np.uint8)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def make_env(name: str, seed: int, render: bool = False) -> GymEnv:
    """Make the task `gym/name`."""
    gymnasium = _gymnasium()
    check_id(name)
    mode = "rgb_array" if render else None
    # The checker of gymnasium costs half of the time of a light task; ours stays on.
    env = gymnasium.make(name, render_mode=mode, disable_env_checker=True)
    return GymEnv(f"gym/{name}", env, seed)


def make_imported(task: str, seed: int) -> GymEnv:
    """Make the environment that the import string `package.module:function` names."""
    env = import_function(task)()
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
            importlib.import_module(module)
        gymnasium.spec(plain_id)
    except (gymnasium.error.Error, ImportError) as error:
        nearest = difflib.get_close_matches(plain_id, gymnasium.registry, n=1)
        hint = f"did you mean gym/{nearest[0]}? " if nearest else ""
        raise TaskError(
            f"task 'gym/{name}' unknown ({error}); {hint}For an environment of your own, write"
            " the task as package.module:function"
        ) from error


def import_function(task: str) -> Any:
    """Find the callable that the import string `package.module:function` names."""
    module_name, _, function_name = task.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise TaskError(
            f"task '{task}': {error}; start in the folder that holds the module,"
            " or put that folder on PYTHONPATH"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise TaskError(
            f"task '{task}': module {module_name} has no callable '{function_name}'; name a"
            " function without arguments that returns a gymnasium.Env"
        )
    return function


def _gymnasium() -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ModuleNotFoundError as error:
        if error.name != "gymnasium":
            raise
        raise TaskError(INSTALL) from error


def _obs_size(task: str, space: Any) -> int:
    kind = type(space).__name__
    if kind != "Box":
        raise TaskError(
            f"task '{task}' has a {kind} observation space ({space}); only Box is supported:"
            " wrap it with gymnasium.wrappers.FlattenObservation"
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
    return low, high


def _max_episode_steps(env: Any) -> int | None:
    spec = getattr(env, "spec", None)
    return None if spec is None else spec.max_episode_steps


def _flatten(obs: Any) -> np.ndarray:
    # A copy, since some environments return the array that they go on changing.
    return np.array(obs, dtype=np.float32).reshape(-1)
