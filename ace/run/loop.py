"""The training loop: act, let the simulators run while the device learns, store, repeat."""

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from ace.engine.packing import Packed
from ace.engine.program import BLOCK, Program, RunState
from ace.engine.resources import check_memory, count_workers, replay_capacity, spare_cores
from ace.envs import EnvError, Fault
from ace.run import checkpoint, resume
from ace.run.agent_file import save_agents
from ace.run.collect import Collector
from ace.run.evaluate import Evaluator
from ace.run.record import LaneInfo, Recorder, versions, write_json
from ace.run.request import Run
from ace.settings.config import ConfigError


class Stopped(Exception):
    """A signal ended the run after its state was saved."""

    def __init__(self, signum: int, folder: Path, env_step: int):
        super().__init__(f"stopped and saved at env step {env_step}; `ace resume {folder}` goes on")
        self.signum = signum


def train(run: Run) -> RunState:
    """Train all lanes of a run to the end of their budget, from where it stands; the state that is
    returned is not packed."""
    if not 0 <= run.save_minutes < math.inf:
        raise ConfigError(f"save_minutes is {run.save_minutes}; it must be at least 0")
    program = Program(run.agent, run.setups)
    config = program.config
    capacity = replay_capacity(run.setups)
    stored = len(run.setups) * check_memory(program, capacity, len(run.setups))
    with writable(run.folder), resume.lock(run.folder):
        write_json(run.folder / "config.json", run.describe())
        write_json(run.folder / "versions.json", versions() | {"precision": config.precision})
        with closing(Loop(run, program, capacity)) as loop, loop.recorder:
            loop.recorder.message(
                f"{len(run.setups)} lane(s) on {jax.devices()[0].device_kind}, "
                f"{config.precision}; replay {stored / 2**20:.1f} MiB; "
                f"{count_workers(config, len(run.setups))} simulator process(es)"
            )
            return program.unpack(loop.run())


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Make a run folder; whatever cannot be written in it ends in a line that says what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make {folder} ({error.strerror}); choose another --run") from error
    try:
        yield
    except OSError as error:
        saved = checkpoint.Checkpoints(folder).steps()
        safe = f"agent step {saved[-1]} is saved" if saved else "nothing is saved yet"
        raise OSError(
            f"{error}; {safe}; make room or mend {folder}, then `ace resume {folder}` goes on"
        ) from error


class Loop:
    """One run in progress, to be closed at its end."""

    def __init__(self, run: Run, program: Program, capacity: int):
        self.program, self.config, self.folder = program, program.config, run.folder
        self.keeper = resume.Keeper(program, run.folder, capacity)
        lanes = len(program.setups)
        # Few for evaluations, which have time: all together would slow down the training's.
        workers = count_workers(self.config, 4 * lanes * self.config.eval_episodes)
        self.workers = -(-workers // 4)
        self.evaluator: Evaluator | None = None
        self.evaluated_step: int | None = None  # agent step of the evaluation in progress
        self.compiling: list[threading.Thread] = []
        self.writer = ThreadPoolExecutor(1)
        self.writing: Future[None] = self.writer.submit(lambda: None)  # the agents' file
        self.arrived: dict[str, np.ndarray] | None = None  # the transitions not yet stored
        self.random: np.ndarray | None = None  # [L, BLOCK, A] actions of the seed phase
        self.save_seconds = 60 * run.save_minutes
        self.signum = 0
        self.steps = self.config.agent_steps
        self.last_env_step = self.steps * self.config.action_repeat
        if checkpoint.Checkpoints(run.folder).steps()[-1:] != [self.steps]:
            self.compiling = program.compile_ahead(capacity)
        try:
            workers = count_workers(self.config, lanes)
            self.collector = Collector(program, workers, awake=spare_cores(workers))
        except BaseException:
            program.stop.set()
            raise
        try:
            self._begin(run, capacity)
        except BaseException:
            self.close()
            raise

    def _begin(self, run: Run, capacity: int) -> None:
        """Start anew, or from the last checkpoint."""
        program, lanes = self.program, len(self.program.setups)
        found = self.keeper.load(self.collector)
        if found is None:
            self.obs, self.first = self.collector.reset(), np.ones(lanes, bool)
            self.state = program.init_state(self.obs, capacity)
            start = resume.Progress(
                0,
                min(self.config.eval_every, self.last_env_step),
                np.zeros(lanes, int),
                np.zeros(lanes, bool),
                None,
            )
            notes = []
        else:
            self.state, start, notes = found
            store = self.state.replay
            self.obs = np.asarray(store.obs[np.arange(lanes), store.cursor])
            self.first = np.asarray(store.length == 0)
            notes.append(f"continued at env step {start.agent_step * self.config.action_repeat}")
        self.agent_step, self.next_evaluation = start.agent_step, start.next_evaluation
        self.owed, self.ended, self.metrics = start.owed, start.ended, start.metrics
        if self.agent_step == self.steps:
            notes.append("the run is finished")
        labels = zip(run.setups, run.labels, strict=True)
        self.recorder = Recorder(
            run.folder,
            [LaneInfo(i, s.seed, s.task, label) for i, (s, label) in enumerate(labels)],
            self.config.env_steps,
            run.tensorboard,
            run.quiet,
            metric_names=(*program.agent.METRICS, "faults"),
            resume_at=start.agent_step * self.config.action_repeat,
        )
        for note in notes:
            self.recorder.message(note)

    def close(self) -> None:
        """Stop the simulators, and what still compiles."""
        self.program.stop.set()
        self.writer.shutdown()
        self.collector.close()

    @property
    def env_step(self) -> int:
        """Environment steps of each lane so far."""
        return self.agent_step * self.config.action_repeat

    def run(self) -> RunState:
        """All agent steps that are left of the budget."""
        last_save = time.monotonic()
        try:
            with self.signals():
                if self.env_step >= self.next_evaluation:  # it failed, and the run was continued
                    self.begin_evaluation()
                while self.agent_step < self.steps:
                    self.step(self.agent_step)
                    self.recorder.progress(
                        self.env_step,
                        skipped_updates=self.skipped,
                        simulator_faults=self.collector.faults,
                        updates_ahead=0,
                    )
                    # A save plays the evaluation in progress to its end; where there is time, it
                    # waits for that.
                    waited = time.monotonic() - last_save
                    evaluate = self.env_step >= self.next_evaluation
                    idle = self.evaluated_step is None or evaluate
                    due = waited > (1 if idle else 2) * self.save_seconds > 0
                    if due:
                        self.save()
                        last_save = time.monotonic()
                    if evaluate:
                        self.begin_evaluation()
                    self.advance_evaluation()
                    self.keeper.check()
                    if self.signum or self.agent_step == self.steps:
                        self.save()
                    if self.signum and self.agent_step < self.steps:
                        self.keeper.wait()
                        raise Stopped(self.signum, self.folder, self.env_step)
                if self.evaluated_step is not None:  # begun above, after the last step
                    self.save()
                self.keeper.wait()
        finally:
            self.writer.shutdown()
            if self.evaluator:
                self.evaluator.close()
        return self.state

    def save(self) -> None:
        """Write a checkpoint, in the background."""
        self.advance_evaluation(to_the_end=True)  # a checkpoint holds no evaluation
        self.writing.result()
        self.settle()
        at = resume.Progress(
            self.agent_step, self.next_evaluation, self.owed.copy(), self.ended, self.metrics
        )
        self.keeper.save(self.state, at, self.collector)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM ask for a save and an end; asked twice, they end at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(signum: int, frame: Any) -> None:
            if self.signum:
                raise KeyboardInterrupt
            self.signum = signum

        old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for s, handler in old.items():
                signal.signal(s, handler)

    def step(self, agent_step: int) -> None:
        """One agent step of every lane; the updates run while the simulators do."""
        program, config = self.program, self.config
        learner, memory, store = self.state
        due, first = self.due(agent_step), self.first | (agent_step == config.seed_steps)
        given = self.give(agent_step, first=first, active=due > 0)
        if agent_step < config.seed_steps:
            chosen = self.random_action(agent_step)
            self.collector.send(chosen)
            learner, store = self.learn(learner, store, given, due, agent_step)
        else:
            action, memory = program.act(program.lane, learner, memory, given)
            # The rest of the device's work is queued before the action is there, so that it never
            # waits for the host.
            learner, store = self.learn(learner, store, given, due, agent_step)
            chosen = np.asarray(action)
            self.collector.send(chosen)
        self.state = RunState(learner, memory, store)
        got = self.collector.recv()
        self.arrived = got.step | {"action": chosen}
        void = np.zeros(len(program.setups), bool)
        void[[f.row for f in got.faults]] = True
        self.obs, self.first, self.ended = got.obs, got.ended | void, got.ended
        if got.faults:
            self.settle()
            dropped = program.drop(self.state.replay, jnp.asarray(void))
            self.state = self.state._replace(replay=dropped)
            self.keeper.rewind(self.collector.rows(agent_step + 1))
        self.owed = self.owed + config.learn.updates_per_step
        self.agent_step = agent_step + 1
        if got.episodes:
            metrics = () if self.metrics is None else np.asarray(self.metrics).T
            for e in got.episodes:
                named = zip(program.agent.METRICS, metrics, strict=False)  # none before an update
                mine = {name: float(x[e.lane]) for name, x in named}
                mine["faults"] = int(self.collector.faults[e.lane])
                self.recorder.episode(e.lane, self.env_step, e.ret, e.length, mine)
        if got.faults:
            self.report(got.faults)

    def random_action(self, agent_step: int) -> np.ndarray:
        """Actions of the seed phase, which are drawn for many steps at once."""
        at = agent_step % BLOCK
        if at == 0 or self.random is None:
            drawn = self.program.act_seed(self.program.lane, np.int32(agent_step - at))
            self.random = np.asarray(drawn)
        return self.random[:, at]

    def give(self, agent_step: int, **more: np.ndarray) -> Packed:
        """Put the last transitions, and what else a step needs, on the device."""
        return self.program.give(agent_step, obs=self.obs, **(self.arrived or {}), **more)

    def settle(self) -> None:
        """Store the transitions that arrived last, which otherwise wait for the next step."""
        self.state = self.state._replace(
            replay=self.stored(self.state.replay, self.give(self.agent_step))
        )

    def stored(self, store: Any, given: Packed) -> Any:
        """The replay with the transitions that arrived last."""
        if self.arrived:
            store, self.arrived = self.program.add(store, given), None
        return store

    def report(self, faults: Sequence[Fault]) -> None:
        """Say which simulators were replaced; stop the run where that does not help."""
        where = f"at env step {self.env_step}"
        for text in dict.fromkeys(f.text for f in faults):  # a worker may hold many lanes
            first = text.partition("\n")[0]
            self.recorder.message(f"{first} {where}; replaced, the running episode dropped")
        for f in faults:
            row = int(self.collector.in_a_row[f.row])
            if f.final or row >= self.config.fault_limit:
                why = "" if f.final else f"\n{row} faults without an episode finished between them"
                self.give_up(f"{where}: {f.text}{why}")

    def give_up(self, reason: str) -> NoReturn:
        """Save, then stop for good."""
        self.save()
        self.keeper.wait()
        saved = f"stopped and saved at env step {self.env_step}; `ace resume {self.folder}` goes on"
        raise EnvError(f"{reason}\n{saved}")

    def due(self, agent_step: int) -> np.ndarray:
        """Updates [L] to make now: all that are owed, or, in blocks, those of lanes whose episode
        ended with the step before; none while actions are random."""
        if agent_step < self.config.seed_steps:
            return np.zeros_like(self.owed)
        block = self.config.learn.update_mode == "block"
        return np.where(self.ended, self.owed, 0) if block else self.owed.copy()

    def learn(
        self, learner: Packed, store: Any, given: Packed, due: np.ndarray, agent_step: int
    ) -> tuple[Packed, Any]:
        """Store what arrived last, then make the updates that are due."""
        store = self.stored(store, given)
        for i in range(due.max()):
            if i and i in due:  # some lane has made all of its updates
                given = self.program.give(agent_step, active=due > i)
            learner, store, self.metrics = self.program.update(
                self.program.lane, learner, store, given
            )
            if i % 64 == 63:  # let neither the queue of the device nor the console run far apart
                jax.block_until_ready(self.metrics)
                env_step = agent_step * self.config.action_repeat
                self.recorder.progress(env_step, updates_ahead=int(due.max()) - i - 1)
        self.owed = self.owed - due
        return learner, store

    def skipped(self) -> Any:
        """Updates [L] left out so far."""
        if self.metrics is None:
            return 0
        return np.asarray(self.metrics)[:, self.program.agent.METRICS.index("skipped_updates")]

    def begin_evaluation(self) -> None:
        """Save the agents and start to evaluate them, beside the training that goes on."""
        self.advance_evaluation(to_the_end=True)
        learner = self.program.copy(self.state.learner)
        self.writing.result()
        self.writing = self.writer.submit(
            save_agents, self.folder, self.program, learner, self.agent_step
        )
        try:
            if self.evaluator is None:
                self.evaluator = Evaluator(self.program, self.config.eval_episodes, self.workers)
            self.evaluator.begin(learner, self.agent_step)
        except EnvError as error:
            self.give_up(str(error))
        self.evaluated_step = self.agent_step
        following = min(self.next_evaluation + self.config.eval_every, self.last_env_step)
        self.next_evaluation = following if self.agent_step < self.steps else following + 1

    def advance_evaluation(self, to_the_end: bool = False) -> None:
        """Go on with the evaluation in progress, if there is one."""
        if self.evaluated_step is None or self.evaluator is None:
            return
        env_step = self.evaluated_step * self.config.action_repeat
        try:
            results = self.evaluator.finish() if to_the_end else self.evaluator.advance()
        except EnvError as error:
            self.evaluated_step, lost = None, "its result is lost"
            if env_step == self.env_step:
                self.next_evaluation, lost = env_step, "it will be made again"
            self.give_up(f"the evaluation at env step {env_step} failed, {lost}: {error}")
        for lane, e in enumerate(results or ()):
            self.recorder.evaluation(lane, env_step, e.ret, e.policy_ret, e.length)
        if results:
            self.evaluated_step = None
