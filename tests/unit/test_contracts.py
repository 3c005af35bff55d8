"""What a second agent or planner would have met: agents with names, types, memories and metrics of
their own, run by the engine as they are."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (NumPy arrays are as good as JAX's here.)

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from ace import replay
from ace.agents import AGENTS, Agent
from ace.agents import register as register_agent
from ace.engine import fused
from ace.engine.kernels import common
from ace.engine.lanes import LaneSetup
from ace.engine.packing import Packing
from ace.engine.program import Program
from ace.method import losses, nets
from ace.method.replaceable import replaced
from ace.method.types import Transition
from ace.planners import PLANNERS, Planner
from ace.planners import register as register_planner
from ace.run import checkpoint
from ace.run.agent_file import check_arrays
from ace.settings import keys
from ace.settings.config import Config, ConfigError, replace
from tests.agents.small import sample

OBS, A, LANES, EPISODES = 3, 2, 2, 2
SMALL = replace(
    Config(),
    {
        "precision": "f32",
        "eval_episodes": EPISODES,
        "net.latent": 4,
        "net.mlp": 8,
        "net.encoder": 8,
        "net.belief": 4,
        "plan.horizon": 2,
        "plan.iterations": 1,
        "plan.population": 4,
        "plan.elites": 2,
        "learn.batch": 4,
    },
)


# A toy agent: a linear policy that is pulled towards the actions that were stored.


def toy_init(config: Config, seed: int, sizes: tuple[int, int]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"w": rng.standard_normal(sizes).astype("f"), "count": np.int32(0)}


def toy_pad(config: Config, state: dict[str, Any], sizes: tuple[int, int]) -> dict[str, Any]:
    more = [(0, new - old) for new, old in zip(sizes, state["w"].shape, strict=True)]
    return state | {"w": np.pad(state["w"], more)}


def toy_act(lane, acting, memory, obs, first, agent_step, key, train) -> tuple[Any, Any]:
    return jnp.tanh(obs @ acting["w"]) * lane.action_mask, memory


def toy_update(lane, state, store, agent_step, active) -> tuple[Any, Any, dict[str, Any]]:
    config = lane.config
    key = keys.key(lane.seed, "update", state["count"])
    batch = replay.sample(store, config.replay, key, config.learn.batch, 1)
    pull = jnp.einsum("bo,ba->oa", batch.obs[0], batch.action[0])
    new = {"w": state["w"] + 0.1 * pull, "count": state["count"] + 1}
    state = jax.tree.map(lambda a, b: jnp.where(active, a, b), new, state)
    priority = jnp.ones(config.learn.batch)
    return state, replay.set_priorities(store, config.replay, batch.index, priority, active), {}


TOY = Agent(init=toy_init, pad=toy_pad, act=toy_act, update=toy_update, metrics=())


def program_of(monkeypatch, agent: Agent | str = TOY, config: Config = SMALL) -> Program:
    name = agent if isinstance(agent, str) else "toy"
    if isinstance(agent, Agent):
        monkeypatch.setitem(AGENTS, "toy", None)  # taken out again after the test
        register_agent("toy", agent)
    return Program(name, [LaneSetup("probe/action", s, config, (OBS, A)) for s in range(LANES)])


def observations(*lead: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*lead, OBS)).astype("f")


def transition(done: bool = False) -> Transition:
    rng = np.random.default_rng(7)
    flag = np.full(LANES, done)
    return Transition(
        action=rng.uniform(-1, 1, (LANES, A)).astype("f"),
        reward=np.ones(LANES, "f"),
        terminated=np.zeros(LANES, bool),
        done=flag,
        final_obs=observations(LANES, seed=8),
        obs=observations(LANES, seed=9),
    )


def step(program: Program, state: Any, done: bool = False, count: int = 1) -> Any:
    """The state after a stored transition of every lane and an update."""
    for _ in range(count):
        made = transition(done)
        active = np.ones(LANES, bool)
        program.send(6_000, made.obs, active=active, transition=made)
        state = program.add(state)
    state, metrics = program.update(state)
    return state, np.asarray(metrics)


# Names


@pytest.mark.parametrize("kernels", ["auto", "off"])
def test_parameters_of_an_agent_are_not_touched_by_their_names(monkeypatch, kernels: str) -> None:
    """`nets.cast` used to pad `value.in.w`, `encoder.out.w` and others to round sizes on a GPU, by
    these names and for every agent that called it: one with such leaves of its own got others."""
    monkeypatch.setattr(common, "INTERPRET", True)
    made = np.random.default_rng(0)
    own = {
        "value": {"in": {"w": made.standard_normal((OBS, 5)).astype("f")}},
        "encoder": {"out": {"w": made.standard_normal((5, A)).astype("f"), "b": np.ones(A, "f")}},
        "cell": {"wi": np.ones((7, 11), "f"), "wh": np.ones((3, 9), "f")},
    }
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), own)
    seen = []

    def act(lane, acting, memory, obs, first, agent_step, key, train):
        acting = nets.cast(acting, jnp.float32, {})  # a table that names nothing
        seen.append(jax.tree.map(lambda x: (x.shape, x.dtype), acting))
        hidden = nets.linear({"w": acting["value"]["in"]["w"], "b": jnp.zeros(5)}, obs)
        return nets.linear(acting["encoder"]["out"], hidden), memory

    def update(lane, state, store, agent_step, active):
        cast = nets.cast(state, jnp.float32, {})
        seen.append(jax.tree.map(lambda x: (x.shape, x.dtype), cast))
        return jax.tree.map(lambda x: x + 1, state), store, {}

    mine = Agent(
        init=lambda config, seed, sizes: own,
        pad=lambda config, state, sizes: state,
        act=act,
        update=update,
        metrics=(),
    )
    program = program_of(monkeypatch, mine, replace(SMALL, {"kernels": kernels}))
    assert program.table == (fused.TABLE if kernels == "auto" else {})
    obs = observations(LANES)
    state = program.init_state(obs, 8)
    program.send(0, obs)
    action, state = program.act(state)
    wanted = obs @ own["value"]["in"]["w"] @ own["encoder"]["out"]["w"] + 1
    np.testing.assert_allclose(action, wanted, rtol=1e-5, atol=1e-5)
    state, _ = step(program, state)
    assert seen == [shapes, shapes]
    after = state.learner
    for old, new in zip(jax.tree.leaves(own), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(new, np.stack([old + 1] * LANES))


def test_a_cast_pads_what_a_table_names_and_nothing_else() -> None:
    """The padding went by fixed names; now the agent's own table of axes says what is a latent."""
    rng = np.random.default_rng(0)
    params = {
        name: {"w": rng.standard_normal((6, 50)).astype("f"), "b": np.ones(50, "f")}
        for name in ("value", "encoder", "mine")
    }
    axes = {("mine", "w"): (-1, (("latent", 50),)), ("mine", "b"): (-1, (("latent", 50),))}
    with replaced(fused.TABLE):
        cast = nets.cast(params, jnp.float32, axes)
    assert cast["mine"]["w"].shape == (6, 64) and cast["mine"]["b"].shape == (64,)
    np.testing.assert_array_equal(cast["mine"]["w"][:, :50], params["mine"]["w"])
    assert not np.any(cast["mine"]["w"][:, 50:])
    for name in ("value", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, cast[name], params[name])
    plain = nets.cast(params, jnp.float32, axes)
    jax.tree.map(np.testing.assert_array_equal, plain, params)


# Memory, metrics, segments


@pytest.fixture
def toy(monkeypatch) -> tuple[Program, Any]:
    program = program_of(monkeypatch)
    return program, program.init_state(observations(LANES), 16)


def test_an_agent_without_a_memory_acts_and_is_evaluated(toy) -> None:
    """Packing an empty tree joined no arrays at all, which NumPy and JAX refuse."""
    program, state = toy
    w, obs = state.learner["w"], observations(LANES, seed=1)
    program.send(0, obs, first=np.ones(LANES, bool))
    action, state = program.act(state)
    np.testing.assert_allclose(action, np.tanh(np.einsum("lo,loa->la", obs, w)), atol=1e-6)
    assert state.memory == ()
    player = program.player("agent", EPISODES)
    player.begin(program.acting(state), 0)
    for count in range(2):
        obs = observations(LANES, EPISODES, seed=count)
        action = player.act(obs, count)
        wanted = np.tanh(np.einsum("leo,loa->lea", obs, w))
        np.testing.assert_allclose(action, wanted, atol=1e-6)
    learner, none, more = state.fetch(np.arange(3))
    assert none == () and len(more) == 3
    again = program.put_state(state.trees())
    np.testing.assert_array_equal(again.learner["w"], learner["w"])


def test_an_agent_without_metrics_learns(toy) -> None:
    """The loop read `skipped_updates` of every agent, and no metrics could not be stacked."""
    program, state = toy
    state, metrics = step(program, state)
    assert metrics.shape == (LANES, 0) and not program.traced
    program.act(state)
    assert program.traced  # both functions of a step: their kernels are known
    assert state.learner["count"].tolist() == [1] * LANES
    made = transition()
    pull = np.einsum("lo,la->loa", observations(LANES), made.action)
    old = np.stack([toy_init(SMALL, s, (OBS, A))["w"] for s in range(LANES)])
    np.testing.assert_allclose(state.learner["w"], old + 0.1 * 4 * pull, atol=1e-5)


def test_metrics_come_in_the_order_of_their_names(monkeypatch) -> None:
    def update(*args):
        state, store, _ = toy_update(*args)
        return state, store, {"one": jnp.int32(1), "two": jnp.bfloat16(2), "unnamed": 3.0}

    program = program_of(
        monkeypatch, dataclasses.replace(TOY, update=update, metrics=("two", "one"))
    )
    _, metrics = step(program, program.init_state(observations(LANES), 16))
    assert metrics.dtype == np.float32 and metrics.tolist() == [[2.0, 1.0]] * LANES


def test_a_transition_is_stored_once_and_never_lost(toy) -> None:
    program, state = toy
    made = transition(done=False)
    program.send(0, made.obs)
    assert program.add(state) is state  # an observation came, and no transition with it
    program.send(1, made.obs, transition=made)
    with pytest.raises(RuntimeError, match="not stored"):
        program.send(2, made.obs)
    for _ in range(2):
        state = program.add(state)
        assert state.replay.cursor.tolist() == [1] * LANES
    program.send(2, made.obs)


def test_a_lane_that_is_not_active_stays_as_it_is(toy) -> None:
    program, state = toy
    before = jax.tree.map(np.array, state.learner)
    made = transition()
    program.send(0, made.obs, active=np.array([True, False]), transition=made)
    state, _ = program.update(program.add(state))
    after = state.learner
    assert after["count"].tolist() == [1, 0] and np.any(after["w"][0] != before["w"][0])
    np.testing.assert_array_equal(after["w"][1], before["w"][1])


def test_a_lane_without_a_segment_stays_as_it_is(toy) -> None:
    """Every agent had to look for itself: one that did not learned from a batch of nothing, here
    from zeros, after a fault had dropped all that its lane had stored."""
    program, state = toy
    made = transition()
    program.send(0, made.obs, active=np.ones(LANES, bool), transition=made)
    state = program.drop(program.add(state), np.array([True, False]))
    before = jax.tree.map(np.array, state.learner)
    state, _ = program.update(state)
    assert state.learner["count"].tolist() == [0, 1]
    np.testing.assert_array_equal(state.learner["w"][0], before["w"][0])


@pytest.mark.parametrize("done", [False, True])
def test_segments_of_one_step(toy, done: bool) -> None:
    """The length was the planner's horizon for every agent: here a start would come a step late,
    and the last step of an episode would be a segment with masked steps."""
    program, state = toy
    assert TOY.segment(SMALL) == 1
    state, _ = step(program, state, done, count=3)
    for lane in range(LANES):
        store = jax.tree.map(lambda x, lane=lane: x[lane], state.replay)
        slots = [0, 2, 4] if done else [0, 1, 2]
        assert np.flatnonzero(np.asarray(store.tree.sums[0])).tolist() == slots
        batch = sample(store, SMALL.replay, jax.random.key(0), 32, 1)
        assert batch.obs.shape == (2, 32, OBS) and batch.action.shape == (1, 32, A)
        assert np.all(batch.mask == 1) and set(np.asarray(batch.index).tolist()) == set(slots)
        made = transition(done)
        after = made.final_obs if done else made.obs
        for k in range(32):
            first = batch.index[k] == 0
            here = observations(LANES)[lane] if first else made.obs[lane]
            np.testing.assert_array_equal(batch.obs[0, k], here)
            np.testing.assert_array_equal(batch.obs[1, k], after[lane])
            np.testing.assert_array_equal(batch.action[0, k], made.action[lane])


# Types


KINDS = (np.int8, np.uint8, np.float16, ml_dtypes.bfloat16, np.bool_, np.int16, np.int32, np.uint32)


def odd_tree(*lead: int) -> dict[str, np.ndarray]:
    """Leaves of every type with all kinds of bits, numbers that are none among them."""
    rng = np.random.default_rng(0)
    made = {}
    for kind in map(np.dtype, KINDS):
        for shape in ((), (3,), (5, 7), (0, 2)):
            x = rng.integers(0, 256, (*lead, *shape, kind.itemsize), dtype=np.uint8)
            x = (x > 127) if kind.kind == "b" else x.view(kind)
            made[f"{kind.name}{len(shape)}{0 in shape}"] = x.reshape((*lead, *shape))
    return made


def equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name, x in a.items():
        y = np.asarray(b[name])
        assert (x.shape, x.dtype) == (y.shape, y.dtype) and x.tobytes() == y.tobytes(), name


@pytest.mark.parametrize("small", [np.inf, 10, 0])
def test_states_of_any_type_come_back_bit_for_bit(small: float) -> None:
    """All numbers were taken for 32 bits: NumPy joined several of 8 or 16 into one, or refused."""
    packing, tree = Packing(odd_tree(), small), odd_tree(2)
    equal(tree, packing.unpack(packing.pack(tree)))
    packed = jax.jit(jax.vmap(packing.pack))(tree)
    equal(tree, jax.jit(jax.vmap(packing.unpack))(packed))
    equal(tree, packing.unpack(jax.device_get(packed)))
    equal(tree, jax.jit(jax.vmap(packing.unpack))(packing.pack(tree)))


@pytest.mark.parametrize("kind", [*KINDS, np.int64, np.float64])
def test_arrays_of_any_type_come_back_from_a_file(tmp_path, kind: Any) -> None:
    """safetensors writes bfloat16 and does not read it: such a run could not be resumed."""
    arrays = {"x": np.arange(6).reshape(2, 3).astype(kind), "one": np.ones((), kind)}
    path = tmp_path / "arrays.safetensors"
    checkpoint.write_arrays(path, arrays)
    equal(arrays, checkpoint.read_arrays(path, 1000))


@pytest.mark.parametrize(
    "kind", [np.float64, np.int64, np.uint64, np.complex64, ml_dtypes.float8_e5m2]
)
def test_types_that_a_program_cannot_hold_are_refused(kind: Any) -> None:
    """Numbers of 64 bits were taken for twice as many of 32: an error about lanes came later."""
    with pytest.raises(ConfigError, match=f"array 'x.y' .* is {np.dtype(kind).name}; it must be"):
        Packing({"x": {"y": np.zeros(3, kind)}}, np.inf)


def test_python_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="array 'x' of the agent is int64"):
        Packing({"x": 1}, np.inf)


def test_an_agent_with_states_of_any_type(monkeypatch) -> None:
    def init(config, seed, sizes):
        return toy_init(config, seed, sizes) | {"odd": odd_tree()}

    def update(lane, state, *rest):
        rest_of_it = {name: x for name, x in state.items() if name != "odd"}
        new, store, metrics = toy_update(lane, rest_of_it, *rest)
        return new | {"odd": state["odd"]}, store, metrics

    mine = dataclasses.replace(TOY, init=init, update=update)
    program = program_of(monkeypatch, mine)
    state, _ = step(program, program.init_state(observations(LANES), 16))
    found = state.learner["odd"]
    equal({name: np.stack([x] * LANES) for name, x in odd_tree().items()}, found)


def test_an_agent_with_a_state_of_64_bits_is_refused(monkeypatch) -> None:
    mine = dataclasses.replace(TOY, init=lambda *a: toy_init(*a) | {"x": np.zeros(2)})
    program = program_of(monkeypatch, mine)
    with pytest.raises(ConfigError, match="float64"):
        program.check_types()


@pytest.mark.parametrize(
    "more, told",
    [
        ({"w.x": np.zeros(2, "f"), "w": {"x": np.zeros(2, "f")}}, "saved as 'learner.w.x'"),
        ({"agent_step": np.int32(0)}, "rename the agent's array"),
    ],
)
def test_arrays_whose_names_collide_in_a_file_are_refused(monkeypatch, more: Any, told: str):
    """One of them was lost: the run ended well and could be neither resumed nor evaluated."""
    mine = dataclasses.replace(TOY, init=lambda *a: toy_init(*a) | more)
    mine = dataclasses.replace(mine, pad=lambda config, state, sizes: state)
    program = program_of(monkeypatch, mine)
    with pytest.raises(ConfigError, match=told):
        check_arrays(program, 16)


@pytest.mark.parametrize(
    "name, more, told",
    [
        ("a b", {}, "letters, digits, _ and -"),
        ("plan", {"settings": Config}, "--plan are common ones already"),
        ("toy", {"metrics": ("loss", "q", "loss")}, "has the metric 'loss'"),
        ("toy", {"metrics": ("my loss",)}, "has the metric 'my loss'"),
        ("toy", {"plays": ()}, r"plays \(\) in evaluations"),
        ("toy", {"plays": ("planner",)}, "give .'agent',., .'policy',. or both"),
        ("toy", {"plays": ("policy",)}, "no act_policy; give it one"),
    ],
)
def test_an_agent_that_cannot_run_is_refused_when_it_is_registered(name, more, told) -> None:
    with pytest.raises(ConfigError, match=told):
        register_agent(name, dataclasses.replace(TOY, **more))
    assert name not in AGENTS


@pytest.mark.parametrize("state", [(), {"count": np.int32(0)}])
def test_an_agent_that_needs_nothing_to_act(monkeypatch, state: Any) -> None:
    """Without an array there was no axis of lanes to map over."""
    mine = Agent(
        init=lambda config, seed, sizes: state,
        pad=lambda config, state, sizes: state,
        act=lambda lane, acting, memory, *rest: (jnp.ones(A) * lane.action_mask, memory),
        update=lambda lane, state, store, agent_step, active: (state, store, {}),
        metrics=(),
        acting_part=lambda state: (),
    )
    program = program_of(monkeypatch, mine)
    check_arrays(program, 16)
    begun = program.init_state(observations(LANES), 16)
    begun, _ = step(program, begun)
    program.send(1, observations(LANES))
    action, begun = program.act(begun)
    np.testing.assert_array_equal(action, np.ones((LANES, A)))
    player = program.player("agent", EPISODES)
    player.begin(program.acting(begun), 0)
    action = player.act(observations(LANES, EPISODES), 0)
    np.testing.assert_array_equal(action, np.ones((LANES, EPISODES, A)))


# What is registered or patched in the running process is what runs


def constant(value: float) -> Planner:
    def plan(config, score, proposals, memory, x, key, train):
        return jnp.full(x.mask.shape, value) * x.mask, memory

    return Planner(
        init=lambda config, size: (), plan=plan, proposals=lambda config: 0, calls=lambda config: ()
    )


def test_a_planner_registered_anew_is_what_the_next_program_uses(monkeypatch) -> None:
    """Traced functions were kept on disk, found again by the package's code and the settings: the
    second planner of a name, which is neither, would have got the first one's program."""
    monkeypatch.setitem(PLANNERS, "mine", None)  # taken out again after the test
    config, obs = replace(SMALL, {"plan.planner": "mine"}), observations(LANES)
    programs, states = [], []
    for value in (0.25, -0.5):
        register_planner("mine", constant(value))
        program = program_of(monkeypatch, "ace", config)
        program.send(0, obs)
        action, state = program.act(program.init_state(obs, 16))
        np.testing.assert_array_equal(action, np.full((LANES, A), value, "f"))
        programs.append(program)
        states.append(state)
    programs[0].send(1, obs)
    again, _ = programs[0].act(states[0])
    np.testing.assert_array_equal(again, np.full((LANES, A), 0.25, "f"))


def test_a_patched_loss_is_what_the_next_program_learns_from(monkeypatch) -> None:
    """For the same reason: the update on disk would have been the one before the patch."""

    def update(lane, state, store, agent_step, active):
        """Learn the mean reward by the method's loss."""
        key = keys.key(lane.seed, "update", state["count"])
        batch = replay.sample(store, lane.config.replay, key, lane.config.learn.batch, 1)

        def loss(w):
            return losses.reward(jnp.full_like(batch.reward, w.sum()), batch.reward, batch.mask)

        gradient = jax.grad(lambda w: loss(w).mean())(state["w"])
        new = {"w": state["w"] - gradient, "count": state["count"] + 1}
        return new, store, {"loss": loss(state["w"]).mean()}

    mine = dataclasses.replace(TOY, update=update, metrics=("loss",))

    def learned() -> tuple[float, np.ndarray]:
        program = program_of(monkeypatch, mine)
        before = program.init_state(observations(LANES), 16)
        old = np.array(before.learner["w"])
        state, metrics = step(program, before, count=3)
        return float(metrics[0, 0]), state.learner["w"] - old

    one_step = {"plan.horizon": 1, "plan.horizon_ramp.start": 1.0}  # an update is traced by steps

    def trace() -> None:
        """Trace the update of the method itself, which need not be compiled to see what it asks."""
        program = program_of(monkeypatch, "ace", replace(SMALL, one_step))
        state, obs = program.init_state(observations(LANES), 16), observations(LANES)
        program.send(0, obs)
        function, args = program.parts(state)["update"]
        function.jitted.trace(*args)

    loss, change = learned()
    trace()
    assert loss > 0 and np.all(change != 0)
    honest, asked = losses.reward, []

    def other_loss(*args):
        asked.append(1)
        return 3.0 * honest(*args)

    monkeypatch.setattr(losses, "reward", other_loss)
    patched, other = learned()
    np.testing.assert_allclose(patched, 3 * loss, rtol=1e-5)
    np.testing.assert_allclose(other, 3 * change, rtol=1e-4)
    asked.clear()
    trace()
    assert asked
