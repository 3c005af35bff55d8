"""Values and actions of the best policies on the probe tasks, known by hand, and what an agent that
has learned says in their place."""

from typing import Any

import jax
import jax.numpy as jnp

from ace.agents import AGENTS
from ace.method.types import Lane

DISCOUNT = 0.9
# Task: observation: the value there, and the action.
VALUES = {
    "constant": {0.0: 1.0},
    "observation": {1.0: 1.0, -1.0: -1.0},
    "discount": {0.0: DISCOUNT, 1.0: 1.0},
    "action": {0.0: 1.0},
    "action_observation": {0.5: 1.0, -0.5: 1.0},
    "truncation": {0.0: 1 / (1 - DISCOUNT)},
}
ACTIONS = {"action": {0.0: 0.5}, "action_observation": {0.5: 0.5, -0.5: -0.5}}


def cases(table: dict[str, dict[float, float]], tasks: tuple[str, ...]) -> list[tuple]:
    """(task, observation, number) of all that a table says about tasks."""
    return [(t, obs, x) for t in tasks for obs, x in table.get(t, {}).items()]


def judge(learned: Any, task: str, obs: float) -> tuple[float, float]:
    """The value of the policy's action at an observation, and that action; `learned` are the final
    state of a run and the run, as `small_run` returns them."""
    state, run = learned
    lane = [s.task for s in run.setups].index(f"probe/{task}")
    agent, acting = AGENTS[run.agent], jax.tree.map(lambda x: x[lane], state.learner)
    assert agent.act_policy and agent.value
    given = (
        Lane(jnp.uint32(0), run.setups[lane].config, jnp.ones(1, bool), ()),
        agent.acting_part(acting),
        jnp.array([obs]),
    )
    action = agent.act_policy(*given)
    return float(agent.value(*given, action)), float(action[0])
