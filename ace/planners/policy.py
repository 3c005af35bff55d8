"""No search at all: act with the policy, as the paper's Greedy does (2.4). While training,
clipped Gaussian noise is added to the action for exploration."""

import jax
import jax.numpy as jnp

from ace.method.noise import normal
from ace.planners.contract import Context, Planner, Score
from ace.settings.config import Config

EDGE = 1 - 1e-6  # the bound of perturbed actions, as in the policy's own noise (1.5)


def plan(
    config: Config,
    score: Score,
    proposals: jax.Array,
    memory: tuple,
    x: Context,
    key: jax.Array,
    train: bool,
) -> tuple[jax.Array, tuple]:
    """The policy's action; with noise of `plan.policy_std`, bounded like its own, in training."""
    if x.policy is None:
        raise ValueError("the planner `policy` needs an agent that has a policy")
    action = x.policy().astype(jnp.float32)
    if train:
        bound = config.learn.smoothing_clip
        noise = config.plan.policy_std * normal(key, x.mask.shape)
        action = jnp.clip(action + jnp.clip(noise, -bound, bound), -EDGE, EDGE)
    return action * x.mask, memory


PLANNER = Planner(
    init=lambda config, action_size: (),
    plan=plan,
    proposals=lambda config: 0,
    calls=lambda config: (),
    reads=("plan.policy_std", "learn.smoothing_clip"),
)
