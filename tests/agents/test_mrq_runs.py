"""When MR.Q does what, and that lanes do not disturb each other; runs on tasks whose values are
known by hand, one that was broken off, and what follows a run."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace import cli
from ace.agents import AGENTS, mrq
from ace.envs import EnvSpec
from ace.settings import keys
from ace.settings.config import Config, flatten, replace
from ace.settings.presets import resolve
from ace.tools.speed import count_work
from tests.agents import mrq_twin as small
from tests.agents.mrq_twin import PERIOD, SMALL, filled, fresh, lane_of, update
from tests.agents.small import ACTION, OBS, WIDE, check_crowd, check_no_turn, sample
from tests.learn.known import DISCOUNT, VALUES, cases, judge
from tests.run.helpers import check_broken_run, csv_rows, leaves, most_skipped, small_run

# The schedule


def test_targets_and_encoder_have_their_turn_every_period() -> None:
    """At updates 0, 3 and 6 all networks are copied and the encoder makes three updates; in all
    others neither changes. Critics and policy learn in every one."""
    state, store = fresh(), filled()
    for i in range(2 * PERIOD + 1):
        before = jax.device_get(state)
        state, store, _ = update(lane_of(), state, store, 0, True)
        turn = i % PERIOD == 0
        wanted = before.params if turn else before.target
        for name, x in leaves(wanted).items():
            np.testing.assert_array_equal(leaves(state.target)[name], x, err_msg=name)
        for part, moved in (("encoder", turn), ("critics", True), ("policy", True)):
            for name, x in leaves(before.params[part]).items():
                changed = np.any(leaves(state.params[part])[name] != x)
                assert changed == moved, (i, part, name)
        assert state.scale[1] == (before.scale[0] if turn else before.scale[1])
        counts = [int(opt[1].count) for opt in state.opt]
        assert counts == [PERIOD * (i // PERIOD + 1), i + 1, i + 1]
        assert int(state.update_step) == i + 1


def test_the_encoder_learns_from_fresh_batches() -> None:
    """Its updates once more, one call after the other; critics and policy use what comes out."""
    state, store = fresh()._replace(update_step=np.int32(2 * PERIOD)), filled()
    after, _, metrics = update(lane_of(), state, store, 0, True)
    improve = jax.jit(mrq.improve_encoder)
    part, opt, seen = {"encoder": state.params["encoder"]}, state.opt[0], set()
    losses = []
    key = jax.random.fold_in(keys.key(0, "update", 2 * PERIOD), 2)
    for i in range(PERIOD):
        batch = sample(store, SMALL.replay, jax.random.fold_in(key, i), small.BATCH, small.HORIZON)
        seen |= {tuple(np.asarray(batch.index))}
        part, opt, told, _ = improve(lane_of(), state.params, part, opt, batch, jnp.bool_(True))
        losses.append(told["dynamics_loss"])
    assert len(seen) == PERIOD
    for name, x in leaves((part["encoder"], opt)).items():
        mine = leaves((after.params["encoder"], after.opt[0]))[name]
        np.testing.assert_allclose(mine, x, rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(metrics["dynamics_loss"], np.mean(losses), rtol=1e-5)


# Lanes


def test_a_lane_without_a_turn_stays_as_it_is() -> None:
    check_no_turn(update, lane_of(), fresh(), filled)


def test_a_padded_lane_in_a_crowd_is_the_plain_lane_alone() -> None:
    """The encoder of the second lane has its turn, those of its neighbours do not; the fourth lane
    has its turn and is not active."""
    starts = [PERIOD - 1, PERIOD, PERIOD + 1, PERIOD]
    states = [fresh(seed=i)._replace(update_step=np.int32(n)) for i, n in enumerate(starts)]
    turns = [[True, True, True, False]]
    seen = check_crowd(mrq.AGENT, update, lane_of, filled, [SMALL] * 4, states, turns)
    turned = [np.any(state.opt[0][1].mu["encoder"]["head"]["w"]) for state in seen[1]]
    assert turned == [False, True, False, False]
    obs = np.random.default_rng(0).normal(size=OBS).astype("f")
    for train in (True, False):
        found = []
        for lane, state, size in (
            (lane_of(), states[0], OBS),
            (lane_of(sizes=WIDE), mrq.pad(SMALL, states[0], WIDE), WIDE[0]),
        ):
            acting, seen = mrq.AGENT.acting_part(state), jnp.pad(obs, (0, size - OBS))
            rest = jnp.bool_(True), jnp.int32(0), jax.random.key(3), train
            found.append(np.asarray(mrq.act(lane, acting, (), seen, *rest)[0]))
        np.testing.assert_allclose(found[1][:ACTION], found[0], rtol=1e-5)
        np.testing.assert_array_equal(found[1][ACTION:], 0.0)


def test_noise_in_training_and_none_in_evaluation() -> None:
    state, lane = fresh(), lane_of()
    acting, obs = mrq.AGENT.acting_part(state), jnp.ones((2000, OBS))

    def act(train: bool) -> np.ndarray:
        def one(obs: jax.Array, key: jax.Array) -> jax.Array:
            return mrq.act(lane, acting, (), obs, jnp.bool_(0), jnp.int32(0), key, train)[0]

        return np.asarray(jax.vmap(one)(obs, jax.random.split(jax.random.key(0), 2000)))

    mean = np.tanh(small.np_raw(state.params, small.np_encode(state.params, np.ones(OBS))))
    np.testing.assert_allclose(act(False), np.tile(mean, (2000, 1)), rtol=1e-3)
    wanted = np.clip(mean + 0.2 * np.random.default_rng(0).normal(size=(200_000, ACTION)), -1, 1)
    np.testing.assert_allclose(act(True).std(0), wanted.std(0), rtol=0.06)
    assert np.abs(act(True)).max() <= 1


# Settings


def settings_of(agent: str, task: str = "dmc/cheetah-run") -> Config:
    spec, found = EnvSpec(task, 5, 2, max_episode_steps=1000, fixed_length=True), AGENTS[agent]
    own = found.settings and found.settings()
    return resolve("default", task, spec, found.defaults_of(task), found.overrides, own)


def test_the_public_numbers() -> None:
    both = {
        "action_repeat": 2,
        "seed_steps": 10_000,
        "net.latent": 512,
        "net.mlp": 512,
        "learn.batch": 256,
        "learn.discount": 0.99,
        "learn.learning_rate": 3e-4,
        "learn.policy_learning_rate": 3e-4,
        "learn.similarity_weight": 1.0,
        "learn.reward_weight": 0.1,
        "learn.smoothing_std": 0.2,
        "learn.smoothing_clip": 0.3,
        "learn.updates_per_step": 1,
        "learn.seed_updates": 0.0,
        "replay.priority_power": 0.4,
        "replay.importance_power": 0.0,
        "own.period": 250,
        "own.horizon": 5,
        "own.return_steps": 3,
        "own.embedding": 256,
        "own.exploration_std": 0.2,
    }
    differ = {
        "net.encoder": (512, 750),
        "own.encoder_learning_rate": (1e-4, 3e-4),
        "learn.weight_decay": (1e-4, 0.01),
        "learn.grad_clip": (20.0, 1e9),
        "own.done_weight": (0.1, 0.0),
        "own.contrast_weight": (0.0, 0.1),
        "own.contrast_temperature": (0.1, 0.1),
        "own.scale_rewards": (True, False),
        "own.action_penalty": (1e-5, 0.0),
        "own.forgetting": (1.0, 0.9999),
        "own.forgetting_floor": (0.1, 0.1),
    }
    for i, name in enumerate(("mrq", "drq")):
        found, agent = flatten(settings_of(name)), AGENTS[name]
        wanted = both | {key: values[i] for key, values in differ.items()}
        assert {key: found[key] for key in wanted} == wanted
        assert agent.segment(settings_of(name)) == 5
        for key in agent.defaults:
            read = any(key == s or key.startswith(f"{s}.") for s in agent.sections)
            assert read or "." not in key, key
    assert settings_of("mrq", "gym/Pendulum-v1").action_repeat == 1


# Whole runs

TASKS = ("discount", "truncation", "action_observation")
FLAGS = (
    "--agent mrq --env-steps 560 --seed-steps 200 --eval-every 560 --net.mlp 24 --net.encoder 24 "
    f"--net.latent 12 --mrq.embedding 4 --learn.batch 48 --learn.discount {DISCOUNT} "
    "--mrq.period 14 --mrq.horizon 3 --mrq.encoder-learning-rate 2e-3 --learn.learning-rate 4e-3 "
    "--learn.policy-learning-rate 3e-3 --replay.capacity 1200"
)
ARGV = (*[f"probe/{t}" for t in TASKS], *FLAGS.split())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The final state of the uninterrupted run, and the run."""
    return small_run(tmp_path_factory.mktemp("mrq") / "run", *ARGV)


# How near to the value: where it depends on the action the policy adds its own error.
WITHIN = {"discount": 0.05, "truncation": 0.05, "action_observation": 0.2}


@pytest.mark.parametrize(
    "task, obs, value, within", [(*case, WITHIN[case[0]]) for case in cases(VALUES, TASKS)]
)
def test_value(whole, task, obs, value, within):
    np.testing.assert_allclose(judge(whole, task, obs)[0], value, rtol=within)


@pytest.mark.parametrize("obs", [0.5, -0.5])
def test_action(whole, obs):
    np.testing.assert_allclose(judge(whole, "action_observation", obs)[1], obs, atol=0.3)


def test_updates_are_counted(whole):
    """359 of critics and policy, none for the seed phase; 14 of the encoder at every 14th."""
    learner, rows = whole[0].learner, csv_rows(whole[1].folder, "train.csv")
    assert learner.update_step.tolist() == [359] * 3
    assert learner.opt[0][1].count.tolist() == [364] * 3
    assert most_skipped(whole[1]) == 0
    # Half of the steps of `discount` are rewarded with 1, all of `truncation`.
    scales = [[r for r in rows if r["lane"] == lane][-1]["reward_scale"] for lane in "01"]
    np.testing.assert_allclose([float(x) for x in scales], [0.5, 1.0], atol=0.01)


def test_a_broken_run_ends_like_the_whole_one(tmp_path):
    """Saved between two turns of the encoder, which are at 201, 215, 229 and 243."""
    short = (*ARGV, "--env-steps", "250")
    whole = small_run(tmp_path / "whole", *short)
    check_broken_run(whole, tmp_path / "broken", [({222}, 232)], *short)


def test_it_is_evaluated_and_exported(whole, tmp_path: Path, capsys) -> None:
    folder = str(whole[1].folder)
    cli.main(["eval", folder, "--episodes", "2"])
    assert "2 episodes after 560 env steps" in " ".join(capsys.readouterr().out.split())
    cli.main(["export", folder, str(tmp_path / "out"), "--lane", "1"])
    about = json.loads((tmp_path / "out" / "policy.json").read_text())
    assert about["agent"] == "mrq" and about["task"] == "probe/truncation"


def test_the_turn_of_the_encoder_is_rare_work(whole) -> None:
    """`ace speed` counts an update of critics and policy, however long a period is."""
    made, found = whole[1], []
    for period in (14, 140):
        setups = [s._replace(config=replace(s.config, {"own.period": period})) for s in made.setups]
        found.append(count_work(dataclasses.replace(made, setups=setups))["update"])
    assert found[0] == found[1] > 0
