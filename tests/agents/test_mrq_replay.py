"""What MR.Q and DR.Q take from the replay and write to it: priorities, the mean reward in store,
and segments that are forgotten with age."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace import replay
from ace.method.model import action_normal
from ace.method.types import Transition
from ace.settings import keys
from ace.settings.config import replace
from tests.agents.mrq_twin import (
    ACTION,
    BATCH,
    OBS,
    SMALL,
    STEPS,
    add,
    constant_critics,
    filled,
    fresh,
    lane_of,
    learn,
    rewards_of,
    update,
)
from tests.agents.small import sample

forget = jax.jit(replay.forget)


def test_priorities_are_those_of_lap() -> None:
    """max(error, 1)^0.4 of the sampled segments, the others unchanged; a new one gets the largest,
    and there are no importance weights."""
    store = filled()
    state = fresh()._replace(update_step=np.int32(1))  # not the encoder's turn
    key = jax.random.fold_in(keys.key(0, "update", 1), 0)
    batch = sample(store, SMALL.replay, key, BATCH, STEPS)
    eps = action_normal(jax.random.fold_in(keys.key(0, "update", 1), 1), (BATCH,), jnp.ones(ACTION))
    np.testing.assert_array_equal(batch.weight, 1.0)
    near = constant_critics(state.params, (0.1, -0.2))
    for factor in (1.0, 100.0):  # errors around 1, and large ones
        big = state._replace(params=near, target=near, scale=np.full(2, 1 / factor, "f"))
        error = np.asarray(learn(lane_of(), big, batch, eps, jnp.bool_(True))[1], np.float64)
        _, after, _ = update(lane_of(), big, store, 0, True)
        wanted = np.array(store.tree.sums[0], np.float64)
        wanted[np.asarray(batch.index)] = np.maximum(error, 1.0) ** 0.4
        np.testing.assert_allclose(after.tree.sums[0], wanted, rtol=1e-4)
        assert (error < 1).any() == (factor == 1.0)
    step = Transition(
        jnp.zeros(ACTION), jnp.float32(0), jnp.bool_(False), jnp.bool_(True), *jnp.zeros((2, OBS))
    )
    new = np.asarray(add(after, step).tree.sums[0])[int(after.cursor)]
    np.testing.assert_allclose(new, wanted.max(), rtol=1e-5)


@pytest.mark.parametrize("steps", [7, 40, 70])  # the ring of 60 slots is then full
def test_the_unit_is_the_mean_absolute_reward_in_store(steps: int) -> None:
    """Counted from the last steps; slots of final observations hold old rewards and no step."""
    rewards = rewards_of(steps)
    store = filled(steps)
    # Newest first: the slot to act on, then six slots for every whole episode.
    left, kept = 59, []
    for i in range(steps - 1, -1, -1):
        left -= 1 + (i % 5 == 4)
        if left < 0:
            break
        kept.append(abs(rewards[i]))
    real = np.asarray(replay.steps_in_store(store))
    assert real.sum() == len(kept)
    state = fresh()
    after, _, metrics = update(lane_of(), state, store, 0, True)
    wanted = np.array([np.mean(kept), 0.5])
    np.testing.assert_allclose(after.scale, wanted, rtol=1e-5)
    np.testing.assert_allclose(metrics["reward_scale"], np.mean(kept), rtol=1e-5)
    first, *_ = update(lane_of(), state._replace(scale=np.zeros(2, "f")), store, 0, True)
    np.testing.assert_allclose(first.scale, np.mean(kept), rtol=1e-5)  # both begin with it
    if steps == 7:  # without rewards critics count in ones
        nothing = store._replace(reward=0 * store.reward)
        after, _, metrics = update(lane_of(), state, nothing, 0, True)
        assert after.scale[0] == 0 and metrics["reward_scale"] == 1
    slots = np.asarray(replay.steps_in_store(replay.drop(store, jnp.bool_(True))))
    assert slots.sum() == len(kept) - steps % 5  # of the running episode nothing is left


@pytest.mark.parametrize("steps", [40, 70])
def test_old_segments_are_sampled_less_often(steps: int) -> None:
    """Priority times max(0.9^age, 0.1): weights of the tree, and shares of what is drawn."""
    store = filled(steps)
    rng = np.random.default_rng(1)
    given = np.where(np.asarray(store.tree.sums[0][:60]) > 0, rng.uniform(1, 3, 60), 0)
    store = store._replace(tree=replay.build_tree(jnp.asarray(given, jnp.float32)))
    wanted, cursor = np.zeros(60), int(store.cursor)
    for age in range(60):
        slot = (cursor - age) % 60
        wanted[slot] = given[slot] * max(0.9**age, 0.1)
    recent = forget(store, 0.9, 0.1)
    np.testing.assert_allclose(recent.tree.sums[0][:60], wanted, rtol=1e-4)
    drawn = np.asarray(sample(recent, SMALL.replay, jax.random.key(0), 20_000, 1).index)
    shares = np.bincount(drawn, minlength=60) / 20_000
    np.testing.assert_allclose(shares, wanted / wanted.sum(), atol=0.01)


def test_drq_draws_what_is_not_forgotten() -> None:
    """With a floor of zero and a steep factor only the newest segment is drawn; its priority is
    written to the whole tree."""
    changes = {"own.forgetting": 0.001, "own.forgetting_floor": 0.0}
    config = replace(SMALL, changes)
    store, state = filled(), fresh()._replace(update_step=np.int32(1), scale=np.ones(2, "f"))
    state = state._replace(target=constant_critics(state.params, (1e4, 1e4)))
    _, after, _ = update(lane_of(config), state, store, 0, True)
    changed = np.flatnonzero(np.asarray(after.tree.sums[0] != store.tree.sums[0]))
    assert changed.tolist() == [(int(store.cursor) - 2) % 60]  # behind the final observation
    assert np.count_nonzero(after.tree.sums[0]) == 40
