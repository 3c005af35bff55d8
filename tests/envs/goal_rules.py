"""What every declared goal must satisfy on observations and rewards that an environment gave."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ace.envs import Goal, StepResult, relabel


def check_rule(goal: Goal, steps: Sequence[StepResult]) -> np.ndarray:
    """Compare the rewards of single env steps with the goal's rule; gives the rewards [T]."""
    obs = np.stack([step.obs for step in steps])
    rewards = np.array([step.reward for step in steps])
    achieved, desired = obs[:, slice(*goal.achieved)], obs[:, slice(*goal.desired)]
    np.testing.assert_array_equal(goal.rule(np, achieved, desired), rewards)
    with_jax = jax.jit(lambda a, d: goal.rule(jnp, a, d))(achieved, desired)
    assert with_jax.dtype == jnp.float32
    np.testing.assert_array_equal(with_jax, rewards.astype(np.float32))
    for xp in (np, jnp):  # the goal that is there already changes nothing
        np.testing.assert_array_equal(relabel(goal, xp.asarray(obs), desired, xp), obs)
    # What was achieved is reached, as a goal; fixed entries stay what they were.
    other = relabel(goal, obs, achieved)
    found = goal.rule(np, achieved, other[:, slice(*goal.desired)])
    assert (found >= 0.4).all() and not np.array_equal(found, rewards)
    if goal.fixed:
        kept = other[:, slice(*goal.desired)][:, -goal.fixed :]
        np.testing.assert_array_equal(kept, desired[:, -goal.fixed :])
    return rewards
