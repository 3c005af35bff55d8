"""Every setting of a run, each defined once: its name, type, default and meaning.

The classes are also JAX pytrees. A `float` is a leaf, so it may differ from lane to lane inside one
compiled program; every other field shapes the program and must agree between lanes.
"""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin

import ace.settings

T = TypeVar("T")
Precision = Literal["auto", "f32", "tf32", "bf16"]


def settings(cls: type[T]) -> type[T]:
    """Register a frozen settings class as a pytree: floats and nested settings are its leaves."""
    if ace.settings.help_only and "jax" not in sys.modules:
        return cls
    import jax

    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    if any(isinstance(f.type, str) for f in fields):
        raise TypeError(
            f"the types of {cls.__name__} are strings; drop `from __future__ import annotations`"
        )
    data = [f.name for f in fields if _is_leaf(f)]
    meta = [f.name for f in fields if not _is_leaf(f)]
    jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)
    return cls


def _is_leaf(f: dataclasses.Field) -> bool:
    if f.type is float:
        return "static" not in f.metadata
    return dataclasses.is_dataclass(f.type) or f.type is Any


def static(default: float) -> Any:
    """A float that shapes the program, so it must be the same in all lanes."""
    return field(default=default, metadata={"static": True})


@settings
@dataclass(frozen=True)
class Ramp:
    """A linear change from `start` to the final value of the setting that it belongs to."""

    start: float
    """Value before the ramp."""
    duration: float
    """Length in agent steps."""
    after_seed: bool = False
    """Begin when the random seed phase ends instead of at step zero."""

    def at(self, final: Any, agent_step: Any, seed_steps: Any) -> Any:
        """The setting's value at an agent step, on its way to `final`."""
        import jax.numpy as jnp

        begin = seed_steps if self.after_seed else 0
        w = jnp.clip((agent_step - begin) / jnp.maximum(self.duration, 1e-9), 0.0, 1.0)
        return (1 - w) * self.start + w * final


@settings
@dataclass(frozen=True)
class NetConfig:
    """Widths of the networks (1.2)."""

    latent: int = 50
    """Size of the latent state z."""
    mlp: int = 512
    """Hidden width of reward, value, policy, projector and predictor."""
    encoder: int = 256
    """Hidden width of the encoder."""
    belief: int = 128
    """Size of the recurrent state b."""


@settings
@dataclass(frozen=True)
class PlanConfig:
    """Planning: by default iCEM guided by the policy (Algorithm 1)."""

    planner: str = "icem"
    """Which planner searches; `ace info` lists them."""
    variant: Literal["mixed", "policy_first"] = "mixed"
    """Where policy proposals enter: in every iteration (the paper), or alone in the first."""
    horizon: int = 6
    """H: length of planned sequences and of training segments, in agent steps."""
    horizon_ramp: Ramp = Ramp(2.0, 25_000.0)
    """How the working horizon grows; it changes only when an episode begins."""
    iterations: int = 6
    """K: rounds of sampling and refitting per action."""
    population: int = 256
    """S: sampled sequences in the first iteration."""
    population_decay: float = static(1.25)
    """psi: the population shrinks by this factor each iteration, down to twice the elites."""
    elites: int = 32
    """E: best sequences that the next distribution is fitted to."""
    elite_reuse: float = static(0.25)
    """Share of the elites that are carried to the next iteration and the next step."""
    policy_fraction: float = static(0.5)
    """Policy proposals per sampled sequence (at most one)."""
    policy_ramp: Ramp = Ramp(0.05, 1.0, after_seed=True)
    """How the policy fraction grows."""
    noise_beta: float = 2.5
    """beta: exponent of the colored noise; larger is smoother in time, zero is white."""
    temperature: float = 0.5
    """eta: multiplies returns in the elite weights (the paper divides by 0.5: that is 2.0 here)."""
    momentum: float = 0.1
    """Share of the old mean that survives a refit."""
    mean_tail: Literal["repeat", "zero"] = "repeat"
    """Last action of the mean that a plan starts from: that of the plan before again, or zero."""
    init_std: float = 0.5
    """Standard deviation at the start of each plan."""
    min_std: float = 0.05
    """Final lower bound of the standard deviation."""
    max_std: float = 2.0
    """Upper bound of the standard deviation."""
    std_ramp: Ramp = Ramp(0.5, 25_000.0)
    """How the lower bound of the standard deviation falls."""
    select: Literal["sample", "best", "mean"] = "sample"
    """Action taken while training: an elite drawn by its weight, the best one, or the mean."""
    select_eval: Literal["sample", "best", "mean"] = "sample"
    """Action taken while evaluating."""
    act_noise: float = 1.0
    """While training, Gaussian noise of this many final standard deviations joins the action."""
    policy_std: float = 0.1
    """Planner `policy`: standard deviation of the noise on its actions while training."""
    terminal_value: bool = True
    """Plans count the value of their last state; without it, only the rewards that they sum up."""
    running_reward: Literal["external", "novelty", "joint"] = "external"
    """D10: reward that plans sum up and that the reward head therefore learns: the environment's,
    the weighted novelty reward, or both."""


@settings
@dataclass(frozen=True)
class LearnConfig:
    """One gradient step: losses, targets, optimiser (Algorithm 2)."""

    batch: int = 512
    """Segments per update."""
    learning_rate: float = 1e-3
    """Step size of encoder, model and critics."""
    policy_learning_rate: float = 1e-3
    """Step size of the policy."""
    beta1: float = 0.9
    """Adam: decay of the first moment."""
    beta2: float = 0.999
    """Adam: decay of the second moment."""
    weight_decay: float = 0.0
    """AdamW: decoupled weight decay."""
    grad_clip: float = 10.0
    """Largest global gradient norm, model and policy each."""
    discount: float = 0.99
    """gamma, per agent step."""
    td_lambda: float = 0.4
    """lambda of the value target: 0 is one-step TD, 1 the H-step return."""
    time_decay: float = 0.5
    """rho: weight of each further step in the value loss and the priorities."""
    similarity_weight: float = 1.0
    """Coefficient of the latent similarity loss."""
    reward_weight: float = 0.5
    """Coefficient of the reward loss."""
    value_weight: float = 0.1
    """Coefficient of the value loss."""
    loss_clip: float = 1e4
    """Cap of each loss per segment; a capped loss has no gradient."""
    smoothing_std: float = 0.05
    """Noise on policy actions in targets, proposals and the policy loss."""
    smoothing_clip: float = 0.3
    """Bound of that noise."""
    target_momentum: float = 0.99
    """Share of the old target network kept at each target update."""
    target_period: int = 2
    """Updates between target updates."""
    updates_per_step: int = 1
    """Gradient steps per agent step."""
    update_every: int = 1
    """Divides `updates_per_step`: 2 is one update for every two agent steps."""
    seed_updates: float = 1.0
    """Share of the updates for the random seed steps that are made when that phase ends."""
    update_mode: Literal["step", "block"] = "step"
    """Make updates at every step, while simulators run, or in a block when an episode ends."""
    novelty_weight: float = 0.25
    """c_r: weight of the novelty reward (0.5 is the paper's value for sparse tasks)."""
    novelty_ramp: Ramp = Ramp(0.0, 5_000.0, after_seed=True)
    """How the novelty weight grows."""
    novelty_power: float = 0.6
    """xi: exponent of the normalised novelty."""
    novelty_scale_by_max: float = 1.0
    """Divide by the largest novelty of the batch, so that it lies in [0, 1] (1), or not (0)."""
    novelty_moments: Literal["cumulative", "ema"] = "cumulative"
    """Mean and deviation of the prediction error over all updates, or a moving average."""
    novelty_ema: float = 0.99
    """Decay of the moving average."""


@settings
@dataclass(frozen=True)
class ReplayConfig:
    """Prioritised replay of segments."""

    capacity: int = 0
    """Stored steps per lane; 0 keeps the whole run. When full, the oldest go first."""
    priority_power: float = 0.6
    """alpha: 0 samples uniformly, 1 in proportion to the priority."""
    importance_power: float = 0.4
    """beta: how far importance weights undo the priorities."""
    priority_floor: float = 1e-6
    """Added to every priority."""
    hindsight: float = 0.0
    """Share of the segments whose goal becomes one that their episode reached later; 0 is off."""


@settings
@dataclass(frozen=True)
class ParityConfig:
    """Switches that exist only to follow the paper's text or its released code to the letter."""

    reward_input: Literal["belief", "all"] = "belief"
    """D1: the reward head reads the new belief, or latent, belief and action."""
    first_std_floor: bool = False
    """D9: in the first iteration the standard deviation never falls below `plan.init_std`."""
    elite_tail: Literal["sample", "repeat"] = "sample"
    """D12: last action of shifted elites: freshly sampled, or each elite's own last one again."""
    clip_action: bool = True
    """D13: keep the executed action inside [-1, 1]."""
    carry_belief: bool = False
    """D15: plan from the belief of the step before instead of zero."""
    elites_at_first: bool = True
    """D16: reuse elites between iterations at the first step of an episode too."""
    model_time_decay: bool = False
    """D18: rho weighs the similarity and reward losses too."""
    importance: Literal["per_sample", "batch_mean", "none"] = "per_sample"
    """D21: importance weights per segment, their batch mean (the released broadcast), or none."""
    policy_delay: int = 1
    """D23: updates between policy updates."""
    bc_weight: float = static(0.0)
    """D24: weight of a behaviour-cloning term in the policy loss."""
    novelty_updates_stats: bool = False
    """B25: the novelty pass moves the running batch-norm statistics too."""


@settings
@dataclass(frozen=True)
class RepairConfig:
    """Changes of this project to the paper's method; the values here are the paper's."""

    value_huber: float = 1e6
    """Value errors above this count linearly instead of squared."""
    pessimism: float = 1.0
    """Plan and policy loss value an action by the smaller critic (1) or by their mean (0)."""
    action_penalty: float = 0.0
    """Weight of the policy's mean squared pre-tanh output in its loss."""
    policy_scale: float = 0.0
    """Divide the policy's loss by this power of the mean absolute value, if that is above 1."""
    policy_decay: float = 1.0
    """Weight of each further latent of a rollout in the policy's loss."""
    step_stats: float = 0.0
    """Plan with batch-norm statistics of each rollout step (1) instead of all together (0)."""
    normalise: float = 0.0
    """Observations are scaled to mean 0 and deviation 1 by running moments (1), or raw (0)."""
    first_bias: float = 0.0
    """Deviation of the encoder's first bias at the start, relative to that of its product."""
    residual: float = 0.0
    """A step of the model adds to this share of the latent that it begins with."""
    norms: bool = False
    """Layer norms in the hidden layers of the policy and of the reward head."""


@settings
@dataclass(frozen=True)
class Config:
    """A run, apart from its tasks and seeds."""

    env_steps: int = 500_000
    """Environment steps per lane, action repeat included."""
    action_repeat: int = 1
    """Environment steps per decision."""
    seed_steps: int = 5_000
    """Agent steps with random actions before learning begins (see `learn.seed_updates`)."""
    eval_every: int = 20_000
    """Environment steps between evaluations."""
    eval_episodes: int = 10
    """Episodes per evaluation and lane."""
    precision: Precision = "auto"
    """Arithmetic: f32, tf32 matmuls, or bf16 activations; auto is bf16 on a GPU, f32 on a CPU."""
    kernels: Literal["auto", "off"] = "auto"
    """Fused GPU kernels: auto uses those that fit, off computes all by the plain formulas."""
    workers: int = -1
    """Simulator processes; -1 is one per core, 0 steps them in this process."""
    env_timeout: int = 120
    """Seconds without an answer after which a simulator process is taken for hung and replaced."""
    fault_limit: int = 5
    """Simulator faults of one lane, without an episode finished between them, that stop the run."""
    net: NetConfig = field(default_factory=NetConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    learn: LearnConfig = field(default_factory=LearnConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    parity: ParityConfig = field(default_factory=ParityConfig)
    repair: RepairConfig = field(default_factory=RepairConfig)
    own: Any = None
    """The agent's own section, an instance of `Agent.settings`; None if the agent has none."""

    @property
    def agent_steps(self) -> int:
        """Agent steps of a whole run: enough for `env_steps`."""
        return -(-self.env_steps // self.action_repeat)


class ConfigError(ValueError):
    """A setting that cannot work, with what to change."""


def replace(config: Config, changes: Mapping[str, Any]) -> Config:
    """A config with dotted fields changed: `{"plan.horizon": 4}`."""
    for name, value in changes.items():
        config = _replace_one(config, name.split("."), value)
    return config


def _replace_one(node: Any, path: list[str], value: Any) -> Any:
    if not dataclasses.is_dataclass(node) or path[0] not in {
        f.name for f in dataclasses.fields(node)
    }:
        raise ConfigError(f"no setting {'.'.join(path)!r} in {type(node).__name__}")
    if len(path) > 1:
        value = _replace_one(getattr(node, path[0]), path[1:], value)
    return dataclasses.replace(node, **{path[0]: value})  # type: ignore[type-var]


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted field names and values."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{f.name}.")
        else:
            flat[prefix + f.name] = value
    return flat


def literals(config: Any, prefix: str = "") -> dict[str, tuple[str, ...]]:
    """The allowed values of every setting of a Literal type."""
    found: dict[str, tuple[str, ...]] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            found |= literals(value, f"{prefix}{f.name}.")
        elif get_origin(f.type) is Literal:
            found[prefix + f.name] = get_args(f.type)
    return found
