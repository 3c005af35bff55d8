"""Presets and per-task settings: everything that is a choice of values rather than of code."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ace.envs import EnvSpec
from ace.settings.config import Config, ConfigError, Ramp, flatten, replace

Settings = dict[str, Any]

# Paper, tables of hyper-parameters: action repeat, noise exponent, lambda (docs/algorithm.md, 8.2).
_DMC: dict[str, tuple[int, float, float]] = {
    "acrobot-swingup": (4, 2.5, 0.8),
    "acrobot-swingup_sparse": (4, 2.5, 0.8),
    "cheetah-run": (4, 0.5, 0.4),
    "finger-turn_hard": (4, 2.5, 0.2),
    "fish-swim": (4, 2.5, 0.2),
    "hopper-hop": (4, 2.5, 0.4),
    "hopper-stand": (4, 2.5, 0.4),
    "humanoid-run": (2, 2.5, 0.4),
    "humanoid-stand": (2, 2.5, 0.4),
    "humanoid-walk": (2, 2.5, 0.4),
    "pendulum-swingup": (4, 0.5, 0.2),
    "quadruped-run": (4, 0.5, 0.2),
    "quadruped-walk": (4, 0.5, 0.2),
    "reacher-hard": (4, 2.5, 0.2),
    "swimmer-swimmer6": (4, 0.5, 0.2),
    "walker-run": (2, 2.5, 0.4),
}
DMC15 = tuple(f"dmc/{name}" for name in _DMC if not name.endswith("sparse"))

# Action repeat and budget are the paper's; it does not give the rest: from the released code.
_MAZE: Settings = {
    "action_repeat": 2,
    "env_steps": 120_000,
    "seed_steps": 3_000,
    "eval_every": 6_000,
    "plan.noise_beta": 2.5,
    "plan.horizon_ramp.duration": 30_000.0,
    "plan.std_ramp.duration": 30_000.0,
    "learn.td_lambda": 0.2,
    "learn.novelty_weight": 0.5,
    "learn.novelty_ramp.duration": 3_000.0,
}

# Sizes and exponents are the paper's. Its schedules last five episodes; here they are those of
# the released code, which begin when the seed phase ends (2.7, docs/tasks.md).
_ROBOTS: Settings = {
    "action_repeat": 2,
    "env_steps": 200_000,
    "seed_steps": 2_000,
    "eval_every": 5_000,
    "plan.noise_beta": 2.5,
    "plan.horizon_ramp": Ramp(2.0, 10_000.0, after_seed=True),
    "plan.std_ramp": Ramp(0.5, 10_000.0, after_seed=True),
    "learn.novelty_weight": 0.5,
    "learn.novelty_ramp.duration": 2_000.0,
}
_METAWORLD: Settings = _ROBOTS | {"learn.td_lambda": 0.8}
_ADROIT: Settings = _ROBOTS | {
    "net.latent": 100,
    "plan.horizon": 7,
    "plan.population": 700,
    "learn.td_lambda": 0.2,
}
_ADROIT_TASKS: dict[str, Settings] = {
    "pen": {
        "seed_steps": 1_000,
        "eval_every": 2_500,
        "plan.noise_beta": 0.5,
        "plan.horizon_ramp.duration": 5_000.0,
        "plan.std_ramp.duration": 5_000.0,
        "learn.time_decay": 0.2,
        "learn.novelty_ramp.duration": 1_000.0,
    },
    "door": {},
    "hammer": {"plan.std_ramp.duration": 20_000.0},
}


# Changes to the paper's method that ACE has by default (docs/algorithm.md, 13), chosen by
# docs/experiments.md, 17 and 23. Other agents lack them; presets `paper` and `released` undo them.
REPAIRS: Settings = {
    "repair.value_huber": 10.0,
    "learn.loss_clip": 1e9,
    "repair.action_penalty": 1e-5,
    "repair.policy_scale": 1.0,
    "repair.step_stats": 1.0,
    "repair.normalise": 1.0,
    "repair.first_bias": 1.0,
    "repair.residual": 1.0,
    "learn.seed_updates": 0.2,
}
LETTER: Settings = {name: flatten(Config())[name] for name in REPAIRS}


def _robot_settings(family: str, name: str) -> Settings:
    plain = name.removesuffix("-dense")
    settings = dict(_METAWORLD)
    if family == "adroit":
        settings = _ADROIT | _ADROIT_TASKS.get(plain, {})
    if plain != name:
        settings["learn.novelty_weight"] = 0.25
    elif (family, name) != ("adroit", "pen"):  # D40: the tasks with sub-goals
        settings["replay.hindsight"] = 0.8
    return settings


def protocol(task: str) -> Settings:
    """What belongs to a task whichever agent learns it: its steps and evaluations."""
    of_task = ("action_repeat", "env_steps", "seed_steps", "eval_every")
    return {name: value for name, value in task_settings(task).items() if name in of_task}


def task_settings(task: str) -> Settings:
    """What the paper sets per task, for ACE; tasks it does not have get its most common values."""
    family, _, name = task.partition("/")
    if family in ("adroit", "metaworld"):
        return _robot_settings(family, name)
    if family == "maze":
        return dict(_MAZE)
    if family != "dmc":
        return {}
    repeat, beta, td_lambda = _DMC.get(name, (2, 2.5, 0.4))
    settings: Settings = {
        "action_repeat": repeat,
        "plan.noise_beta": beta,
        "learn.td_lambda": td_lambda,
    }
    if name.startswith("humanoid"):
        settings |= {"net.latent": 100, "learn.novelty_ramp.duration": 30_000.0}
    if name.endswith("sparse"):
        settings |= {"learn.novelty_weight": 0.5}
    return settings


def _default(task: str, spec: EnvSpec, repeat: int) -> Settings:
    return {}


def _paper(task: str, spec: EnvSpec, repeat: int) -> Settings:
    """The paper's text and tables; schedules last five episodes (D11, D35)."""
    episodes = 5 * (spec.max_episode_steps or 1000) // repeat
    return LETTER | {
        "precision": "f32",
        "seed_steps": episodes,
        "plan.horizon_ramp": Ramp(2.0, float(episodes)),
        "plan.std_ramp": Ramp(0.5, float(episodes)),
        "plan.policy_ramp.start": 0.5,
        "plan.temperature": 2.0,
        "plan.select": "best",
        "plan.select_eval": "best",
        "plan.act_noise": 0.0,
        "learn.novelty_moments": "ema",
        "learn.novelty_ramp": Ramp(0.25, 0.0),
        "learn.target_period": 1,
        "parity.reward_input": "all",
        "parity.model_time_decay": True,
        "parity.policy_delay": 2,
    }


def _released(task: str, spec: EnvSpec, repeat: int) -> Settings:
    """What the released DMControl script does, quirks included (0.3, 2.3, section 10)."""
    humanoid = task.startswith("dmc/humanoid")
    return LETTER | {
        "precision": "f32",
        "plan.variant": "policy_first",
        "plan.noise_beta": 0.5 if humanoid else 2.5,
        "learn.td_lambda": 0.0,
        "learn.beta2": 0.99,
        "learn.update_mode": "block",
        "learn.novelty_weight": 0.5 if task.startswith("maze/") else 0.25,
        "learn.novelty_power": 1.0,
        "learn.novelty_scale_by_max": 0.0,
        "parity.first_std_floor": True,
        "parity.clip_action": False,
        "parity.elites_at_first": False,
        "parity.importance": "batch_mean",
        "parity.bc_weight": 0.0 if humanoid else 0.1,
        "parity.novelty_updates_stats": True,
        "replay.hindsight": 0.0,
    }


def _cpu(task: str, spec: EnvSpec, repeat: int) -> Settings:
    """Small networks and short schedules, for two cores and a few minutes."""
    return {
        "precision": "f32",
        "env_steps": 24_000,
        "seed_steps": 500,
        "eval_every": 4_000,
        "eval_episodes": 3,
        "workers": 1,
        "net.latent": 32,
        "net.mlp": 128,
        "net.encoder": 128,
        "net.belief": 64,
        "plan.horizon": 4,
        "plan.iterations": 3,
        "plan.population": 64,
        "plan.elites": 16,
        "plan.horizon_ramp.duration": 2_000.0,
        "plan.std_ramp.duration": 2_000.0,
        "learn.batch": 128,
        "learn.novelty_ramp.duration": 500.0,
    }


def _debug(task: str, spec: EnvSpec, repeat: int) -> Settings:
    """The smallest of everything: shows in seconds whether a task runs."""
    return {
        "precision": "f32",
        "env_steps": 120 * repeat,
        "seed_steps": 40,
        "eval_every": 60 * repeat,
        "eval_episodes": 1,
        "workers": 0,
        "net.latent": 8,
        "net.mlp": 16,
        "net.encoder": 16,
        "net.belief": 8,
        "plan.horizon": 3,
        "plan.iterations": 2,
        "plan.population": 16,
        "plan.elites": 4,
        "plan.horizon_ramp.duration": 60.0,
        "plan.std_ramp.duration": 60.0,
        "learn.batch": 16,
        "learn.novelty_ramp.duration": 20.0,
    }


COMMON = ("default", "cpu", "debug")  # presets for every agent; the others are about one
PRESETS: dict[str, Callable[[str, EnvSpec, int], Settings]] = {
    "default": _default,
    "paper": _paper,
    "released": _released,
    "cpu": _cpu,
    "debug": _debug,
}


def resolve(
    preset: str,
    task: str,
    spec: EnvSpec,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    overrides: Mapping[str, Any] = MappingProxyType({}),
    own: Any = None,
) -> Config:
    """The config of a task under a preset, before any flag. Later ones win: the task's protocol,
    the agent's `defaults`, the preset, a variant's `overrides`. `own` is the agent's own section of
    the settings; `defaults` and `overrides` may set its fields too."""
    if preset not in PRESETS:
        raise ConfigError(f"preset {preset!r} unknown; choose one of {', '.join(PRESETS)}")
    config = Config(own=own)
    for changes in (protocol(task), defaults):
        config = replace(config, changes)
    chosen = PRESETS[preset](task, spec, config.action_repeat)
    return replace(replace(config, chosen), overrides)
