"""Settings of MR.Q, and those that make DR.Q of it. Where each number comes from is in
docs/agents.md."""

from dataclasses import dataclass

from ace.settings.config import ConfigError, settings, static


@settings
@dataclass(frozen=True)
class MrqConfig:
    """Settings of MR.Q besides the common ones."""

    period: int = 250
    """Updates after which the target networks are copied anew; as many updates of the encoder are
    then made at once."""
    horizon: int = 5
    """Steps that the encoder predicts ahead."""
    return_steps: int = 3
    """Rewards in the critics' target before it continues with a value."""
    embedding: int = 256
    """Size of an embedded action."""
    encoder_learning_rate: float = 1e-4
    """Step size of the encoder."""
    done_weight: float = 0.1
    """Coefficient of the loss on predicted terminations; it counts once there was one."""
    contrast_weight: float = static(0.0)
    """Coefficient of the loss that tells the next latent of a segment from those of the others."""
    contrast_temperature: float = 0.1
    """What the cosines in that loss are divided by."""
    scale_rewards: bool = True
    """Critics count in units of the mean absolute reward in store."""
    action_penalty: float = 1e-5
    """Weight of the policy's mean squared pre-tanh output in its loss."""
    exploration_std: float = 0.2
    """Standard deviation of the noise on actions while training."""
    forgetting: float = static(1.0)
    """Factor per step by which a stored segment is sampled less often; 1: never."""
    forgetting_floor: float = 0.1
    """Least that these factors come to."""


@settings
@dataclass(frozen=True)
class DrqConfig(MrqConfig):
    """Settings of DR.Q besides the common ones."""

    encoder_learning_rate: float = 3e-4
    done_weight: float = 0.0
    contrast_weight: float = static(0.1)
    scale_rewards: bool = False
    action_penalty: float = 0.0
    forgetting: float = static(0.9999)


def check(own: MrqConfig) -> None:
    """Refuse settings that cannot work; the agent's name stands before the dot."""
    name = type(own).__name__.removesuffix("Config").lower()
    for field in ("period", "horizon", "return_steps", "embedding"):
        if getattr(own, field) < 1:
            raise ConfigError(f"{name}.{field} is {getattr(own, field)}; it must be at least 1")
    if not own.contrast_temperature > 0:
        raise ConfigError(
            f"{name}.contrast_temperature is {own.contrast_temperature}; it must be above 0"
        )
    for field in ("forgetting", "forgetting_floor"):
        if not 0 <= getattr(own, field) <= 1:
            raise ConfigError(
                f"{name}.{field} is {getattr(own, field)}; it must lie between 0 and 1"
            )
