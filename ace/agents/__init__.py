"""The contract of an agent, and the agents that ship with the package.

An agent is a set of pure functions of one lane. The engine adds the lane axis, compiles them and
moves their arrays; no other code looks inside an agent, so its parameters may have any names and
shapes. A new one is a file that makes an `Agent` and registers it (docs/extend.md).
"""

from ace.agents import ace, mrq, sac, tcrl, tdmpc, variants
from ace.agents.contract import AGENTS, Agent, register

__all__ = ["AGENTS", "Agent", "register"]

register("ace", ace.AGENT)
for _name, _agent in variants.make(ace.AGENT).items():
    register(_name, _agent)
register("sac", sac.AGENT)
register("redq", sac.REDQ)
register("srsac", sac.SRSAC)
register("tcrl", tcrl.AGENT)
register("tdmpc", tdmpc.AGENT)
register("mrq", mrq.AGENT)
register("drq", mrq.DRQ)
