"""Settings of SAC, and those that make REDQ and SR-SAC of it. Where each number comes from is in
docs/agents.md."""

import math
from dataclasses import dataclass
from typing import Literal

from ace.settings.config import ConfigError, settings


@settings
@dataclass(frozen=True)
class SacConfig:
    """Settings of soft actor-critic besides the common ones."""

    init_temperature: float = 0.1
    """alpha at the start: what a nat of entropy is worth, in units of reward."""
    temperature_learning_rate: float = 1e-4
    """Step size of log alpha."""
    target_entropy: float = -1.0
    """Entropy per action dimension, in nats, that the temperature holds the policy at."""
    log_std_min: float = -5.0
    """Smallest logarithm of the policy's standard deviation, before squashing."""
    log_std_max: float = 2.0
    """Largest logarithm of the policy's standard deviation, before squashing."""
    log_std_bounds: Literal["tanh", "clip"] = "tanh"
    """How it is kept between them: by a tanh, or cut off."""
    init_gain: float = 1.0
    """Scale of the orthogonal weights at the start; those of the deviation's head have scale 1."""
    critics: int = 2
    """Number of critics."""
    target_critics: int = 2
    """Critics, drawn at random for each update, whose smallest value is in the target."""
    policy_value: Literal["min", "mean"] = "min"
    """The policy climbs the smallest critic, or the mean of all."""
    policy_delay: int = 1
    """Updates of the critics for each update of policy and temperature."""
    reset_every: int = 0
    """Updates after which networks, optimisers and temperature begin anew; 0: never."""


@settings
@dataclass(frozen=True)
class RedqConfig(SacConfig):
    """Settings of REDQ besides the common ones."""

    init_temperature: float = 1.0
    temperature_learning_rate: float = 3e-4
    target_entropy: float = -0.5
    log_std_min: float = -20.0
    log_std_bounds: Literal["tanh", "clip"] = "clip"
    critics: int = 10
    policy_value: Literal["min", "mean"] = "mean"
    policy_delay: int = 20


@settings
@dataclass(frozen=True)
class SrsacConfig(SacConfig):
    """Settings of SR-SAC besides the common ones."""

    init_temperature: float = 1.0
    temperature_learning_rate: float = 3e-4
    target_entropy: float = -0.5
    log_std_min: float = -10.0
    init_gain: float = math.sqrt(2)
    reset_every: int = 2_560_000


def check(own: SacConfig) -> None:
    """Refuse settings that cannot work; the agent's name stands before the dot."""
    name = type(own).__name__.removesuffix("Config").lower()
    if not own.init_temperature > 0:
        raise ConfigError(f"{name}.init_temperature is {own.init_temperature}; it must be above 0")
    if not own.log_std_min <= own.log_std_max:
        raise ConfigError(f"{name}.log_std_min is larger than {name}.log_std_max; lower it")
    if not 1 <= own.target_critics <= own.critics:
        raise ConfigError(
            f"{name}.target_critics is {own.target_critics}; it must be from 1 to "
            f"{name}.critics ({own.critics})"
        )
    if own.policy_delay < 1:
        raise ConfigError(f"{name}.policy_delay is {own.policy_delay}; it must be at least 1")
    if own.reset_every < 0:
        raise ConfigError(f"{name}.reset_every is {own.reset_every}; give 0 for no resets")
