"""Environments: one protocol, a registry of tasks and a pool of worker processes. Simulators are
imported only when a task needs them."""

from ace.envs.advice import notes
from ace.envs.api import (
    Env,
    EnvError,
    EnvSpec,
    Goal,
    Number,
    RewardRule,
    StepResult,
    TaskError,
)
from ace.envs.goals import relabel
from ace.envs.numbers import EpisodeNumbers
from ace.envs.pool.vector import EnvRequest, Fault, VectorEnv, VectorStep
from ace.envs.registry import get_spec, make, register_family, task_names, validate

__all__ = [
    "Env",
    "EnvError",
    "EnvRequest",
    "EnvSpec",
    "EpisodeNumbers",
    "Fault",
    "Goal",
    "Number",
    "RewardRule",
    "StepResult",
    "TaskError",
    "VectorEnv",
    "VectorStep",
    "get_spec",
    "make",
    "notes",
    "register_family",
    "relabel",
    "task_names",
    "validate",
]
