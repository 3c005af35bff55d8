"""Tiny environments in plain numpy whose optimal values are known, named `probe/NAME`. Each
isolates one thing that an agent must get right, so a failing one says where the fault is."""

from typing import Any

import numpy as np

from ace.envs.api import EnvSpec, Goal, Number, StepResult


class ProbeEnv:
    """The base of all probes: seeding, counting and a simple picture."""

    obs_size = 1
    action_size = 1
    length = 1
    fixed_length = True
    numbers: tuple[Number, ...] = ()
    goal: Goal | None = None

    def __init__(self, name: str, seed: int) -> None:
        self.spec = EnvSpec(
            f"probe/{name}",
            self.obs_size,
            self.action_size,
            self.length,
            self.fixed_length,
            self.numbers,
            self.goal,
        )
        self.rng = np.random.default_rng(seed)
        self.count = 0  # steps in this episode
        self.state = np.zeros(self.obs_size, np.float32)

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.count = 0
        self.state = self.first()
        return self.state.copy()

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action."""
        self.count += 1
        reward, terminated, truncated = self.advance(np.asarray(action, np.float64))
        numbers = self.measure()
        return StepResult(self.state.copy(), float(reward), terminated, truncated, numbers)

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw the first observation as a white line on a scale from -2 to 2."""
        frame = np.zeros((height, width, 3), np.uint8)
        column = int((np.clip(self.state[0], -2, 2) + 2) / 4 * (width - 1))
        frame[:, column] = 255
        return frame

    def close(self) -> None:
        """Nothing to free."""

    def first(self) -> np.ndarray:
        """Give the first observation of an episode."""
        return np.zeros(self.obs_size, np.float32)

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Change `state` and give reward, terminated, truncated."""
        raise NotImplementedError

    def measure(self) -> tuple[float, ...]:
        """Give the numbers of the step that was just made."""
        return ()


class Constant(ProbeEnv):
    """One step, reward 1: the value is 1. Tests the value loss alone."""

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Give reward 1 and end."""
        return 1.0, True, False


class Observation(ProbeEnv):
    """One step, observation -1 or 1, reward equal to it: value = obs. Tests the encoder."""

    def first(self) -> np.ndarray:
        """Draw -1 or 1."""
        return _random_sign(self.rng)

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Reward the observation and end."""
        return float(self.state[0]), True, False


class Discount(ProbeEnv):
    """Two steps, reward only at the second: values gamma, 1. Tests bootstrapping."""

    length = 2

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Go from observation 0 to 1, then end with reward 1."""
        self.state = np.ones(1, np.float32)
        last = self.count == 2
        return float(last), last, False


class Action(ProbeEnv):
    """One step, reward 1 - (a - 0.5)^2: best action 0.5, value 1. Tests policy and planner."""

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Reward closeness to 0.5 and end."""
        return 1.0 - (action[0] - 0.5) ** 2, True, False


class ActionObservation(ProbeEnv):
    """One step, observation -0.5 or 0.5, reward 1 - (a - obs)^2: best action = obs, value 1."""

    def first(self) -> np.ndarray:
        """Draw -0.5 or 0.5."""
        return 0.5 * _random_sign(self.rng)

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Reward closeness to the observation and end."""
        return 1.0 - (action[0] - self.state[0]) ** 2, True, False


class Truncation(ProbeEnv):
    """Five steps of reward 1 cut off by time: value 1 / (1 - gamma), not the sum of five."""

    length = 5

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Give reward 1."""
        return 1.0, False, self.count == self.length


class Point(ProbeEnv):
    """A point on a line, pushed by the action, rewarded near the origin. Learnt in minutes."""

    obs_size = 2  # position, velocity
    length = 50

    def first(self) -> np.ndarray:
        """Start at rest, somewhere in [-1, 1]."""
        return np.array([self.rng.uniform(-1, 1), 0.0], np.float32)

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Push the point and reward closeness to the origin."""
        position, velocity = _push(self.state, action[0])
        self.state = np.array([position, velocity], np.float32)
        return float(np.exp(-4 * position**2)), False, self.count == self.length


def near(xp: Any, achieved: Any, desired: Any) -> Any:
    """Reward 0 within 0.1 of the goal along every axis, -1 elsewhere."""
    return xp.where(xp.max(xp.abs(desired - achieved), axis=-1) < 0.1, 0.0, -1.0)


class Reach(ProbeEnv):
    """The point again, rewarded only near a goal that every episode draws. Tests goals."""

    axes = 1
    obs_size = 4  # position, velocity, goal, goal minus position
    length = 50
    numbers = (Number("success"), Number("near", "mean"))
    goal = Goal(achieved=(0, 1), desired=(2, 3), error=(3, 4), rule=near)

    def first(self) -> np.ndarray:
        """Start at rest, with the goal somewhere else in [-1, 1]."""
        position, goal = self.rng.uniform(-1, 1, (2, self.axes)).astype(np.float32)
        return np.concatenate([position, np.zeros_like(goal), goal, goal - position])

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Push the point; the reward follows from the goal by `near`."""
        position, velocity, goal, _ = self.state.reshape(4, -1)
        axes = zip(position, velocity, action, strict=True)
        pushed = np.array([_push(np.array([p, v]), a) for p, v, a in axes], np.float32)
        position, velocity = pushed.T
        self.state = np.concatenate([position, velocity, goal, goal - position])
        return self._reward(), False, self.count == self.length

    def measure(self) -> tuple[float, ...]:
        """Whether the point is at the goal: at the end `success`, on average `near`."""
        return (self._reward() + 1.0,) * 2

    def _reward(self) -> float:
        position, _, goal, _ = self.state.reshape(4, -1)
        return float(near(np, position, goal))


class Plane(Reach):
    """The same in a plane, where chance hardly ever finds the goal. Tests hindsight."""

    axes = 2
    obs_size = 8
    action_size = 2
    goal = Goal(achieved=(0, 2), desired=(4, 6), error=(6, 8), rule=near)


class Long(ProbeEnv):
    """Episodes of random length 1 to 12; the observation is (name of the episode, step in it).

    So a segment that crosses the end of an episode shows in the data.
    """

    obs_size = 2
    action_size = 2
    length = 12
    fixed_length = False
    end = 0

    def first(self) -> np.ndarray:
        """Draw the episode's length and its name, a number that no other has."""
        self.end = int(self.rng.integers(1, self.length + 1))
        return np.array([self.rng.random(), 0], np.float32)

    def advance(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Count the step; the end is a termination or a truncation with equal chance."""
        self.state = np.array([self.state[0], self.count], np.float32)
        reward = self.rng.normal()
        if self.count < self.end:
            return reward, False, False
        terminated = bool(self.rng.random() < 0.5)
        return reward, terminated, not terminated


PROBES: dict[str, type[ProbeEnv]] = {
    "constant": Constant,
    "observation": Observation,
    "discount": Discount,
    "action": Action,
    "action_observation": ActionObservation,
    "truncation": Truncation,
    "point": Point,
    "long": Long,
    "reach": Reach,
    "plane": Plane,
}


def make_env(name: str, seed: int, render: bool = False) -> ProbeEnv:
    """Make the task `probe/name`."""
    del render  # a probe can always be drawn
    return PROBES[name](name, seed)


def task_names() -> list[str]:
    """List the probes."""
    return [f"probe/{name}" for name in PROBES]


def _push(state: np.ndarray, action: float) -> tuple[Any, Any]:
    """Move a point, (position, velocity), by an action; walls at -2 and 2 stop it."""
    position, velocity = state
    velocity = 0.8 * velocity + 0.1 * float(np.clip(action, -1, 1))
    position = position + 0.4 * velocity
    if abs(position) > 2:
        return np.clip(position, -2, 2), 0.0
    return position, velocity


def _random_sign(rng: np.random.Generator) -> np.ndarray:
    return np.array([rng.choice([-1.0, 1.0])], np.float32)
