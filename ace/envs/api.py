"""What an environment is: one small protocol over numpy arrays, with actions in [-1, 1] and flat
float32 observations, plus the wrappers that every task gets. Nothing here knows a simulator or
JAX, so that worker processes start fast."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

Over = Literal["last", "mean", "max", "sum"]
LARGEST = float(np.finfo(np.float32).max)  # numbers travel as float32


class EnvError(RuntimeError):
    """An environment misbehaved: non-finite numbers, a wrong shape, or a crash."""


class TaskError(ValueError):
    """A task is unknown, or its spaces are not supported."""


class Number(NamedTuple):
    """A named number that a task gives at every step, such as `success`.

    `over` is how it is aggregated over the steps of an episode and, before that, over the repeats
    of one action.
    """

    name: str
    over: Over = "last"


class RewardRule(Protocol):
    """How the reward follows from a goal, written once for NumPy and JAX."""

    def __call__(self, xp: Any, achieved: Any, desired: Any, /) -> Any:
        """Give rewards [...] for goals [..., G]; xp is numpy or jax.numpy."""
        ...


@dataclass(frozen=True)
class Goal:
    """Where the goal lies in the flat observation, as (start, stop), and the reward's rule.

    The rule is a function at the top of a module, so that a Goal can be hashed and pickled.
    """

    achieved: tuple[int, int]
    desired: tuple[int, int]
    error: tuple[int, int] | None  # desired minus achieved, if it is observed
    rule: RewardRule
    # The last `fixed` entries of achieved and desired are sub-goals, such as a grasp, that no other
    # goal replaces; `error` does not have them.
    fixed: int = 0


@dataclass(frozen=True)
class EnvSpec:
    """The sizes and the episode length of a task, in env steps (before action repeat)."""

    task: str
    obs_size: int
    action_size: int
    max_episode_steps: int | None  # None: unknown
    fixed_length: bool = False  # every episode lasts exactly max_episode_steps
    numbers: tuple[Number, ...] = ()  # named numbers of every step
    goal: Goal | None = None
    # Actions of the simulator that -1 and 1 are mapped to; None if they are -1 and 1.
    action_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    assumed_limit: bool = False  # it declares no time limit: max_episode_steps is our default


class StepResult(NamedTuple):
    """The result of one step; at the end of an episode `obs` is the true next observation."""

    obs: np.ndarray  # float32 [obs_size]
    reward: float
    terminated: bool  # the task ended: the value of the next state is zero
    truncated: bool  # time ran out: the value of the next state is not zero
    numbers: tuple[float, ...] = ()  # in the order of EnvSpec.numbers


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


class TimeLimit(EnvWrapper):
    """Truncates the episodes of a task that declares no time limit after `limit` env steps."""

    def __init__(self, env: Env, limit: int) -> None:
        super().__init__(env)
        self.spec = replace(env.spec, max_episode_steps=limit, assumed_limit=True)
        self._limit, self._count = limit, 0

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode."""
        self._count = 0
        return self.env.reset(seed)

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action; the last step allowed truncates, unless the task ends with it."""
        self._count += 1
        result = self.env.step(action)
        if self._count >= self._limit and not result.terminated:
            return result._replace(truncated=True)
        return result


class ActionRepeat(EnvWrapper):
    """Repeats each action, sums the rewards and stops at the end of an episode."""

    def __init__(self, env: Env, times: int) -> None:
        if times < 1:
            raise ValueError(f"action repeat is {times}; it must be at least 1")
        super().__init__(env)
        self.times = times
        # An environment may have a cheaper step_repeat(action, times) -> StepResult, which also
        # combines its numbers.
        self._step_repeat = getattr(env, "step_repeat", self._step_in_loop)

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action `times` times."""
        return self._step_repeat(action, self.times)

    def _step_in_loop(self, action: np.ndarray, times: int) -> StepResult:
        total, taken = 0.0, []
        result = None
        for _ in range(times):
            result = self.env.step(action)
            total += result.reward
            if self.spec.numbers:
                check_values(result.numbers, self.spec)
                taken.append(result.numbers)
            if result.terminated or result.truncated:
                break
        assert result is not None
        if taken:
            result = result._replace(numbers=combine(self.spec.numbers, taken))
        return result._replace(reward=total)


class Checked(EnvWrapper):
    """Raises EnvError as soon as an environment returns something that would poison training."""

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode and check its first observation."""
        obs = self.env.reset(seed)
        check_obs(obs, self.spec.obs_size)
        return obs

    def step(self, action: np.ndarray) -> StepResult:
        """Apply one action and check the result."""
        result = self.env.step(action)
        check_obs(result.obs, self.spec.obs_size)
        check_reward(result.reward)
        if self.spec.numbers or result.numbers:
            check_values(result.numbers, self.spec)
        return result


def check_obs(obs: np.ndarray, size: int) -> None:
    """Raise EnvError unless `obs` has shape [size] and finite entries."""
    if obs.shape != (size,):
        raise EnvError(
            f"observation has shape {obs.shape}, expected ({size},); return what the environment's"
            " spec or observation_space declares"
        )
    finite = np.isfinite(obs)
    if not finite.all():
        bad = int(size - finite.sum())
        entries = "entry" if bad == 1 else "entries"
        raise EnvError(f"observation has {bad} non-finite {entries}")


def check_reward(reward: float) -> None:
    """Raise EnvError unless `reward` is a finite number."""
    if not np.isfinite(reward):
        raise EnvError(f"reward is {reward}, expected a finite number")


def check_values(numbers: Sequence[float], spec: EnvSpec) -> None:
    """Raise EnvError unless a step has one finite number for each that the spec declares."""
    names = [number.name for number in spec.numbers]
    if len(numbers) != len(names):
        raise EnvError(
            f"a step has {len(numbers)} numbers, the spec declares {len(names)}"
            f" ({', '.join(names) or 'none'}); give all of them at every step, in this order"
        )
    for name, value in zip(names, numbers, strict=True):
        if not abs(value) <= LARGEST:  # false for NaN too
            raise EnvError(f"number '{name}' is {value}, expected a finite number")


def combine(numbers: Sequence[Number], steps: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Aggregate the numbers of several steps, each by its own rule."""
    return tuple(
        _summed_up(number.over, values)
        for number, values in zip(numbers, zip(*steps, strict=True), strict=True)
    )


def _summed_up(over: Over, values: Sequence[float]) -> float:
    if over == "last":
        return values[-1]
    if over == "max":
        return max(values)
    return sum(values) / (len(values) if over == "mean" else 1)


def rescale_action(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Map [-1, 1] linearly to [low, high], without clipping."""
    return low + (high - low) * 0.5 * (action.astype(np.float64) + 1.0)
