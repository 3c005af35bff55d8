"""The paper's statements: each is a function of problems that returns the two sides of its
inequality, and an entry of `STATEMENTS` that says where it should hold. The left side is always the
loss of a policy in the worst state, measured with the external reward. docs/theory.md has the
statements in words, and why some differ from the print."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ace.tools.theory.mdps import Array, Problems, action_values, evaluate, execute, plan

HORIZONS = (1, 2, 4, 6)
ERRORS = ("model", "value", "novelty", "plan")
Kinds = tuple[str, ...]


class Sides(NamedTuple):
    """Both sides of an inequality, [N] each."""

    loss: Array
    bound: Array


@dataclass(frozen=True)
class Statement:
    """An inequality and what is expected of it."""

    name: str
    sides: Callable[[Problems], Sides]
    errors: Kinds = ERRORS  # those that its bound depends on
    holds_from: float = 0.0  # the discount from which it holds: 0 always, 1 never
    signed: bool = False  # whether r^i may be negative
    horizons: tuple[int, ...] = HORIZONS

    def holds(self, discount: float) -> bool:
        """Whether the statement should hold for this discount."""
        return discount >= self.holds_from


def lemma_1_printed(p: Problems) -> Sides:
    """Lemma 1 as printed: 2 gamma (eps_v + alpha_r) / (1 - gamma)."""
    alpha_r = p.novelty_bias / (1 - p.discount)
    bound = 2 * p.discount * (p.value_error + alpha_r) / (1 - p.discount)
    return Sides(greedy_loss(p), bound)


def lemma_1(p: Problems) -> Sides:
    """Lemma 1 for r^i >= 0: (2 gamma eps_v + eps_r) / (1 - gamma)."""
    bound = (2 * p.discount * p.value_error + p.novelty_bias) / (1 - p.discount)
    return Sides(greedy_loss(p), bound)


def lemma_1_signed(p: Problems) -> Sides:
    """Lemma 1 for r^i of any sign: (2 gamma eps_v + 2 eps_r) / (1 - gamma)."""
    bound = (2 * p.discount * p.value_error + 2 * p.novelty_bias) / (1 - p.discount)
    return Sides(greedy_loss(p), bound)


def lemma_2(p: Problems) -> Sides:
    """Lemma 2, where eps_v is the distance of the learned value from V*."""
    actions, shortfall = plan(p, p.reward)
    bound = lookahead_bound(p, p.reward, shortfall, p.task_value_error)
    return Sides(p.loss(execute(p.kernel, p.reward, p.discount, actions)), bound)


def replanned(p: Problems) -> Sides:
    """Exact model and optimiser, a new plan at every step: 2 gamma^H eps_v / (1 - gamma)."""
    exact = replace(p, model=p.kernel, whim=np.zeros_like(p.whim))
    first = plan(exact, p.reward).actions[:, 0]
    bound = 2 * p.discount**p.horizon * p.task_value_error / (1 - p.discount)
    return Sides(p.loss(evaluate(p.kernel, p.reward, p.discount, first)), bound)


def corollary_1(p: Problems) -> Sides:
    """Corollary 1: Lemma 2 with the value error eps_v + alpha_r."""
    actions, shortfall = plan(p, p.reward)
    error = p.value_error + p.novelty_bias / (1 - p.discount)
    bound = lookahead_bound(p, p.reward, shortfall, error)
    return Sides(p.loss(execute(p.kernel, p.reward, p.discount, actions)), bound)


def corollary_1_upwards(p: Problems) -> Sides:
    """Corollary 1 for r^i >= 0: half of alpha_r counts, because the joint value errs upwards
    only."""
    actions, shortfall = plan(p, p.reward)
    error = p.value_error + p.novelty_bias / (1 - p.discount) / 2
    bound = lookahead_bound(p, p.reward, shortfall, error)
    return Sides(p.loss(execute(p.kernel, p.reward, p.discount, actions)), bound)


def corollary_1_sharper(p: Problems) -> Sides:
    """Ours, for r^i >= 0: gamma^H alpha_r once, outside of 2 / (1 - gamma^H). The bias does not
    add up from plan to plan, because a plan that follows it collects it."""
    actions, shortfall = plan(p, p.reward)
    bound = lookahead_bound(p, p.reward, shortfall, p.value_error)
    bound = bound + p.discount**p.horizon * p.novelty_bias / (1 - p.discount)
    return Sides(p.loss(execute(p.kernel, p.reward, p.discount, actions)), bound)


def joint_plan(p: Problems) -> Sides:
    """Plans that sum r^e + r^i, r^i >= 0: Lemma 2 in the MDP of the joint reward, and alpha_r in
    full for the reward that does not count."""
    actions, shortfall = plan(p, p.joint)
    bound = lookahead_bound(p, p.joint, shortfall, p.value_error)
    bound = bound + p.novelty_bias / (1 - p.discount)
    return Sides(p.loss(execute(p.kernel, p.reward, p.discount, actions)), bound)


def novelty_plan(p: Problems) -> Sides:
    """Plans that sum r^i alone, as the planner's equation is printed, under the bound of
    Corollary 1."""
    actions, shortfall = plan(p, p.novelty)
    error = p.value_error + p.novelty_bias / (1 - p.discount)
    bound = lookahead_bound(p, p.reward, shortfall, error)
    return Sides(p.loss(execute(p.kernel, p.reward, p.discount, actions)), bound)


def greedy_loss(p: Problems) -> Array:
    """Loss [N] of the policy that is greedy for r^e + r^i and the learned value, in the true
    dynamics."""
    actions = action_values(p.kernel, p.joint, p.discount, p.value).argmax(-1)
    return p.loss(evaluate(p.kernel, p.reward, p.discount, actions))


def lookahead_bound(p: Problems, reward: Array, shortfall: Array, error: Array) -> Array:
    """2 / (1 - gamma^H) [C + eps_p / 2 + gamma^H error], where C is what model errors cost."""
    largest = reward.max((1, 2)), p.value.max(1)
    cost = model_cost(p.discount, p.horizon, p.model_error, *largest)
    far = p.discount**p.horizon
    return 2 / (1 - far) * (cost + shortfall / 2 + far * error)


def model_cost(
    discount: Array, horizon: int, error: Array, most_reward: Array, most_value: Array
) -> Array:
    """C = eps_m (R_max sum_{t<H} t gamma^t + H gamma^H V_max): after t steps the states of model
    and truth differ by at most t eps_m in total variation."""
    steps = sum((t * discount**t for t in range(horizon)), np.zeros_like(discount))
    return error * (most_reward * steps + horizon * discount**horizon * most_value)


# A greedy policy plans nothing: it has no horizon, no plan and, in the lemma, the true dynamics.
GREEDY = {"errors": ("value", "novelty"), "horizons": (1,)}
STATEMENTS = (
    Statement("Lemma 1, printed", lemma_1_printed, holds_from=1 / 3, **GREEDY),
    Statement(
        "Lemma 1, printed, any r^i", lemma_1_printed, holds_from=1 / 2, signed=True, **GREEDY
    ),
    Statement("Lemma 1, corrected", lemma_1, **GREEDY),
    Statement("Lemma 1, corrected, any r^i", lemma_1_signed, signed=True, **GREEDY),
    Statement("Lemma 2", lemma_2, ("model", "value", "plan"), signed=True),
    Statement("Lemma 2, replanned", replanned, ("value",), signed=True),
    Statement("Corollary 1, any r^i", corollary_1, signed=True),
    Statement("Corollary 1, r^i >= 0", corollary_1_upwards),
    Statement("Corollary 1, sharper", corollary_1_sharper),
    Statement("plans that sum r^e + r^i", joint_plan),
    Statement("plans that sum r^i", novelty_plan, holds_from=1),
)
