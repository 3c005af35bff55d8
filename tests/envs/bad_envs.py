"""Small gymnasium environments for the tests, most of them broken on purpose; named in tasks by
import string."""

import os
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Counter(gymnasium.Env):
    """Observes (seeded start, step count) and ends after five steps; rewards the raw action."""

    observation_space: spaces.Space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space: spaces.Space = UNIT

    def __init__(self) -> None:
        self.count = 0
        self.start = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Draw a start."""
        super().reset(seed=seed)
        self.count = 0
        self.start = self.np_random.normal()
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Count."""
        self.count += 1
        return self.observe(), self.reward(action), self.count == 5, False, {}

    def observe(self) -> Any:
        """Give the observation."""
        return np.array([self.start, self.count])

    def reward(self, action: Any) -> float:
        """Give the reward."""
        return float(np.sum(action))


class NanObs(Counter):
    """Observes NaN at its third step."""

    def observe(self) -> Any:
        """Break at the third step."""
        return np.full(2, np.nan) if self.count == 3 else super().observe()


class NanReward(Counter):
    """Is rewarded with NaN at once."""

    def reward(self, action: Any) -> float:
        """Break."""
        return float("nan")


class WrongShape(Counter):
    """Observes one entry too many after a step."""

    def observe(self) -> Any:
        """Break at the first step."""
        return np.zeros(3) if self.count else super().observe()


class Crash(Counter):
    """Raises at its second step."""

    def reward(self, action: Any) -> float:
        """Break at the second step."""
        if self.count == 2:
            raise KeyError("the joint is missing")
        return 0.0


class CrashAtReset(Counter):
    """Raises at reset."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Break."""
        raise OSError("no model file")


class Die(Counter):
    """Ends its whole process at the second step, as a simulator that segfaults does."""

    def reward(self, action: Any) -> float:
        """Break at the second step."""
        if self.count == 2:
            os._exit(7)
        return 0.0


class Hang(Counter):
    """Does not come back from its second step."""

    def reward(self, action: Any) -> float:
        """Break at the second step."""
        if self.count == 2:
            time.sleep(600)
        return 0.0


class OnlyOnce(NanReward):
    """Breaks at its first step and cannot be made a second time in one process."""

    made: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        if "one" in self.made:
            raise OSError("there is no second one")
        self.made.add("one")


class Flaky(Counter):
    """Breaks in the third step of every other episode or so, which its seed decides."""

    def reward(self, action: Any) -> float:
        """Break where the start is above zero."""
        return float("nan") if self.count == 3 and self.start > 0 else float(np.sum(action))


class Scaled(Counter):
    """Has actions in [0, 10] x [-4, -2]."""

    action_space = spaces.Box(np.array([0.0, -4.0]), np.array([10.0, -2.0]), dtype=np.float64)


class Discrete(Counter):
    """Has discrete actions."""

    action_space = spaces.Discrete(3)


class Unbounded(Counter):
    """Has actions without bounds."""

    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class DictObs(Counter):
    """Has a dictionary as observation."""

    observation_space = spaces.Dict({"position": UNIT})


class Image(Counter):
    """Observes pixels."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Forgetful(Counter):
    """Ignores its seed, so that no episode can be repeated."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Draw a start from the machine's own randomness."""
        super().reset(seed=int.from_bytes(os.urandom(4)))
        return self.observe(), {}


def not_an_env() -> str:
    """Return something else."""
    return "hello"
