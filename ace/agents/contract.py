"""The contract of an agent and the table that `--agent` selects from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import jax

from ace.method.types import Lane, Metrics
from ace.planners import PLANNERS
from ace.replay import Replay
from ace.settings import names
from ace.settings.config import Config, ConfigError

Sizes = tuple[int, int]  # of observations and actions
State = Any  # all that learning changes: any tree of arrays
Acting = Any  # the part of the state that acting reads
Memory = Any  # what an agent keeps from step to step of an episode; may be ()

Act = Callable[
    [Lane, Acting, Memory, jax.Array, jax.Array, jax.Array, jax.Array, bool],
    tuple[jax.Array, Memory],
]
Update = Callable[[Lane, State, Replay, jax.Array, jax.Array], tuple[State, Replay, Metrics]]

OFF_POLICY = tuple(
    f"learn.{name}"
    for name in (
        *("batch", "discount", "update_mode", "updates_per_step", "update_every", "seed_updates"),
        *("learning_rate", "policy_learning_rate", "grad_clip", "beta1", "beta2", "weight_decay"),
    )
)
"""Settings of learning from a replay that all agents of this package read: for `Agent.sections`."""


def _everything(state: State) -> Acting:
    return state


def _nothing(*_: Any) -> Any:
    return ()


def _one(config: Config) -> int:
    return 1


@dataclass(frozen=True)
class Agent:
    """An agent for one lane. Observations are [O], actions [A] in [-1, 1], both padded with zeros
    to the sizes of the program; `lane.action_mask` tells real action dimensions from padding."""

    init: Callable[[Config, int, Sizes], State]
    """(config, seed, sizes): a fresh state for a task of these sizes, best as NumPy arrays."""
    pad: Callable[[Config, State, Sizes], State]
    """(config, state, sizes): the same state for larger observations and actions, whose new
    entries are always zero."""
    act: Act
    """(lane, acting, memory, obs, first, agent_step, key, train): an action and the new memory.
    `first` says that an episode begins: the memory is then from another one."""
    update: Update
    """(lane, state, replay, agent_step, active): one update. State and replay of a lane that
    is not active must be returned unchanged; one without a segment in store is never active."""
    metrics: tuple[str, ...]
    """Names of the metrics that `update` returns: columns of train.csv. `skipped_updates`, if it is
    among them, is also shown on the console."""
    act_policy: Callable[[Lane, Acting, jax.Array], jax.Array] | None = None
    """(lane, acting, obs [..., O]): actions of the policy alone, without noise or planning."""
    value: Callable[[Lane, Acting, jax.Array, jax.Array], jax.Array] | None = None
    """(lane, acting, obs [..., O], action [..., A]): the return that the critics expect, discounted
    by `learn.discount`; an evaluation compares it with what its episodes return."""
    prediction_error: Callable[[Lane, Acting, jax.Array, jax.Array], jax.Array] | None = None
    """(lane, acting, obs [N, H+1, O], action [N, H, A]): how far the model's predictions are from
    what was observed, summed over the H steps of a `segment` and averaged over N: a number."""
    plays: tuple[Literal["agent", "policy"], ...] = ("agent",)
    """What an evaluation plays: `act`, `act_policy`, or both; the first is recorded as `return`."""
    memory: Callable[[Config, int], Memory] = _nothing
    """(config, action size): the memory before an episode."""
    check: Callable[[Config], None] = _nothing
    """Raises a ConfigError for settings that cannot work, before a run writes anything. The
    planner's own `check` is called too."""
    segment: Callable[[Config], int] = _one
    """Steps of the longest segments that are drawn from the replay."""
    acting_part: Callable[[State], Acting] = _everything
    """The part of the state that acting reads: evaluated, written to the agent file, exported."""
    constants: Callable[[Config], Any] = _nothing
    """Arrays that depend only on a lane's settings, made once on the host: `lane.constants`."""
    footprint: Callable[[Config, Sizes], Mapping[str, int]] = lambda config, sizes: {}
    """(config, sizes): the least bytes that a lane needs, by purpose and the settings behind them,
    computed without allocating an array. A run that cannot fit is refused by this."""
    settings: type | None = None
    """A settings class of its own: `config.own`, flags `--NAME.field`."""
    sections: tuple[str, ...] = ()
    """Which of the common settings it reads: whole sections ("net") or single ones ("learn.batch").
    A run that changes another one is refused. With "plan.planner" among them, those that the
    planner reads join them."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Common settings that have another default for this agent: {"learn.batch": 256}."""
    task_defaults: Callable[[str], Mapping[str, Any]] = lambda task: {}
    """(task): the same for one task, which come after `defaults`: {"action_repeat": 8}. They may
    set fields of its own section too: {"own.n_step": 1}."""
    presets: tuple[str, ...] = ()
    """Presets that are about this agent, besides those for all (`settings.presets.COMMON`)."""
    added: str = ""
    """A pattern of the names of arrays and metrics that older checkpoints lack and for which zeros
    do; "" if there are none."""
    variant_of: str = ""
    """The agent whose functions these are, with other settings: a suite may train both in one
    program."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Common settings that make it a variant. Unlike `defaults` they win over task and preset; the
    user's win over them."""

    @property
    def plans(self) -> bool:
        """Whether it acts with the planner that `plan.planner` names."""
        return not {"plan", "plan.planner"}.isdisjoint(self.sections)

    def reads(self, planner: str) -> tuple[str, ...]:
        """The common settings that it reads, with those of a planner if it uses one."""
        return (*self.sections, *(PLANNERS[planner].reads if self.plans else ()))

    def uses(self, setting: str, planner: str) -> bool:
        """Whether a setting can change what a run of the agent with this planner learns: one of the
        run's own, of the agent's own section, or one that is read."""
        sections = (*self.reads(planner), "own")
        return "." not in setting or f"{setting}.".startswith(tuple(f"{s}." for s in sections))

    def defaults_of(self, task: str) -> Mapping[str, Any]:
        """All defaults of the agent for a task."""
        return {**self.defaults, **self.task_defaults(task)}


AGENTS: dict[str, Agent] = {}


def register(name: str, agent: Agent) -> None:
    """Register an agent under a free name: `ace train TASK --agent NAME`."""
    check(name, agent)
    names.enter("agent", AGENTS, name, agent)


def check(name: str, agent: Agent) -> None:
    """Refuse an agent that could not be recorded, evaluated or configured."""
    flag = name.replace("-", "_")
    if not flag.isidentifier() or name.startswith("-"):
        raise ConfigError(f"agent name {name!r} must be letters, digits, _ and -")
    if agent.settings and flag in {section.name for section in fields(Config)}:
        raise ConfigError(
            f"agent {name!r} has settings of its own, and --{name} are common ones already; choose "
            "another name"
        )
    for metric in agent.metrics:
        if not metric.isidentifier() or agent.metrics.count(metric) > 1:
            raise ConfigError(
                f"agent {name!r} has the metric {metric!r}; metrics are named with letters, digits "
                "and _, each once"
            )
    if not agent.plays or not {*agent.plays} <= {"agent", "policy"}:
        raise ConfigError(
            f"agent {name!r} plays {agent.plays!r} in evaluations; give ('agent',), ('policy',) or "
            "both"
        )
    if "policy" in agent.plays and agent.act_policy is None:
        raise ConfigError(f"agent {name!r} plays its policy and has no act_policy; give it one")
