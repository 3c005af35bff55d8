"""Evaluation of planner and policy, in environments and with seeds of their own."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.engine.packing import Packed
from ace.engine.program import Program
from ace.envs import EnvError, EnvRequest, VectorEnv, get_spec, make
from ace.settings import keys

PHASES = 4, 8, 16  # of a round, least, usual and most: choose, send, leave time, receive
RESET = 64  # calls before the first round, while the simulators begin their episodes
Act = Callable[[np.ndarray, int], jax.Array]  # observations [L, E, O] and the step: actions


class Evaluation(NamedTuple):
    """Means over a lane's evaluation episodes."""

    ret: float
    policy_ret: float
    length: float  # environment steps of the planner's episodes


def phases(program: Program) -> int:
    """Calls that a round of actions takes, if the simulators keep up: as many as let an evaluation
    end before the next begins, so that its simulators take little from the training's."""
    config = program.config
    least, usual, most = PHASES
    longest = [get_spec(s.task).max_episode_steps for s in program.setups]
    rounds = -(-max(n or 0 for n in longest) // config.action_repeat)
    if None in longest or not rounds:
        return usual
    between = config.eval_every // config.action_repeat - RESET
    return max(least, min(most, int(0.9 * between / rounds)))


class Evaluator:
    """Evaluation environments of every lane, kept between evaluations.

    Planner and policy play at the same time, each in environments of its own but from the same
    seeds: the policy's simulators run while the device plans.
    """

    def __init__(self, program: Program, episodes: int, workers: int):
        self.program, self.episodes = program, episodes
        self.phases = phases(program)
        self.seeds = [
            keys.host_seed(s.seed, "eval_env", e) for s in program.setups for e in range(episodes)
        ]
        repeat = program.config.action_repeat
        requests = [
            EnvRequest(s.task, self.seeds[i * episodes + e], repeat, f"lane {i} evaluation")
            for i, s in enumerate(program.setups)
            for e in range(episodes)
        ]
        sizes = (program.obs_size, program.action_size)
        self.ask = [program.asking(episodes) for _ in ("planner", "policy")]
        self.envs: list[VectorEnv] = []
        for _ in ("planner", "policy"):
            timeout = program.config.env_timeout
            # The training's simulators come first.
            self.envs.append(VectorEnv(requests, workers, *sizes, timeout, background=True))

    def _actors(self, learner: Packed, agent_step: int) -> list[Act]:
        """The planner and the policy."""
        program, memory = self.program, self.program.init_memory(self.episodes)
        of_planner, of_policy = self.ask

        def plan(obs: np.ndarray, count: int) -> jax.Array:
            nonlocal memory
            asked = of_planner(obs, count, agent_step)
            action, memory = program.act_eval(program.lane, learner, memory, asked)
            return action

        def policy(obs: np.ndarray, count: int) -> jax.Array:
            return program.act_policy(program.lane, learner, of_policy(obs, count, agent_step))

        return [plan, policy]

    def begin(self, learner: Packed, agent_step: int) -> None:
        """Start to evaluate a learner, whose arrays must stay until the end."""
        self._given, self._attempt = (learner, agent_step), 0
        self._start()

    def _start(self) -> None:
        # What fails twice may fail always in these episodes: others are played then.
        seeds = self.seeds if self._attempt < 2 else None
        self._phase = -RESET
        self._players = [
            _Player(envs, act, seeds, self)
            for envs, act in zip(self.envs, self._actors(*self._given), strict=True)
        ]

    @property
    def rounds(self) -> int:
        """Steps that the planner has made in its episodes."""
        return self._players[0].count

    @property
    def between_rounds(self) -> bool:
        """Whether the next call begins a round."""
        return self._phase == 0

    def advance(self, wait: bool = False) -> list[Evaluation] | None:
        """Go one phase on, unless that would `wait` for simulators; the results when there are all
        of them.

        A round of actions takes `phases` calls or more: with other work between them, the device
        has computed the actions when they are asked for. All is played again if a simulator fails.
        """
        planner, policy = self._players
        if self._phase in (-1, self.phases - 1) and not (
            wait or (planner.ready() and policy.ready())
        ):
            return None
        for player in (policy, planner):  # a plan would be in the way of the policy's action
            if self._phase == -1:
                player.watch()
            elif self._phase == 0:
                player.choose()
            elif self._phase == 1:
                player.send()
            elif self._phase == self.phases - 1:
                player.recv()
        self._phase = self._phase + 1 if self._phase < 0 else (self._phase + 1) % self.phases
        failure = planner.failure or policy.failure
        if failure:
            self._attempt += 1
            if self._attempt == self.program.config.fault_limit:
                raise EnvError(failure)
            self._start()
        elif not (planner.running.any() or policy.running.any()):
            rows = zip(planner.returns, policy.returns, planner.lengths, strict=True)
            return [Evaluation(*(float(x.mean()) for x in row)) for row in rows]
        return None

    def finish(self) -> list[Evaluation]:
        """Play to the end."""
        while (results := self.advance(wait=True)) is None:
            pass
        return results

    def run(self, learner: Packed, agent_step: int) -> list[Evaluation]:
        """Evaluate every lane."""
        self.begin(learner, agent_step)
        return self.finish()

    def close(self) -> None:
        """Stop the simulators."""
        for envs in self.envs:
            envs.close()


class _Player:
    """One of the two that play, in the middle of its episodes."""

    def __init__(self, envs: VectorEnv, act: Act, seeds: list[int] | None, of: Evaluator):
        self.envs, self.act = envs, act
        self.shape = (len(of.program.setups), of.episodes)
        self.repeat = of.program.config.action_repeat
        envs.begin_reset(seeds)
        self.obs = np.zeros(0)
        self.returns, self.lengths = np.zeros(self.shape), np.zeros(self.shape)
        self.running = np.ones(self.shape, bool)
        self.count, self.failure, self.action = 0, "", jnp.zeros(())

    def ready(self) -> bool:
        """Whether the simulators have finished, or have nothing to do."""
        return not self.running.any() or self.envs.ready()

    def watch(self) -> None:
        """Take the first observations."""
        self.obs = self.envs.end_reset()

    def choose(self) -> None:
        """Let the device compute the next actions."""
        if self.running.any():
            self.action = self.act(self.obs.reshape(*self.shape, -1), self.count)

    def send(self) -> None:
        """Let the simulators begin with the actions."""
        if self.running.any():
            self.envs.send(np.asarray(self.action).reshape(self.obs.shape[0], -1))

    def recv(self) -> None:
        """Wait for the simulators."""
        if not self.running.any():
            return
        step = self.envs.recv()
        if step.faults:
            where = f"in step {self.count + 1} of an evaluation"
            self.failure = f"{step.faults[0].text}\n{where}"
        self.returns += np.where(self.running, step.reward.reshape(self.shape), 0.0)
        self.lengths += self.running * self.repeat
        self.running &= ~(step.terminated | step.truncated).reshape(self.shape)
        self.obs, self.count = step.obs, self.count + 1


def film(program: Program, learner: Packed, agent_step: int) -> list[np.ndarray]:
    """Pictures of one planned episode of a program's first lane."""
    tree = jax.tree.map(lambda x: np.asarray(x[:1]), program.learner_tree(learner))
    # A program of its own: no other lane is planned for, and learners are packed by their number.
    program = Program(
        program.agent_name, program.setups[:1], (program.obs_size, program.action_size)
    )
    learner = jax.device_put(program.learners.pack(tree))
    setup = program.setups[0]
    seed = keys.host_seed(setup.seed, "eval_env", 0)
    env = make(setup.task, seed, setup.config.action_repeat, render=True)
    memory, ask = program.init_memory(1), program.asking(1)
    frames, done, count = [], False, 0
    obs = env.reset(seed)
    more = program.obs_size - obs.shape[0]
    while not done:
        frames.append(env.render())
        asked = ask(np.pad(obs, (0, more))[None, None], count, agent_step)
        action, memory = program.act_eval(program.lane, learner, memory, asked)
        step = env.step(np.asarray(action)[0, 0, : setup.sizes[1]])
        obs, done, count = step.obs, step.terminated or step.truncated, count + 1
    env.close()
    return frames
