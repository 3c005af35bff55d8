"""Agents of the one training loop. An agent is a module of pure functions for one lane:

init(config, seed, sizes, padded) -> learner state
init_memory(config, action_size) -> memory carried between steps of an episode
act(lane, learner, memory, obs, first, agent_step, key, train) -> action, memory
act_policy(lane, learner, obs) -> action without planning
update(lane, learner, replay, agent_step, active) -> learner, replay, metrics
"""

from types import ModuleType

from ace.agents import ace

AGENTS: dict[str, ModuleType] = {"ace": ace}
