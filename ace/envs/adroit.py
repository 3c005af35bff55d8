"""The Adroit hand of gymnasium-robotics, `adroit/pen`, `adroit/door` and `adroit/hammer`: sparse
rewards for the goal and, where there is one, a sub-goal. With `-dense` the reward is the
simulator's shaped one, with the sign of its reaching term corrected."""

import contextlib
import importlib
import io
from typing import Any

import numpy as np

from ace.envs.api import Number, TaskError
from ace.envs.manipulation import (
    DENSE,
    Family,
    ManipulationEnv,
    goal_after,
    reward_of,
    with_goal,
)

VERSION = "1.4.2"  # of gymnasium-robotics; others have other rewards
INSTALL = f"pip install gymnasium-robotics=={VERSION}"
ENOUGH = 5  # an episode with more env steps than this at the goal is a success, as in RoboHive
SUB_GOAL, GOAL = 0.1, 0.4  # rewards per env step

LATCH, HINGE = 1.80, 1.35  # angles of the door: the latch is turned, the door is open
LIFTED = 0.04  # height of a hammer that left the table, in metres
DRIVEN = 0.01  # distance of a nail that is driven in from the goal, in metres


class AdroitEnv(ManipulationEnv):
    """A task of the Adroit hand; a subclass knows its goal."""

    length = 200
    numbers = (Number("at_goal", "mean"), Number("success"))
    module = ""

    def __init__(self, task: str, seed: int) -> None:
        simulation = _simulation(self.module, "dense" if task.endswith(DENSE) else "sparse")
        obs_size = simulation.observation_space.shape[0]
        if self.goal is not None and self.goal.error is not None:
            obs_size = self.goal.error[1]
        # gymnasium takes a seed at reset, so this one is kept until the first reset.
        self._first_seed: int | None = seed
        super().__init__(f"adroit/{task}", simulation, obs_size)

    def start(self, seed: int | None) -> np.ndarray:
        """Begin an episode of the simulation and observe it."""
        seed = self._first_seed if seed is None else seed
        self._first_seed = None
        return self.observe(self.simulation.reset(seed=seed)[0])

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Apply one action; give the observation, the reward and whether the final goal holds."""
        raw, reward, _, _, info = self.simulation.step(action.astype(np.float64))
        obs, at_goal = self.observe(raw), bool(info["success"])
        if self.dense:
            # The simulator adds 0.1 times this distance where it should subtract it.
            reward -= 0.2 * self.reach(raw)
        else:
            reward = float(at_goal) if self.goal is None else reward_of(self.goal, obs)
        return obs, reward, at_goal

    def measure(self, at_goal: bool) -> tuple[float, ...]:
        """Give the numbers of the step that was just made."""
        return float(at_goal), float(self.held > ENOUGH)

    def observe(self, raw: np.ndarray) -> np.ndarray:
        """The simulator's observation, followed by the goal if there is one."""
        return raw.astype(np.float32)

    def reach(self, raw: np.ndarray) -> float:
        """The distance from the palm to the object, if the simulator has its sign wrong."""
        return 0.0


class Pen(AdroitEnv):
    """Turn a pen in the hand until it points as a target does."""

    length = 100
    module = "adroit_pen:AdroitHandPenEnv"


def door_reward(xp: Any, achieved: Any, desired: Any) -> Any:
    """A reward each for the angles of latch and hinge that are reached."""
    reached = achieved >= desired
    return SUB_GOAL * reached[..., 0] + GOAL * reached[..., 1]


class Door(AdroitEnv):
    """Turn the latch of a door and pull it open; the goal is (angle of latch, angle of hinge)."""

    module = "adroit_door:AdroitHandDoorEnv"
    goal = goal_after(39, 2, door_reward)

    def observe(self, raw: np.ndarray) -> np.ndarray:
        """The simulator's observation, which has latch and hinge at 27 and 28, and the goal."""
        return with_goal([raw], raw[27:29], (LATCH, HINGE))

    def reach(self, raw: np.ndarray) -> float:
        """The distance from the palm to the handle."""
        return float(np.linalg.norm(raw[35:38]))


def hammer_reward(xp: Any, achieved: Any, desired: Any) -> Any:
    """A reward for a nail at its goal, and one for a hammer that is lifted."""
    offset = achieved - desired
    x, y, z = offset[..., 0], offset[..., 1], offset[..., 2]
    driven = x * x + y * y + z * z < DRIVEN**2
    return SUB_GOAL * (offset[..., 3] > 0) + GOAL * driven


class Hammer(AdroitEnv):
    """Lift a hammer and drive a nail in; the goal is (position of the nail, hammer's height)."""

    module = "adroit_hammer:AdroitHandHammerEnv"
    goal = goal_after(46, 4, hammer_reward, fixed=1)

    def observe(self, raw: np.ndarray) -> np.ndarray:
        """The simulator's observation, which has the nail at 42, and the goal."""
        simulation = self.simulation
        handle = simulation.data.xpos[simulation.obj_body_id]
        head = simulation.data.site_xpos[simulation.tool_site_id]
        height = min(handle[2], head[2])
        desired = [*simulation.data.site_xpos[simulation.goal_site_id], LIFTED]
        return with_goal([raw], [*raw[42:45], height], desired, fixed=1)

    def reach(self, raw: np.ndarray) -> float:
        """The distance from the palm to the hammer."""
        return float(np.linalg.norm(raw[33:36] - raw[36:39]))


TASKS: dict[str, type[AdroitEnv]] = {"pen": Pen, "door": Door, "hammer": Hammer}
FAMILY = Family("adroit", "gymnasium_robotics", INSTALL, TASKS)
make_env, task_names = FAMILY.make_env, FAMILY.task_names


def _simulation(name: str, reward_type: str) -> Any:
    # The package prints a note on its shaped rewards when it is imported; they are corrected here.
    with contextlib.redirect_stderr(io.StringIO()):
        package: Any = importlib.import_module("gymnasium_robotics")
    if package.__version__ != VERSION:
        raise TaskError(
            f"adroit tasks need gymnasium-robotics {VERSION}, not {package.__version__}, which has"
            f" other rewards; install it with: {INSTALL}"
        )
    module, _, simulator = name.partition(":")
    found = importlib.import_module(f"gymnasium_robotics.envs.adroit_hand.{module}")
    return getattr(found, simulator)(reward_type=reward_type)
