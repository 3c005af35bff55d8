"""Work that is due in few updates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def only_if(due: jax.Array, change: Callable[[Any], Any], tree: Any) -> Any:
    """`change(tree)` in lanes where `due` holds, else the tree. A loop of at most one round,
    because `cond` under `vmap` computes both sides in every update; this computes `change` only in
    updates where it is due in some lane."""

    def go(carry: tuple) -> tuple:
        return jnp.zeros_like(due), change(carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], go, (due, tree))[1]
