"""Collecting experience: the simulators of all lanes, and the episodes they are in."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ace import keys
from ace.envs import EnvRequest, VectorEnv
from ace.lanes import LaneSetup, Program, pack


class Episode(NamedTuple):
    """A finished training episode."""

    lane: int
    ret: float
    length: int  # environment steps


def train_requests(setups: Sequence[LaneSetup]) -> list[EnvRequest]:
    """One training environment per lane."""
    return [
        EnvRequest(s.task, keys.host_seed(s.seed, "env"), s.config.action_repeat, f"lane {i}")
        for i, s in enumerate(setups)
    ]


class Collector:
    """Steps the training environments and keeps the returns of running episodes."""

    def __init__(self, program: Program, workers: int):
        self.repeat = program.config.action_repeat
        sizes = (program.obs_size, program.action_size)
        self.envs = VectorEnv(train_requests(program.setups), workers, *sizes)
        self.returns = np.zeros(len(program.setups))
        self.lengths = np.zeros(len(program.setups), int)
        self.episodes = np.zeros(len(program.setups), int)  # finished ones

    def reset(self) -> np.ndarray:
        """First observations [L, O] of the run."""
        return self.envs.reset()

    def send(self, action: np.ndarray) -> None:
        """Start a step of every environment; returns at once."""
        self.envs.send(action)

    def recv(self) -> tuple[np.ndarray, np.ndarray, list[Episode]]:
        """The packed transitions [L, 2 O + 3], which lanes ended, and their episodes."""
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
        return pack(step.obs, step.final_obs, step.reward, step.terminated, done), done, ended

    def close(self) -> None:
        """Stop the simulators."""
        self.envs.close()
