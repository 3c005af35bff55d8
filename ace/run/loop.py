"""The training loop: act, let the simulators run while the device learns, store, repeat."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NoReturn

import jax
import numpy as np

from ace.engine.one_lane import BLOCK
from ace.engine.program import Program, RunState, Trees
from ace.engine.resources import check_memory, count_workers, replay_capacity, spare_cores
from ace.envs import EnvError, Fault
from ace.method.types import Transition
from ace.run import checkpoint, resume
from ace.run.agent_file import check_arrays
from ace.run.collect import Collector
from ace.run.evaluate import Evaluation
from ace.run.evaluations import Evaluations
from ace.run.explore import Explorer, layout_of
from ace.run.pace import Pace
from ace.run.record import LaneInfo, Recorder, versions, write_json
from ace.run.request import Run
from ace.run.signals import Signals
from ace.settings.config import ConfigError
from ace.settings.words import counted

HURRY_SECONDS = 5.0  # for simulators to answer after a signal, so that the save is in time


class Stopped(Exception):
    """A signal ended the run after its state was saved."""

    def __init__(self, loop: "Loop"):
        folder, env_step = loop.folder, loop.env_step
        super().__init__(f"stopped, saved at env step {env_step}; `ace resume {folder}` continues")
        self.signum = loop.signals.signum
        self.compiling = any(thread.is_alive() for thread in loop.compiling)


def train(run: Run) -> Trees:
    """Train all lanes of a run, from its last checkpoint if it has one, to the end of its budget;
    returns the final state."""
    if not 0 <= run.save_minutes < math.inf:
        raise ConfigError(f"save_minutes is {run.save_minutes}; it must be at least 0")
    capacity = replay_capacity(run.setups)
    replay_bytes = check_memory(run.agent, run.setups, capacity)
    program = Program(run.agent, run.setups)
    config = program.config
    check_arrays(program, capacity)
    with resume.writable(run.folder), resume.lock(run.folder):
        with resume.unmade(run.folder):
            write_json(run.folder / "config.json", run.describe())
            loop = Loop(run, program, capacity)
        with closing(loop), loop.recorder:
            where = f"{jax.devices()[0].device_kind}, {config.precision}, {loop.which_kernels()}"
            loop.recorder.message(
                f"{counted(len(run.setups), 'lane')} on {where}; "
                f"replay {replay_bytes / 2**20:.1f} MiB; "
                f"{counted(count_workers(config, len(run.setups)), 'simulator process')}"
            )
            for note in run.notes:
                loop.recorder.message(note)
            if not loop.finished:  # a finished run keeps the versions that made its results
                loop.write_versions()
            return loop.run().trees()


def explores(run: Run) -> bool:
    """Whether a run records how it explores a maze."""
    return any(layout_of(setup.task) for setup in run.setups)


class Loop:
    """One run in progress, to be closed at its end."""

    def __init__(self, run: Run, program: Program, capacity: int):
        self.program, self.config, self.folder = program, program.config, run.folder
        self.command = run.command
        self.keeper = resume.Keeper(program, run.folder, capacity)
        self.evaluations = Evaluations(program, run.folder, keep_obs=explores(run))
        self.explorer: Explorer | None = None
        self.compiling: list[threading.Thread] = []
        self.random: np.ndarray | None = None  # [L, BLOCK, A] actions of the seed phase
        self.save_seconds = 60 * run.save_minutes
        self.signals, self.compiled, self.said = Signals(self.hurry), False, ""
        self.pace = Pace()
        self.interruptible = False  # whether a signal may end the updates of this step
        self.steps = self.config.agent_steps
        saved = checkpoint.Checkpoints(run.folder).steps()
        workers = count_workers(self.config, len(program.setups))
        self.collector = Collector(program, workers, awake=spare_cores(workers))
        try:
            if not saved:
                # Before anything is traced: threads that draw weights and one that traces would
                # wait for each other's interpreter lock.
                program.draw_learners()
            if saved[-1:] != [self.steps]:
                self.compiling = program.compile_ahead(capacity)
            self._begin(run, capacity)
        except BaseException:
            self.close()
            raise

    def _begin(self, run: Run, capacity: int) -> None:
        """Start anew, or from the last checkpoint."""
        program, lanes = self.program, len(self.program.setups)
        found = self.keeper.load(self.collector)
        if found is None:
            obs, first = self.collector.reset(), np.ones(lanes, bool)
            self.state = program.init_state(obs, capacity)
            nothing = np.zeros(lanes, int)
            start = resume.Progress(
                0, self.evaluations.next, None, nothing, nothing.astype(bool), None
            )
            rows, notes = run.folder / "train.csv", []
            if rows.exists() and len(rows.read_bytes().splitlines()) > 1:
                notes.append("no checkpoint was found: the run begins anew, over its earlier rows")
        else:
            self.state, start, notes = found
            store = self.state.replay
            obs = np.asarray(store.obs[np.arange(lanes), store.cursor])
            first = np.asarray(store.length == 0)
            notes.append(f"continued at env step {start.agent_step * self.config.action_repeat}")
        self.agent_step, self.obs = start.agent_step, obs
        self.owed, self.ended, self.metrics = start.owed, start.ended, start.metrics
        self.evaluations.continue_at(self.env_step, start.next_evaluation)
        self.send(first)
        pending = self.evaluations.interrupted(start.evaluating)
        if self.finished and pending is None:
            notes.append("the run is finished")
        repeat = self.config.action_repeat
        until = self.env_step if pending is None else pending * repeat - 1
        labels = zip(run.setups, run.labels, strict=True)
        self.recorder = Recorder(
            run.folder,
            [LaneInfo(i, s.seed, s.task, label) for i, (s, label) in enumerate(labels)],
            self.config.env_steps,
            run.tensorboard,
            run.quiet,
            metric_names=(*program.agent.metrics, "faults"),
            numbers=self.collector.numbers.names,
            resume_at=self.env_step,
            evaluations_until=until,
        )
        if explores(run):
            self.explorer = Explorer(run.folder, program, until)
            if self.compiling:
                thread = program.compile_survey(self.explorer.survey, after=self.compiling)
                self.compiling = [*self.compiling, thread]
        for note in notes:
            self.recorder.message(note)
        if pending is not None:
            with self.saved_first():
                if lost := self.evaluations.make_again(pending):
                    self.recorder.message(lost)

    def close(self) -> None:
        """Stop the simulators and the background compilation."""
        self.program.stop.set()
        self.evaluations.close()
        if self.explorer:
            self.explorer.close()
        self.collector.close()

    def write_versions(self, more: dict[str, Any] | None = None) -> None:
        """Write the software, hardware and options that the results depend on."""
        options = {"precision": self.config.precision, "kernels": self.config.kernels}
        found = {"command": self.command, **options}
        write_json(self.folder / "versions.json", versions() | found | (more or {}))

    @property
    def env_step(self) -> int:
        """Environment steps of each lane so far."""
        return self.agent_step * self.config.action_repeat

    def run(self) -> RunState:
        """Make all agent steps that are left of the budget."""
        last_save = time.monotonic()
        finished = self.finished
        with self.signals:
            self.recorder.progress(self.env_step)
            if self.env_step >= self.evaluations.next:  # it failed before the run was resumed
                self.begin_evaluation()
            while self.agent_step < self.steps:
                self.wait_for_compiler()
                self.recorder.status(self.phase())
                usual = self.config.learn.updates_per_step
                self.interruptible = self.pace.too_long(int(self.due().max()), usual)
                if self.interruptible:
                    self.save()
                self.step()
                self.recorder.progress(
                    self.env_step,
                    skipped_updates=self.skipped,
                    simulator_faults=self.collector.faults,
                    updates_ahead=0,
                )
                if self.env_step >= self.evaluations.next:
                    self.begin_evaluation()
                self.advance_evaluation()
                self.keeper.check()
                if 0 < self.save_seconds < time.monotonic() - last_save:
                    self.save()
                    last_save = time.monotonic()
                self.stop_if_asked()
            self.finish_evaluation()
            if not finished:
                self.save()
            self.keeper.wait()
        return self.state

    @property
    def finished(self) -> bool:
        """Whether nothing of the run is left to do."""
        evaluated = self.evaluations.running is None and self.evaluations.next > self.env_step
        return self.agent_step == self.steps and evaluated

    def phase(self) -> str:
        """What happens now, where its speed says nothing about the rest of the run."""
        if self.agent_step < self.config.seed_steps:
            return "random actions"
        return "first updates" if self.agent_step == self.config.seed_steps else ""

    def which_kernels(self) -> str:
        """What is known at the start of how the method's functions will be computed."""
        if self.program.table:
            return "fused kernels where they fit"
        return f"no fused kernels ({'off' if self.config.kernels == 'off' else 'no GPU'})"

    def say_kernels(self) -> None:
        """Say which kernels fitted, as soon as that is known, and again should that change: their
        trial on this card may fail later, and evaluations are compiled last."""
        report = self.program.kernels
        if not self.program.table or not self.program.traced or report.line() == self.said:
            return
        self.said = report.line()
        self.recorder.message(self.said)
        self.write_versions(report.described())

    def wait_for_compiler(self) -> None:
        """Wait until the functions of a learning step are compiled, and show that."""
        if self.compiled:
            return
        self.say_kernels()
        if self.agent_step < self.config.seed_steps:
            return
        begun = time.monotonic()
        while (names := self.program.waiting()) and any(t.is_alive() for t in self.compiling):
            self.recorder.status(f"compiling {' and '.join(names)}")
            self.stop_if_asked()
            time.sleep(0.1)
            self.say_kernels()
        self.recorder.status("")
        self.compiled = True
        self.say_kernels()
        if (waited := time.monotonic() - begun) >= 1:
            self.recorder.message(f"waited {waited:.1f} s for the compiler")

    def save(self) -> None:
        """Write a checkpoint, in the background."""
        self.evaluations.wait_for_file()
        self.state = self.program.add(self.state)
        at = resume.Progress(
            self.agent_step,
            self.evaluations.next,
            self.evaluations.running,
            self.owed.copy(),
            self.ended,
            self.metrics,
        )
        self.keeper.save(self.state, at, self.collector)

    def hurry(self) -> None:
        """Bound the wait for simulators after a signal; those that do not answer are replaced, and
        their episodes dropped."""
        self.collector.envs.hurry(HURRY_SECONDS)

    def stop_if_asked(self) -> None:
        """End the run with its state saved, if a signal asked for that."""
        over = self.agent_step == self.steps and self.evaluations.running is None
        if over or not self.signals.signum:
            return
        self.save()
        self.keeper.wait()
        raise Stopped(self)

    def step(self) -> None:
        """One agent step of every lane; the updates run while the simulators do."""
        program, config, agent_step = self.program, self.config, self.agent_step
        due = self.due()
        if agent_step < config.seed_steps:
            self.collector.send(self.random_action(agent_step))
            self.state = program.add(self.state)
        else:
            action, self.state = program.act(self.state)
            self.state = program.add(self.state)
            # Dispatch the updates before fetching the action, so that the device never waits for
            # the host.
            self.learn(due)
            self.collector.send(np.asarray(action))
        got = self.collector.recv()
        every = config.learn.update_every
        self.owed = self.owed - every * due + config.learn.updates_per_step
        self.agent_step, self.ended, self.obs = agent_step + 1, got.ended, got.transition.obs
        if self.agent_step == config.seed_steps:
            shares = [s.config.learn.seed_updates for s in program.setups]
            self.owed = np.round(self.owed * shares).astype(self.owed.dtype)
        self.send(got.ended | got.void, got.transition)
        if got.faults:
            self.state = program.drop(program.add(self.state), got.void)
            self.keeper.rewind(self.collector.rows(self.agent_step))
        if got.episodes:
            metrics = () if self.metrics is None else np.asarray(self.metrics).T
            for e in got.episodes:
                names = program.agent.metrics if len(metrics) else ()  # none before an update
                named = zip(names, metrics, strict=True)
                mine = {name: float(x[e.lane]) for name, x in named}
                mine["faults"] = int(self.collector.faults[e.lane])
                self.recorder.episode(e.lane, self.env_step, e.ret, e.length, mine, e.numbers)
        if got.faults:
            self.report(got.faults)

    def send(self, first: np.ndarray, transition: Transition | None = None) -> None:
        """Copy to the device what the next step of the program reads."""
        first = first | (self.agent_step == self.config.seed_steps)
        self.program.send(self.agent_step, self.obs, first, self.due() > 0, transition)

    def random_action(self, agent_step: int) -> np.ndarray:
        """Actions [L, A] of the seed phase, drawn for BLOCK steps at once."""
        at = agent_step % BLOCK
        if at == 0 or self.random is None:
            self.random = self.program.random_actions(agent_step - at)
        return self.random[:, at]

    def report(self, faults: Sequence[Fault]) -> None:
        """Report replaced simulators; stop the run if one keeps failing."""
        where = f"at env step {self.env_step}"
        for text in dict.fromkeys(f.text for f in faults):  # a worker may hold many lanes
            first = text.partition("\n")[0]
            self.recorder.message(f"{first} {where}; replaced, the running episode dropped")
        for f in faults:
            row = int(self.collector.in_a_row[f.row])
            if f.final or row >= self.config.fault_limit:
                why = "" if f.final else f"\n{row} faults without an episode finished between them"
                self.give_up(f"{where}: {f.text}{why}")

    @contextmanager
    def saved_first(self, what: str = "") -> Iterator[None]:
        """Save the run before an EnvError inside ends it; `what` is said before the error."""
        try:
            yield
        except EnvError as error:
            self.give_up(f"{what}{error}")

    def give_up(self, reason: str) -> NoReturn:
        """Save the run, then raise an EnvError."""
        self.save()
        self.keeper.wait()
        saved = f"saved at env step {self.env_step}; `ace resume {self.folder}` continues"
        raise EnvError(f"{reason}\n(stopped, {saved})")

    def due(self) -> np.ndarray:
        """Updates [L] to make now: all that are owed, in block mode only for lanes whose episode
        ended with the last step; none in the seed phase."""
        if self.agent_step < self.config.seed_steps:
            return np.zeros_like(self.owed)
        due = self.owed // self.config.learn.update_every
        return np.where(self.ended, due, 0) if self.config.learn.update_mode == "block" else due

    def learn(self, due: np.ndarray) -> None:
        """Make the updates that are due."""
        program, made, most = self.program, 0, int(due.max())
        self.pace.begin()
        while made < most:
            if made and made in due:  # some lane has made all of its updates
                program.send(self.agent_step, self.obs, active=due > made)
            alike = int(due[due > made].min()) - made  # until the next lane has made all of its
            count = min(alike, program.at_once)
            self.state, self.metrics = program.update(self.state, count)
            made += count
            if made < most and self.pace.check_due(made):  # bound the queue and refresh the console
                jax.block_until_ready(self.metrics)
                self.recorder.progress(self.env_step, updates_ahead=most - made)
                if self.signals.signum and self.interruptible:  # `run` saved before the burst
                    self.keeper.wait()
                    raise Stopped(self)
                self.pace.checked(made)

    def skipped(self) -> Any:
        """Updates [L] skipped so far, if the agent counts them."""
        names = self.program.agent.metrics
        if self.metrics is None or "skipped_updates" not in names:
            return 0
        return np.asarray(self.metrics)[:, names.index("skipped_updates")]

    def begin_evaluation(self) -> None:
        """Save the agents and start to evaluate them while training continues."""
        self.finish_evaluation()
        with self.saved_first():
            self.evaluations.begin(self.program.acting(self.state), self.agent_step)

    def advance_evaluation(self) -> None:
        """Advance the evaluation in progress, if there is one and its simulators are ready."""
        if self.evaluations.running is not None and self.can_evaluate():
            self._evaluated(self.evaluations.evaluator.advance)

    def can_evaluate(self) -> bool:
        """Whether a call of an evaluation would not have to wait for the compiler."""
        compiling = any(thread.is_alive() for thread in self.compiling)
        return not (compiling and self.program.waiting(evaluation=True))

    def finish_evaluation(self) -> None:
        """Finish the evaluation in progress; signals are checked meanwhile."""
        if self.evaluations.running is not None:
            while not self.can_evaluate():
                self.stop_if_asked()
                time.sleep(0.05)
            evaluator = self.evaluations.evaluator
            self._evaluated(lambda: evaluator.finish(self.stop_if_asked))

    def _evaluated(self, go_on: Callable[[], Sequence[Evaluation] | None]) -> None:
        """Advance an evaluation by calling `go_on` and record its results once complete."""
        running = self.evaluations.running
        assert running is not None
        env_step = running * self.config.action_repeat
        with self.saved_first(
            f"the evaluation at env step {env_step} failed, it will be made again: "
        ):
            results = go_on()
        if results is None:
            return
        if self.explorer:
            self.state = self.program.add(self.state)  # the replay is to hold all steps so far
            # Before the rows of eval.csv, which tell a continued run that all is recorded.
            evaluator = self.evaluations.evaluator
            self.explorer.record(running, self.agent_step, self.state, evaluator)
        for lane, e in enumerate(results):
            means = e.ret, e.policy_ret, e.length, e.numbers
            self.recorder.evaluation(lane, env_step, *means, e.bias)
        self.say_kernels()
        self.evaluations.running = None
