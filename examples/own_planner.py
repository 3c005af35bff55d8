"""A planner of your own: random shooting. It rates sequences of uniform actions and takes the first
action of the best one. With this folder on PYTHONPATH:

    ace train probe/point --preset debug --import own_planner --plan.planner shooting
"""

import jax
import jax.numpy as jnp

from ace.planners import Context, Planner, Score, register
from ace.settings.config import Config


def plan(
    config: Config,
    score: Score,
    proposals: jax.Array,
    memory: tuple,
    context: Context,
    key: jax.Array,
    train: bool,
) -> tuple[jax.Array, tuple]:
    """Rate `plan.population` sequences [H, N, A] once and take the best; nothing is remembered."""
    p, size = config.plan, context.mask.shape[0]
    # The action axis is drawn first: then padding does not change a real dimension's numbers.
    shape = (size, p.horizon, p.population)
    actions = jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
    actions = jnp.moveaxis(actions, 0, -1) * context.mask
    values = score(actions, slice(0, 0), 0)  # none of them is a proposal; this is the first call
    best = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
    return actions[0, best], memory


register(
    "shooting",
    Planner(
        init=lambda config, action_size: (),
        plan=plan,
        proposals=lambda config: 0,
        calls=lambda config: [config.plan.population],
        reads=("plan.population",),  # a run that changes another setting of plans is refused
    ),
)
