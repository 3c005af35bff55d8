"""Many lanes in one program. Everything else is written for one lane; here, and only here, the
leading lane axis is added with `jax.vmap` and the few functions that a run calls are compiled."""

import contextlib
import functools
import math
import operator
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.agents import AGENTS
from ace.engine import kernels, stored, transfer
from ace.engine.packing import SMALL, Packed, Packing
from ace.method.noise import noise_maps
from ace.method.types import Lane, LearnerState, PlanMemory, Transition
from ace.settings import keys
from ace.settings.config import Config, ConfigError, flatten

GPU_OPTIONS = {
    # Products by the vendor's library: a search for others takes most of the compilation.
    "xla_gpu_enable_triton_gemm": False,
    # No merging of products that share a matrix: their inputs would be copied together first.
    "xla_gpu_dot_merger_threshold_mb": 0,
    # Kernels that do not need each other run at the same time.
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
}
BLOCK = 64  # steps for which random actions are drawn at once
MATMUL = {"f32": "highest", "tf32": "default", "bf16": "default"}


class LaneSetup(NamedTuple):
    """One lane before stacking: what the user asked for and the sizes of its task."""

    task: str
    seed: int
    config: Config
    sizes: tuple[int, int]  # observation, action


class RunState(NamedTuple):
    """All that a run changes on the device, every leaf with a leading lane axis."""

    learner: Any  # a LearnerState, packed as long as the run goes on
    memory: Any  # a PlanMemory, packed too
    replay: replay.Replay


class Given(NamedTuple):
    """What the host tells the device in a step of one lane: one array, so one transfer."""

    obs: Any  # [O] to act on
    first: Any  # whether an episode begins with it
    agent_step: Any
    active: Any  # whether the lane learns
    action: Any  # [A] the last one, with what it led to before `obs`
    reward: Any
    terminated: Any
    done: Any
    final_obs: Any  # [O]


class Asked(NamedTuple):
    """What the host tells the device in a step of one episode of an evaluation."""

    obs: Any  # [O] to act on
    episode: Any  # of a lane, its number
    eval_step: Any  # of the episode
    agent_step: Any  # of the agent that is evaluated


def stack(trees: Sequence[Any]) -> Any:
    """One tree with a leading lane axis from many equal ones."""
    # Through NumPy: a weakly typed leaf would make every function compile a second time.
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def check_compatible(setups: Sequence[LaneSetup]) -> None:
    """Lanes of one program must agree in every setting that shapes it."""
    first = setups[0]
    structure = jax.tree.structure(first.config)
    for other in setups[1:]:
        if jax.tree.structure(other.config) == structure:
            continue
        a, b = flatten(first.config), flatten(other.config)
        names = [n for n in a if a[n] != b[n] and not _per_lane(first.config, n)]
        raise ConfigError(
            f"lanes {first.task} and {other.task} differ in {', '.join(names)}, which shapes the "
            "program; train them in separate runs or set the same value for both"
        )


def _per_lane(config: Config, name: str) -> bool:
    paths = jax.tree_util.tree_flatten_with_path(config)[0]
    return name in {".".join(str(k.name) for k in path) for path, _ in paths}


@functools.cache
def compiler_options() -> dict[str, Any]:
    """Those of our options that this machine's compiler knows."""
    return _known(GPU_OPTIONS) if jax.default_backend() == "gpu" else {}


def _known(options: dict[str, Any]) -> dict[str, Any]:
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(0.0).compile()
        return options
    except Exception:
        alone = [{name: options[name]} for name in options if len(options) > 1]
        return functools.reduce(operator.or_, map(_known, alone), {})


class Function:
    """A function over lanes: compiled when it is called first, or ahead of time."""

    def __init__(self, function: Callable, described: tuple, **how: Any):
        """`described` is all that it depends on besides the shapes of its arguments; if that is
        nothing, it is not known, and the function is not kept on disk."""
        self.function, self.described, self.how = function, described, how
        self.jitted = jax.jit(function, **how)
        self.lower, self.trace = self.jitted.lower, self.jitted.trace
        self.ready: Callable | None = None

    def __call__(self, *args: Any) -> Any:
        """The result for all lanes."""
        return (self.ready or self.jitted)(*args)

    def compile(self, stop: threading.Event, *args: Any) -> None:
        """Be ready for arguments of such shapes; traced functions are kept on disk."""
        jitted, file = self.jitted, self._file(args)
        if file:
            # What is loaded must be what was compiled before, so a new one takes the same way.
            with contextlib.suppress(Exception):
                traced = stored.load(file)
                if not traced:
                    traced = stored.trace(self.function, *args)
                    stored.save(file, traced)
                jitted = jax.jit(traced.function(self.function.__name__), **self.how)
        lowered = None if stop.is_set() else jitted.lower(*args)
        if lowered and not stop.is_set():
            self.ready = lowered.compile()

    def _file(self, args: tuple) -> Path | None:
        leaves, structure = jax.tree.flatten(args)
        shapes = [(x.shape, str(x.dtype)) for x in leaves]
        return stored.path(*self.described, str(structure), shapes) if self.described else None


def _compile_now(stop: threading.Event, *work: tuple[Function, tuple]) -> None:
    """Compile functions. An error will show again where one is used."""
    for function, args in work:
        with contextlib.suppress(Exception):
            function.compile(stop, *args)


class Program:
    """The compiled functions of a run; each is traced once."""

    def __init__(
        self, agent: str, setups: Sequence[LaneSetup], padded: tuple[int, int] | None = None
    ):
        """`padded` are observation and action sizes; the largest of the lanes if left out."""
        check_compatible(setups)
        self.agent_name, self.agent = agent, AGENTS[agent]
        self.setups = list(setups)
        self.config = setups[0].config  # for what all lanes share
        largest = (max(s.sizes[0] for s in setups), max(s.sizes[1] for s in setups))
        self.obs_size, self.action_size = padded or largest
        self.lanes = Packing(self.one_lane(setups[0]), math.inf)
        self.memories = Packing(self._new_memory(), math.inf)
        self.given = Packing(self._nothing(), math.inf)
        self.asked = Packing(self._ask_nothing(), math.inf)
        self.lane = jax.device_put(self.lanes.pack(stack([self.one_lane(s) for s in setups])))
        self.stop = threading.Event()  # to compile ahead
        self.traces: dict[str, int] = {}
        over, host = self._compile, transfer.memory("pinned_host")
        self.act = over(self._act, (0, 0, 0, 0), donate=(2,), out=(host, None))
        self.act_eval = over(self._act_eval, (0, 0, 0, 0), donate=(2,), out=(host, None))
        self.act_policy = over(self._act_policy, (0, 0, 0), out=host)
        self.act_seed = over(self._act_seed, (0, None))
        self.add = over(self._add, (0, 0), donate=(0,))
        self.drop = over(replay.drop, (0, 0), donate=(0,))
        self.copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
        self._inbox = transfer.Inbox(self.given.pack(self._no_given).small)
        self.update = over(self._update, (0, 0, 0, 0), donate=(1, 2), out=(None, None, host))

    def one_lane(self, setup: LaneSetup) -> Lane:
        """A lane by itself."""
        plan = setup.config.plan
        return Lane(
            seed=jnp.uint32(setup.seed),
            config=jax.tree.map(jnp.float32, setup.config),
            action_mask=jnp.arange(self.action_size) < setup.sizes[1],
            noise_map=jnp.asarray(noise_maps(plan.horizon, plan.noise_beta)),
        )

    def _compile(
        self, function: Callable, axes: tuple, donate: tuple = (), out: Any = None
    ) -> Function:
        """`out` says where results go that are not for the device."""
        name = function.__name__.removeprefix("_")

        def traced(*args: Any) -> Any:
            self.traces[name] = self.traces.get(name, 0) + 1  # runs only while tracing
            precision = jax.default_matmul_precision(MATMUL[self.config.precision])
            with precision, kernels.lanes(len(self.setups)):
                return jax.vmap(function, in_axes=axes)(*args)

        traced.__name__ = name  # what profiles and compile logs show
        options = compiler_options()
        settings = sorted(flatten(self.config).items())
        sizes = len(self.setups), self.obs_size, self.action_size
        fast = kernels.on_gpu(), kernels.fits(kernels.gru, kernels.gru.TILE, 128)
        known = self.agent.__name__.startswith("ace.")  # what another agent depends on is not
        described = (name, self.agent_name, settings, sizes, fast, options) if known else ()
        how = {"donate_argnums": donate, "out_shardings": out, "compiler_options": options}
        return Function(traced, described, **how)

    @functools.cached_property
    def _first_learner(self) -> LearnerState:
        return self._init_one(self.setups[0])

    @functools.cached_property
    def learners(self) -> Packing:
        """How a learner is packed."""
        of_all, of_one = SMALL
        return Packing(self._first_learner, min(of_all // len(self.setups), of_one))

    def init_learner(self) -> Packed:
        """Freshly initialised learners, drawn lane by lane."""
        rest = [self._init_one(s) for s in self.setups[1:]]
        return jax.device_put(self.learners.pack(stack([self._first_learner, *rest])))

    def _init_one(self, setup: LaneSetup) -> LearnerState:
        padded = (self.obs_size, self.action_size)
        return self.agent.init(setup.config, setup.seed, setup.sizes, padded)

    def init_memory(self, copies: int | None = None) -> Packed:
        """Planner memory per lane, or per lane and copy."""
        shape = (len(self.setups),) if copies is None else (len(self.setups), copies)
        memory = jax.tree.map(lambda x: np.broadcast_to(x, (*shape, *x.shape)), self._new_memory())
        return jax.device_put(self.memories.pack(memory))

    def _new_memory(self) -> PlanMemory:
        return jax.device_get(self.agent.init_memory(self.config, self.action_size))

    def _nothing(self, *lead: int) -> Given:
        obs, action = (
            np.zeros((*lead, self.obs_size), "f"),
            np.zeros((*lead, self.action_size), "f"),
        )
        number, flag = np.zeros(lead, "f"), np.zeros(lead, bool)
        return Given(obs, flag, np.zeros(lead, np.int32), flag, action, number, flag, flag, obs)

    @functools.cached_property
    def _no_given(self) -> Given:
        return self._nothing(len(self.setups))

    def give(self, agent_step: int, **what: np.ndarray) -> Packed:
        """Put on the device what a step needs, in the place of what was given last; what is not
        said is zero."""
        step = np.full(len(self.setups), agent_step, np.int32)
        packed = self.given.pack(self._no_given._replace(agent_step=step, **what))
        return packed._replace(small=self._inbox.put(packed.small))

    def _ask_nothing(self, *lead: int) -> Asked:
        count = np.zeros(lead, np.int32)
        return Asked(np.zeros((*lead, self.obs_size), "f"), count, count, count)

    def asking(self, episodes: int) -> Callable[[np.ndarray, int, int], Packed]:
        """A function that puts on the device what an evaluation of so many episodes a lane needs:
        observations [L, E, O], the number of the step, and that of the agent's step."""
        shape = len(self.setups), episodes
        numbers = np.broadcast_to(np.arange(episodes, dtype=np.int32), shape)
        inbox = transfer.Inbox(self.asked.pack(self._ask_nothing(*shape)).small)

        def ask(obs: np.ndarray, eval_step: int, agent_step: int) -> Packed:
            steps = (np.full(shape, n, np.int32) for n in (eval_step, agent_step))
            return Packed(inbox.put(self.asked.pack(Asked(obs, numbers, *steps)).small), ())

        return ask

    def init_state(self, obs: np.ndarray, capacity: int) -> RunState:
        """The state of a run whose first observations are `obs`."""
        return RunState(self.init_learner(), self.init_memory(), self.init_replay(obs, capacity))

    def learner_tree(self, learner: Packed) -> LearnerState:
        """A learner as it was before it was packed; large arrays stay where they are."""
        return self.learners.unpack(learner._replace(small=np.asarray(learner.small)))

    def unpack(self, state: RunState) -> RunState:
        """A run's state with learner and memory as trees."""
        memory = self.memories.unpack(jax.device_get(state.memory))
        return state._replace(learner=self.learner_tree(state.learner), memory=memory)

    def init_replay(self, obs: np.ndarray, capacity: int) -> replay.Replay:
        """An empty replay per lane that holds the first observation."""
        start = functools.partial(replay.init, capacity, action_size=self.action_size)
        return jax.jit(jax.vmap(lambda o: start(obs=o)))(jnp.asarray(obs))

    def compile_ahead(self, capacity: int) -> list[threading.Thread]:
        """Start to compile what a run will need, in background threads, which are returned.

        It may take a minute; making the learners and the random steps at the start of a run need
        none of it. Later calls find the finished programs, or wait for them.
        """
        lanes, episodes = len(self.setups), self.config.eval_episodes

        def like(tree: Any, *axes: int) -> Any:
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((*axes, *np.shape(x)), np.asarray(x).dtype), tree
            )

        lane, memory = like(self.lane), like(self.init_memory())
        learner = jax.eval_shape(self.learners.pack, like(self._first_learner, lanes))
        start = np.zeros((lanes, self.obs_size), np.float32)
        store = jax.eval_shape(lambda: self.init_replay(start, capacity))
        given = like(self.given.pack(self._no_given))
        asked = like(self.asked.pack(self._ask_nothing(lanes, episodes)))
        copies = like(self.init_memory(episodes))
        update = (self.update, (lane, learner, store, given))
        act = (self.act, (lane, learner, memory, given))
        act_eval = (self.act_eval, (lane, learner, copies, asked))
        act_policy = (self.act_policy, (lane, learner, asked))
        # No daemons: ending inside XLA would abort.
        first = [threading.Thread(target=_compile_now, args=(self.stop, w)) for w in (update, act)]

        def later() -> None:
            """Evaluation comes last, and Python traces one function at a time."""
            for thread in first:
                thread.join()
            _compile_now(self.stop, act_eval, act_policy)

        for thread in (threads := [*first, threading.Thread(target=later)]):
            thread.start()
        return threads

    def _act(self, lane: Packed, learner: Packed, memory: Packed, packed: Packed):
        """Plan from an observation; the memory is forgotten where it is an episode's first."""
        x: Given = self.given.unpack(packed)
        one: Lane = self.lanes.unpack(lane)
        key = keys.key(one.seed, "plan", x.agent_step)
        given = x.obs, x.first, x.agent_step
        return self._plan(one, learner, memory, *given, key, train=True)

    def _plan(self, lane: Lane, learner: Packed, memory: Packed, *given: Any, train: bool):
        learned, kept = self.learners.unpack(learner), self.memories.unpack(memory)
        action, kept = self.agent.act(lane, learned, kept, *given, train=train)
        return action, self.memories.pack(kept)

    def _act_eval(self, lane: Packed, learner: Packed, memory: Packed, asked: Packed):
        """Plan for a lane's evaluation episodes."""
        one: Lane = self.lanes.unpack(lane)

        def plan(memory: Packed, packed: Packed):
            x: Asked = self.asked.unpack(packed)
            key = jax.random.fold_in(keys.key(one.seed, "eval_plan", x.agent_step), x.eval_step)
            given = x.obs, x.eval_step == 0, x.agent_step, jax.random.fold_in(key, x.episode)
            return self._plan(one, learner, memory, *given, train=False)

        return jax.vmap(plan)(memory, asked)

    def _act_policy(self, lane: Packed, learner: Packed, asked: Packed) -> jax.Array:
        obs = self.asked.unpack(asked).obs
        return self.agent.act_policy(self.lanes.unpack(lane), self.learners.unpack(learner), obs)

    def _act_seed(self, lane: Packed, agent_step: jax.Array) -> jax.Array:
        """Uniform random actions [BLOCK, A], from a step on."""
        one: Lane = self.lanes.unpack(lane)

        def draw(step: jax.Array) -> jax.Array:
            key = keys.key(one.seed, "seed_action", step)
            shape = one.action_mask.shape
            return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) * one.action_mask

        return jax.vmap(draw)(agent_step + jnp.arange(BLOCK))

    def _add(self, store: replay.Replay, given: Packed) -> replay.Replay:
        x: Given = self.given.unpack(given)
        step = Transition(x.action, x.reward, x.terminated, x.done, x.final_obs, x.obs)
        return replay.add(store, step, self.config.plan.horizon)

    def _update(
        self, lane: Packed, learner: Packed, store: replay.Replay, given: Packed
    ) -> tuple[Packed, replay.Replay, jax.Array]:
        """One update; the metrics come as one array, in the order of the agent's `METRICS`."""
        x: Given = self.given.unpack(given)
        one, learned = self.lanes.unpack(lane), self.learners.unpack(learner)
        learned, store, metrics = self.agent.update(one, learned, store, x.agent_step, x.active)
        row = jnp.stack([metrics[name] for name in self.agent.METRICS])
        return self.learners.pack(learned), store, row
