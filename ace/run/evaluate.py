"""Evaluation of an agent and of its policy alone, in environments and with seeds of their own."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.engine.lanes import LaneSetup
from ace.engine.player import Player
from ace.engine.program import Program
from ace.envs import EnvError, EnvRequest, EpisodeNumbers, VectorEnv, get_spec, make
from ace.settings import keys

PHASES = 4, 8, 16  # calls per round (least, usual, most): act, send, idle calls, receive
WAIT = 0.001  # seconds between two polls of simulators that are not ready
STATES = 85  # most states of an episode whose value is compared with its return
RESET = 64  # calls before the first round, while the simulators reset


class Evaluation(NamedTuple):
    """Means over a lane's evaluation episodes."""

    ret: float  # of the first player in `Agent.plays`
    policy_ret: float | None  # of the policy alone, if `Agent.plays` has it
    length: float  # environment steps
    bias: tuple[float, float] | None  # of the critics: mean and deviation of `value_bias`
    numbers: dict[str, float]  # the task's named numbers


def phases(program: Program) -> int:
    """Calls of `advance` per round of actions, if the simulators keep up: as many as let an
    evaluation end before the next begins, so that it takes few cores from the training."""
    config = program.config
    least, usual, most = PHASES
    longest = [get_spec(s.task).max_episode_steps for s in program.setups]
    rounds = -(-max(n or 0 for n in longest) // config.action_repeat)
    if None in longest or not rounds:
        return usual
    between = config.eval_every // config.action_repeat - RESET
    return max(least, min(most, int(0.9 * between / rounds)))


def value_bias(
    values: np.ndarray, rewards: np.ndarray, running: np.ndarray, discount: float
) -> tuple[float, float]:
    """Mean and deviation, over the first T states [T, E] of E episodes, of the critics' error in
    units of the true return, or of 10 if that is smaller.

    The true return of a state is the discounted sum of `rewards` [N, E] from there to the end of
    its episode; `running` [T, E] tells whether the episode had not ended before the state.
    """
    returns, after = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        after = returns[t] = rewards[t] + discount * after
    true = returns[: len(values)]
    bias = ((values - true) / np.maximum(np.abs(true), 10.0))[running]
    return float(bias.mean()), float(bias.std())


def start(setup: LaneSetup, agent_step: int, episode: int) -> int:
    """The seed that an evaluation's episode begins from.

    Every evaluation has episodes of its own, so that a mean over evaluations is one over more of
    them; lanes with the same seed, and the same agent evaluated again, play the same ones.
    """
    env_step = agent_step * setup.config.action_repeat
    return keys.host_seed(setup.seed, "eval_env", env_step, episode)


class Evaluator:
    """Evaluation environments of every lane, kept between evaluations.

    The agent and its policy play at the same time, each in environments of its own but from the
    same seeds: the policy's simulators run while the device plans.
    """

    def __init__(self, program: Program, episodes: int, workers: int, keep_obs: bool = False):
        """`keep_obs`: keep what the agent observes in its episodes, for `seen`."""
        self.program, self.episodes, self.keep_obs = program, episodes, keep_obs
        self.phases = phases(program)
        repeat = program.config.action_repeat
        requests = [
            EnvRequest(s.task, start(s, 0, e), repeat, f"lane {i} evaluation", s.seed)
            for i, s in enumerate(program.setups)
            for e in range(episodes)
        ]
        self.specs = [get_spec(request.task) for request in requests]
        self.on_device = {who: program.player(who, episodes) for who in program.agent.plays}
        # A cut episode lacks the end of its return, so only its first third is compared.
        longest = max(spec.max_episode_steps or 3 * STATES * repeat for spec in self.specs)
        self._states = min(STATES, max(1, -(-longest // repeat) // 3))
        self.envs: dict[str, VectorEnv] = {}
        for who in program.agent.plays:
            self.envs[who] = VectorEnv(
                requests,
                workers,
                program.obs_size,
                program.action_size,
                program.config.env_timeout,
                background=True,  # the training's simulators come first
                numbers=max(len(spec.numbers) for spec in self.specs),
                wait=False,
            )

    def begin(self, acting: Any, agent_step: int) -> None:
        """Start to evaluate agents; `acting` is the tree of their acting part."""
        self._given, self._attempt = (acting, agent_step), 0
        self._start()

    def _start(self) -> None:
        seeds = None  # after two failures the episodes themselves may be at fault: play others
        if self._attempt < 2:
            _, agent_step = self._given
            seeds = [
                start(s, agent_step, e) for s in self.program.setups for e in range(self.episodes)
            ]
        self._phase = -RESET
        self._values: list[tuple[jax.Array, np.ndarray]] = []  # values and running [L, E] per step
        for player in self.on_device.values():
            player.begin(*self._given)
        self._players = [
            _Episodes(self.envs[who], player, seeds, self) for who, player in self.on_device.items()
        ]

    @property
    def acting(self) -> Any:
        """The agents that are evaluated."""
        return self._given[0]

    @property
    def seen(self) -> np.ndarray:
        """What the agent has observed, if that is kept: [steps + 1, L, E, O], NaN past the end of
        an episode."""
        lanes, episodes = self._players[0].shape
        kept = np.stack(self._players[0].seen)
        return kept.reshape(len(kept), lanes, episodes, -1)

    @property
    def rounds(self) -> int:
        """Steps made so far in the episodes."""
        return self._players[0].count

    @property
    def between_rounds(self) -> bool:
        """Whether the next call begins a round."""
        return self._phase == 0

    def advance(self) -> list[Evaluation] | None:
        """Advance by one phase, unless that would wait for simulators; returns the results once
        complete.

        A round of actions takes at least `phases` calls: the caller's work between them gives the
        device time to compute the actions. If a simulator fails, the evaluation starts again.
        """
        players = self._players
        if self._phase in (-1, self.phases - 1) and not all(p.ready() for p in players):
            return None
        for player in reversed(players):  # policy first: its action would queue behind a plan
            if self._phase == -1:
                player.watch()
            elif self._phase == 0:
                player.act()
            elif self._phase == 1:
                player.send()
            elif self._phase == self.phases - 1:
                player.recv()
        main = players[0]
        compared = main.count < self._states and main.running.any() and self.program.agent.value
        if self._phase == 1 and compared:
            self._values.append((main.expected(), main.running.copy()))
        self._phase = self._phase + 1 if self._phase < 0 else (self._phase + 1) % self.phases
        failure = next((p.failure for p in players if p.failure), "")
        if failure:
            self._attempt += 1
            if self._attempt == self.program.config.fault_limit:
                raise EnvError(failure)
            self._start()
        elif not any(p.running.any() for p in players):
            return self._results()
        return None

    def _bias(self, lane: int) -> tuple[float, float] | None:
        if not self._values:
            return None
        values, running = (
            np.stack([np.asarray(x) for x in xs]) for xs in zip(*self._values, strict=True)
        )
        rewards = np.stack(self._players[0].rewards)
        discount = self.program.setups[lane].config.learn.discount
        return value_bias(values[:, lane], rewards[:, lane], running[:, lane], discount)

    def _results(self) -> list[Evaluation]:
        played = dict(zip(self.envs, self._players, strict=True))
        main, policy = self._players[0], played.get("policy")
        return [
            Evaluation(
                float(main.returns[lane].mean()),
                None if policy is None else float(policy.returns[lane].mean()),
                float(main.lengths[lane].mean()),
                self._bias(lane),
                main.mean_numbers(lane),
            )
            for lane in range(len(self.program.setups))
        ]

    def finish(self, check: Callable[[], None] = lambda: None) -> list[Evaluation]:
        """Advance to the end; `check` is called after every phase and may raise."""
        while True:
            before = self._phase, self.rounds
            if (results := self.advance()) is not None:
                return results
            check()
            if (self._phase, self.rounds) == before:
                time.sleep(WAIT)  # leave the core to the simulators

    def run(self, acting: Any, agent_step: int) -> list[Evaluation]:
        """Evaluate every lane."""
        self.begin(acting, agent_step)
        return self.finish()

    def close(self) -> None:
        """Stop the simulators."""
        for envs in self.envs.values():
            envs.close()


class _Episodes:
    """The episodes of a player, and how far they are."""

    def __init__(self, envs: VectorEnv, player: Player, seeds: list[int] | None, of: Evaluator):
        self.envs, self.player = envs, player
        self.shape = (len(of.program.setups), of.episodes)
        self.repeat = of.program.config.action_repeat
        self.numbers = EpisodeNumbers(of.specs)
        envs.begin_reset(seeds)
        self.obs = np.zeros(0)
        self.returns, self.lengths = np.zeros(self.shape), np.zeros(self.shape)
        self.rewards: list[np.ndarray] = []  # [L, E] per step
        self.keep_obs, self.seen = of.keep_obs, []  # [L * E, O] per step
        self.running = np.ones(self.shape, bool)
        self.count, self.failure, self.action = 0, "", jnp.zeros(())

    def ready(self) -> bool:
        """Whether the simulators have finished, or no episode is running."""
        return not self.running.any() or self.envs.ready()

    def watch(self) -> None:
        """Take the first observations."""
        self.obs = self.envs.end_reset()
        if self.keep_obs:
            self.seen.append(self.obs)

    def act(self) -> None:
        """Dispatch the computation of the next actions."""
        if self.running.any():
            self.action = self.player.act(self.obs.reshape(*self.shape, -1), self.count)

    def expected(self) -> jax.Array:
        """The returns [L, E] that the critics expect from the chosen actions."""
        obs, action = self.obs.reshape(*self.shape, -1), np.asarray(self.action)
        return self.player.value(obs, self.count, action)

    def send(self) -> None:
        """Send the actions to the simulators."""
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
        if self.keep_obs:
            self.seen.append(np.where(self.running.reshape(-1, 1), step.final_obs, np.nan))
        self.rewards.append(np.where(self.running, step.reward.reshape(self.shape), 0.0))
        self.returns += self.rewards[-1]
        self.lengths += self.running * self.repeat
        self.numbers.add(step.numbers, self.running.reshape(-1))
        self.running &= ~(step.terminated | step.truncated).reshape(self.shape)
        self.obs, self.count = step.obs, self.count + 1

    def mean_numbers(self, lane: int) -> dict[str, float]:
        """The task's named numbers, as means over a lane's episodes."""
        episodes = self.shape[1]
        rows = [self.numbers.read(lane * episodes + e) for e in range(episodes)]
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def film(program: Program, acting: Any, agent_step: int) -> list[np.ndarray]:
    """Pictures of one episode of a program's first lane."""
    acting = jax.tree.map(lambda x: np.asarray(x[:1]), acting)
    # A program with this lane alone does not plan for the others.
    program = Program(
        program.agent_name, program.setups[:1], (program.obs_size, program.action_size)
    )
    setup, player = program.setups[0], program.player(program.agent.plays[0], 1)
    env = make(setup.task, setup.seed, setup.config.action_repeat, render=True)
    player.begin(acting, agent_step)
    frames, done, count = [], False, 0
    obs = env.reset(start(setup, agent_step, 0))
    more = program.obs_size - obs.shape[0]
    while not done:
        frames.append(env.render())
        action = player.act(np.pad(obs, (0, more))[None, None], count)
        step = env.step(np.asarray(action)[0, 0, : setup.sizes[1]])
        obs, done, count = step.obs, step.terminated or step.truncated, count + 1
    env.close()
    return frames
