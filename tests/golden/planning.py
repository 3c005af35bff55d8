"""What the tests of the planner share: small settings, a score, and plans that are watched."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.planners import Context, icem
from ace.planners.icem import plan
from ace.settings.config import Config, replace

SMALL = replace(
    Config(),
    {
        "plan.horizon": 4,
        "plan.iterations": 3,
        "plan.population": 40,
        "plan.elites": 8,
        "plan.elite_reuse": 0.5,
        "plan.min_std": 0.01,
        "plan.std_ramp.duration": 0.0,
        "plan.policy_ramp.duration": 0.0,
        "plan.select_eval": "best",
    },
)
LATER = SMALL.seed_steps + 1  # an agent step at which both ramps have ended
GOAL = np.array([[0.5, -0.3], [0.2, 0.6], [-0.4, 0.1], [0.0, -0.7]], np.float32)


def quadratic(actions, proposed=slice(0, 0), call=0):
    """A score whose optimum is known."""
    return -jnp.sum(jnp.square(actions - GOAL[: len(actions), None]), (0, 2))


@functools.cache
def compiled(score, train: bool):
    def run(config, proposals, memory, x, key):
        seen = []

        def spy(actions, proposed, call):
            assert call == len(seen)  # the calls of one plan are counted from zero
            values = jnp.asarray(score(actions, proposed, call))
            seen.append((actions, values))
            told.append((proposed.start, proposed.stop))
            return values

        told: list[tuple[int, int]] = []
        return *plan(config, spy, proposals, memory, x, key, train), seen, told

    return jax.jit(run)


class Given(NamedTuple):
    """What one plan is given besides its settings, score and memory."""

    proposals: jax.Array
    context: Context
    key: jax.Array


def watch(config: Config, score, memory, given: Given, train: bool = False):
    """The action, the memory, and the candidates and values of every iteration."""
    run = compiled(score, train)
    found = run(config, given.proposals, memory, given.context, given.key)
    *found, seen, told = jax.tree.map(np.asarray, found)
    assert len(seen) == config.plan.iterations
    for (actions, _), (start, stop) in zip(seen, told, strict=True):
        # What the score is told to be the first proposals is just that.
        wanted = given.proposals[:, : stop - start]
        np.testing.assert_array_equal(actions[:, start:stop], wanted)
    return *found, seen


def scene(config: Config, size: int = 2, seed: int = 0, key: Any = None, **changes: Any) -> Given:
    p = config.plan
    rng = np.random.default_rng(5)
    shape = (p.horizon, icem.PLANNER.proposals(config), size)
    context = Context(
        first=jnp.bool_(True),
        horizon=jnp.int32(changes.pop("horizon", p.horizon)),
        agent_step=jnp.int32(LATER),
        mask=jnp.ones(size, bool),
        constants=jnp.asarray(icem.PLANNER.constants(config)),
    )
    if key is None:
        key = jax.random.key(seed, impl="rbg")  # compiles in a third of the time
    proposals = jnp.asarray(rng.uniform(-1, 1, shape), jnp.float32)
    return Given(proposals, context._replace(**changes), key)


def random_memory(config: Config, size: int = 2, seed: int = 3) -> icem.PlanMemory:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.uniform(-1, 1, x.shape), jnp.float32), icem.init(config, size)
    )


def weights_of(values: np.ndarray, temperature: float) -> np.ndarray:
    w = np.exp(temperature * (values - values.max()))
    return w / w.sum()
