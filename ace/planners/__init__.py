"""Planners search action sequences without knowing what a model is.

A planner is handed `score(actions [H, N, A], noise [N, A], proposed) -> values [N]` and a set of
proposed sequences, and returns an action and the memory for the next step. `proposed` is the slice
of the N sequences that holds the first proposals, which may have been rolled out before. Memory is
a value: whether an episode begins is data, so nothing can leak from one episode to the next.
"""

from ace.planners.icem import PlanInput, init_memory, plan, populations

__all__ = ["PlanInput", "init_memory", "plan", "populations"]
