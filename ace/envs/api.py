"""What an environment is: one small protocol over numpy arrays, with actions in [-1, 1] and flat
float32 observations, plus the wrappers that every task gets. Nothing here knows a simulator or
JAX, so that worker processes start fast."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class EnvError(RuntimeError):
    """An environment misbehaved: non-finite numbers, a wrong shape, or a crash."""


class TaskError(ValueError):
    """A task is unknown, or its spaces are not supported."""


@dataclass(frozen=True)
class EnvSpec:
    """The sizes and the episode length of a task, in env steps (before action repeat)."""

    task: str
    obs_size: int
    action_size: int
    max_episode_steps: int | None  # None: unknown
    fixed_length: bool = False  # every episode lasts exactly max_episode_steps


class StepResult(NamedTuple):
    """What one step gives; at the end of an episode `obs` is still the true next observation."""

    obs: np.ndarray  # float32 [obs_size]
    reward: float
    terminated: bool  # the task ended: the value of what follows is zero
    truncated: bool  # time ran out: the value of what follows is not zero


class Env(Protocol):
    """One environment with a random generator of its own."""

    @property
    def spec(self) -> EnvSpec:
        """The sizes and the episode length."""
        ...

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode; a seed re-seeds the generator, None continues its stream."""
        ...

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action, float32 [action_size] in [-1, 1]."""
        ...

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw the present state as uint8 [height, width, 3]."""
        ...

    def close(self) -> None:
        """Free what the simulator holds."""
        ...


class EnvWrapper:
    """Passes everything on to the environment inside."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.spec = env.spec

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode."""
        return self.env.reset(seed)

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action."""
        return self.env.step(action)

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw the present state."""
        return self.env.render(width, height)

    def close(self) -> None:
        """Free what the simulator holds."""
        self.env.close()


class ActionRepeat(EnvWrapper):
    """Repeats each action, sums the rewards and stops at the end of an episode."""

    def __init__(self, env: Env, times: int) -> None:
        if times < 1:
            raise ValueError(f"action repeat is {times}; it must be at least 1")
        super().__init__(env)
        self.times = times
        # Some environments repeat cheaper on their own: step_repeat(action, times) -> StepResult.
        self._step_repeat = getattr(env, "step_repeat", self._step_in_loop)

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action `times` times."""
        return self._step_repeat(action, self.times)

    def _step_in_loop(self, action: np.ndarray, times: int) -> StepResult:
        total = 0.0
        result = None
        for _ in range(times):
            result = self.env.step(action)
            total += result.reward
            if result.terminated or result.truncated:
                break
        assert result is not None
        return result._replace(reward=total)


class Checked(EnvWrapper):
    """Raises EnvError as soon as an environment returns something that would poison training."""

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode and check its first observation."""
        obs = self.env.reset(seed)
        check_obs(obs, self.spec.obs_size)
        return obs

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action and check what comes back."""
        result = self.env.step(action)
        check_obs(result.obs, self.spec.obs_size)
        check_reward(result.reward)
        return result


def check_obs(obs: np.ndarray, size: int) -> None:
    """Raise EnvError unless `obs` has shape [size] and finite entries."""
    if obs.shape != (size,):
        raise EnvError(f"observation has shape {obs.shape}, expected ({size},)")
    finite = np.isfinite(obs)
    if not finite.all():
        bad = int(size - finite.sum())
        entries = "entry" if bad == 1 else "entries"
        raise EnvError(f"observation has {bad} non-finite {entries}")


def check_reward(reward: float) -> None:
    """Raise EnvError unless `reward` is a finite number."""
    if not np.isfinite(reward):
        raise EnvError(f"reward is {reward}, expected a finite number")


def rescale_action(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Map [-1, 1] linearly to [low, high], without clipping."""
    return low + (high - low) * 0.5 * (action.astype(np.float64) + 1.0)
