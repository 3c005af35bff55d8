"""A lane in a crowd computes what it computes alone, padded or not. Compared after a few steps:
rounding differs between batched and single products, and training amplifies it later."""

import jax
import numpy as np
import pytest

from ace.engine import one_lane
from ace.engine.lanes import LaneSetup, check_compatible
from ace.engine.program import Program, RunState, Trees
from ace.engine.resources import replay_capacity
from ace.envs import get_spec
from ace.envs.api import StepResult
from ace.method.types import Transition
from ace.run import evaluate
from ace.settings.config import Config, ConfigError, replace
from ace.settings.presets import resolve
from tests.run.helpers import SHORT, leaves

CONFIG = replace(resolve("debug", "probe/point", get_spec("probe/point")), SHORT)
OTHER = replace(CONFIG, {"learn.td_lambda": 0.9, "plan.noise_beta": 0.5})
# Two lanes, the larger of this size, share their functions with the runs of `PAIR`.
SMALL, LARGE = (1, 1), (2, 2)
# A bias before a batch norm has no gradient but rounding, which Adam blows up to full steps; the
# norm takes it out again.
SHADOWED = ("['projector']['in']['b']", "['predictor']['in']['b']")


def setup(seed: int, sizes: tuple[int, int], config: Config = CONFIG) -> LaneSetup:
    return LaneSetup("made up", seed, config, sizes)


def drive(setups: list[LaneSetup]) -> tuple[list[np.ndarray], Program, RunState]:
    """Plans on made-up transitions that depend on the lane's seed alone, then one update."""
    program = Program("ace", setups)
    rngs = [np.random.default_rng(s.seed) for s in setups]

    def observe() -> np.ndarray:
        rows = [rng.standard_normal(s.sizes[0]) for rng, s in zip(rngs, setups, strict=True)]
        return np.stack([np.pad(r, (0, program.obs_size - r.size)) for r in rows])

    obs, first = observe().astype(np.float32), np.ones(len(setups), bool)
    capacity = replay_capacity([LaneSetup("probe/long", 0, CONFIG, LARGE)])
    trees = jax.device_get(program.init_state(obs, capacity).trees())
    for head in ("reward", "value"):  # they start at zero, and every plan would be worth the same
        out = trees.learner.params[head]["out"]
        out["w"] = np.stack([r.standard_normal(out["w"].shape[1:]).astype("f") for r in rngs])
    state, actions = program.put_state(trees), []
    for i in range(12):
        program.send(60 + i, obs, first)
        action, state = program.act(state)
        actions.append(np.asarray(action))
        done = np.full(len(setups), i % 5 == 4)
        obs, final = observe(), observe()
        obs, first = np.where(done[:, None], obs, final).astype(np.float32), done
        reward = np.array([rng.standard_normal() for rng in rngs], np.float32)
        step = Transition(actions[-1], reward, done, done, final.astype(np.float32), obs)
        program.send(60 + i, obs, transition=step)
        state = program.add(state)
    program.send(71, obs, active=np.ones(len(setups), bool))
    state, _ = program.update(state)
    return actions, program, state


@pytest.fixture(scope="module")
def crowd():
    """Two lanes, the second smaller than the program and with other settings: what they did, their
    states after it, and after one more update in which only the first is active."""
    actions, program, state = drive([setup(3, LARGE), setup(4, SMALL, OTHER)])
    trees = jax.tree.map(np.copy, state.trees())
    program.send(72, np.ones((2, 2), np.float32), active=np.array([True, False]))
    return actions, trees, program.update(state)[0].trees()


def check_lane(crowd, lane: int, other: list[np.ndarray], state: Trees, place: int) -> None:
    """A lane of the crowd did and learned what lane `place` of another program did, which may have
    no padding."""
    actions, together = crowd[0], leaves(crowd[1])
    size = (LARGE, SMALL)[lane][1]
    for a, b in zip(actions, other, strict=True):
        np.testing.assert_allclose(a[lane, :size], b[place, :size], atol=1e-5)
        assert not a[lane, size:].any()
    for name, leaf in leaves(state).items():
        if name.endswith(SHADOWED):
            continue
        real = tuple(slice(n) for n in leaf[place].shape)
        np.testing.assert_allclose(
            together[name][lane][real], leaf[place], rtol=1e-3, atol=1e-5, err_msg=name
        )
        rest = np.array(together[name][lane])
        rest[real] = 0
        assert not rest.any(), name  # padding never learns


def test_a_lane_in_a_crowd_equals_the_lane_alone(crowd):
    """The one that is padded, and has settings of its own."""
    actions, _, state = drive([setup(4, SMALL, OTHER)])
    check_lane(crowd, 1, actions, state.trees(), 0)


@pytest.mark.parametrize("lane", [0, 1])
def test_a_lane_does_the_same_at_another_place_and_beside_another(crowd, lane: int):
    if lane == 0:
        setups = [setup(9, LARGE, OTHER), setup(3, LARGE)]
    else:
        setups = [setup(4, SMALL, OTHER), setup(9, LARGE)]
    actions, _, state = drive(setups)
    check_lane(crowd, lane, actions, state.trees(), 1 - lane)


def test_lanes_differ_by_seed(crowd):
    params = leaves(crowd[1].learner.params)
    for name, (one, other) in ((n, x) for n, x in params.items() if x.ndim > 2):
        assert np.any(one[other != 0] != other[other != 0]), name  # the rest may be padding


def test_an_inactive_lane_stays_as_it_is(crowd):
    before, after = leaves(crowd[1]), leaves(crowd[2])
    assert all(np.array_equal(before[n][1], after[n][1]) for n in before)
    learned = [n for n in before if not np.array_equal(before[n][0], after[n][0])]
    assert any("params" in n for n in learned)


def test_lanes_that_shape_the_program_differently_are_refused():
    other = replace(CONFIG, {"plan.horizon": 3, "learn.td_lambda": 0.1})
    with pytest.raises(ConfigError, match=r"differ in plan\.horizon, which"):
        check_compatible([setup(0, SMALL), setup(1, SMALL, other)])


class Film:
    """An environment of two steps that can be drawn."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.left = 2

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros(SMALL[0], np.float32)

    def render(self) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)

    def step(self, action: np.ndarray) -> StepResult:
        assert action.shape == (1,)
        self.left -= 1
        return StepResult(np.ones(SMALL[0], np.float32), 0.0, False, self.left == 0)

    def close(self) -> None:
        pass


def test_one_of_several_lanes_can_be_filmed(monkeypatch):
    # Some leaves are small alone and large with others.
    monkeypatch.setattr(one_lane, "SMALL", (60, 60))
    monkeypatch.setattr(evaluate, "make", Film)
    program = Program("ace", [setup(0, SMALL), setup(1, LARGE)])
    acting = program.acting(program.init_state(np.zeros((2, LARGE[0]), np.float32), 64))
    assert len(evaluate.film(program, acting, 100)) == 2
