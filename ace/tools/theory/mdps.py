"""Tabular decision problems in batches, and their exact values by linear algebra and dynamic
programming. Every array has a leading axis N over problems; S states, A actions, H steps of a plan.

A problem is a true MDP, what an agent believes about it (a model of the dynamics, a value function
and a novelty reward), and how carelessly it plans.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

Array = np.ndarray
TIE = 1e-13  # actions whose values differ by less, relatively, are equally good


@dataclass(frozen=True, eq=False)
class Problems:
    """A batch of problems; the errors of the paper's statements are measured, not declared."""

    discount: Array  # [N], gamma
    kernel: Array  # [N, S, A, S], the true dynamics M
    model: Array  # [N, S, A, S], the learned dynamics
    reward: Array  # [N, S, A], r^e, not negative
    novelty: Array  # [N, S, A], r^i
    value: Array  # [N, S], the learned value, not negative
    whim: Array  # [N, H, S, A], added to the planner's action values before it chooses

    @property
    def horizon(self) -> int:
        """H, the steps of a plan."""
        return self.whim.shape[1]

    @property
    def joint(self) -> Array:
        """r^e + r^i, [N, S, A]."""
        return self.reward + self.novelty

    @cached_property
    def best(self) -> Array:
        """Optimal value for r^e, [N, S]."""
        return optimal(self.kernel, self.reward, self.discount)

    @cached_property
    def best_joint(self) -> Array:
        """Optimal value for r^e + r^i, [N, S]."""
        return optimal(self.kernel, self.joint, self.discount)

    @cached_property
    def model_error(self) -> Array:
        """eps_m: largest total variation distance of a row of the model, [N]."""
        return 0.5 * np.abs(self.model - self.kernel).sum(-1).max((1, 2))

    @cached_property
    def value_error(self) -> Array:
        """eps_v: largest distance of the learned value from the optimal joint value, [N]."""
        return np.abs(self.value - self.best_joint).max(1)

    @cached_property
    def task_value_error(self) -> Array:
        """Largest distance of the learned value from the optimal value for r^e, [N]."""
        return np.abs(self.value - self.best).max(1)

    @cached_property
    def novelty_bias(self) -> Array:
        """eps_r: largest size of r^i, [N]."""
        return np.abs(self.novelty).max((1, 2))

    def loss(self, achieved: Array) -> Array:
        """V* - V^pi in the worst state, [N], where `achieved` [N, S] is V^pi for r^e."""
        return (self.best - achieved).max(1)


class Plan(NamedTuple):
    """Actions [N, H, S] for each step and state, and how much worse they are in the planner's own
    terms than the best, eps_p [N]."""

    actions: Array
    shortfall: Array


def action_values(kernel: Array, reward: Array, discount: Array, value: Array) -> Array:
    """r + gamma E V(s'), [N, S, A]."""
    return reward + discount[:, None, None] * (kernel @ value[:, None, :, None])[..., 0]


def optimal(kernel: Array, reward: Array, discount: Array) -> Array:
    """The optimal value [N, S], by policy iteration."""
    actions = reward.argmax(-1)
    while True:
        value = evaluate(kernel, reward, discount, actions)
        q = action_values(kernel, reward, discount, value)
        better = q.argmax(-1)
        # A gain within rounding must not change the policy, or the iteration could cycle.
        gain = q.max(-1) - _taken(q, actions)
        scale = np.maximum(1, np.abs(value).max(1, keepdims=True))
        if not (changed := gain > TIE * scale).any():
            return value
        actions = np.where(changed, better, actions)


def evaluate(kernel: Array, reward: Array, discount: Array, actions: Array) -> Array:
    """The value [N, S] of taking `actions` [N, S] forever."""
    return execute(kernel, reward, discount, actions[:, None])


def execute(kernel: Array, reward: Array, discount: Array, actions: Array) -> Array:
    """The value [N, S] of following a plan [N, H, S] to its end, then the same plan again, and so
    on: V = R_H + gamma^H P_H V with the H-step return R_H and the H-step kernel P_H."""
    count, horizon, size = actions.shape
    one = np.eye(size)
    total, reach = np.zeros((count, size)), np.broadcast_to(one, (count, size, size))
    for taken in np.moveaxis(actions, 1, 0)[::-1]:
        moved = _taken(kernel, taken)
        total = _taken(reward, taken) + discount[:, None] * (moved @ total[..., None])[..., 0]
        reach = moved @ reach
    system = one - (discount**horizon)[:, None, None] * reach
    return np.linalg.solve(system, total[..., None])[..., 0]


def plan(problems: Problems, reward: Array) -> Plan:
    """Plan H steps in the model for `reward` and then the learned value. At each step and state the
    planner sees how well its later choices do, adds its whim and takes the largest."""
    best = own = problems.value
    actions = []
    for whim in np.moveaxis(problems.whim, 1, 0)[::-1]:
        q = action_values(problems.model, reward, problems.discount, own)
        actions.append((q + whim).argmax(-1))
        own = _taken(q, actions[-1])
        best = action_values(problems.model, reward, problems.discount, best).max(-1)
    return Plan(np.stack(actions[::-1], 1), (best - own).max(1))


def _taken(values: Array, actions: Array) -> Array:
    """The entries [N, S, ...] of `values` [N, S, A, ...] at `actions` [N, S]."""
    count, size = actions.shape
    return values[np.arange(count)[:, None], np.arange(size), actions]
