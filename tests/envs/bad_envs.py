"""Small gymnasium environments for the tests, most of them broken on purpose; named in tasks by
import string."""

import os
import sys
import time
import warnings
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


class Early(Counter):
    """Ends after two steps of positive actions."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """End early or late."""
        obs, reward, done, cut, told = super().step(action)
        return obs, reward, done or (self.count == 2 and float(np.min(action)) > 0), cut, told


class Loop(Counter):
    """Computes for ever in its second step."""

    def reward(self, action: Any) -> float:
        """Break at the second step."""
        while self.count == 2:
            pass
        return 0.0


class Busy(Counter):
    """Needs a quarter of a second of a processor for every step."""

    def reward(self, action: Any) -> float:
        """Compute."""
        end = time.process_time() + 0.25
        while time.process_time() < end:
            pass
        return 1.0


class Loud(Counter):
    """Warns, as simulator packages do, and prints."""

    def __init__(self) -> None:
        super().__init__()
        warnings.simplefilter("always")
        warnings.warn("old and deprecated", DeprecationWarning, stacklevel=1)
        print("said on purpose", file=sys.stderr)


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


class SlipsLater(Counter):
    """Repeats its first observation under a seed, but not what follows."""

    def observe(self) -> Any:
        """Add noise of the machine from a later step on."""
        noise = int.from_bytes(os.urandom(4)) if self.count > 3 else 0
        return np.array([self.start, self.count + noise])


class Drifts(Counter):
    """Remembers its earlier episodes."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Start a little farther off every time."""
        super().reset(seed=seed)
        self.episodes += 1
        self.start += self.episodes
        return self.observe(), {}


class Short(Counter):
    """Is over after one step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """End."""
        return *super().step(action)[:2], True, False, {}


class Sure(Short):
    """Is over after one step, with reward 1."""

    def reward(self, action: Any) -> float:
        """Give 1."""
        return 1.0


class Endless(Counter):
    """Has no end."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Count on."""
        return *super().step(action)[:2], False, False, {}


def limited() -> gymnasium.Env:
    """Limit the time by gymnasium's wrapper, inside and below another one."""
    return gymnasium.wrappers.ClipReward(gymnasium.wrappers.TimeLimit(Endless(), 1500), -1, 1)


class Numbered(Counter):
    """Tells four numbers: one for each rule, all of them the count."""

    metadata: ClassVar[dict[str, Any]] = {
        "numbers": {"at_end": "last", "average": "mean", "most": "max", "total": "sum"}
    }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Put the numbers into the info."""
        result = super().step(action)
        return *result[:4], {name: self.count for name in self.metadata["numbers"]}


def numbered_inside() -> gymnasium.Env:
    """Wrap the environment with numbers in one whose metadata is its own."""
    env = gymnasium.wrappers.ClipReward(Numbered(), -1, 1)
    env.metadata = {"render_modes": []}
    return env


class MissingNumber(Counter):
    """Declares a number and never tells it."""

    metadata: ClassVar[dict[str, Any]] = {"numbers": {"success": "last"}}


class NanNumber(MissingNumber):
    """Tells a number that is NaN at the third step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Break at the third step."""
        result = super().step(action)
        return *result[:4], {"success": np.nan if self.count == 3 else 1.0}


class WordNumber(MissingNumber):
    """Tells a word in the place of a number."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Break."""
        return *super().step(action)[:4], {"success": "yes"}


class ListedNumbers(Counter):
    """Declares numbers without their rules."""

    metadata: ClassVar[dict[str, Any]] = {"numbers": ["success"]}


class ColumnNumber(Counter):
    """Declares a number with the name of a column."""

    metadata: ClassVar[dict[str, Any]] = {"numbers": {"env_step": "last"}}


class OldReset(Counter):
    """Resets as old versions of gym did; the observation of two entries would unpack."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return the observation alone."""
        return super().reset(seed=seed)[0]


class OldStep(Counter):
    """Steps as old versions of gym did."""

    def step(self, action: Any) -> Any:
        """Return four values."""
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class NoStep(Counter):
    """Returns nothing from a step."""

    def step(self, action: Any) -> Any:
        """Break."""


class NamedObs(Counter):
    """Observes a dictionary, against its own space."""

    def observe(self) -> Any:
        """Break."""
        return {"position": 0.0}


class NoReward(Counter):
    """Forgets the reward."""

    def reward(self, action: Any) -> Any:
        """Break."""


class NeedsArgument(Counter):
    """Cannot be made without an argument."""

    def __init__(self, maze: str) -> None:
        super().__init__()
        self.maze = maze


class NoAction(Counter):
    """Has nothing to choose."""

    action_space = spaces.Box(-1.0, 1.0, (0,), np.float32)


class NoObs(Counter):
    """Has nothing to observe."""

    observation_space = spaces.Box(-1.0, 1.0, (0,), np.float32)


class StillAction(Counter):
    """Has action bounds that leave no choice."""

    action_space = spaces.Box(1.0, 1.0, (2,), np.float32)


def _with_bounds(low: float, high: float) -> spaces.Box:
    """Make a space with bounds that Box itself refuses."""
    space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    space.low[:], space.high[:] = low, high
    return space


class SwappedBounds(Counter):
    """Has low > high."""

    action_space = _with_bounds(1.0, -1.0)


class NanBounds(Counter):
    """Has bounds that are NaN."""

    action_space = _with_bounds(np.nan, 1.0)


def quits() -> gymnasium.Env:
    """End the process, as a parser of command lines does."""
    sys.exit(2)


def fails() -> gymnasium.Env:
    """Raise an error of two lines."""
    raise RuntimeError("no licence\nfound")


def not_an_env() -> str:
    """Return something else."""
    return "hello"
