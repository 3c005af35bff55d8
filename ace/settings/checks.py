"""Which configs can run: the types of values that were read from a file, the range of each number,
and settings that depend on each other. A config that cannot run is refused with what to change."""

import dataclasses
import math
from typing import Any, Literal, get_origin

from ace.settings.config import Config, ConfigError, flatten, literals

NUMBERS_NOW = ("learn.novelty_scale_by_max",)  # settings that were true or false in older files
LONGEST = 100  # most iterations, and most steps, of a plan
MOST_EPISODES = 10_000  # of an evaluation
MOST_UPDATES = 1000  # of an agent step; published are at most 128


def from_dict(values: dict[str, Any], own: type | None = None) -> Config:
    """A config from nested dictionaries, checked; `own` is the class of the agent's own section.

    A missing field was added after the file was written and gets its default, which must therefore
    keep the behaviour from before the field existed.
    """
    config = _from_dict(Config, values, Config(own=own and own()))
    validate(config)
    return config


def _from_dict(cls: Any, values: Any, default: Any, path: str = "") -> Any:
    kinds = {f.name: f.type for f in dataclasses.fields(cls)}
    if not isinstance(values, dict):
        raise ConfigError(f"{path or 'the config'} is {values!r:.40}; it must be a set of fields")
    if unknown := ", ".join(sorted(path + str(n) for n in values.keys() - kinds.keys())):
        raise ConfigError(f"the config has fields that this version lacks: {unknown:.80}")
    made = {}
    for name, value in values.items():
        kind: Any = kinds[name]
        if kind is Any:
            mine = getattr(default, name)
            kind = type(mine)
            if value is None:  # written before the agent had settings of its own, or it has none
                continue
            if mine is None:
                raise ConfigError(f"{path}{name} is {value!r:.40}; the agent has no such settings")
        if dataclasses.is_dataclass(kind):
            made[name] = _from_dict(kind, value, getattr(default, name), f"{path}{name}.")
            continue
        made[name] = _plain_value(kind, value, path + name)
    return dataclasses.replace(default, **made)


def _plain_value(kind: Any, value: Any, name: str) -> Any:
    """A JSON value as the value of a field; refuses another type."""
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(value)  # JSON has no tuples; an agent's own section may
    kind = str if get_origin(kind) is Literal else get_origin(kind) or kind
    if name in NUMBERS_NOW and type(value) is bool:
        return float(value)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ConfigError(f"{name} is {value!r:.40}; it must be of type {kind.__name__}")
    return value


def validate(config: Config) -> None:
    """Refuse a config that cannot run, naming the field and the remedy."""
    flat = flatten(config)
    _check_ranges(config, flat)
    for name, choices in literals(config).items():
        if flat[name] not in choices:
            raise ConfigError(f"{name} is {flat[name]!r}; choose one of {', '.join(choices)}")
    _check_together(config)


def _check_ranges(c: Config, flat: dict[str, Any]) -> None:
    """Check each number by itself."""
    counts = ("env_steps", "action_repeat", "seed_steps", "eval_every", "eval_episodes")
    counts += ("plan.horizon", "plan.iterations", "plan.population", "plan.elites")
    counts += ("learn.batch", "learn.updates_per_step", "learn.update_every")
    counts += ("learn.target_period",)
    counts += ("parity.policy_delay", "env_timeout", "fault_limit")
    for name in (*counts, *flatten(c.net, "net.")):
        if flat[name] <= 0:
            raise ConfigError(f"{name} is {flat[name]}; it must be at least 1")
    unit = ("plan.policy_fraction", "plan.momentum", "plan.elite_reuse", "learn.discount")
    unit += ("learn.td_lambda", "learn.time_decay", "learn.target_momentum", "learn.novelty_ema")
    unit += ("learn.beta1", "learn.beta2", "replay.priority_power", "replay.importance_power")
    unit += ("replay.hindsight", "learn.novelty_scale_by_max")
    unit += ("repair.pessimism", "repair.policy_scale", "repair.policy_decay")
    unit += ("repair.step_stats", "repair.normalise", "repair.residual")
    for name in unit:
        if not 0 <= flat[name] <= 1:
            raise ConfigError(f"{name} is {flat[name]}; it must lie between 0 and 1")
    for name, value in flat.items():
        if not isinstance(value, float | int) or isinstance(value, bool):
            continue
        if name.startswith("own."):  # the agent checks its own ranges
            if not math.isfinite(value):
                raise ConfigError(f"{name} is {value}; it must be a finite number")
        elif name != "workers" and not 0 <= value < math.inf:
            raise ConfigError(f"{name} is {value}; it must be a number of at least 0")
        # Counts are 32-bit integers on the device; a replay's capacity is checked against memory.
        elif isinstance(value, int) and value >= 2 ** (40 if name == "replay.capacity" else 31):
            raise ConfigError(f"{name} is {value}, which is too large; the limit is 2147483647")
    if flat["repair.value_huber"] == 0:
        raise ConfigError("repair.value_huber is 0; it must be above 0, or values are not learned")
    for name in ("learn.beta1", "learn.beta2", "learn.novelty_ema"):
        if flat[name] == 1:
            raise ConfigError(f"{name} is 1; it must be below 1, or nothing would ever be learned")


def _check_together(c: Config) -> None:
    """Check settings that depend on each other."""
    p = c.plan
    for name, count in (("plan.iterations", p.iterations), ("plan.horizon", p.horizon)):
        if count > LONGEST:
            raise ConfigError(
                f"{name} is {count}; it must be at most {LONGEST}: the loop is unrolled, so every "
                "step is compiled"
            )
    if c.eval_episodes > MOST_EPISODES:
        raise ConfigError(
            f"eval_episodes is {c.eval_episodes}; it must be at most {MOST_EPISODES}: each episode "
            "of an evaluation has a simulator of its own"
        )
    if c.learn.updates_per_step > MOST_UPDATES:
        raise ConfigError(
            f"learn.updates_per_step is {c.learn.updates_per_step}; it must be at most "
            f"{MOST_UPDATES}: so many updates are made for every agent step"
        )
    if c.learn.seed_updates > MOST_UPDATES:
        raise ConfigError(
            f"learn.seed_updates is {c.learn.seed_updates:g}; it must be at most {MOST_UPDATES}: "
            "so many updates are made for every random step"
        )
    if not p.min_std <= p.max_std:
        raise ConfigError("plan.min_std is larger than plan.max_std; lower it")
    if c.seed_steps * c.action_repeat > c.env_steps:
        raise ConfigError(
            f"the seed phase ({c.seed_steps} agent steps of {c.action_repeat} environment steps) "
            f"is longer than env_steps ({c.env_steps}); raise env_steps or lower seed_steps"
        )
    if c.workers < -1:
        raise ConfigError("workers must be -1 (one per core), 0 (none) or a number of processes")
