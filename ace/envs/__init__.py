"""Environments: one protocol, a registry of tasks and a pool of worker processes. Simulators are
imported only when a task needs them."""

from ace.envs.api import Env, EnvError, EnvSpec, StepResult, TaskError
from ace.envs.pool.vector import EnvRequest, Fault, VectorEnv, VectorStep
from ace.envs.registry import get_spec, make, task_names, validate

__all__ = [
    "Env",
    "EnvError",
    "EnvRequest",
    "EnvSpec",
    "Fault",
    "StepResult",
    "TaskError",
    "VectorEnv",
    "VectorStep",
    "get_spec",
    "make",
    "task_names",
    "validate",
]
