"""The tasks of the DeepMind Control Suite, named `dmc/domain-task`. The suite's own loop is written
out here, because with action repeat only the last observation of a repeat is needed, and computing
observations takes up to a quarter of the suite's time."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from ace.envs.api import EnvSpec, StepResult, TaskError, rescale_action

# Tasks without a time limit (lqr) get the limit of all others.
DEFAULT_LIMIT = 1000
# MuJoCo writes "no limit" as 1e10; an action in [-1, 1] is then not rescaled.
UNBOUNDED = 1e9
# The camera that shows the body best, where it is not the first.
CAMERAS = {"quadruped": 2}


class DmcEnv:
    """One suite task, `name` being `domain-task`."""

    def __init__(self, name: str, seed: int) -> None:
        env = _load_task(name, seed)
        self._task: Any = env.task
        self._physics: Any = env.physics
        self._env: Any = env
        # quadruped-escape asks for OpenGL at reset, to show its new terrain; our camera does that.
        self._physics._make_rendering_contexts = lambda: None
        self._substeps = env._n_sub_steps
        self._limit, has_limit = _step_limit(env._step_limit)
        self._low, self._high = _action_bounds(env.action_spec())
        self._plain_actions = bool((self._low == -1).all() and (self._high == 1).all())
        self._count = 0
        self._domain = name.partition("-")[0]
        self._camera: Any = None
        self.spec = EnvSpec(
            task=f"dmc/{name}",
            obs_size=sum(math.prod(part.shape) for part in env.observation_spec().values()),
            action_size=self._low.size,
            max_episode_steps=self._limit,
            # The suite ends an episode early only in lqr, when the state is at rest.
            fixed_length=has_limit,
            action_bounds=(tuple(self._low.tolist()), tuple(self._high.tolist())),
        )

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode."""
        if seed is not None:
            self._task.random.seed(seed)
        self._count = 0
        return self._flatten(self._env.reset().observation)

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action for one control step."""
        return self.step_repeat(action, 1)

    def step_repeat(self, action: np.ndarray, times: int) -> StepResult:
        """Apply an action for up to `times` control steps and observe once, after the last."""
        task, physics = self._task, self._physics
        control = self._control(action)
        reward = 0.0
        discount = None
        for _ in range(times):
            task.before_step(control, physics)
            physics.step(self._substeps)
            task.after_step(physics)
            reward += task.get_reward(physics)
            discount = task.get_termination(physics)
            self._count += 1
            if discount is not None or self._count >= self._limit:
                break
        terminated = discount is not None and discount == 0.0
        truncated = not terminated and (discount is not None or self._count >= self._limit)
        obs = self._flatten(task.get_observation(physics))
        return StepResult(obs, float(reward), terminated, truncated)

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw the scene."""
        if self._camera is None or self._camera.size != (width, height):
            self._close_camera()
            from ace.envs.dmc.offscreen import Camera

            index = CAMERAS.get(self._domain, 0)
            self._camera = Camera(self._physics.model.ptr, index, width, height)
        return self._camera.draw(self._physics.data.ptr)

    def close(self) -> None:
        """Free the simulation."""
        self._close_camera()
        self._env.close()

    def _close_camera(self) -> None:
        if self._camera is not None:
            self._camera.close()
            self._camera = None

    def _control(self, action: np.ndarray) -> np.ndarray:
        if self._plain_actions:
            return action.astype(np.float64)
        return rescale_action(action, self._low, self._high)

    def _flatten(self, observation: dict[str, Any]) -> np.ndarray:
        parts = [np.ravel(value) for value in observation.values()]
        return np.concatenate(parts, dtype=np.float32, casting="same_kind")


def make_env(name: str, seed: int, render: bool = False) -> DmcEnv:
    """Make the task `dmc/name`."""
    del render  # a suite task can always be drawn
    return DmcEnv(name, seed)


def task_names() -> list[str]:
    """List the suite's tasks."""
    return [f"dmc/{domain}-{task}" for domain, task in load_suite().ALL_TASKS]


def load_suite() -> ModuleType:
    """Import the suite, without OpenGL and with cheaper versions of its slowest parts."""
    with _without_opengl():
        try:
            from dm_control import suite
        except ModuleNotFoundError as error:
            if error.name != "dm_control":
                raise
            raise TaskError("dmc tasks need the package dm_control; install it") from error
        from ace.envs.dmc import speed as dmc_speed
    dmc_speed.install()
    return suite


def _load_task(name: str, seed: int) -> Any:
    domain, _, task = name.partition("-")
    try:
        return load_suite().load(domain, task, task_kwargs={"random": seed})
    except FileNotFoundError as error:
        raise TaskError(
            f"task 'dmc/{name}': this installation of dm_control lacks the model files"
            f" of {domain} ({error}); install the full package"
        ) from error


def _step_limit(limit: float) -> tuple[int, bool]:
    if math.isinf(limit):
        return DEFAULT_LIMIT, False
    # The limit is a quotient of floats: 999.9999999 and 1000.0000001 both mean 1000.
    return math.ceil(limit - 1e-6), True


def _action_bounds(spec: Any) -> tuple[np.ndarray, np.ndarray]:
    low = np.where(spec.minimum < -UNBOUNDED, -1.0, spec.minimum)
    high = np.where(spec.maximum > UNBOUNDED, 1.0, spec.maximum)
    return (np.broadcast_to(low, spec.shape).copy(), np.broadcast_to(high, spec.shape).copy())


@contextmanager
def _without_opengl() -> Iterator[None]:
    """Keep dm_control from loading an OpenGL backend, which it does when it is imported.

    Left alone it tries a window system first, and warns or fails on machines without a display.
    """
    before = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disable"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = before
