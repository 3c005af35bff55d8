"""SR-SAC begins anew at the right updates, from numbers that follow from seed and count. Runs with
many updates a step do not depend on how calls group them, and go on after a break."""

import csv
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace import cli
from ace.agents import AGENTS, sac
from ace.agents.sac import SacState, SrsacConfig
from ace.method.types import Lane
from ace.run.loop import train
from ace.run.request import open_run
from ace.settings.config import Config, replace
from tests.agents.small import ACTION, OBS, SIZES, check_crowd
from tests.agents.test_sac import filled
from tests.run.helpers import broken_off, leaves, same, small_run

EVERY = 3
SMALL = replace(
    Config(own=SrsacConfig()),
    dict(sac.SRSAC.defaults)
    | {"net.mlp": 8, "learn.batch": 5, "own.reset_every": EVERY, "learn.learning_rate": 0.01},
)
update, anew = jax.jit(sac.update), jax.jit(sac.anew)


def lane_of(config: Config = SMALL, seed: int = 0, sizes: tuple[int, int] = SIZES) -> Lane:
    numbers = jax.tree.map(jnp.float32, config)
    masks = jnp.arange(sizes[1]) < ACTION, jnp.arange(sizes[0]) < OBS
    return Lane(jnp.uint32(seed), numbers, masks[0], (), masks[1])


def fresh(config: Config = SMALL, seed: int = 0) -> SacState:
    return sac.init(config, seed, SIZES)


def test_it_begins_anew_at_the_right_updates() -> None:
    """An update after a reset is that of an agent with new parameters and empty optimisers; all
    others are those of an agent without resets. Replay and counters go on."""
    never = lane_of(replace(SMALL, {"own.reset_every": 0}))
    state, store = fresh(), filled()
    for i in range(2 * EVERY + 2):
        before = state
        if i in (EVERY, 2 * EVERY):
            params = anew(lane_of(), jnp.int32(i // EVERY))
            empty = jax.tree.map(jnp.zeros_like, state.opt)
            before = SacState(
                params, {"critics": params["critics"]}, empty, state.update_step, state.skipped
            )
        wanted = update(never, before, store, 0, True)
        state, store, metrics = update(lane_of(), state, store, 0, True)
        assert metrics["resets"] == i // EVERY
        for name, x in leaves(wanted[:2]).items():
            np.testing.assert_allclose(leaves((state, store))[name], x, rtol=1e-4, atol=1e-6)
        assert int(state.opt[0][1].count) == i % EVERY + 1 and int(state.update_step) == i + 1
    np.testing.assert_array_equal(store.obs, filled().obs)


def test_a_lane_that_is_not_active_does_not_begin_anew() -> None:
    state = fresh()._replace(update_step=np.int32(EVERY))
    after = update(lane_of(), state, filled(), 0, False)[0]
    for name, x in leaves(state).items():
        np.testing.assert_array_equal(leaves(after)[name], x, err_msg=name)


@pytest.mark.parametrize("width", [4, 8])  # fewer and more than the inputs
def test_new_parameters_are_orthogonal(width: int) -> None:
    lane = lane_of(replace(SMALL, {"net.mlp": width}))
    params = jax.device_get(anew(lane, jnp.int32(1)))
    like = sac.init(lane.config, 0, SIZES).params
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, like)
    critics, policy = params["critics"], params["policy"]
    first = np.concatenate([critics["obs"]["w"], critics["action"]["w"]], 1)
    heads = np.concatenate([policy["mean"]["w"] / np.sqrt(2), policy["log_std"]["w"]], 1)
    for w in (*first, *critics["mid"]["w"], *critics["out"]["w"], policy["in"]["w"]):
        square = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        np.testing.assert_allclose(square, 2 * np.eye(len(square)), atol=1e-4)
    square = heads.T @ heads if width >= 2 * ACTION else heads @ heads.T
    np.testing.assert_allclose(square, np.eye(len(square)), atol=1e-4)
    assert all(np.all(x == 0) for name, x in leaves(params).items() if name.endswith("['b']"))
    assert params["temperature"]["log"] == 0  # it begins at 1
    assert np.abs(critics["mid"]["w"][0] - critics["mid"]["w"][1]).max() > 0.1


def test_new_parameters_follow_from_seed_and_count() -> None:
    one = leaves(anew(lane_of(), jnp.int32(1)))
    for seed, count, equal in ((0, 1, True), (0, 2, False), (1, 1, False)):
        other = leaves(anew(lane_of(seed=seed), jnp.int32(count)))
        for name, x in one.items():
            if name.endswith("['w']"):
                assert np.any(x == other[name]) == equal, name


def test_a_padded_lane_in_a_crowd_is_the_plain_lane_alone() -> None:
    """The second lane begins anew, its neighbours do not."""
    wide = (OBS + 7, ACTION + 3)  # more inputs than units, unlike the lane alone
    states = [fresh(seed=seed)._replace(update_step=np.int32(2 + seed)) for seed in range(3)]
    args = (lane_of, filled, [SMALL] * 3, states, [[True] * 3])
    seen = check_crowd(sac.SRSAC, update, *args, wide=wide)
    for i, state in enumerate(seen[1]):
        far = np.abs(state.params["policy"]["mid"]["w"] - states[i].params["policy"]["mid"]["w"])
        assert (far.max() > 0.1) == (i == 1)


def test_it_is_registered_with_the_public_settings() -> None:
    agent = AGENTS["srsac"]
    config = replace(Config(own=agent.settings and agent.settings()), agent.defaults)
    own, learn = config.own, config.learn
    assert (own.critics, own.target_critics, own.policy_delay, own.policy_value) == (2, 2, 1, "min")
    assert (learn.updates_per_step, own.reset_every, config.seed_steps) == (16, 2_560_000, 10_000)
    assert (learn.batch, config.net.mlp, learn.learning_rate) == (256, 256, 3e-4)
    assert (own.init_temperature, own.target_entropy, own.log_std_min) == (1.0, -0.5, -10.0)
    assert (learn.target_momentum, learn.target_period, learn.seed_updates) == (0.995, 1, 0.0)


# Whole runs: 40 random steps, then 80 steps of 5 updates; a reset after every 33

FLAGS = ("probe/long", "probe/point", "--agent", "srsac", "--learn.updates-per-step", "5")
FLAGS += ("--srsac.reset-every", "33")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that was left alone."""
    folder = tmp_path_factory.mktemp("srsac") / "run"
    return small_run(folder, *FLAGS)[0], folder


def test_updates_and_resets_are_counted(whole) -> None:
    state, folder = whole
    assert state.learner.update_step.tolist() == [395, 395]  # none for the seed phase
    assert state.learner.opt[0][1].count.tolist() == [395 % 33, 395 % 33]
    last = list(csv.DictReader(open(folder / "train.csv")))[-1]
    made = 5 * (int(last["env_step"]) - 41)
    assert float(last["resets"]) == (made - 1) // 33 > 5 and float(last["skipped_updates"]) == 0


def test_a_run_goes_on_after_a_break_between_two_resets(whole, tmp_path) -> None:
    """Saved after 44 steps, that is 15 updates; the first reset comes after."""
    with broken_off({44}, 49):
        small_run(tmp_path / "run", *FLAGS)
    same(train(open_run(tmp_path / "run", quiet=True)), whole[0])


def test_it_does_not_matter_how_calls_group_updates(whole, tmp_path, monkeypatch) -> None:
    """Two by two, or as many as are due."""
    monkeypatch.setattr("ace.engine.program.AT_ONCE", 2)
    same(small_run(tmp_path / "run", *FLAGS)[0], whole[0])


def test_lanes_whose_updates_come_in_blocks_may_be_grouped(tmp_path, monkeypatch) -> None:
    """A lane makes its updates when its episode ends: a call ends where some lane has made all."""
    found, flags = [], (*FLAGS, "--learn.update-mode", "block")
    for at_once in (2, 32):
        monkeypatch.setattr("ace.engine.program.AT_ONCE", at_once)
        found.append(small_run(tmp_path / str(at_once), *flags)[0])
    same(*found)
    made = found[0].learner.update_step.tolist()
    assert all(n % 5 == 0 and 300 <= n < 395 for n in made) and made[0] != made[1], made


def test_it_is_evaluated_and_exported(whole, tmp_path: Path, capsys) -> None:
    cli.main(["eval", str(whole[1]), "--episodes", "2"])
    assert "2 episodes after 120 env steps" in " ".join(capsys.readouterr().out.split())
    cli.main(["export", str(whole[1]), str(tmp_path / "out"), "--lane", "1"])
    about = json.loads((tmp_path / "out" / "policy.json").read_text())
    assert about["agent"] == "srsac" and about["task"] == "probe/point"
