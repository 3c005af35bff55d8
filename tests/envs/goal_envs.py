"""Small gymnasium environments with a goal, some of them broken on purpose; named in tasks by
import string."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.envs.bad_envs import Counter


class GoalEnv(Counter):
    """Walks by its action to a goal; the observation is a dictionary."""

    observation_space: spaces.Space = spaces.Dict(
        {
            "achieved_goal": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "desired_goal": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "observation": spaces.Box(-np.inf, np.inf, (1, 3), np.float64),
        }
    )

    place = goal = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Draw a goal."""
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.normal(size=(2, 2))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Walk."""
        self.count += 1
        self.place = self.place + action
        reward = self.compute_reward(self.place, self.goal, {})
        return self.observe(), float(reward), False, self.count == 5, {}

    def observe(self) -> Any:
        """Give the parts in an order of their own."""
        parts = {"desired_goal": self.goal, "observation": np.full((1, 3), self.count)}
        return {**parts, "achieved_goal": self.place}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        """Use what such environments use: norms, comparisons, types, operators in place."""
        distance = np.linalg.norm(achieved - desired, axis=-1)
        reward = -(distance > 1.0).astype(np.float64)
        reward -= 0.1 * np.clip(distance, 0, 2)
        return np.where(np.all(np.abs(achieved) < 3, axis=-1), reward, -5.0)


class WritesEntries(GoalEnv):
    """Computes its reward in a way that only NumPy can."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        """Write into entries."""
        offset = achieved - desired
        offset[..., 0] = 0.0
        return -np.abs(offset).sum(-1)


def near_goal(xp: Any, achieved: Any, desired: Any) -> Any:
    """The reward of `WritesEntries` for NumPy and JAX."""
    return -xp.abs(achieved[..., 1] - desired[..., 1])


class GivesRule(WritesEntries):
    """Declares a rule beside it."""

    metadata: ClassVar[dict[str, Any]] = {"goal_rule": near_goal}


class OneGoal(GoalEnv):
    """Computes the reward of a single goal only."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        """Forget the leading axes."""
        return float(np.abs(achieved - desired).sum())


class UnevenGoal(GoalEnv):
    """Has goals of different sizes."""

    observation_space = spaces.Dict(
        {
            "achieved_goal": spaces.Box(-1.0, 1.0, (2,)),
            "desired_goal": spaces.Box(-1.0, 1.0, (3,)),
            "observation": spaces.Box(-1.0, 1.0, (3,)),
        }
    )


class MovedGoal(GoalEnv):
    """Returns parts of other sizes than it declares, which add up to the same."""

    def observe(self) -> Any:
        """Give an entry of the observation to the goal."""
        return {**super().observe(), "observation": np.zeros(2), "desired_goal": np.zeros(3)}


class NoGoalPart(GoalEnv):
    """Forgets a part."""

    def observe(self) -> Any:
        """Leave the achieved goal out."""
        return {name: x for name, x in super().observe().items() if name != "achieved_goal"}


class NoRule(Counter):
    """Observes a goal and cannot compute the reward of others."""

    observation_space = GoalEnv.observation_space

    def observe(self) -> Any:
        """Give zeros."""
        goals = {name: np.zeros(2) for name in ("achieved_goal", "desired_goal")}
        return {**goals, "observation": np.zeros(3)}


def wrapped_goal() -> gymnasium.Env:
    """Wrap the environment that computes the reward."""
    return gymnasium.wrappers.TimeLimit(GoalEnv(), 4)
