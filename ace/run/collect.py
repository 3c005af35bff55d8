"""Collecting experience: the simulators of all lanes, and the episodes they are in."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ace.engine.program import LaneSetup, Program
from ace.envs import EnvRequest, Fault, VectorEnv
from ace.settings import keys


class Episode(NamedTuple):
    """A finished training episode."""

    lane: int
    ret: float
    length: int  # environment steps


class Collected(NamedTuple):
    """What one step of all lanes gives."""

    step: dict[str, np.ndarray]  # transitions, without their actions
    obs: np.ndarray  # [L, O] to act on next
    ended: np.ndarray  # [L] lanes whose episode ended
    episodes: list[Episode]
    faults: Sequence[Fault]  # lanes that made no step and whose running episode is void


def train_requests(setups: Sequence[LaneSetup]) -> list[EnvRequest]:
    """One training environment per lane."""
    return [
        EnvRequest(s.task, keys.host_seed(s.seed, "env"), s.config.action_repeat, f"lane {i}")
        for i, s in enumerate(setups)
    ]


class Collector:
    """Steps the training environments and keeps the returns of running episodes.

    Where a simulator fails, the running episode is void and the next one begins: its steps must be
    taken out of the replay again.
    """

    def __init__(self, program: Program, workers: int, awake: bool = False):
        self.repeat = program.config.action_repeat
        sizes = (program.obs_size, program.action_size)
        timeout = program.config.env_timeout
        requests = train_requests(program.setups)
        self.envs = VectorEnv(requests, workers, *sizes, timeout, awake=awake)
        lanes = len(program.setups)
        self.returns = np.zeros(lanes)
        self.lengths = np.zeros(lanes, int)
        self.episodes = np.zeros(lanes, int)  # number of the running episode
        self.void = np.zeros(lanes, int)  # agent steps and ends of episodes not in the replay
        self.faults = np.zeros(lanes, int)
        self.in_a_row = np.zeros(lanes, int)  # faults since an episode was finished

    def reset(self) -> np.ndarray:
        """First observations [L, O] of the run."""
        return self.envs.reset()

    def send(self, action: np.ndarray) -> None:
        """Start a step of every environment; returns at once."""
        self.envs.send(action)

    def rows(self, agent_step: int) -> np.ndarray:
        """Slots [L] that the replay has filled, over all rounds: one per step, one per end."""
        return agent_step + self.episodes - self.void

    def recv(self) -> Collected:
        """Wait for the step of every environment."""
        step = self.envs.recv()
        done = step.terminated | step.truncated
        self.returns += step.reward
        self.lengths += self.repeat
        ended = [
            Episode(int(i), float(self.returns[i]), int(self.lengths[i]))
            for i in np.flatnonzero(done)
        ]
        self.returns[done], self.lengths[done] = 0.0, 0
        self.episodes += done
        self.in_a_row[done] = 0
        failed = [f.row for f in step.faults]
        # This step was not made, and the episode has no end: one slot less each.
        self.void[failed] += self.lengths[failed] // self.repeat + 1
        self.returns[failed], self.lengths[failed] = 0.0, 0
        for count in (self.episodes, self.faults, self.in_a_row):
            count[failed] += 1
        transition = {
            "reward": step.reward,
            "terminated": step.terminated,
            "done": done,
            "final_obs": step.final_obs,
        }
        return Collected(transition, step.obs, done, ended, step.faults)

    def close(self) -> None:
        """Stop the simulators."""
        self.envs.close()
