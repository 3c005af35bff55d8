"""A small learner and a batch for whole updates and plans, of sizes that all kernels take."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.method import learner
from ace.method.types import Batch, Lane, LearnerState
from ace.planners import icem
from ace.settings.config import Config, replace

H, B, OBS, A = 2, 64, 5, 3
LATENTS = (50, 100)


def config_of(latent: int, precision: str) -> Config:
    changes = {"net.latent": latent, "net.mlp": 128, "net.encoder": 128, "learn.batch": B}
    changes |= {"plan.horizon": H, "plan.iterations": 2, "plan.population": 36, "plan.elites": 8}
    # The working horizon is not the whole one, and one of the two latents carries its belief.
    changes |= {"plan.horizon_ramp.start": 1.0, "parity.carry_belief": latent == 100}
    return replace(Config(), changes | {"precision": precision})


def lane_of(config: Config) -> Lane:
    constants = jnp.asarray(icem.PLANNER.constants(config))
    return Lane(jnp.uint32(0), jax.tree.map(jnp.float32, config), jnp.ones(A, bool), constants)


@functools.cache
def start(latent: int) -> LearnerState:
    """A learner in which nothing is zero or equal to its target."""
    state, rng = learner.init(config_of(latent, "f32"), 0, (OBS, A)), np.random.default_rng(0)

    def shake(x: Any) -> jax.Array:
        return jnp.asarray(x + 0.1 * rng.standard_normal(x.shape), jnp.float32)

    return state._replace(
        params=jax.tree.map(shake, state.params),
        target=jax.tree.map(shake, state.target),
        stats=jax.tree.map(lambda x: jnp.abs(shake(x)), state.stats),
    )


@functools.cache
def batch_of() -> Batch:
    rng = np.random.default_rng(1)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    return Batch(
        obs=draw(H + 1, B, OBS),
        action=jnp.tanh(draw(H, B, A)),
        reward=draw(H, B),
        continues=jnp.ones((H, B)).at[0, :5].set(0.0),
        mask=jnp.ones((H, B)).at[1:, :9].set(0.0),
        weight=jnp.abs(draw(B)),
        index=jnp.arange(B),
    )


def named(tree: Any) -> dict[str, np.ndarray]:
    flat = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(x, np.float64) for path, x in flat}
