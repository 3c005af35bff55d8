"""Six tasks of Meta-World (v3), named `metaworld/push` and so on: a robot arm brings one object to
a goal that it sees. Object and goal are placed by the seed that the environment is made with, and
stay there in every episode. With `-dense` the reward is Meta-World's shaped one instead of the
sparse one."""

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ace.envs.api import Number
from ace.envs.manipulation import (
    DENSE,
    Family,
    ManipulationEnv,
    goal_after,
    reward_of,
    with_goal,
)

# Imported as Any: the names of mujoco come from a compiled module without type stubs.
mujoco: Any = importlib.import_module("mujoco")

INSTALL = "pip install --no-deps metaworld==3.1.1"
ENOUGH = 5  # env steps at the goal that count as success in the released code
GRASP, GOAL = 0.1, 0.4  # rewards per env step


@dataclass(frozen=True)
class Placed:
    """The sparse reward of an object that is to be put somewhere; goals are (x, y, z, grasped)."""

    radius: float  # metres around the goal
    height: float = 1.0  # weight of the difference in height

    def __call__(self, xp: Any, achieved: Any, desired: Any) -> Any:
        """A reward for an object near its goal, and one for a grasp."""
        offset = achieved - desired
        x, y, z = offset[..., 0], offset[..., 1], self.height * offset[..., 2]
        near = x * x + y * y + z * z <= self.radius**2
        return GRASP * (offset[..., 3] >= 0) + GOAL * near


def nail_reward(xp: Any, achieved: Any, desired: Any) -> Any:
    """A reward for a nail that is deep enough, and one for a grasp."""
    reached = achieved >= desired
    return GOAL * reached[..., 0] + GRASP * reached[..., 1]


class MetaworldEnv(ManipulationEnv):
    """Puts an object at a goal; the goal is (position of the object, whether it is grasped)."""

    length = 100
    camera = 2  # "corner2"
    numbers = (Number("success"), Number("success_5"))
    velocities = 3  # of the object: along the axes, and around them if 6

    def __init__(self, task: str, seed: int) -> None:
        simulation = _simulation(task.removesuffix(DENSE), seed)
        assert self.goal is not None and self.goal.error is not None
        super().__init__(f"metaworld/{task}", simulation, self.goal.error[1])
        # The object has the only free joint.
        model = simulation.model
        (joint,) = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
        at, moving = model.jnt_qposadr[joint], model.jnt_dofadr[joint]
        self._quaternion = slice(at + 3, at + 7)  # after the position
        self._velocity = slice(moving, moving + self.velocities)

    def start(self, seed: int | None) -> np.ndarray:
        """Begin an episode, which is always the same: the layout's seed has decided it."""
        return self.observe(self.simulation.reset()[0], grasped=0.0)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Apply one action; give the observation, the reward and whether the final goal holds."""
        assert self.goal is not None
        raw, reward, _, _, info = self.simulation.step(action)
        obs = self.observe(raw, float(info["grasp_success"]))
        return obs, reward if self.dense else reward_of(self.goal, obs), bool(info["success"])

    def measure(self, at_goal: bool) -> tuple[float, ...]:
        """Give the numbers of the step that was just made."""
        return float(at_goal), float(self.held >= ENOUGH)

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw the scene; Meta-World's cameras hang upside down."""
        return np.ascontiguousarray(super().render(width, height)[::-1, ::-1])

    def observe(self, raw: np.ndarray, grasped: float) -> np.ndarray:
        """Hand, gripper, object, then the goal."""
        thing = raw[4:7]
        return with_goal(
            self.seen(raw, self.turn()), [*thing, grasped], [*self.target(raw), 1.0], fixed=1
        )

    def seen(self, raw: np.ndarray, turn: np.ndarray) -> list[np.ndarray]:
        """Hand, gripper, and the object relative to the hand, turned by `turn`, and its speed.

        The turn is observed as two columns of its matrix: angles would jump at a full turn.
        """
        hand, gripper, thing = raw[0:3], raw[3:4], raw[4:7]
        velocity = self.simulation.data.qvel[self._velocity]
        return [hand, gripper, thing - hand, turn[:, 0], turn[:, 1], velocity]

    def turn(self) -> np.ndarray:
        """The object's rotation matrix [3, 3]."""
        # From the joint: Meta-World's observation has the quaternion's real part first in some
        # tasks and last in others.
        matrix = np.empty(9)
        mujoco.mju_quat2Mat(matrix, self.simulation.data.qpos[self._quaternion])
        return matrix.reshape(3, 3)

    def target(self, raw: np.ndarray) -> np.ndarray:
        """Where the object should be."""
        return raw[36:39]


class Basketball(MetaworldEnv):
    """Put a ball into a basket."""

    goal = goal_after(16, 4, Placed(0.08, height=2.0), fixed=1)

    def target(self, raw: np.ndarray) -> np.ndarray:
        """A place just above the ring, as Meta-World's own success does."""
        return np.array([raw[36], raw[37], 0.3])


class PickPlace(MetaworldEnv):
    """Lift a puck to a place in the air."""

    goal = goal_after(16, 4, Placed(0.07), fixed=1)


class Push(MetaworldEnv):
    """Push a puck to a place on the table."""

    goal = goal_after(16, 4, Placed(0.05), fixed=1)


class PushWall(MetaworldEnv):
    """Push a puck to a place behind a wall."""

    goal = goal_after(16, 4, Placed(0.07), fixed=1)


class Hammer(MetaworldEnv):
    """Drive a nail in with a hammer; the goal is (depth of the nail, whether it is grasped)."""

    velocities = 6
    goal = goal_after(28, 2, nail_reward, fixed=1)
    depth = 0.09  # of a nail that is driven in, in metres
    head = np.array([0.16, 0.06, 0.0])  # the striking face, seen from the handle

    def observe(self, raw: np.ndarray, grasped: float) -> np.ndarray:
        """Hand, gripper, hammer, where the nail should be, then the goal."""
        turn, handle, target = self.turn(), raw[4:7], self.target(raw)
        parts = [*self.seen(raw, turn), target - handle - turn @ self.head, handle, target]
        nail = self.simulation.data.joint("NailSlideJoint").qpos[0]
        return with_goal(parts, [nail, grasped], [self.depth, 1.0], fixed=1)


TASKS: dict[str, type[MetaworldEnv]] = {
    "basketball": Basketball,
    "hammer": Hammer,
    "pick-place": PickPlace,
    "pick-place-wall": PickPlace,
    "push": Push,
    "push-wall": PushWall,
}
FAMILY = Family("metaworld", "metaworld", INSTALL, TASKS)
make_env, task_names = FAMILY.make_env, FAMILY.task_names


def _simulation(name: str, seed: int) -> Any:
    classes: Any = importlib.import_module("metaworld.env_dict")
    return classes.ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{name}-v3-goal-observable"](seed=seed)
