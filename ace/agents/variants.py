"""The paper's variants of ACE (docs/agents.md): the same agent with other settings. The variants
differ in this table alone."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from ace.agents.contract import Agent


class Variant(NamedTuple):
    """A name for some settings."""

    settings: Mapping[str, Any]
    about: str


BLIND = {"learn.novelty_weight": 0.0}
ONE_STEP = {"learn.td_lambda": 0.0}
# TD-MPC's values; the planner starts with its standard deviation of 2.
CEM = {
    "plan.planner": "cem",
    "plan.population": 512,
    "plan.elites": 64,
    "plan.policy_fraction": 0.05,
    "plan.noise_beta": 0.0,
}

VARIANTS = {
    "ace-blind": Variant(BLIND, "No novelty reward: the value knows the environment's alone."),
    "ace-blind-td": Variant(BLIND | ONE_STEP, "No novelty reward, and one-step targets."),
    "greedy": Variant(
        {"plan.planner": "policy"}, "No plans: it acts with the novelty-aware policy."
    ),
    "icem": Variant(
        {
            "plan.terminal_value": False,
            "plan.variant": "mixed",
            "plan.policy_fraction": 0.0,
            "plan.running_reward": "joint",
        },
        "Plans alone: no value at their end and no proposals of the policy; the rewards that they "
        "sum up include novelty, since without any reward all plans would be equal.",
    ),
    "tdmpc-s": Variant(
        BLIND | ONE_STEP | CEM,
        "TD-MPC's planner on the model of ACE, no novelty reward, one-step targets.",
    ),
    "tdmpc-s-mve": Variant(
        BLIND | CEM, "TD-MPC's planner on the model of ACE, no novelty reward, lambda targets."
    ),
}


def make(ace: Agent) -> dict[str, Agent]:
    """The variants as agents, by name."""
    return {
        name: dataclasses.replace(ace, variant_of="ace", overrides=variant.settings)
        for name, variant in VARIANTS.items()
    }
