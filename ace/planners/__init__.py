"""The contract of a planner, and the planners that ship with the package.

Planners search action sequences without knowing the model: they receive a score and the sequences
that a policy proposes. A new one is a file that makes a `Planner` and registers it
(docs/extend.md).
"""

from ace.planners import cem, icem, policy
from ace.planners.contract import PLANNERS, Context, Planner, Score, register

__all__ = ["PLANNERS", "Context", "Planner", "Score", "register"]

register("icem", icem.PLANNER)
register("cem", cem.PLANNER)
register("policy", policy.PLANNER)
