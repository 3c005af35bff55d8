"""What a run begins with: the arrays of its lanes, new learners, the agent's first memory and an
empty replay, all padded to the sizes that the lanes share."""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from threadpoolctl import threadpool_limits

from ace import replay
from ace.agents import Agent
from ace.engine.lanes import LaneSetup, hindsight_of
from ace.engine.resources import cores
from ace.method.types import Lane


class Fresh:
    """The beginning of a run with these lanes; each part is made when it is first asked for."""

    def __init__(self, agent: Agent, setups: Sequence[LaneSetup], sizes: tuple[int, int]):
        """`sizes` are those of observations and actions with their padding."""
        self.agent, self.setups, self.sizes = agent, list(setups), sizes
        self.hindsight = hindsight_of(setups)

    def lane(self, setup: LaneSetup) -> Lane:
        """The arrays of one lane, without a lane axis; NumPy's, as JAX would compile each step of
        making them."""
        seed: Any = np.uint32(setup.seed)
        masks: list[Any] = [
            np.arange(padded) < own for padded, own in zip(self.sizes, setup.sizes, strict=True)
        ]
        return Lane(
            seed=seed,
            config=jax.tree.map(np.float32, setup.config),
            action_mask=masks[1],
            constants=jax.tree.map(_constant, self.agent.constants(setup.config)),
            obs_mask=masks[0],
        )

    @functools.cached_property
    def learners(self) -> Any:
        """Freshly initialised learners, drawn lane by lane."""
        empty = jax.tree.map(
            lambda x: np.zeros((len(self.setups), *np.shape(x)), np.asarray(x).dtype),
            self.first_learner,
        )

        def place(lane: int) -> None:
            drawn = self._new_learner(self.setups[lane]) if lane else self.first_learner
            for slots, x in zip(jax.tree.leaves(empty), jax.tree.leaves(drawn), strict=True):
                # Skip arrays of zeros, as the optimiser's moments: untouched pages of `empty` are
                # zero and use no memory.
                if np.any(x):
                    slots[lane] = x

        # LAPACK releases the interpreter lock, but its own threads busy-wait: with them, a QR takes
        # ten times longer beside other work.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(cores()) as pool:
            list(pool.map(place, range(len(self.setups))))
        return empty

    @functools.cached_property
    def first_learner(self) -> Any:
        """The learner of the first lane, without a lane axis."""
        with threadpool_limits(1, "blas"):
            return self._new_learner(self.setups[0])

    def _new_learner(self, setup: LaneSetup) -> Any:
        drawn = self.agent.init(setup.config, setup.seed, setup.sizes)
        return self.agent.pad(setup.config, drawn, self.sizes)

    @functools.cached_property
    def memory(self) -> Any:
        """The agent's memory when an episode begins, of one lane."""
        config, action_size = self.setups[0].config, self.sizes[1]
        make = jax.jit(lambda: self.agent.memory(config, action_size))  # compiled as one
        return jax.device_get(make())

    def memories(self, *lead: int) -> Any:
        """The same memory with leading axes."""
        return jax.tree.map(lambda x: np.broadcast_to(x, (*lead, *x.shape)), self.memory)

    def replay(self, obs: jax.Array, capacity: int) -> replay.Replay:
        """An empty replay of one lane, whose first observation is `obs` [O]."""
        segment = self.agent.segment(self.setups[0].config)
        return replay.init(capacity, obs, self.sizes[1], segment, self.hindsight)


def _constant(x: Any) -> np.ndarray:
    """An array of the type that JAX gives it."""
    return np.asarray(x, jax.dtypes.canonicalize_dtype(np.asarray(x).dtype))
