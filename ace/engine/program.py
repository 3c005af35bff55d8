"""Many lanes in one program. The method is written for one lane, and so are the functions of
`engine.one_lane`; here, and only here, the leading lane axis is added to them with `jax.vmap`, and
they are compiled.

Callers see trees. Between calls a run's state, and the message for the next calls, stay on the
device, packed into few arrays (`engine.packing`).
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.agents import AGENTS
from ace.engine import fused, kernels, transfer
from ace.engine.compile import Function, compile_in_background, compiler_options
from ace.engine.fresh import Fresh
from ace.engine.lanes import LaneSetup, check_compatible, like, stack
from ace.engine.messages import Message, blank_message, blank_question
from ace.engine.one_lane import ROWS, OneLane, Packings
from ace.engine.packing import Packed
from ace.engine.player import Player
from ace.method.replaceable import replaced
from ace.method.types import Transition

AT_ONCE = 32  # most updates of one call: signals are heard between calls
MATMUL = {"f32": "highest", "tf32": "default", "bf16": "default"}


class Trees(NamedTuple):
    """What a run's state holds, as trees whose leaves have a leading lane axis."""

    learner: Any  # the agent's state
    memory: Any  # the agent's memory
    replay: replay.Replay


@partial(jax.tree_util.register_dataclass, data_fields=("replay", "_packed"), meta_fields=("_by",))
@dataclass(frozen=True)
class RunState:
    """All that a run changes on the device. Reading `learner` or `memory` makes a tree of it."""

    replay: replay.Replay
    _packed: tuple[Packed, Packed] = field(repr=False)  # learner, memory
    _by: Packings = field(repr=False)

    @property
    def learner(self) -> Any:
        """The agent's state; large arrays stay on the device."""
        packed = self._packed[0]
        small = None if packed.small is None else np.asarray(packed.small)
        return self._by.learner.unpack(packed._replace(small=small))

    @property
    def memory(self) -> Any:
        """The agent's memory, on the host."""
        return self._by.memory.unpack(jax.device_get(self._packed[1]))

    def trees(self) -> Trees:
        """Everything as trees."""
        return Trees(self.learner, self.memory, self.replay)

    def fetch(self, more: Any) -> tuple[Any, Any, Any]:
        """Learner and memory on the host, and `more` of any structure, in one transfer."""
        (learner, memory), more = jax.device_get((self._packed, more))
        return self._by.learner.unpack(learner), self._by.memory.unpack(memory), more


class Survey(NamedTuple):
    """Inputs for measuring how well agents know a task; zeros in lanes that are not measured."""

    states: Any  # [L, V, P, O] the values of every P are averaged over V
    obs: Any  # [L, N, H+1, O] segments whose latents are to be predicted
    action: Any  # [L, N, H, A]


class Program:
    """The compiled functions of a run; each is traced once."""

    def __init__(
        self, agent: str, setups: Sequence[LaneSetup], padded: tuple[int, int] | None = None
    ):
        """`padded` are observation and action sizes; the largest of the lanes if left out."""
        check_compatible(setups)
        self.agent_name, self.agent = agent, AGENTS[agent]
        self.setups = list(setups)
        self.config = setups[0].config  # read only for settings that all lanes share
        largest = (max(s.sizes[0] for s in setups), max(s.sizes[1] for s in setups))
        self.obs_size, self.action_size = padded or largest
        self.stop = threading.Event()  # for compilation in the background
        self.traces: dict[str, int] = {}
        self._reports: dict[str, kernels.Report] = {}
        self._plain: dict[str, str] = {}  # functions that do not compile with kernels, and why

        self.fresh = Fresh(self.agent, setups, (self.obs_size, self.action_size))
        self._packings = Packings(self.fresh)
        lanes = stack([self.fresh.lane(setup) for setup in setups])
        self.lane = jax.device_put(self._packings.lane.pack(lanes))
        self._blank = blank_message(self.obs_size, self.action_size, len(setups))
        self._inbox = transfer.Inbox(self._packings.message.pack(self._blank).small)
        self._message = Packed(None, ())  # the last one that was sent
        self._unstored = False  # whether its transition is not in the replay yet

        one = OneLane(self.agent, self._packings)
        over, host = self._compile, transfer.memory("pinned_host")
        self._act = over(one.act, (0, 0, 0, 0), donate=(2,), out=(host, None))
        self._act_eval = over(one.act_eval, (0, 0, 0, 0), donate=(2,), out=(host, None))
        self._act_policy = over(one.act_policy, (0, 0, 0), out=host)
        self._value = over(one.value, (0, 0, 0, 0), out=host)
        self._survey = over(one.survey, (0, 0, 0, 0, 0))
        self._act_seed = over(one.act_seed, (0, None))
        self._add = over(one.add, (0, 0), donate=(0,))
        self._drop = over(replay.drop, (0, 0), donate=(0,))
        self._rows = over(one.rows, (0, 0))
        # The count of updates is data, so that the result does not depend on how calls group them;
        # without the loop an update of its own is a little faster.
        self.at_once = AT_ONCE if self.config.learn.updates_per_step > 1 else 1
        several, axes = self.at_once > 1, (0, 0, 0, 0)
        update, axes = (one.updates, (*axes, None)) if several else (one.update, axes)
        self._update = over(update, axes, donate=(1, 2), out=(None, None, host))
        self._acting_part = over(one.acting, (0,))
        self._pack_acting = over(one.pack_acting, (0,))

    def check_types(self) -> None:
        """Refuse an agent whose state has arrays of types that a program cannot hold."""
        _ = self._packings.learner, self._packings.acting

    def draw_learners(self) -> None:
        """Draw the learners that `init_state` takes, on all cores; it would draw them itself."""
        _ = self.fresh.learners

    def init_state(self, obs: np.ndarray, capacity: int) -> RunState:
        """The state of a run whose first observations are `obs`."""
        packed = self._packings.learner.pack(self.fresh.learners), self._new_memory()
        packed = jax.device_put(packed)
        del self.fresh.learners  # the host needs no copy
        return RunState(self._new_replay(obs, capacity), packed, self._packings)

    def put_state(self, trees: Trees) -> RunState:
        """The state of a run from trees on the host."""
        learner = self._packings.learner.pack(trees.learner)
        memory = self._packings.memory.pack(trees.memory)
        store, *packed = jax.device_put((trees.replay, learner, memory))
        return RunState(store, tuple(packed), self._packings)

    def _new_replay(self, obs: np.ndarray, capacity: int) -> replay.Replay:
        def start(obs: jax.Array) -> replay.Replay:
            return self.fresh.replay(obs, capacity)

        return jax.jit(jax.vmap(start))(obs)

    def send(
        self,
        agent_step: int,
        obs: np.ndarray,
        first: np.ndarray | None = None,
        active: np.ndarray | None = None,
        transition: Transition | None = None,
    ) -> None:
        """Copy to the device what the next calls read, over what was sent before; fields that are
        left out are zero."""
        if self._unstored:
            raise RuntimeError(
                "a transition was sent over one that is not stored; call `add` first"
            )
        blank = self._blank
        message = Message(
            blank.transition._replace(obs=obs) if transition is None else transition,
            blank.first if first is None else first,
            np.full(len(self.setups), agent_step, np.int32),
            blank.active if active is None else active,
        )
        packed = self._packings.message.pack(message)
        self._message = packed._replace(small=self._inbox.put(packed.small))
        self._unstored = transition is not None

    def act(self, state: RunState) -> tuple[jax.Array, RunState]:
        """Actions [L, A] for the observations that were sent."""
        learner, memory = state._packed
        action, memory = self._act(self.lane, learner, memory, self._message)
        return action, RunState(state.replay, (learner, memory), self._packings)

    def add(self, state: RunState) -> RunState:
        """Store the transitions that were sent, unless that was done.

        In a learning step this comes after `act`, because the simulators wait for the action: the
        other way round, a run of one lane lost 5 % of its speed.
        """
        if not self._unstored:
            return state
        self._unstored = False
        store = self._add(state.replay, self._message)
        return RunState(store, state._packed, self._packings)

    def drop(self, state: RunState, dropped: np.ndarray) -> RunState:
        """Remove the running episodes of the lanes where `dropped` [L] is true."""
        return replace(state, replay=self._drop(state.replay, jnp.asarray(dropped)))

    def rows(self, state: RunState, start: np.ndarray, stop: np.ndarray) -> dict[str, np.ndarray]:
        """Rows start..stop [L] of the replay, on the host: those of the first lane, then those of
        the second, and so on."""
        count = stop - start
        # At least one call, which gives the shapes of no rows.
        offsets = range(0, max(int(count.max()), 1), ROWS)
        slots = [(start + offset).astype(np.int32) for offset in offsets]
        blocks = [jax.device_get(self._rows(state.replay, first)) for first in slots]

        def joined(name: str) -> np.ndarray:
            rows = np.concatenate([block[name] for block in blocks], 1)
            return np.concatenate([rows[lane, :n] for lane, n in enumerate(count)])

        return {name: joined(name) for name in blocks[0]}

    def update(self, state: RunState, count: int = 1) -> tuple[RunState, jax.Array]:
        """`count` updates of the active lanes, at most `at_once`; metrics [L, M] of the last in the
        order of the agent's names."""
        (learner, memory), more = state._packed, self._counted(count)
        out = self._update(self.lane, learner, state.replay, self._message, *more)
        return RunState(out[1], (out[0], memory), self._packings), out[2]

    def _counted(self, count: int = 1) -> tuple[Any, ...]:
        """The last argument of `_update`, if it makes several updates."""
        if not 1 <= count <= self.at_once:
            raise ValueError(f"{count} updates in one call; at most {self.at_once} here")
        return (np.int32(count),) if self.at_once > 1 else ()

    def random_actions(self, agent_step: int) -> np.ndarray:
        """Uniform random actions [L, BLOCK, A] for the steps from `agent_step` on."""
        return np.asarray(self._act_seed(self.lane, np.int32(agent_step)))

    def acting(self, state: RunState) -> Any:
        """A copy of the learners' acting part: a tree on the device."""
        return self._acting_part(state._packed[0])

    def _new_memory(self, *lead: int) -> Packed:
        return self._packings.memory.pack(self.fresh.memories(len(self.setups), *lead))

    def player(self, who: str, episodes: int) -> Player:
        """Plays `episodes` evaluation episodes of every lane at a time, by the agent or by its
        policy alone."""
        _ = self._packings.acting  # draws a learner, which must not happen while tracing
        act = {"agent": self._act_eval, "policy": self._act_policy}[who]
        memory = self._new_memory(episodes) if who == "agent" else None
        shape = (len(self.setups), episodes, self.obs_size)
        pack, question = self._pack_acting, self._packings.question
        return Player(self.lane, act, self._value, memory, pack, question, shape)

    def survey(self, acting: Any, asked: Survey) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Values [L, P] of states and errors [L] of predictions; None if the agent has no
        value or no model."""
        return jax.device_get(self._survey(self.lane, acting, *asked))

    def shapes(self, capacity: int) -> Trees:
        """Shapes and types of a run's state."""
        lanes = len(self.setups)
        obs = np.zeros((lanes, self.obs_size), np.float32)
        store = jax.eval_shape(lambda: self._new_replay(obs, capacity))
        learner, memory = self.fresh.first_learner, self.fresh.memory
        return Trees(like(learner, lanes), like(memory, lanes), store)

    def acting_shapes(self) -> Any:
        """Shapes and types of the acting part, as a tree."""
        learner = like(self.fresh.first_learner, len(self.setups))
        return jax.eval_shape(self.agent.acting_part, learner)

    @property
    def kernels(self) -> kernels.Report:
        """The kernels of all functions that were traced."""
        return kernels.Report.joined(self._reports.values())

    @property
    def traced(self) -> bool:
        """Whether the functions of a learning step were traced: then their kernels are known."""
        return len({"act", "update", "updates"} & {*self._reports}) == 2

    @property
    def table(self) -> dict[str, Callable]:
        """The replacements of the method's functions that this program is traced with."""
        on_gpu = jax.default_backend() == "gpu" or kernels.common.INTERPRET
        return fused.TABLE if on_gpu and self.config.kernels == "auto" else {}

    def compile_ahead(self, capacity: int) -> list[threading.Thread]:
        """Compile what a run will need in background threads, which are started and returned.

        Compilation may take a minute, and the random steps at the start of a run do not need it. A
        call waits for a function that is being compiled.
        """
        packings, lanes, episodes = self._packings, len(self.setups), self.config.eval_episodes
        lane, memory = like(self.lane), like(self._new_memory())
        shapes = self.shapes(capacity)
        learner = jax.eval_shape(packings.learner.pack, shapes.learner)
        acting = jax.eval_shape(packings.acting.pack, self.acting_shapes())
        message = like(packings.message.pack(self._blank))
        question = like(packings.question.pack(blank_question(self.obs_size, lanes, episodes)))
        copies = like(self._new_memory(episodes))
        update = (self._update, (lane, learner, shapes.replay, message, *self._counted()))
        act = (self._act, (lane, learner, memory, message))
        # One thread traces at a time: first what the random steps and a checkpoint need, which is
        # small (a run that is stopped while the rest compiles must not wait for XLA), then the
        # plan, for which XLA takes longest; the trial of the kernels starts when that is traced.
        seed = (self._act_seed, (lane, jax.ShapeDtypeStruct((), np.int32)))
        add = (self._add, (shapes.replay, message))
        rows = (self._rows, (shapes.replay, jax.ShapeDtypeStruct((lanes,), np.int32)))
        work = (seed, add, rows, act, update)
        first = [compile_in_background(self.stop, each) for each in work]
        # Evaluation is needed last.
        later = {
            "agent": (self._act_eval, (lane, acting, copies, question)),
            "policy": (self._act_policy, (lane, acting, question)),
        }
        rest: list[tuple[Function, tuple]] = [
            (self._acting_part, (learner,)),
            (self._pack_acting, (self.acting_shapes(),)),
        ]
        rest += [later[who] for who in self.agent.plays]
        if self.agent.value:
            actions = jax.ShapeDtypeStruct((lanes, episodes, self.action_size), jnp.float32)
            rest.append((self._value, (lane, acting, question, actions)))
        return [*first, compile_in_background(self.stop, *rest, after=first)]

    def compile_survey(
        self, asked: Survey, after: Sequence[threading.Thread] = ()
    ) -> threading.Thread:
        """Compile `survey` in a background thread, which is started and returned."""
        work = self._survey, (like(self.lane), self.acting_shapes(), *like(asked))
        return compile_in_background(self.stop, work, after=after)

    def waiting(self, evaluation: bool = False) -> list[str]:
        """The functions of a step, or of an evaluation, that are not yet compiled."""
        parts = {"act": self._act, "update": self._update}
        if evaluation:
            both = {"agent": self._act_eval, "policy": self._act_policy}
            parts = {who: both[who] for who in self.agent.plays}
            if self.agent.value:
                parts["value"] = self._value
        return [name for name, function in parts.items() if not function.ready]

    def parts(self, state: RunState) -> dict[str, tuple[Function, tuple]]:
        """The functions of a step and their arguments, for measuring."""
        (learner, memory), message = state._packed, self._message
        learning = self.lane, learner, state.replay
        return {
            "plan": (self._act, (self.lane, learner, memory, message)),
            "update": (self._update, (*learning, message, *self._counted())),
        }

    def _compile(
        self, function: Callable, axes: tuple, donate: tuple = (), out: Any = None
    ) -> Function:
        """Vmap a function of one lane over `axes`; `out` places results that leave the device."""
        name, lanes = function.__name__, len(self.setups)

        def traced(*args: Any) -> Any:
            self.traces[name] = self.traces.get(name, 0) + 1  # runs only while tracing
            report, table = kernels.Report(), self.table
            if name in self._plain:
                table = {}
                report.misfits[f"any in {name}"] = self._plain[name]
            precision = jax.default_matmul_precision(MATMUL[self.config.precision])
            noting = kernels.reporting(report)
            try:
                with precision, replaced(table), noting, kernels.lanes(lanes):
                    # The size is given for agents whose state is empty.
                    return jax.vmap(function, in_axes=axes, axis_size=lanes)(*args)
            finally:  # also of a kernel that cannot be traced: `works` asks whether any was used
                self._reports[name] = report

        def works() -> bool:
            report = self._reports.get(name)
            return not (report and report.used and kernels.broken())

        def leave_out(error: Exception) -> bool:
            """Trace without kernels: those that passed their trial may still not compile for the
            sizes of this program."""
            report = self._reports.get(name)
            # Without kernels a function needs more of the card's memory still; but a kernel that
            # needs more shared memory than a processor has is reported in the same words.
            lacking = "RESOURCE_EXHAUSTED" in str(error) and "hared memory" not in str(error)
            if lacking or not (report and report.used):
                return False
            self._plain[name] = f"it does not compile with them ({error!r:.200})"
            return True

        traced.__name__ = name  # what profiles and compile logs show
        how = {"donate_argnums": donate, "out_shardings": out}
        return Function(traced, works, leave_out, compiler_options=compiler_options(), **how)
