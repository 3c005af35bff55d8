"""Evaluation in environments and with seeds of its own: first the planner, then the policy."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace import keys
from ace.envs import EnvError, EnvRequest, VectorEnv, make
from ace.lanes import Program
from ace.types import LearnerState


class Evaluation(NamedTuple):
    """Means over a lane's evaluation episodes."""

    ret: float
    policy_ret: float
    length: float  # environment steps of the planner's episodes


class _Failed(Exception):
    """A simulator failed and was replaced."""


class Evaluator:
    """Evaluation environments of every lane, kept between evaluations."""

    def __init__(self, program: Program, episodes: int, workers: int):
        self.program, self.episodes = program, episodes
        self.repeat = program.config.action_repeat
        self.seeds = [
            keys.host_seed(s.seed, "eval_env", e) for s in program.setups for e in range(episodes)
        ]
        requests = [
            EnvRequest(s.task, self.seeds[i * episodes + e], self.repeat, f"lane {i} evaluation")
            for i, s in enumerate(program.setups)
            for e in range(episodes)
        ]
        sizes = (program.obs_size, program.action_size)
        self.envs = VectorEnv(requests, workers, *sizes, program.config.env_timeout)

    def prepare(self, learner: LearnerState) -> None:
        """Compile what an evaluation needs."""
        shape = (len(self.program.setups), self.episodes, self.program.obs_size)
        obs, memory = jnp.zeros(shape), self.program.init_memory(self.episodes)
        zero = jnp.int32(0)
        self.program.act_eval(self.program.lane, learner, memory, obs, zero, zero)
        self.program.act_policy(self.program.lane, learner, obs)

    def run(self, learner: LearnerState, agent_step: int) -> list[Evaluation]:
        """Evaluate every lane; each environment plays one episode from its fixed seed."""
        program, memory = self.program, self.program.init_memory(self.episodes)
        step = jnp.int32(agent_step)

        def plan(obs: jax.Array, count: int) -> jax.Array:
            nonlocal memory
            action, memory = program.act_eval(
                program.lane, learner, memory, obs, jnp.int32(count), step
            )
            return action

        def policy(obs: jax.Array, count: int) -> jax.Array:
            return program.act_policy(program.lane, learner, obs)

        returns, lengths = self._play(plan)
        policy_returns, _ = self._play(policy)
        rows = zip(returns, policy_returns, lengths, strict=True)
        return [Evaluation(float(r), float(p), float(n)) for r, p, n in rows]

    def _play(self, act: Callable[[jax.Array, int], jax.Array]) -> tuple[np.ndarray, np.ndarray]:
        """Mean return and length per lane; all is played again if a simulator fails."""
        failure = ""
        for attempt in range(self.program.config.fault_limit):
            # What fails twice may fail always in these episodes: others are played then.
            obs = self.envs.reset(self.seeds if attempt < 2 else None)
            try:
                return self._play_once(act, obs)
            except _Failed as error:
                failure = str(error)
        raise EnvError(failure)

    def _play_once(self, act: Callable, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean return and length per lane of one episode in every environment."""
        shape = (len(self.program.setups), self.episodes)
        returns, lengths = np.zeros(shape), np.zeros(shape)
        running = np.ones(shape, bool)
        count = 0
        while running.any():
            action = np.asarray(act(jnp.asarray(obs.reshape(*shape, -1)), count))
            step = self.envs.step(action.reshape(obs.shape[0], -1))
            if step.faults:
                raise _Failed(f"{step.faults[0].text}\nin step {count + 1} of an evaluation")
            returns += np.where(running, step.reward.reshape(shape), 0.0)
            lengths += running * self.repeat
            running &= ~(step.terminated | step.truncated).reshape(shape)
            obs, count = step.obs, count + 1
        return returns.mean(1), lengths.mean(1)

    def close(self) -> None:
        """Stop the simulators."""
        self.envs.close()


def film(program: Program, learner: LearnerState, agent_step: int) -> list[np.ndarray]:
    """Pictures of one planned episode of a program with a single lane."""
    setup = program.setups[0]
    seed = keys.host_seed(setup.seed, "eval_env", 0)
    env = make(setup.task, seed, setup.config.action_repeat, render=True)
    memory, frames, done, count = program.init_memory(1), [], False, 0
    obs = env.reset(seed)
    more = program.obs_size - obs.shape[0]
    while not done:
        frames.append(env.render())
        action, memory = program.act_eval(
            program.lane,
            learner,
            memory,
            jnp.asarray(np.pad(obs, (0, more))[None, None]),
            jnp.int32(count),
            jnp.int32(agent_step),
        )
        step = env.step(np.asarray(action[0, 0, : setup.sizes[1]]))
        obs, done, count = step.obs, step.terminated or step.truncated, count + 1
    env.close()
    return frames
