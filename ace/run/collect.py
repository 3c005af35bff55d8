"""Collecting experience: the simulators of all lanes and their running episodes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ace.engine.lanes import LaneSetup
from ace.engine.program import Program
from ace.envs import EnvRequest, EpisodeNumbers, Fault, VectorEnv, get_spec
from ace.method.types import Transition
from ace.settings import keys

COUNTS = ("lengths", "episodes", "void", "faults")  # saved with a run, beside the returns


class Episode(NamedTuple):
    """A finished training episode."""

    lane: int
    ret: float
    length: int  # environment steps
    numbers: dict[str, float]  # the task's named numbers over the episode


class Collected(NamedTuple):
    """The result of one step of all lanes."""

    transition: Transition  # [L, ...]; undefined where a simulator failed
    ended: np.ndarray  # [L] lanes whose episode ended
    void: np.ndarray  # [L] lanes without a step, whose running episode must be dropped
    episodes: list[Episode]
    faults: Sequence[Fault]


def train_requests(setups: Sequence[LaneSetup]) -> list[EnvRequest]:
    """One training environment per lane."""
    return [
        EnvRequest(
            s.task, keys.host_seed(s.seed, "env"), s.config.action_repeat, f"lane {i}", s.seed
        )
        for i, s in enumerate(setups)
    ]


class Collector:
    """Steps the training environments and keeps the returns of running episodes. The environments
    are made in the background until the first one is needed.

    Where a simulator fails, the running episode is void and the next one begins: the replay must
    drop the void episode's steps.
    """

    def __init__(self, program: Program, workers: int, awake: bool = False):
        self.repeat = program.config.action_repeat
        self.numbers = EpisodeNumbers([get_spec(s.task) for s in program.setups])
        self.envs = VectorEnv(
            train_requests(program.setups),
            workers,
            program.obs_size,
            program.action_size,
            program.config.env_timeout,
            awake=awake,
            numbers=self.numbers.width,
            wait=False,
        )
        lanes = len(program.setups)
        self.action = np.zeros((lanes, program.action_size), np.float32)
        self.returns = np.zeros(lanes)
        self.lengths = np.zeros(lanes, int)
        self.episodes = np.zeros(lanes, int)  # number of the running episode
        self.void = np.zeros(lanes, int)  # agent steps and episode ends that are not in the replay
        self.faults = np.zeros(lanes, int)
        self.in_a_row = np.zeros(lanes, int)  # faults since the last finished episode

    def reset(self) -> np.ndarray:
        """First observations [L, O] of the run."""
        return self.envs.reset()

    def send(self, action: np.ndarray) -> None:
        """Start a step of every environment; returns at once."""
        self.action = action
        self.envs.send(action)

    def rows(self, agent_step: int) -> np.ndarray:
        """Replay rows [L] written so far, overwritten ones too: one per step, one per end."""
        return agent_step + self.episodes - self.void

    def recv(self) -> Collected:
        """Wait for the step of every environment."""
        step = self.envs.recv()
        done = step.terminated | step.truncated
        self.returns += step.reward
        self.lengths += self.repeat
        self.numbers.add(step.numbers, np.ones(len(done), bool))
        ended = [
            Episode(int(i), float(self.returns[i]), int(self.lengths[i]), self.numbers.read(i))
            for i in np.flatnonzero(done)
        ]
        self.episodes += done
        self.in_a_row[done] = 0
        void = np.zeros(len(done), bool)
        void[[f.row for f in step.faults]] = True
        # `lengths` counts the failed step; the 1 is for the end that `episodes` counts.
        self.void[void] += self.lengths[void] // self.repeat + 1
        for count in (self.episodes, self.faults, self.in_a_row):
            count[void] += 1
        over = done | void
        self.returns[over], self.lengths[over] = 0.0, 0
        self.numbers.reset(over)
        transition = Transition(
            self.action, step.reward, step.terminated, done, step.final_obs, step.obs
        )
        return Collected(transition, done, void, ended, step.faults)

    def state(self) -> dict[str, Any]:
        """Counters of the running episodes, for a checkpoint; their steps are in the replay."""
        counts = {name: getattr(self, name).tolist() for name in ("returns", *COUNTS)}
        return counts | {"numbers": self.numbers.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; `resume` restores the simulators."""
        self.returns = np.array(state["returns"], float)
        for name in COUNTS:
            setattr(self, name, np.array(state[name], int))
        if state["numbers"]:
            self.numbers.load(state["numbers"])

    def begin_anew(self, lane: int) -> None:
        """Abandon the running episode of a lane."""
        self.episodes[lane] += 1
        self.returns[lane], self.lengths[lane] = 0.0, 0
        self.numbers.reset([lane])

    def close(self) -> None:
        """Stop the simulators."""
        self.envs.close()
