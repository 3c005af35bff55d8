"""Every random number of a run comes from here: a key is named by the lane's seed, the purpose and
a counter, so no stream is ever shared between seeds, used twice, or lost when a run continues."""

import jax
import numpy as np

PURPOSES = ("init", "env", "eval_env", "seed_action", "plan", "eval_plan", "update")


def key(seed: jax.Array | int, purpose: str, step: jax.Array | int = 0) -> jax.Array:
    """The device key of one lane for one purpose at one count."""
    base = jax.random.fold_in(jax.random.key(seed), PURPOSES.index(purpose))
    return jax.random.fold_in(base, step)


def host_seed(seed: int, purpose: str, *counts: int) -> int:
    """A 32-bit seed for code on the host (simulators, initialisation), named in the same way."""
    entropy = [seed, PURPOSES.index(purpose), *(counts or (0,))]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
