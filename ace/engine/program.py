"""Many lanes in one program. The method is written for one lane, and so are the functions of
`engine.one_lane`; here, and only here, the leading lane axis is added to them with `jax.vmap`, and
they are compiled.

Between calls a run's state stays on the device, packed into few arrays (`engine.packing`); `trees`
and `pack` convert it.
"""

import threading
from collections.abc import Callable, Sequence
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
from ace.engine.messages import Message, Question, blank_message, blank_question
from ace.engine.one_lane import OneLane, Packings
from ace.engine.packing import Packed
from ace.method.replaceable import replaced
from ace.method.types import Transition

AT_ONCE = 32  # most updates of one call: signals are heard between calls
MATMUL = {"f32": "highest", "tf32": "default", "bf16": "default"}


class RunState(NamedTuple):
    """All that a run changes on the device, every leaf with a leading lane axis."""

    learner: Any  # the agent's state
    memory: Any  # the agent's memory
    replay: replay.Replay


class Survey(NamedTuple):
    """What agents are asked to show how well they know a task; zeros in lanes that are not."""

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

        self.fresh = Fresh(self.agent, setups, (self.obs_size, self.action_size))
        self._packings = Packings(self.fresh)
        lanes = stack([self.fresh.lane(setup) for setup in setups])
        self.lane = jax.device_put(self._packings.lane.pack(lanes))
        self._blank = blank_message(self.obs_size, self.action_size, len(setups))
        self._inbox = transfer.Inbox(self._packings.message.pack(self._blank).small)

        one = OneLane(self.agent, self.agent.segment(self.config), self._packings)
        over, host = self._compile, transfer.memory("pinned_host")
        self._act = over(one.act, (0, 0, 0, 0), donate=(2,), out=(host, None))
        self._act_eval = over(one.act_eval, (0, 0, 0, 0), donate=(2,), out=(host, None))
        self._act_policy = over(one.act_policy, (0, 0, 0), out=host)
        self._value = over(one.value, (0, 0, 0, 0), out=host)
        self._survey = over(one.survey, (0, 0, 0, 0, 0))
        self._act_seed = over(one.act_seed, (0, None))
        self._add = over(one.add, (0, 0), donate=(0,))
        self._drop = over(replay.drop, (0, 0), donate=(0,))
        # The count of updates is data, so that the result does not depend on how calls group them;
        # without the loop an update of its own is a little faster.
        self.at_once = AT_ONCE if self.config.learn.updates_per_step > 1 else 1
        several, axes = self.at_once > 1, (0, 0, 0, 0)
        update, axes = (one.updates, (*axes, None)) if several else (one.update, axes)
        self._update = over(update, axes, donate=(1, 2), out=(None, None, host))
        self._acting_part = over(one.acting, (0,))

    def draw_learners(self) -> None:
        """Draw the learners that `init_state` takes, on all cores; it would draw them itself."""
        _ = self.fresh.learners

    def init_state(self, obs: np.ndarray, capacity: int) -> RunState:
        """The state of a run whose first observations are `obs`."""
        learner = self._packings.learner.pack(self.fresh.learners)
        memory = self._new_memory(len(self.setups))
        learner, memory = jax.device_put((learner, memory))
        del self.fresh.learners  # the host needs no copy
        return RunState(learner, memory, self._new_replay(obs, capacity))

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
    ) -> Packed:
        """Copy the next calls' message to the device, over the one before; fields that are left out
        are zero."""
        blank = self._blank
        message = Message(
            blank.transition._replace(obs=obs) if transition is None else transition,
            blank.first if first is None else first,
            np.full(len(self.setups), agent_step, np.int32),
            blank.active if active is None else active,
        )
        packed = self._packings.message.pack(message)
        return packed._replace(small=self._inbox.put(packed.small))

    def act(self, state: RunState, message: Packed) -> tuple[jax.Array, RunState]:
        """Actions [L, A] for the observations of a message."""
        action, memory = self._act(self.lane, state.learner, state.memory, message)
        return action, state._replace(memory=memory)

    def add(self, state: RunState, message: Packed) -> RunState:
        """Store the transitions of a message."""
        return state._replace(replay=self._add(state.replay, message))

    def drop(self, state: RunState, dropped: np.ndarray) -> RunState:
        """Remove the running episodes of the lanes where `dropped` [L] is true."""
        return state._replace(replay=self._drop(state.replay, jnp.asarray(dropped)))

    def update(
        self, state: RunState, message: Packed, count: int = 1
    ) -> tuple[RunState, jax.Array]:
        """`count` updates of the active lanes, at most `at_once`; metrics [L, M] of the last in the
        order of the agent's names."""
        more = self._counted(count)
        out = self._update(self.lane, state.learner, state.replay, message, *more)
        return RunState(out[0], state.memory, out[1]), out[2]

    def _counted(self, count: int = 1) -> tuple[Any, ...]:
        """The last argument of `_update`, if it makes several updates."""
        if not 1 <= count <= self.at_once:
            raise ValueError(f"{count} updates in one call; at most {self.at_once} here")
        return (np.int32(count),) if self.at_once > 1 else ()

    def random_actions(self, agent_step: int) -> np.ndarray:
        """Uniform random actions [L, BLOCK, A] for the steps from `agent_step` on."""
        return np.asarray(self._act_seed(self.lane, np.int32(agent_step)))

    def acting(self, state: RunState) -> Packed:
        """A copy of the learners' acting part."""
        return self._acting_part(state.learner)

    def put_acting(self, tree: Any) -> Packed:
        """An acting part on the device, from a tree with a leading lane axis."""
        return jax.device_put(self._packings.acting.pack(tree))

    def acting_tree(self, acting: Packed) -> Any:
        """The acting part as a tree on the host."""
        return self._packings.acting.unpack(jax.device_get(acting))

    def memory(self, episodes: int) -> Packed:
        """The agent's initial memory for `episodes` episodes of every lane."""
        return jax.device_put(self._new_memory(len(self.setups), episodes))

    def _new_memory(self, *lead: int) -> Packed:
        return self._packings.memory.pack(self.fresh.memories(*lead))

    def asking(self, episodes: int) -> Callable[[np.ndarray, int, int], Packed]:
        """A function that copies an evaluation step's question to the device: observations
        [L, E, O], the step of the episodes, and the agent step of the evaluated agent."""
        shape = len(self.setups), episodes
        numbers = np.broadcast_to(np.arange(episodes, dtype=np.int32), shape)
        packing = self._packings.question
        inbox = transfer.Inbox(packing.pack(blank_question(self.obs_size, *shape)).small)

        def ask(obs: np.ndarray, eval_step: int, agent_step: int) -> Packed:
            steps = (np.full(shape, n, np.int32) for n in (eval_step, agent_step))
            return Packed(inbox.put(packing.pack(Question(obs, numbers, *steps)).small), ())

        return ask

    def act_eval(
        self, acting: Packed, memory: Packed, question: Packed
    ) -> tuple[jax.Array, Packed]:
        """Actions [L, E, A] of the agent, and its memory for the next step."""
        return self._act_eval(self.lane, acting, memory, question)

    def act_policy(self, acting: Packed, question: Packed) -> jax.Array:
        """Actions [L, E, A] of the policy alone."""
        return self._act_policy(self.lane, acting, question)

    def value(self, acting: Packed, question: Packed, action: np.ndarray) -> jax.Array:
        """The discounted return that the critics expect from observations and actions: [L, E]."""
        return self._value(self.lane, acting, question, action)

    def survey(self, acting: Packed, asked: Survey) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Values [L, P] of states and errors [L] of predictions; None if the agent has no such."""
        return jax.device_get(self._survey(self.lane, acting, *asked))

    def trees(self, state: RunState) -> RunState:
        """A run's state with learner and memory as trees; large arrays stay on the device."""
        learner = state.learner
        small = None if learner.small is None else np.asarray(learner.small)
        memory = self._packings.memory.unpack(jax.device_get(state.memory))
        learner = self._packings.learner.unpack(learner._replace(small=small))
        return RunState(learner, memory, state.replay)

    def fetch(self, state: RunState, more: Any) -> tuple[Any, Any, Any]:
        """Trees of learner and memory on the host, and `more` of any structure, in one transfer."""
        learner, memory, more = jax.device_get((state.learner, state.memory, more))
        return self._packings.learner.unpack(learner), self._packings.memory.unpack(memory), more

    def pack(self, trees: RunState) -> RunState:
        """The state of a run from trees on the host."""
        learner = self._packings.learner.pack(trees.learner)
        memory = self._packings.memory.pack(trees.memory)
        return RunState(*jax.device_put((learner, memory, trees.replay)))

    def shapes(self, capacity: int) -> RunState:
        """Shapes and types of a run's state as trees."""
        lanes = len(self.setups)
        obs = np.zeros((lanes, self.obs_size), np.float32)
        store = jax.eval_shape(lambda: self._new_replay(obs, capacity))
        learner, memory = self.fresh.first_learner, self.fresh.memory
        return RunState(like(learner, lanes), like(memory, lanes), store)

    def acting_shapes(self) -> Any:
        """Shapes and types of the acting part, as a tree."""
        learner = like(self.fresh.first_learner, len(self.setups))
        return jax.eval_shape(self.agent.acting_part, learner)

    @property
    def kernels(self) -> kernels.Report:
        """The kernels of all functions that were traced."""
        return kernels.Report.joined(self._reports.values())

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
        lane, memory = like(self.lane), like(self._new_memory(lanes))
        shapes = self.shapes(capacity)
        learner = jax.eval_shape(packings.learner.pack, shapes.learner)
        acting = jax.eval_shape(packings.acting.pack, self.acting_shapes())
        message = like(packings.message.pack(self._blank))
        question = like(packings.question.pack(blank_question(self.obs_size, lanes, episodes)))
        copies = like(self._new_memory(lanes, episodes))
        update = (self._update, (lane, learner, shapes.replay, message, *self._counted()))
        act = (self._act, (lane, learner, memory, message))
        # One thread traces at a time: first what the random steps need, which is small, then the
        # update, for which XLA takes longest; the trial of the kernels starts when that is traced.
        seed = (self._act_seed, (lane, jax.ShapeDtypeStruct((), np.int32)))
        add = (self._add, (shapes.replay, message))
        first = [compile_in_background(self.stop, work) for work in (seed, add, update, act)]
        # Evaluation is needed last.
        later = {
            "agent": (self._act_eval, (lane, acting, copies, question)),
            "policy": (self._act_policy, (lane, acting, question)),
        }
        rest = [later[who] for who in self.agent.plays]
        if self.agent.value:
            actions = jax.ShapeDtypeStruct((lanes, episodes, self.action_size), jnp.float32)
            rest.append((self._value, (lane, acting, question, actions)))
        return [*first, compile_in_background(self.stop, *rest, after=first)]

    def compile_survey(
        self, asked: Survey, after: Sequence[threading.Thread] = ()
    ) -> threading.Thread:
        """Compile `survey` in a background thread, which is started and returned."""
        acting = jax.eval_shape(self._packings.acting.pack, self.acting_shapes())
        work = self._survey, (like(self.lane), acting, *like(asked))
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

    def parts(self, state: RunState, message: Packed) -> dict[str, tuple[Function, tuple]]:
        """The functions of a step and their arguments, for measuring."""
        learning = self.lane, state.learner, state.replay
        return {
            "plan": (self._act, (self.lane, state.learner, state.memory, message)),
            "update": (self._update, (*learning, message, *self._counted())),
        }

    def _compile(
        self, function: Callable, axes: tuple, donate: tuple = (), out: Any = None
    ) -> Function:
        """Vmap a function of one lane over `axes`; `out` places results that leave the device."""
        name = function.__name__

        def traced(*args: Any) -> Any:
            self.traces[name] = self.traces.get(name, 0) + 1  # runs only while tracing
            self._reports[name] = report = kernels.Report()
            precision = jax.default_matmul_precision(MATMUL[self.config.precision])
            noting = kernels.reporting(report)
            with precision, replaced(self.table), noting, kernels.lanes(len(self.setups)):
                return jax.vmap(function, in_axes=axes)(*args)

        def works() -> bool:
            report = self._reports.get(name)
            return not (report and report.used and kernels.broken())

        traced.__name__ = name  # what profiles and compile logs show
        how = {"donate_argnums": donate, "out_shardings": out}
        return Function(traced, works, compiler_options=compiler_options(), **how)
