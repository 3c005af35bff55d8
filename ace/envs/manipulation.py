"""What the Adroit and the Meta-World tasks share: a simulation that is a gymnasium MujocoEnv,
episodes of fixed length that nothing ends early, observations that end with the goal, pictures, and
how their tasks are named and made."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ace.envs.api import EnvSpec, Goal, Number, RewardRule, StepResult, TaskError

DENSE = "-dense"  # ends the names of the tasks that are rewarded by the simulator's shaped reward


class ManipulationEnv:
    """A robot with a goal to bring about; a subclass knows its simulator."""

    length = 0  # env steps of an episode
    camera = 0
    numbers: tuple[Number, ...] = ()
    goal: Goal | None = None  # where the goal lies, and the sparse reward that follows from it

    def __init__(self, task: str, simulation: Any, obs_size: int) -> None:
        self.simulation = simulation
        self.dense = task.endswith(DENSE)
        self.held = 0  # env steps of this episode at the final goal
        self._count = 0  # env steps of this episode
        self._camera: Any = None
        self.spec = EnvSpec(
            task=task,
            obs_size=obs_size,
            action_size=simulation.action_space.shape[0],
            max_episode_steps=self.length,
            fixed_length=True,
            numbers=self.numbers,
            goal=None if self.dense else self.goal,
        )

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode."""
        self.held = self._count = 0
        return self.start(seed)

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action."""
        obs, reward, at_goal = self.advance(action)
        self._count += 1
        self.held += at_goal
        truncated = self._count >= self.length
        return StepResult(obs, float(reward), False, truncated, self.measure(at_goal))

    def start(self, seed: int | None) -> np.ndarray:
        """Begin an episode of the simulation and observe it."""
        raise NotImplementedError

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Apply one action; give the observation, the reward and whether the final goal holds."""
        raise NotImplementedError

    def measure(self, at_goal: bool) -> tuple[float, ...]:
        """Give the numbers of the step that was just made."""
        raise NotImplementedError

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw the scene."""
        if self._camera is None or self._camera.size != (width, height):
            self._close_camera()
            from ace.envs.dmc.offscreen import Camera

            self._camera = Camera(self.simulation.model, self.camera, width, height)
        return self._camera.draw(self.simulation.data)

    def close(self) -> None:
        """Free the simulation."""
        self._close_camera()
        self.simulation.close()

    def _close_camera(self) -> None:
        if self._camera is not None:
            self._camera.close()
            self._camera = None


def goal_after(size: int, width: int, rule: RewardRule, fixed: int = 0) -> Goal:
    """The goal that `with_goal` writes behind `size` other entries."""
    achieved, desired = (size, size + width), (size + width, size + 2 * width)
    return Goal(achieved, desired, (desired[1], desired[1] + width - fixed), rule, fixed)


def with_goal(parts: list[Any], achieved: Any, desired: Any, fixed: int = 0) -> np.ndarray:
    """An observation: some parts, then achieved and desired goal and desired minus achieved."""
    # The difference of rounded numbers: then relabelling with the same goal changes no bit.
    achieved, desired = np.asarray(achieved, np.float32), np.asarray(desired, np.float32)
    free = len(desired) - fixed
    error = desired[:free] - achieved[:free]
    return np.concatenate([*parts, achieved, desired, error], dtype=np.float32, casting="same_kind")


def reward_of(goal: Goal, obs: np.ndarray) -> float:
    """The reward that follows from the goal inside an observation."""
    return float(goal.rule(np, obs[slice(*goal.achieved)], obs[slice(*goal.desired)]))


Env = TypeVar("Env")


@dataclass(frozen=True)
class Family(Generic[Env]):
    """The tasks of one simulator; each has a sparse and a dense reward."""

    name: str  # before the slash of a task's name
    package: str
    install: str  # the line to type if the package is missing
    tasks: Mapping[str, Callable[[str, int], Env]]  # (name, seed): an environment

    def make_env(self, name: str, seed: int, render: bool = False) -> Env:
        """Make a task by its name behind the slash."""
        del render  # these tasks can always be drawn
        self._require()
        return self.tasks[name.removesuffix(DENSE)](name, seed)

    def task_names(self) -> list[str]:
        """List the tasks, if their simulator is installed."""
        self._require()
        return [f"{self.name}/{name}{reward}" for reward in ("", DENSE) for name in self.tasks]

    def _require(self) -> None:
        if importlib.util.find_spec(self.package) is None:
            needed = f"{self.name} tasks need the package {self.package}"
            raise TaskError(f"{needed}; install it with: {self.install}")
