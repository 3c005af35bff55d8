"""One trained agent by itself: the functions of one lane with its parameters, for use in Python and
for export."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.engine.program import MATMUL, Program
from ace.run import checkpoint
from ace.run.agent_file import load_agents
from ace.run.request import open_run
from ace.settings.config import ConfigError

Arrays = dict[str, Any]


class Memory(NamedTuple):
    """What an agent keeps from step to step of an episode."""

    own: Any  # the agent's memory, as named arrays
    count: int  # steps of the episode so far


class TrainedAgent:
    """The agent of one lane, as it was at the last evaluation of its run.

    Observations are those of the task, flat float32 [O]; actions lie in [-1, 1].
    """

    def __init__(self, program: Program, index: int, acting: Any, agent_step: int):
        self.program, self.setup, self.agent_step = program, program.setups[index], agent_step
        self.task, self.seed = self.setup.task, self.setup.seed
        self._lane = jax.device_put(program.fresh.lane(self.setup))
        self._acting = jax.tree.map(lambda x: x[index], jax.device_get(acting))
        fresh = program.agent.memory(program.config, program.action_size)
        self._structures = [jax.tree.structure(tree) for tree in (self._acting, fresh)]
        self.arrays: Arrays = checkpoint.named_arrays(self._acting) or {}
        self.fresh: Arrays = checkpoint.named_arrays(jax.device_get(fresh))
        self._calls: dict[str, Callable] = {}

    def act(self, obs: np.ndarray, memory: Memory | None = None) -> tuple[np.ndarray, Memory]:
        """The action [A] for an observation [O], and the memory for the next step of the episode;
        without a memory an episode begins."""
        if not isinstance(memory, Memory | None):
            raise ValueError("memory must be what `act` returned, or None when an episode begins")
        own, count = memory or Memory(self.fresh, 0)
        obs = self._checked(obs, 1)
        call = self._compiled("agent", self.agent_function)
        given = np.bool_(count == 0), np.uint32(self.seed), np.int32(count)
        action, own = call(self.arrays, own, obs, *given)
        return np.asarray(action), Memory(own, count + 1)

    def policy(self, obs: np.ndarray) -> np.ndarray:
        """The policy's actions [..., A] for observations [..., O], without planning or noise."""
        if self.program.agent.act_policy is None:
            raise ConfigError(f"agent {self.program.agent_name} has no policy by itself; use act")
        obs = self._checked(obs, None)
        call = self._compiled("policy", self.policy_function)
        return np.asarray(call(self.arrays, obs))

    def _checked(self, obs: np.ndarray, axes: int | None) -> np.ndarray:
        obs = np.asarray(obs, np.float32)
        if obs.ndim == 0 or obs.shape[-1] != self.setup.sizes[0] or axes not in (None, obs.ndim):
            shape = f"[{self.setup.sizes[0]}]" if axes else f"[..., {self.setup.sizes[0]}]"
            raise ValueError(f"an observation of {self.task} has shape {shape}, not {obs.shape}")
        if not np.isfinite(obs).all():
            # The planner would still answer with an action.
            raise ValueError(f"an observation of {self.task} has numbers that are not finite")
        return obs

    def _compiled(self, name: str, function: Callable) -> Callable:
        if name not in self._calls:
            self._calls[name] = jax.jit(function)
        return self._calls[name]

    def policy_function(self, arrays: Arrays, obs: jax.Array) -> jax.Array:
        """The mean action for observations [..., O]; a pure function of named arrays."""
        assert self.program.agent.act_policy is not None
        with self._precision():
            acting = self._tree(0, arrays, self.arrays)
            action = self.program.agent.act_policy(self._lane, acting, self._padded(obs))
        return action[..., : self.setup.sizes[1]]

    def agent_function(
        self,
        arrays: Arrays,
        memory: Arrays,
        obs: jax.Array,
        first: jax.Array,
        seed: jax.Array,
        count: jax.Array,
    ) -> tuple[jax.Array, Arrays]:
        """An action as in evaluation, and the memory for the next step; a pure function too."""
        key = jax.random.fold_in(jax.random.key(seed), count)
        with self._precision():
            action, after = self.program.agent.act(
                self._lane,
                self._tree(0, arrays, self.arrays),
                self._tree(1, memory, self.fresh),
                self._padded(obs),
                first,
                jnp.int32(self.agent_step),
                key,
                False,
            )
        return action[: self.setup.sizes[1]], checkpoint.named_arrays(after)

    def _precision(self) -> Any:
        return jax.default_matmul_precision(MATMUL[self.program.config.precision])

    def _tree(self, which: int, arrays: Arrays, names: Arrays) -> Any:
        return jax.tree.unflatten(self._structures[which], [arrays[name] for name in names])

    def _padded(self, obs: jax.Array) -> jax.Array:
        more = self.program.obs_size - self.setup.sizes[0]
        return jnp.pad(obs, [(0, 0)] * (obs.ndim - 1) + [(0, more)])


def load(folder: Path, lane: int = 0) -> TrainedAgent:
    """The agent of one lane of a run folder."""
    run = open_run(folder)
    if not (isinstance(lane, int) and 0 <= lane < len(run.setups)):
        raise ConfigError(f"lane is {lane!r:.40}; the run has lanes 0 to {len(run.setups) - 1}")
    program = Program(run.agent, run.setups)
    return TrainedAgent(program, lane, *load_agents(folder, program))
