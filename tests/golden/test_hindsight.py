"""Hindsight against a plain, slow implementation on lists of random episodes (3.10)."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (NumPy arrays are as good as JAX's here.)

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace import replay
from ace.envs import Goal, relabel
from ace.envs.api import EnvSpec
from ace.envs.goals import check_goal
from ace.method.types import Batch, Transition
from ace.replay.hindsight import steps_left
from ace.settings.config import ReplayConfig


def near(xp: Any, achieved: Any, desired: Any) -> Any:
    """A reward for a near goal, a smaller one for the sub-goal, else a penalty."""
    offset = achieved - desired
    close = offset[..., 0] ** 2 + offset[..., 1] ** 2 < 1
    return xp.where(close, 2.0, -0.5) + 0.25 * (offset[..., 2] >= 0)


# Entries: error (2), episode, step, achieved (3), nothing, desired (3); the last of three is fixed.
GOAL = Goal(achieved=(4, 7), desired=(8, 11), error=(0, 2), rule=near, fixed=1)
SIZE, HORIZON, REPEAT = 11, 4, 2
HINDSIGHT = replay.Hindsight(GOAL, relabel, REPEAT)

add = jax.jit(replay.add)
sample = jax.jit(replay.sample, static_argnums=(3, 4))
drop = jax.jit(replay.drop)


class Journal:
    """A replay with hindsight beside plain lists of its episodes; every position is unlike all
    others, so a goal tells at which step it was achieved."""

    def __init__(self, capacity: int, seed: int):
        self.rng = np.random.default_rng(seed)
        self.episodes: list[list[np.ndarray]] = []  # of each, its observations so far
        self.store = replay.init(capacity, jnp.asarray(self.begin()), 1, HORIZON, HINDSIGHT)

    def begin(self) -> np.ndarray:
        self.target = [*self.rng.normal(size=2), 0.5]
        self.place = self.rng.normal(size=2)
        self.episodes.append([])
        return self.observe()

    def observe(self) -> np.ndarray:
        episode = self.episodes[-1]
        self.place = self.place + self.rng.normal(size=2) * 0.5
        achieved = np.array([*self.place, self.rng.random()], np.float32)
        desired = np.array(self.target, np.float32)
        name = [len(self.episodes) - 1, len(episode)]
        error = desired[:2] - achieved[:2]
        obs = np.array([*error, *name, *achieved, 7.0, *desired], np.float32)
        episode.append(obs)
        return obs

    def step(self, done: bool, terminated: bool = False) -> None:
        final = self.observe()
        reward = REPEAT * near(np, final[4:7], final[8:11]) + self.rng.normal()  # unlike the rule's
        step = Transition(
            action=self.rng.normal(size=1).astype(np.float32),
            reward=np.float32(reward),
            terminated=np.bool_(terminated),
            done=np.bool_(done),
            final_obs=final,
            obs=self.begin() if done else final,
        )
        self.store = add(self.store, step)

    def play(self, episodes: int) -> None:
        for _ in range(episodes):
            length = int(self.rng.integers(1, 13))
            for t in range(length):
                done = t == length - 1
                self.step(done, bool(done and self.rng.random() < 0.5))


def draw(store: replay.Replay, share: float, key: int, size: int = 128) -> tuple[Batch, Batch]:
    """The same segments without and with hindsight."""
    config = ReplayConfig(hindsight=share)
    plain = sample(store._replace(hindsight=None), config, jax.random.key(key), size, HORIZON)
    other = sample(store, config, jax.random.key(key), size, HORIZON)
    return jax.tree.map(np.asarray, plain), jax.tree.map(np.asarray, other)


def slow(journal: Journal, plain: Batch, column: int, goal_at: int) -> tuple[list, list]:
    """Observations and rewards of one segment with the goal achieved at a step of its episode."""
    episode, t = (int(x) for x in plain.obs[0, column, 2:4])
    history = journal.episodes[episode]
    goal = history[goal_at][4:6]
    seen, rewards = [], []
    for k in range(HORIZON + 1):
        obs = history[min(t + k, len(history) - 1)].copy()
        obs[8:10] = goal
        obs[0:2] = goal - obs[4:6]
        seen.append(obs)
        if k > 0:
            real = t + k < len(history)
            close = np.sum((obs[4:6] - goal) ** 2) < 1
            one = (2.0 if close else -0.5) + (0.25 if obs[6] >= obs[10] else 0.0)
            rewards.append(REPEAT * one if real else 0.0)
    return seen, rewards


def achieved_at(journal: Journal, episode: int, goal: np.ndarray) -> int:
    """The step of an episode at which a goal was achieved."""
    places = np.stack([obs[4:6] for obs in journal.episodes[episode]])
    (found,) = np.flatnonzero((places == goal).all(1))
    return int(found)


def check(journal: Journal, key: int) -> int:
    """Compare a batch with the slow implementation; gives how many segments had another goal."""
    plain, other = draw(journal.store, 0.8, key)
    for name in ("action", "continues", "mask", "weight", "index"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(other, name), err_msg=name)
    moved = (plain.obs[0, :, 8:10] != other.obs[0, :, 8:10]).any(1)
    np.testing.assert_array_equal(plain.obs[:, ~moved], other.obs[:, ~moved])
    np.testing.assert_array_equal(plain.reward[:, ~moved], other.reward[:, ~moved])
    for column in np.flatnonzero(moved):
        episode, t = (int(x) for x in plain.obs[0, column, 2:4])
        goal_at = achieved_at(journal, episode, other.obs[0, column, 8:10])
        assert t < goal_at < len(journal.episodes[episode])
        seen, rewards = slow(journal, plain, column, goal_at)
        np.testing.assert_array_equal(other.obs[:, column], seen)
        np.testing.assert_array_equal(other.reward[:, column], np.array(rewards, np.float32))
    return int(moved.sum())


@pytest.mark.parametrize("capacity", [33, 64, 150])
def test_segments_with_other_goals_equal_the_slow_ones(capacity: int) -> None:
    check_goal(EnvSpec("made up", SIZE, 1, 12, goal=GOAL))
    journal, moved = Journal(capacity, capacity), 0
    for key in range(12):  # about 70 slots for ten episodes: small rings go round several times
        journal.play(3)
        for _ in range(int(journal.rng.integers(0, 7))):  # a part of an episode that goes on
            journal.step(False)
        moved += check(journal, key)
    assert len(journal.episodes) > 30 and int(journal.store.stored) == capacity
    share = moved / (12 * 128)
    assert abs(share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / (12 * 128))


def test_an_episode_that_fills_the_ring_and_one_that_was_dropped() -> None:
    journal = Journal(33, 1)
    for _ in range(80):
        journal.step(False)
    assert check(journal, 0)
    journal.step(True)
    assert check(journal, 1)
    for _ in range(6):
        journal.step(False)
    last = journal.episodes[-1][-1]
    journal.store = drop(journal.store, jnp.bool_(True))
    journal.episodes[-1] = [last]
    assert check(journal, 2)


def test_every_later_step_has_the_same_chance() -> None:
    """Of an ended episode up to its last observation, of a running one up to the newest."""
    journal = Journal(20, 3)
    for t in range(7):
        journal.step(t == 6)
    for _ in range(6):
        journal.step(False)
    counts = np.zeros((2, 9, 9))  # by episode, start and step of the goal
    for key in range(4):
        plain, other = draw(journal.store, 1.0, key, 2048)
        for column in range(2048):
            episode, t = (int(x) for x in plain.obs[0, column, 2:4])
            goal_at = achieved_at(journal, episode, other.obs[0, column, 8:10])
            counts[episode, t, goal_at] += 1
    chi_square, freedom = 0.0, 0
    for episode, last, starts in ((0, 7, 7), (1, 6, 3)):
        for t in range(starts):
            row = counts[episode, t]
            assert row.sum() > 600 and row[t + 1 : last + 1].sum() == row.sum()
            expected = row.sum() / (last - t)
            chi_square += np.sum((row[t + 1 : last + 1] - expected) ** 2) / expected
            freedom += last - t - 1
    assert freedom == 33 and chi_square < 72.0  # one in ten thousand


def test_without_hindsight_nothing_changes_and_with_share_one_all_do() -> None:
    journal = Journal(60, 5)
    journal.play(8)
    plain, other = draw(journal.store, 0.0, 0)
    jax.tree.map(np.testing.assert_array_equal, plain, other)
    plain, other = draw(journal.store, 1.0, 0)
    assert (plain.obs[0, :, 8] != other.obs[0, :, 8]).all()
    np.testing.assert_array_equal(plain.obs[..., 2:8], other.obs[..., 2:8])
    np.testing.assert_array_equal(plain.obs[..., 10], other.obs[..., 10])  # fixed


def test_a_lane_in_a_crowd_draws_what_it_draws_alone() -> None:
    journals = [Journal(40, seed) for seed in (1, 2, 3)]
    for journal in journals:
        journal.play(9)
    shares = np.array([0.0, 0.5, 0.8], np.float32)
    stores = jax.tree.map(lambda *x: jnp.stack(x), *(j.store for j in journals))

    def one(store: replay.Replay, share: jax.Array, key: jax.Array) -> Batch:
        return replay.sample(store, ReplayConfig(hindsight=share), key, 64, HORIZON)

    crowd = jax.jit(jax.vmap(one))(stores, shares, jax.vmap(jax.random.key)(jnp.arange(3)))
    for lane, journal in enumerate(journals):
        alone = jax.jit(one)(journal.store, shares[lane], jax.random.key(lane))
        for name, found in alone._asdict().items():
            together = getattr(crowd, name)[lane]
            np.testing.assert_allclose(together, found, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("capacity", [7, 64, 65, 200])
def test_ends_of_episodes_are_found_all_around_the_ring(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    for chance in (0.0, 0.03, 0.3):
        final = rng.random(capacity) < chance
        cursor = int(rng.integers(capacity))
        final[cursor] = False
        starts = np.flatnonzero(~final & (np.arange(capacity) != cursor))
        found = jax.jit(steps_left)(final, starts, cursor)
        for start, steps in zip(starts, np.asarray(found), strict=True):
            after = (start + 1 + np.arange(capacity)) % capacity
            expected = 1 + np.flatnonzero(final[after] | (after == cursor))[0]
            assert steps == expected
