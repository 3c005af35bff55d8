"""The contract of a planner and the table that `plan.planner` selects from."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ace.settings import names
from ace.settings.config import Config

Memory = Any  # what a planner keeps from step to step of an episode; may be ()
Score = Callable[[jax.Array, slice, int], jax.Array]
"""(actions [H, N, A], proposed, call) -> values [N]. `proposed` is the slice of the N sequences
that holds the first proposals, unchanged, which may be rolled out already; it may be empty. `call`
is the index of the call in one plan: a stochastic score draws new numbers in each."""


class Context(NamedTuple):
    """What one plan depends on besides the settings, the score and the proposals."""

    first: jax.Array  # whether an episode begins: the memory is then from another one
    horizon: jax.Array  # working horizon, 1..H: steps past it do not count
    agent_step: jax.Array  # for schedules
    mask: jax.Array  # [A] real action dimensions
    constants: Any  # result of `Planner.constants`
    policy: Callable[[], jax.Array] | None = None
    """What the policy would do now, without noise: [A]. A function, so that planners that do not
    ask pay nothing; None if the agent has no policy."""


class Planner(NamedTuple):
    """A search over action sequences, as pure functions of one lane."""

    init: Callable[[Config, int], Memory]
    """(config, action size): the memory before the first plan."""
    plan: Callable[
        [Config, Score, jax.Array, Memory, Context, jax.Array, bool], tuple[jax.Array, Memory]
    ]
    """(config, score, proposals [H, M, A], memory, context, key, train): the action [A] to take
    now and the memory for the next step."""
    proposals: Callable[[Config], int]
    """M: sequences of the policy that a plan starts from; may be 0."""
    calls: Callable[[Config], Sequence[int]]
    """N of every call of the score in one plan, in order."""
    constants: Callable[[Config], Any] = lambda config: ()
    """Arrays that depend only on the settings of a lane, made once on the host."""
    reads: tuple[str, ...] = ("plan", "parity")
    """Settings that it reads: sections or single ones ("plan.population"). A run that changes a
    setting which neither the planner nor its agent reads is refused."""
    check: Callable[[Config], None] = lambda config: None
    """Raises a ConfigError for settings that cannot work, before a run writes anything."""


PLANNERS: dict[str, Planner] = {}


def register(name: str, planner: Planner) -> None:
    """Register a planner under a free name: `--plan.planner NAME`."""
    names.enter("planner", PLANNERS, name, planner)
